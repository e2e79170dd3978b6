"""Classes with ideas of their own, other libraries at work, and size: trees, and the oracle."""

from __future__ import annotations

import contextlib
import sys
import time
from typing import TYPE_CHECKING, Any

import torch
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from torch import nn

from otel_modtrack import ModTracker
from otel_modtrack.testing import assert_tree_equals
from tests.tracker.oracle import watched

if TYPE_CHECKING:
    import types
    from collections.abc import Generator


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


def test_unhashable_module() -> None:
    """A module that defines `__eq__` without `__hash__` is tracked."""

    class Equal(nn.Linear):
        __hash__ = None

        def __eq__(self, other: object) -> bool:
            return True

    module = Equal(3, 3)
    with watched() as run:
        module(torch.ones(1, 3)).sum().backward()
    assert_tree_equals(run.tree, LINEAR.replace("Linear", "Equal"))


def test_module_with_getattr_tricks() -> None:
    """A class whose `__getattr__` answers anything is named by what its tree really holds."""

    class Anything(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(3, 3)

        def __getattr__(self, name: str) -> Any:
            try:
                return super().__getattr__(name)
            except AttributeError:
                return getattr(super().__getattr__("inner"), name)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x)

    net = Anything()
    with watched(net) as run:
        net(torch.ones(1, 3)).sum().backward()
    assert_tree_equals(
        run.tree,
        """
        forward Anything
          forward Anything.inner
        backward
          backward Anything
            backward Anything.inner
        """,
    )


def test_module_whose_getattribute_raises() -> None:
    """A class that raises on attributes it does not expect is left alone."""

    class Guarded(nn.Linear):
        def __getattribute__(self, name: str) -> Any:
            if name in ("_children", "fqn", "__wrapped__", "module"):
                raise RuntimeError(name)
            return super().__getattribute__(name)

    net = Guarded(3, 3)
    with watched(net) as run:
        net(torch.ones(1, 3)).sum().backward()
    assert_tree_equals(run.tree, LINEAR.replace("Linear", "Guarded"))


def test_class_that_overrides_call() -> None:
    """A `__call__` that does not reach nn.Module's has no region; one that does has one."""

    class Own(nn.Linear):
        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            return self.forward(x)

    class Extended(nn.Linear):
        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            return super().__call__(x) * 2

    net = nn.Sequential(Own(3, 3), Extended(3, 3))
    with watched(net) as run:
        net(torch.ones(1, 3)).sum().backward()
    assert_tree_equals(
        run.tree,
        """
        forward Sequential
          forward Sequential.1
        backward
          backward Sequential
            backward Sequential.1
        """,
    )


def test_forward_replaced_on_the_instance() -> None:
    """Adapters that replace `forward` on an instance: what they call is nested in it."""
    net = nn.Sequential(nn.Linear(3, 3))
    adapter = nn.Linear(3, 3)
    original = net[0].forward
    net[0].forward = lambda x: original(x) + adapter(x)
    with watched(net, adapter) as run:
        net(torch.ones(1, 3)).sum().backward()
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


def test_class_changed_at_run_time() -> None:
    """A module whose class is exchanged, as FSDP2 does, is the same module."""

    class FSDPModule:
        pass

    net = nn.Sequential(nn.Linear(3, 3))
    with watched(net) as run:
        net(torch.ones(1, 3))
        kind = type(net[0])
        net[0].__class__ = type("FSDPLinear", (FSDPModule, kind), {})
        net(torch.ones(1, 3)).sum().backward()
    one = "forward Sequential\n  forward Sequential.0\n"
    assert_tree_equals(
        run.tree, one * 2 + "backward\n  backward Sequential\n    backward Sequential.0"
    )


def test_another_library_patches_call_before() -> None:
    """A `__call__` that was replaced before the tracker came is still called, and comes back."""
    with _patched() as seen:
        lin = nn.Linear(3, 3)
        with watched(lin) as run:
            lin(torch.ones(1, 3)).sum().backward()
        lin(torch.ones(1, 3))
    assert_tree_equals(run.tree, LINEAR)
    assert len(seen) == 2


def test_another_library_patches_call_inside() -> None:
    """A patch that is put on and taken off while tracking is on does not disturb."""
    lin = nn.Linear(3, 3)
    with watched(lin) as run:
        with _patched() as seen:
            lin(torch.ones(1, 3)).sum().backward()
        lin(torch.ones(1, 3)).sum().backward()
    assert_tree_equals(run.tree, f"{LINEAR}\n{LINEAR}")
    assert len(seen) == 1


