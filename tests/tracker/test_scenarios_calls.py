"""Which call is which, what it is named, and what runs in it: whole trees, and the oracle."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from otel_modtrack import ModTracker, region
from otel_modtrack.testing import Tree, assert_tree_equals
from tests.intervals import check_intervals
from tests.tracker.oracle import watched

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator

    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


class Net(nn.Module):
    """Runs `body(net, *inputs)`; its children are the keyword arguments."""

    def __init__(self, body: Any, **children: nn.Module) -> None:
        super().__init__()
        self.body = body
        for name, child in children.items():
            self.add_module(name, child)

    def forward(self, *args: Any) -> Any:
        return self.body(self, *args)


LINEAR = "forward Linear\nbackward\n  backward Linear"


# -- which call is which --------------------------------------------------------------------------


def test_shared_module_called_twice() -> None:
    """Each call of a shared module has regions of its own, numbered by call."""
    net = Net(lambda m, x: m.b(m.shared(m.a(m.shared(x)))), shared=nn.Linear(3, 3))
    net.a, net.b = nn.Linear(3, 3), nn.Linear(3, 3)
    with watched(net) as run:
        net(torch.ones(1, 3)).sum().backward()
    assert_tree_equals(
        run.tree,
        """
        forward Net
          forward Net.shared
          forward Net.a
          forward Net.shared
          forward Net.b
        backward
          backward Net
            backward Net.b
            backward Net.shared
            backward Net.a
            backward Net.shared
        """,
    )
    calls = [span.attributes["modtrack.module.call_index"] for span in run.of("Net.shared")]
    assert calls == [0, 1, 1, 0]


def test_module_under_two_names() -> None:
    """A module that is a child twice keeps one name."""
    shared = nn.Linear(3, 3)
    net = nn.Sequential(shared, nn.ReLU(), shared)
    with watched(net) as run:
        net(torch.ones(1, 3)).sum().backward()
    assert_tree_equals(
        run.tree,
        """
        forward Sequential
          forward Sequential.0
          forward Sequential.1
          forward Sequential.0
        backward
          backward Sequential
            backward Sequential.0
            backward Sequential.1
            backward Sequential.0
        """,
    )


def test_recursion() -> None:
    """A module that calls itself is nested in itself."""

    def body(m: Any, x: torch.Tensor, depth: int) -> torch.Tensor:
        x = m.lin(x)
        return m(x, depth - 1).tanh() if depth else x

    net = Net(body, lin=nn.Linear(3, 3))
    with watched(net) as run:
        net(torch.ones(1, 3), 2).sum().backward()
    assert_tree_equals(
        run.tree,
        """
        forward Net
          forward Net.lin
          forward Net
            forward Net.lin
            forward Net
              forward Net.lin
        backward
          backward Net
            backward Net
              backward Net
                backward Net.lin
              backward Net.lin
            backward Net.lin
        """,
    )


def test_two_models_of_one_class() -> None:
    """Two living models of one class are told apart, and the template is the same."""
    first, second = nn.Sequential(nn.Linear(3, 3)), nn.Sequential(nn.Linear(3, 3))
    with watched(first, second) as run:
        second(first(torch.ones(1, 3))).sum().backward()
        first(torch.ones(1, 3))
    assert_tree_equals(
        run.tree,
        """
        forward Sequential
          forward Sequential.0
        forward Sequential#2
          forward Sequential#2.0
        backward
          backward Sequential#2
            backward Sequential#2.0
          backward Sequential
            backward Sequential.0
        forward Sequential
          forward Sequential.0
        """,
    )
    templates = {span.attributes.get("modtrack.module.template") for span in run.spans}
    assert templates == {None, "Sequential", "Sequential.*"}


def test_submodule_met_before_its_parent() -> None:
    """Without a model given, what is called first is a root, and stays so below its parent."""
    net = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    with watched() as run:
        net[0](torch.ones(1, 3))
        net(torch.ones(1, 3)).sum().backward()
    assert_tree_equals(
        run.tree,
        """
        forward Linear
        forward Sequential
          forward Linear
          forward Sequential.1
        backward
          backward Sequential
            backward Sequential.1
            backward Linear
        """,
    )


def test_submodule_called_alone() -> None:
    """With the model given, a submodule that is called by itself has its name in the model."""
    net = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    with watched(net) as run:
        net[0](torch.ones(1, 3)).sum().backward()
    assert_tree_equals(run.tree, "forward Sequential.0\nbackward\n  backward Sequential.0")


def test_module_added_later() -> None:
    """A child that is added after the first call gets its name below its parent."""
    net = nn.Sequential(nn.Linear(3, 3))
    with watched(net) as run:
        net(torch.ones(1, 3))
        net.append(nn.Sequential(nn.Linear(3, 3)))
        net(torch.ones(1, 3)).sum().backward()
    assert_tree_equals(
        run.tree,
        """
        forward Sequential
          forward Sequential.0
        forward Sequential
          forward Sequential.0
          forward Sequential.1
            forward Sequential.1.0
        backward
          backward Sequential
            backward Sequential.1
              backward Sequential.1.0
            backward Sequential.0
        """,
    )


def test_module_replaced() -> None:
    """A child that takes another's place has its name."""
    net = nn.Sequential(nn.Linear(3, 3))
    with watched(net) as run:
        net(torch.ones(1, 3))
        net[0] = nn.Linear(3, 3)
        net(torch.ones(1, 3))
        net[0](torch.ones(1, 3)).sum().backward()
    one = "forward Sequential\n  forward Sequential.0\n"
    assert_tree_equals(
        run.tree, one * 2 + "forward Sequential.0\nbackward\n  backward Sequential.0"
    )


