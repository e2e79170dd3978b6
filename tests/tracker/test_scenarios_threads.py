"""Forwards and backwards in several threads: whole trees, and the oracle."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from inspect import cleandoc
from typing import TYPE_CHECKING

import torch
from torch import nn

from otel_modtrack.testing import assert_tree_equals
from tests.tracker.oracle import Watched, watched

if TYPE_CHECKING:
    from collections.abc import Callable

    from opentelemetry.sdk.trace import ReadableSpan

TWO = cleandoc(
    """
    forward Sequential
      forward Sequential.0
      forward Sequential.1
    backward
      backward Sequential
        backward Sequential.1
        backward Sequential.0
    """
)

NAMES = ("Sequential", "Sequential#2", "Sequential#3")


def mlp() -> nn.Sequential:
    """Two linear layers."""
    return nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))


def iterate(net: nn.Module) -> None:
    """One forward and backward."""
    net(torch.ones(1, 3)).sum().backward()


def in_threads(*functions: Callable[[], object]) -> None:
    """Run all at the same time, each in a thread of its own."""
    barrier = threading.Barrier(len(functions))

    def one(function: Callable[[], object]) -> object:
        barrier.wait()
        return function()

    with ThreadPoolExecutor(len(functions)) as pool:
        for future in [pool.submit(one, function) for function in functions]:
            future.result()


def by_trace(run: Watched) -> list[str]:
    """The tree of each trace, in order of their text."""
    traces: dict[int, list[ReadableSpan]] = {}
    for span in run.spans:
        traces.setdefault(span.context.trace_id, []).append(span)
    return sorted(run.tree_of(spans) for spans in traces.values())


def test_inference_in_several_threads() -> None:
    """Calls in several threads, of one model, are trees of their own."""
    net = mlp().eval()

    def infer() -> None:
        with torch.no_grad():
            for _ in range(10):
                net(torch.ones(1, 3))

    with watched(net, nodes=False) as run:
        in_threads(*[infer] * 4)
    one = "forward Sequential\n  forward Sequential.0\n  forward Sequential.1"
    assert by_trace(run) == [one] * 40


def test_training_in_several_threads() -> None:
    """Forward and backward in several threads at once, each with a model of its own."""
    nets = [mlp() for _ in range(3)]

    def train(net: nn.Module) -> None:
        for _ in range(5):
            iterate(net)

    with watched(*nets, threads=True) as run:
        in_threads(*[lambda net=net: train(net) for net in nets])
    trees = [TWO.replace("Sequential", name) for name in NAMES]
    assert by_trace(run) == sorted(tree for tree in trees for _ in range(5))


def test_training_one_model_in_several_threads() -> None:
    """Hogwild: the same model in several threads; each backward is in its own forward's trace."""
    net = mlp()
    with watched(net, threads=True) as run:
        in_threads(*[lambda: [iterate(net) for _ in range(5)]] * 3)
    assert by_trace(run) == [TWO] * 15


def test_backward_in_another_thread() -> None:
    """A backward that another thread runs has the regions of the forward's thread."""
    net = mlp()
    with watched(net) as run:
        net(torch.ones(1, 3)).sum().backward()
        loss = net(torch.ones(1, 3)).sum()
        in_threads(loss.backward)
    assert_tree_equals(run.tree, f"{TWO}\n{TWO}")


def test_backward_in_another_thread_that_has_a_forward_of_its_own() -> None:
    """Numbers of two threads that look alike are not mixed up."""
    net, other = mlp(), nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    losses = []
    with watched(net, other) as run:
        losses.append(net(torch.ones(1, 3)).sum())

        def elsewhere() -> None:
            mine = other(torch.ones(1, 3)).sum()
            losses[0].backward()
            mine.backward()

        in_threads(elsewhere)
    assert_tree_equals(
        run.tree,
        """
        forward Sequential
          forward Sequential.0
          forward Sequential.1
        forward Sequential#2
          forward Sequential#2.0
          forward Sequential#2.1
        backward
          backward Sequential
            backward Sequential.1
            backward Sequential.0
        backward
          backward Sequential#2
            backward Sequential#2.1
            backward Sequential#2.0
        """,
    )


def test_fan_out_to_threads_under_one_backward() -> None:
    """As the old DataParallel: replicas run in threads, and one backward runs through all."""
    net = mlp()

    def forward(parts: list[torch.Tensor], index: int) -> None:
        parts[index] = net(torch.ones(1, 3))

    with watched(net) as run:
        parts = [torch.zeros(1)] * 2
        in_threads(*[lambda index=index: forward(parts, index) for index in range(2)])
        torch.cat(parts).sum().backward()
    lines = run.tree.splitlines()
    assert lines.count("backward") == 1
    assert lines.count("  backward Sequential") == 2
    assert lines.count("    backward Sequential.1") == 2
    assert lines.count("    backward Sequential.0") == 2


def test_thread_started_by_a_forward() -> None:
    """What a thread runs is not in the call that started it: threads are isolated."""

    class Starts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.here, self.there = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            in_threads(lambda: self.there(x))
            return self.here(x)

    net = Starts()
    with watched(net) as run:
        iterate(net)
    assert_tree_equals(
        run.tree,
        """
        forward Starts
          forward Starts.here
        forward Starts.there
        backward
          backward Starts
            backward Starts.here
        """,
    )