def test_another_library_patches_call_across() -> None:
    """A patch that is put on inside and taken off after: neither undoes the other."""
    original, lin = nn.Module.__call__, nn.Linear(3, 3)
    with contextlib.ExitStack() as stack:
        with ModTracker(lin):
            seen = stack.enter_context(_patched())
            lin(torch.ones(1, 3))
        lin(torch.ones(1, 3))
        assert len(seen) == 2
    assert nn.Module.__call__ is original


@contextlib.contextmanager
def _patched() -> Generator[list[object], None, None]:
    original, seen = nn.Module.__call__, []

    def __call__(module: nn.Module, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
        seen.append(module)
        return original(module, *args, **kwargs)

    nn.Module.__call__ = __call__
    try:
        yield seen
    finally:
        nn.Module.__call__ = original


def test_hooks_registered_globally_by_another_library() -> None:
    """Global forward hooks of another library, put on and off in any order, run and stay theirs."""
    lin, seen = nn.Linear(3, 3), []
    register = nn.modules.module.register_module_forward_hook
    before = register(lambda *_: seen.append("before"))
    with watched(lin) as run:
        inside = register(lambda *_: seen.append("inside"))
        try:
            lin(torch.ones(1, 3)).sum().backward()
        finally:
            before.remove()
    try:
        lin(torch.ones(1, 3))
    finally:
        inside.remove()
    assert seen == ["before", "inside", "inside"]
    assert_tree_equals(run.tree, LINEAR)


# -- size -----------------------------------------------------------------------------------------


def test_nesting_500_deep() -> None:
    """Modules nested 500 deep, with the recursion limit that the untracked model needs."""
    net: nn.Module = nn.Linear(3, 3)
    for _ in range(500):
        net = Net(lambda m, x: m.inner(x), inner=net)
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(20_000)
    try:
        with watched() as run:
            net(torch.ones(1, 3)).sum().backward()
        lines = run.tree.splitlines()
    finally:
        sys.setrecursionlimit(limit)
    assert len(lines) == 2 * 501 + 1
    assert lines[500] == " " * 1000 + "forward Net" + ".inner" * 500
    assert lines[-1] == " " * 1002 + "backward Net" + ".inner" * 500


def test_nesting_needs_no_more_frames() -> None:
    """The tracker adds no frame: what fits under the limit untracked fits tracked."""
    depths = []

    def body(m: Any, x: torch.Tensor) -> torch.Tensor:
        frame: types.FrameType | None = sys._getframe()
        depth = 0
        while frame is not None:
            frame, depth = frame.f_back, depth + 1
        depths.append(depth)
        return m.lin(x)

    net = Net(body, lin=nn.Linear(3, 3))
    net(torch.ones(1, 3))
    with ModTracker(net):
        net(torch.ones(1, 3))
    assert depths[0] == depths[1]


def test_cost_is_linear() -> None:
    """Ten times the modules cost about ten times as much, not a hundred times."""

    def seconds(count: int) -> float:
        net = nn.Sequential(*(nn.Linear(2, 2) for _ in range(count)))
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(InMemorySpanExporter()))
        with ModTracker(net, tracer_provider=provider):
            taken = []
            for _ in range(2):
                begun = time.thread_time()
                net(torch.ones(1, 2)).sum().backward()
                taken.append(time.thread_time() - begun)
        return min(taken)

    assert seconds(5_000) < 35 * seconds(500)


def test_ten_thousand_modules() -> None:
    """Ten thousand modules work, and each is named."""
    net = nn.Sequential(*(nn.Sequential(*(nn.Identity() for _ in range(99))) for _ in range(100)))
    net.append(nn.Linear(3, 3))
    with watched(net) as run, run.tracker.step(0):
        net(torch.ones(1, 3)).sum().backward()
    lines = run.tree.splitlines()
    assert len(lines) == 1 + (1 + 100 * 100 + 1) + (1 + 2)
    assert lines[1:4] == [
        "  forward Sequential",
        "    forward Sequential.0",
        "      forward Sequential.0.0",
    ]
    assert lines[-4:] == [
        "    forward Sequential.100",
        "  backward",
        "    backward Sequential",
        "      backward Sequential.100",
    ]