def test_module_held_outside_of_the_tree() -> None:
    """A module in a plain list is a root of its own, nested where it is called."""
    hidden = [nn.Linear(3, 3)]
    net = Net(lambda m, x: m.lin(hidden[0](x)), lin=nn.Linear(3, 3))
    with watched(net) as run:
        net(torch.ones(1, 3)).sum().backward()
    assert_tree_equals(
        run.tree,
        """
        forward Net
          forward Linear
          forward Net.lin
        backward
          backward Net
            backward Net.lin
            backward Linear
        """,
    )


# -- what runs in a call --------------------------------------------------------------------------


def test_hooks_of_the_user_run_inside_the_region() -> None:
    """Nodes that a user's forward hooks make are the module's."""
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    with watched(net) as run:
        net[0].register_forward_pre_hook(lambda _, args: (args[0] * 2,))
        net[1].register_forward_pre_hook(lambda _, args: (args[0] * 2,))
        net[0].register_forward_hook(lambda _, __, out: out * 3)
        net[0].register_full_backward_hook(lambda *_: None)
        net[1].register_full_backward_pre_hook(lambda *_: None)
        net(torch.ones(1, 3, requires_grad=True)).sum().backward()
    assert_tree_equals(
        run.tree,
        """
        forward Sequential
          forward Sequential.0
          forward Sequential.1
        backward
          backward Sequential
            backward Sequential.1
            backward Sequential.0
        """,
    )


def test_global_hooks_that_call_modules() -> None:
    """A module that a global forward hook calls is nested in the call that the hook runs in."""
    probe = nn.Linear(3, 3)
    net = nn.Sequential(nn.Linear(3, 3))

    def hook(module: nn.Module, args: Any, out: torch.Tensor) -> torch.Tensor | None:
        del args
        return probe(out) if module is net[0] else None

    handle = nn.modules.module.register_module_forward_hook(hook)
    try:
        with watched(net, probe) as run:
            net(torch.ones(1, 3)).sum().backward()
    finally:
        handle.remove()
    assert_tree_equals(
        run.tree,
        """
        forward Sequential
          forward Sequential.0
            forward Linear
        backward
          backward Sequential
            backward Sequential.0
              backward Linear
        """,
    )


def test_direct_forward_belongs_to_the_caller() -> None:
    """`module.forward(x)` is no call: its nodes are the caller's, its children's calls as ever."""
    inner = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    net = Net(lambda m, x: m.inner.forward(x) * 2, inner=inner)
    with watched(net) as run:
        net(torch.ones(1, 3)).sum().backward()
        inner[0].forward(torch.ones(1, 3)).sum().backward()
    assert_tree_equals(
        run.tree,
        """
        forward Net
          forward Net.inner.0
          forward Net.inner.1
        backward
          backward Net
            backward Net.inner.1
            backward Net.inner.0
        """,
    )


def test_named_regions() -> None:
    """A named region around a loss or a block has its backward, and nests with modules."""
    net = Net(lambda m, x: m.lin(x), lin=nn.Linear(3, 3))
    with watched(net) as run:
        with run.region("generate"):
            out = net(torch.ones(1, 3))
            with run.region("block.0"):
                out = net.lin(out).tanh()
        with run.region("loss"):
            loss = out.square().mean()
        loss.backward()
    assert_tree_equals(
        run.tree,
        """
        forward generate
          forward Net
            forward Net.lin
          forward block.0
            forward Net.lin
        forward loss
        backward
          backward loss
          backward generate
            backward block.0
              backward Net.lin
            backward Net
              backward Net.lin
        """,
    )
    (span, _) = run.of("block.0")
    assert span.name == "forward block.*"
    assert span.attributes["modtrack.module.type"] == "region"


