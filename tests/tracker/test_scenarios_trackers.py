"""Forks, copies and deleted models; trackers that come and go: trees, and the oracle."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import weakref
from inspect import cleandoc
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

from otel_modtrack import ModTracker
from otel_modtrack.testing import assert_tree_equals
from tests.tracker.oracle import watched

if TYPE_CHECKING:
    from collections.abc import Callable


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


# -- processes, copies, deletion ------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_no_tracking_in_a_forked_child() -> None:
    """A forked child, as a DataLoader's worker, is not tracked; the parent goes on."""
    net = mlp()
    with watched(net) as run:
        child = os.fork()
        if not child:
            code = 1
            try:
                before = len(run.spans)
                net(torch.ones(1, 3))
                on = "modtrack:enter" in str(nn.Module._wrapped_call_impl.__code__.co_consts)
                code = 0 if len(run.spans) == before and not on else 2
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        iterate(net)
    assert_tree_equals(run.tree, TWO)


def test_deepcopy_and_pickle() -> None:
    """A tracked model can be copied and pickled, and its copies are models of their own."""
    net = mlp()
    with watched(net) as run:
        iterate(net)
        twin = copy.deepcopy(net)
        iterate(twin)
        restored = pickle.loads(pickle.dumps(net))  # noqa: S301 - our own
        iterate(restored)
    assert_tree_equals(run.tree, "\n".join(TWO.replace("Sequential", name) for name in NAMES))


def test_deepcopy_of_outputs_under_tracking() -> None:
    """What hangs on a graph does not come along with a copied leaf or detached output."""
    net = mlp()
    with watched(net) as run:
        out = net(torch.ones(1, 3))
        copy.deepcopy(out.detach())
        pickle.dumps(out.detach())
        out.sum().backward()
    assert_tree_equals(run.tree, TWO)


def test_model_deleted_before_backward() -> None:
    """A model that is gone when its graph is run backward has its regions all the same."""
    net = mlp()
    with watched() as run:
        loss = net(torch.ones(1, 3)).sum()
        gone = weakref.ref(net)
        del net
        gc.collect()
        assert gone() is None
        loss.backward()
    assert_tree_equals(run.tree, TWO)


# -- trackers that come and go --------------------------------------------------------------------


def test_tracker_left_between_forward_and_backward() -> None:
    """A forward seen whose backward runs later has no backward regions, and no fault."""
    net = mlp()
    with watched(net, nodes=False, partly=True) as run:
        with run.tracker:
            loss = net(torch.ones(1, 3)).sum()
        loss.backward(retain_graph=True)
        with run.tracker:
            loss.backward()
    assert_tree_equals(
        run.tree, "forward Sequential\n  forward Sequential.0\n  forward Sequential.1"
    )


def test_tracker_entered_between_forward_and_backward() -> None:
    """A backward whose forward was not seen has no regions."""
    net = mlp()
    with watched(net, nodes=False, partly=True) as run:
        loss = net(torch.ones(1, 3)).sum()
        with run.tracker:
            loss.backward()
    assert_tree_equals(run.tree, "")


def test_tracker_entered_before_a_backward_of_two_forwards() -> None:
    """Of a graph that was half seen, the half that was seen has regions."""
    first, second = mlp(), nn.Linear(1, 1)
    with watched(first, second, partly=True) as run:
        hidden = first(torch.ones(1, 3))
        with run.tracker:
            second(hidden).sum().backward()
    assert_tree_equals(run.tree, "forward Linear\nbackward\n  backward Linear")


def test_tracker_left_inside_a_forward() -> None:
    """A tracker that is left or entered in the middle of a call leaves nothing over."""

    class Switches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(3, 3)

        def forward(self, x: torch.Tensor, switch: Callable[[], object]) -> torch.Tensor:
            x = self.lin(x)
            switch()
            return self.lin(x)

    net = Switches()
    with watched(net, partly=True) as run:
        run.tracker.__enter__()
        net(torch.ones(1, 3), lambda: run.tracker.__exit__(None, None, None)).sum().backward()
        iterate(net.lin)
        net(torch.ones(1, 3), run.tracker.__enter__).sum().backward()
        iterate(net.lin)
        run.tracker.__exit__(None, None, None)
        iterate(net.lin)
    assert_tree_equals(
        run.tree,
        """
        forward Switches
          forward Switches.lin
        forward Switches.lin
        backward
          backward Switches.lin
        forward Switches.lin
        backward
          backward Switches.lin
        """,
    )


def test_tracker_left_inside_a_backward() -> None:
    """A tracker that a hook leaves in the middle of a backward: the iteration after is clean."""
    net = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
    with watched(net, partly=True) as run:
        run.tracker.__enter__()
        hidden = net[0](torch.ones(1, 3))
        hidden.register_hook(lambda _: run.tracker.__exit__(None, None, None))
        net[2](net[1](hidden)).sum().backward()
        with run.tracker:
            iterate(net)
    assert run.tree.endswith(
        cleandoc(
            """
            forward Sequential
              forward Sequential.0
              forward Sequential.1
              forward Sequential.2
            backward
              backward Sequential
                backward Sequential.2
                backward Sequential.1
                backward Sequential.0
            """
        )
    )


def test_nested_trackers() -> None:
    """Two trackers at once report each region once; the outer one outlives the inner."""
    net = mlp()
    with watched(net) as run:
        with ModTracker(net):
            iterate(net)
        iterate(net)
    assert_tree_equals(run.tree, f"{TWO}\n{TWO}")


def test_one_tracker_entered_twice() -> None:
    """A tracker that is entered again inside itself goes on until the outer end."""
    net = mlp()
    with watched(net) as run:
        with run.tracker:
            iterate(net)
        iterate(net)
    assert_tree_equals(run.tree, f"{TWO}\n{TWO}")


def test_trackers_in_sequence() -> None:
    """A tracker can be used again, and names stay."""
    net = mlp()
    with watched(net, partly=True) as run:
        for _ in range(3):
            with run.tracker:
                iterate(net)
        iterate(net)
    assert_tree_equals(run.tree, f"{TWO}\n{TWO}\n{TWO}")


def test_trackers_left_in_the_wrong_order() -> None:
    """Trackers may be left in any order."""
    net = mlp()
    with watched(net, partly=True) as run:
        other = ModTracker(net, tracer_provider=run.provider)
        run.tracker.__enter__()
        other.__enter__()
        iterate(net)
        run.tracker.__exit__(None, None, None)
        iterate(net)
        other.__exit__(None, None, None)
        iterate(net)
    assert_tree_equals(run.tree, f"{TWO}\n{TWO}")