def test_named_region_as_a_decorator(
    provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    """As a decorator, each call is a region, with its backward; recursion and exceptions too."""
    lin = nn.Linear(3, 3)

    @region("twice")
    def twice(x: torch.Tensor, depth: int = 0) -> torch.Tensor:
        """Documented."""
        if depth > 1:
            raise ValueError(depth)
        return twice(lin(x), depth + 1) if depth < 1 else lin(x).tanh()

    with ModTracker(lin, tracer_provider=provider):
        twice(torch.ones(1, 3)).sum().backward()
        with pytest.raises(ValueError, match="2"):
            twice(torch.ones(1, 3), 2)
    spans = exporter.get_finished_spans()
    check_intervals(spans)
    assert twice.__doc__ == "Documented."
    assert_tree_equals(
        re.sub(r"#\d+", "", str(Tree(spans))),
        """
        forward twice
          forward Linear
          forward twice
            forward Linear
        backward
          backward twice
            backward twice
              backward Linear
            backward Linear
        forward twice!
        """,
    )


# -- bodies that run later ------------------------------------------------------------------------


class Tokens(nn.Module):
    """A generator forward, as of a language model's decoding."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> Generator[torch.Tensor, None, None]:
        for _ in range(2):
            x = self.lin(x).tanh()
            yield x


def test_generator_forward() -> None:
    """The region ends with the generator, not with the call; what lies between is the caller's."""
    tokens, other = Tokens(), nn.Linear(3, 3)
    with watched(tokens, other) as run:
        outs = [other(out) for out in tokens(torch.ones(1, 3))]
        outs[-1].sum().backward()
    assert_tree_equals(
        run.tree,
        """
        forward Tokens
          forward Tokens.lin
          forward Tokens.lin
        forward Linear
        forward Linear
        backward
          backward Linear
          backward Tokens
            backward Tokens.lin
            backward Tokens.lin
        """,
    )


def test_generator_that_is_dropped() -> None:
    """A generator that is never begun, or not run to its end, ends when it is dropped."""
    tokens = Tokens()
    with watched(tokens, nodes=False) as run, torch.no_grad():
        tokens(torch.ones(1, 3))
        next(tokens(torch.ones(1, 3)))
        tokens(torch.ones(1, 3)).close()
    assert_tree_equals(
        run.tree, "forward Tokens\nforward Tokens\n  forward Tokens.lin\nforward Tokens"
    )


class Service(nn.Module):
    """A coroutine forward."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(3, 3)
        self.last = nn.Linear(3, 3)

    async def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.lin(x).tanh()
        await asyncio.sleep(0)
        return self.last(x)


def test_coroutine_forward() -> None:
    """Two requests served in turns each have their own tree."""
    service = Service()

    async def serve() -> None:
        await asyncio.gather(service(torch.ones(1, 3)), service(torch.ones(1, 3)))

    with watched(service, nodes=False) as run, torch.no_grad():
        asyncio.run(serve())
    one = "forward Service\n  forward Service.lin\n  forward Service.last"
    assert_tree_equals(run.tree, f"{one}\n{one}")


def test_coroutine_forward_with_a_backward() -> None:
    """The nodes of a coroutine's body are its module's, before and after it was suspended."""
    service = Service()
    with watched(service) as run:
        asyncio.run(service(torch.ones(1, 3))).sum().backward()
    assert_tree_equals(
        run.tree,
        """
        forward Service
          forward Service.lin
          forward Service.last
        backward
          backward Service
            backward Service.last
            backward Service.lin
        """,
    )


def test_async_generator_forward() -> None:
    """The region of an async generator ends with it."""

    class Stream(Service):
        async def forward(self, x: torch.Tensor) -> AsyncGenerator[torch.Tensor, None]:
            for _ in range(2):
                x = self.lin(x)
                await asyncio.sleep(0)
                yield x

    async def read() -> int:
        return len([out async for out in stream(torch.ones(1, 3))])

    stream = Stream()
    with watched(stream, nodes=False) as run, torch.no_grad():
        assert asyncio.run(read()) == 2
    assert_tree_equals(run.tree, "forward Stream\n  forward Stream.lin\n  forward Stream.lin")
