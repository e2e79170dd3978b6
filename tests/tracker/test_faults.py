"""What goes wrong: faults of ours, of the user's exporters, and the user's own exceptions.

Faults of ours are injected into our internals. Interruptions are injected where the interpreter
delivers signals, on entering a function and after a call of C, at each such place of ours in turn.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import inspect
import logging
import pathlib
import re
import signal
import sys
import weakref
from inspect import cleandoc
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from opentelemetry import context as context_api, trace
from opentelemetry.context.context import Context
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import (
    SimpleSpanProcessor,
    SpanExporter,
    SpanExportResult,
)
from torch import nn
from torch.utils.checkpoint import checkpoint

import otel_modtrack
from otel_modtrack import ModTracker, region
from otel_modtrack.activation import ACTIVATION
from otel_modtrack.core import CORE, THREADS
from otel_modtrack.testing import Tree, assert_tree_equals
from tests.conftest import patched_state
from tests.intervals import check_intervals

if TYPE_CHECKING:
    import types
    from collections.abc import Callable, Iterator

    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
    from typing_extensions import Self

HERE = str(pathlib.Path(otel_modtrack.__file__).parent)


class Net(nn.Module):
    """What the tracker does, all in one: a checkpoint, a region, a hook, a generator, spans."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.gen = Gen()
        self.b.register_forward_hook(self.look)

    @staticmethod
    def look(*_: Any) -> None:
        trace.get_current_span().set_attribute("seen", True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = checkpoint(self.a, x, use_reentrant=False)
        with region("middle"):
            x = x.relu() * 2
        x.register_hook(self.look)
        for more in self.gen(x):
            x = x + more
        return self.b(x)


class Gen(nn.Module):
    """A generator forward."""

    def forward(self, x: torch.Tensor) -> Iterator[torch.Tensor]:
        yield x * 2
        yield x * 3


X = torch.ones(2, 4)

CLEAN = """
    forward Net
      forward Net.a
      forward middle
      forward Net.gen
      forward Net.b
    backward
      backward Net
        backward Net.b
        backward Net.gen
        backward middle
        backward Net.a
          recompute Net.a
    optimizer_step SGD
"""


class Training:
    """A model in training, and what it gives."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = Net()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def iterate(self) -> Any:
        """One iteration; all that is to be compared of it, as bytes."""
        out = self.model(X)
        self.optimizer.zero_grad()
        out.sum().backward()
        grads = [one.grad.numpy().tobytes() for one in self.model.parameters()]
        self.optimizer.step()
        return out.detach().numpy().tobytes(), grads

    def run(self, tracker: ModTracker | None = None, iterations: int = 3) -> list[Any]:
        """Some iterations, the second in a step, and the state of the random numbers after."""
        found = []
        for number in range(iterations):
            if tracker is not None and number == 1:
                with tracker.step(number):
                    found.append(self.iterate())
            else:
                found.append(self.iterate())
        return [*found, torch.get_rng_state().tolist()]


def clean_up() -> None:
    """Whatever a fault has left on this thread is gone."""
    ACTIVATION._trackers.clear()
    ACTIVATION.off()
    THREADS.state.reset()
    gc.enable()
    context_api.attach(Context())


@pytest.fixture(autouse=True)
def explicit_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """One trace per call: what a fault leaves is seen at once. See `test_faults_in_steps`."""
    monkeypatch.setenv("OTEL_PYTHON_MODTRACK_STEPS", "explicit")


@pytest.fixture(autouse=True)
def nothing_open() -> Iterator[None]:
    """After each test nothing is on or open; the next test is spared if something is."""
    context = context_api.get_current()
    yield
    state = THREADS.state
    left = (state.running, state.stretch, state.opener, state.unit, state.raising)
    was_on, was_there = CORE.on, context_api.get_current()
    clean_up()
    context_api.attach(context)
    assert left == (None,) * 5
    assert not was_on
    assert was_there == context


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Callable[[], list[logging.LogRecord]]:
    """What was logged by us."""
    return lambda: [one for one in caplog.records if one.name.startswith("otel_modtrack")]


def shown(exporter: InMemorySpanExporter | Collected) -> str:
    """The tree of the finished spans, names' ordinals left out.

    So is an optimizer's step that was interrupted: that it is over is found out by the next call.
    """
    spans = exporter.get_finished_spans()
    check_intervals(spans)
    return re.sub(r"#\d+|^optimizer_step SGD!\n", "", str(Tree(spans)))


# -- faults of ours -------------------------------------------------------------------------------

INJECTED = [
    ("names.Names.name", 0),
    ("forward.begin", 0),
    ("forward.begin", 2),
    ("forward.make_current", 0),
    ("forward.make_current", 1),
    ("forward.close", 0),
    ("forward.finish", 0),
    ("calls.hang", 0),
    ("calls.restore", 0),
    ("calls.done", 0),
    ("calls.done", 1),
    ("core.ThreadState.close_stretch", 0),
    ("core.ThreadState.note", 0),
    ("core.ThreadState.note", 3),
    ("core.ThreadState.suspend", 0),
    ("core.ThreadState.resume", 0),
    ("core.Core.living", 0),
    ("plan.Plan.arm", 0),
    ("plan.Plan.key", 0),
    ("plan.Plan.key", 3),
    ("engine.execution_order", 0),
    ("engine.SharedHook.hold", 0),
    ("backward.Run.begin", 0),
    ("backward.Run.make_plan", 0),
    ("backward.Run.locate", 0),
    ("backward.Run.fold", 0),
    ("backward.Run.fold", 2),
    ("bodies.follow", 0),
    ("optimizers._open", 0),
    ("optimizers._close", 0),
    ("current.RegionContext.__init__", 0),
    ("sdk.SdkSink.begin", 0),
    ("sdk.SdkSink.begin_backward", 0),
    ("sdk.SdkSink.open_context", 0),
    ("sdk.SdkSink.span", 0),
    ("sdk.SdkSink.span_context", 0),
    ("sdk.SdkSink.flush", 0),
    ("sdk.SdkSink.write_all", 0),
]


class Injection:
    """A fault in a function of ours, from its `after`-th call on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, where: str, after: int) -> None:
        module, _, path = where.partition(".")
        owner = importlib.import_module(f"otel_modtrack.{module}")
        *outer, name = path.split(".")
        owner = functools.reduce(getattr, outer, owner)
        original = getattr(owner, name)
        self.calls, self.on = 0, True

        def function(*args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            if self.on and self.calls > after:
                raise RuntimeError("injected")
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, function)


@pytest.mark.parametrize(("where", "after"), INJECTED)
def test_our_faults_are_ours(  # noqa: PLR0913, PLR0917 - fixtures
    where: str,
    after: int,
    monkeypatch: pytest.MonkeyPatch,
    provider: TracerProvider,
    exporter: InMemorySpanExporter,
    logged: Callable[[], list[logging.LogRecord]],
) -> None:
    """A fault of ours is logged once and switches tracking off; the results are the same."""
    untracked = Training().run()
    before = patched_state()
    injection = Injection(monkeypatch, where, after)
    with ModTracker(tracer_provider=provider) as tracker:
        assert Training().run(tracker) == untracked
        assert injection.calls > after
        assert not CORE.on
        assert patched_state() == before
        (record,) = logged()
        assert record.levelno == logging.ERROR
        assert "internal error" in record.getMessage()
        assert record.exc_info is not None
        assert str(record.exc_info[1]) == "injected"
        exporter.clear()
        injection.on = False
        assert Training().run(tracker) == untracked
        assert not exporter.get_finished_spans()
    with ModTracker(tracer_provider=provider):
        Training().run(iterations=1)
    assert_tree_equals(shown(exporter), CLEAN)
    assert len(logged()) == 1


def test_a_fault_of_ours_beside_arrays(
    monkeypatch: pytest.MonkeyPatch, provider: TracerProvider
) -> None:
    """Whatever the user's modules return is not compared or printed when a fault is told."""

    class Never:
        def __eq__(self, other: object) -> bool:
            raise AssertionError("compared")

        __hash__ = None  # type: ignore[assignment]

        def __repr__(self) -> str:
            raise AssertionError("printed")

    class Gives(nn.Module):
        def forward(self, *args: Any) -> Any:
            return args

    Injection(monkeypatch, "calls.done", 0)
    given = (np.ones(3), Never(), torch.ones(3, requires_grad=True) * 2)
    with ModTracker(tracer_provider=provider):
        given_back = Gives()(*given)
    assert all(one is other for one, other in zip(given, given_back, strict=True))
    assert not CORE.on


def test_a_fault_while_an_exception_of_the_users_travels(
    monkeypatch: pytest.MonkeyPatch,
    provider: TracerProvider,
    logged: Callable[[], list[logging.LogRecord]],
) -> None:
    """The user's exception passes unchanged, and names no fault of ours as its context."""

    class Fails(nn.Module):
        def forward(self, _: torch.Tensor) -> None:
            raise KeyError("mine")

    Injection(monkeypatch, "forward.failed", 0)
    with ModTracker(tracer_provider=provider), pytest.raises(KeyError, match="mine") as raised:
        nn.Sequential(Fails())(X)
    assert raised.value.__context__ is None
    assert raised.value.__cause__ is None
    assert len(logged()) == 1


# -- the user's own provider ----------------------------------------------------------------------


class Collected(SpanProcessor):
    """Keeps what is over, and does nothing that an interruption could leave half done."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        self.spans.append(span)

    def get_finished_spans(self) -> list[ReadableSpan]:
        """As of the in-memory exporter."""
        return self.spans

    def clear(self) -> None:
        """As of the in-memory exporter."""
        self.spans = []


class Raising(SpanProcessor):
    """A processor that raises in one of its methods."""

    def __init__(self, method: str) -> None:
        self.calls = 0

        def fails(*_: Any, **__: Any) -> None:
            self.calls += 1
            raise ValueError("the user's processor")

        setattr(self, method, fails)


class Refusing(SpanExporter):
    """An exporter that raises."""

    calls = 0

    def export(self, spans: Any) -> SpanExportResult:
        self.calls += 1
        raise ValueError("the user's exporter")

    def shutdown(self) -> None:
        """Nothing to do."""


def test_a_processor_that_raises_at_the_end(
    exporter: InMemorySpanExporter, logged: Callable[[], list[logging.LogRecord]]
) -> None:
    """What a processor raises is logged once and counted; all goes on, to other processors too."""
    raising = Raising("on_end")
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    provider.add_span_processor(raising)
    untracked = Training().run()
    with ModTracker(tracer_provider=provider) as tracker:
        assert Training().run(tracker) == untracked
        assert CORE.on
        (record,) = logged()
        assert "further ones are counted" in record.getMessage()
        spans = exporter.get_finished_spans()
        assert len(spans) == 3 * 13 + 1
        assert raising.calls == len(spans)
    assert len(logged()) == 1


def test_what_a_step_lost_is_on_its_span(exporter: InMemorySpanExporter) -> None:
    """The span of a step says how many spans of it were lost."""

    class Raises(SpanProcessor):
        def on_end(self, span: Any) -> None:
            if span.name != "train_step":
                raise ValueError

    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    provider.add_span_processor(Raises())
    training = Training()
    with ModTracker(tracer_provider=provider) as tracker, tracker.step(5):
        training.iterate()
    (step,) = (span for span in exporter.get_finished_spans() if span.name == "train_step")
    assert step.attributes == {"modtrack.step.number": 5, "modtrack.spans.dropped": 13}


def test_a_processor_that_raises_at_the_start(
    exporter: InMemorySpanExporter, logged: Callable[[], list[logging.LogRecord]]
) -> None:
    """A processor that raises when a span starts is logged once and stops nothing."""
    raising = Raising("on_start")
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    provider.add_span_processor(raising)
    untracked = Training().run()
    with ModTracker(tracer_provider=provider):
        assert Training().run() == untracked
        assert CORE.on
        assert raising.calls
        assert len(logged()) == 1


def test_an_exporter_that_raises(logged: Callable[[], list[logging.LogRecord]]) -> None:
    """An exporter that raises is the SDK's to log; nothing stops."""
    exporter = Refusing()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    untracked = Training().run()
    with ModTracker(tracer_provider=provider):
        assert Training().run() == untracked
        assert CORE.on
    assert exporter.calls
    assert not logged()


# -- interruptions --------------------------------------------------------------------------------


# What differs while a tracker is on, and only because it is.
ON = dict.fromkeys(
    (
        "call code",
        "engine code",
        "optimizer pre-hooks",
        "optimizer post-hooks",
        "context reader",
        "group registration",
        "kernels",
        "subprocesses",
        "processes",
    )
)


class Late(Exception):  # noqa: N818
    """What the user's handler raises."""


class Interrupt:
    """Has a signal arrive at the `number`-th place of ours where the interpreter looks for one."""

    def __init__(self, what: signal.Signals, number: int) -> None:
        self.what, self.left = what, number
        self.where: Any = None

    def __call__(self, frame: types.FrameType, event: str, _: Any) -> None:
        if event not in ("call", "c_return") or self.where is not None:
            return
        code = frame.f_code
        if not code.co_filename.startswith(HERE):
            return
        # Closing a generator is told as a call, but no signal is looked for there.
        if event == "call" and code.co_flags & inspect.CO_GENERATOR:
            return
        # Nothing that is raised in a weakref's callback reaches anybody.
        if frame.f_back is not None and frame.f_back.f_code.co_filename == weakref.__file__:
            return
        self.left -= 1
        if not self.left:
            self.where = (code.co_name, frame.f_lineno, event)
            sys.setprofile(None)
            signal.raise_signal(self.what)

    def __enter__(self) -> Self:
        sys.setprofile(self)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)


def plain_handler(error: BaseException) -> Any:
    """A function."""

    def handler(_: int, __: Any) -> None:
        raise error

    return handler


def object_handler(error: BaseException) -> Any:
    """An object, which raises from a function further down."""

    class Handler:
        def __call__(self, *_: Any) -> None:
            self.go()

        def go(self) -> None:
            raise error

    return Handler()


def partial_handler(error: BaseException) -> Any:
    """A partial of a function that takes itself out before it raises."""

    def handler(what: BaseException, number: int, _: Any) -> None:
        signal.signal(number, signal.SIG_IGN)
        raise what

    return functools.partial(handler, error)


@pytest.mark.parametrize(
    ("kind", "make", "stride"),
    [
        (Late, plain_handler, 1),
        (KeyboardInterrupt, plain_handler, 1),
        (TimeoutError, object_handler, 3),
        (RuntimeError, partial_handler, 3),
        (RecursionError, plain_handler, 5),
    ],
)
def test_interrupted_at_any_moment(  # noqa: PLR0913, PLR0917 - fixtures
    kind: type[BaseException],
    make: Callable[[BaseException], Any],
    stride: int,
    provider: TracerProvider,
    exporter: InMemorySpanExporter,
    logged: Callable[[], list[logging.LogRecord]],
) -> None:
    """A signal's exception reaches the user wherever it comes; the next iteration is clean."""
    what = signal.SIGALRM
    before_all = signal.getsignal(what)
    before = patched_state()
    training = Training()
    number, hit = 1, 0
    broken = []
    try:
        while True:
            error = kind("late", 7)
            seen: BaseException | None = None
            with ModTracker(training.model, tracer_provider=provider):
                signal.signal(what, make(error))
                try:
                    with Interrupt(what, number) as interrupt:
                        training.iterate()
                except kind as caught:
                    seen, caught.__traceback__ = caught, None  # its frames hold a generator
                if interrupt.where is None:
                    break
                hit += 1
                faults = [
                    *["swallowed"] * (seen is not error),
                    *["changed"] * (error.args != ("late", 7)),
                    *["state left"] * (patched_state() | ON != before | ON),
                ]
                exporter.clear()
                training.iterate()
                try:
                    faults += ["not clean"] * (shown(exporter) != cleandoc(CLEAN))
                except AssertionError as unlike:
                    faults.append(str(unlike))
                faults += ["off"] * (not CORE.on)
            if faults:
                broken.append((number, *interrupt.where, *faults))
                clean_up()
            number += stride
    finally:
        signal.signal(what, before_all)
    assert not broken, f"{len(broken)} of {hit}: {broken}"
    assert hit * stride > 300
    assert not logged()
    assert patched_state() == before


def test_interrupted_while_it_is_left(provider: TracerProvider) -> None:
    """A signal's exception while a tracker is entered or left: it is the user's, nothing stays."""
    what = signal.SIGALRM
    handler = signal.signal(what, plain_handler(Late("late")))
    before = patched_state()
    number = 0
    try:
        while True:
            number += 1
            with (
                contextlib.suppress(Late),
                Interrupt(what, number) as interrupt,
                ModTracker(tracer_provider=provider),
            ):
                pass
            if interrupt.where is None:
                break
            if interrupt.where[::2] == ("__exit__", "call"):
                clean_up()  # before the first thing that __exit__ can do
            with ModTracker(tracer_provider=provider):
                assert patched_state() != before
            assert patched_state() == before, (number, interrupt.where)
    finally:
        signal.signal(what, handler)
    assert number > 20


def test_a_handler_may_call_modules(
    provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    """A handler that runs a module of its own in the middle of ours disturbs nothing."""
    other = nn.Linear(4, 4)
    what = signal.SIGALRM

    def calls(*_: Any) -> None:
        with torch.no_grad():
            other(X)

    handler = signal.signal(what, calls)
    training = Training()
    number = 0
    try:
        with ModTracker(training.model, tracer_provider=provider):
            while True:
                number += 7
                exporter.clear()
                with Interrupt(what, number) as interrupt:
                    training.iterate()
                if interrupt.where is None:
                    break
                assert CORE.on, interrupt.where
                exporter.clear()
                training.iterate()
                assert shown(exporter) == cleandoc(CLEAN), interrupt.where
    finally:
        signal.signal(what, handler)


# -- the user's errors ----------------------------------------------------------------------------


class Boom(torch.autograd.Function):
    """Fails in the backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        raise ArithmeticError("in backward")


class Errs(nn.Module):
    """Fails where it is told to."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where, self.calls = where, 0
        self.lin = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.where == "recompute" and self.calls == 2:
            raise ArithmeticError("in forward, again")
        x = self.lin(x)
        if self.where == "forward":
            raise ArithmeticError("in forward")
        if self.where == "backward":
            return Boom.apply(x)
        x = x * 2
        if self.where == "hook":
            x.register_hook(self.fail)
        return x + 1

    @staticmethod
    def fail(_: torch.Tensor) -> None:
        raise ArithmeticError("in a hook")


class Outer(nn.Module):
    """A block with a failing part, checkpointed if it is to fail in the recomputation."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.first, self.errs = nn.Linear(4, 4), Errs(where)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        if self.errs.where == "recompute":
            return checkpoint(self.errs, x, use_reentrant=False)
        return self.errs(x)


ERRORS = {
    "forward": """
        forward Outer!
          forward Outer.first
          forward Outer.errs!
            forward Outer.errs.lin
    """,
    "backward": """
        forward Outer
          forward Outer.first
          forward Outer.errs
            forward Outer.errs.lin
        backward!
          backward Outer!
            backward Outer.errs!
    """,
    "hook": """
        forward Outer
          forward Outer.first
          forward Outer.errs
            forward Outer.errs.lin
        backward!
          backward Outer!
            backward Outer.errs!
    """,
    "recompute": """
        forward Outer
          forward Outer.first
          forward Outer.errs
            forward Outer.errs.lin
        backward!
          backward Outer!
            backward Outer.errs!
              backward Outer.errs.lin!
                recompute Outer.errs!
    """,
}


@pytest.mark.parametrize("where", ERRORS)
def test_errors_are_on_every_region_they_leave(
    where: str, provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    """Status ERROR, error.type and the exception event are where it was raised and all outward."""
    model = Outer(where)
    with ModTracker(model, tracer_provider=provider):
        with pytest.raises(ArithmeticError) as raised:
            model(X).sum().backward()
        assert_tree_equals(shown(exporter), cleandoc(ERRORS[where]))
        for span in exporter.get_finished_spans():
            if span.status.is_ok:
                assert span.status.status_code is trace.StatusCode.UNSET
                assert not span.events
                assert "error.type" not in span.attributes
                continue
            assert span.attributes["error.type"] == "ArithmeticError"
            assert span.status.description == str(raised.value)
            (event,) = span.events
            assert event.name == "exception"
            assert event.attributes["exception.type"] == "ArithmeticError"
            assert event.attributes["exception.message"] == str(raised.value)
            assert "ArithmeticError: in " in event.attributes["exception.stacktrace"]
            assert span.start_time <= event.timestamp <= span.end_time
        exporter.clear()
        Outer("nowhere")(X).sum().backward()
    assert "!" not in shown(exporter)


def test_an_exception_that_cannot_be_printed(
    provider: TracerProvider,
    exporter: InMemorySpanExporter,
    logged: Callable[[], list[logging.LogRecord]],
) -> None:
    """An exception whose str() raises is the user's all the same; its type is told."""

    class Mute(Exception):  # noqa: N818
        def __str__(self) -> str:
            raise ValueError("mute")

    class Fails(nn.Module):
        def forward(self, _: torch.Tensor) -> None:
            raise Mute

    with ModTracker(tracer_provider=provider), pytest.raises(Mute):
        Fails()(X)
    (span,) = exporter.get_finished_spans()
    assert span.attributes["error.type"].endswith("Mute")
    assert not logged()


def test_errors_at_the_recursion_limit_are_told_at_any_depth(
    provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    """Wherever the limit is met, in the user's code or in ours, each call that it left says so."""

    class Endless(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self(x)

    def deeper(depth: int) -> None:
        if depth:
            deeper(depth - 1)
        else:
            with pytest.raises(RecursionError):
                Endless()(X)

    with ModTracker(tracer_provider=provider):
        for depth in range(16):
            deeper(depth)
            spans = exporter.get_finished_spans()
            assert {span.status.status_code for span in spans} == {trace.StatusCode.ERROR}
            assert {span.attributes["error.type"] for span in spans} == {"RecursionError"}
            exporter.clear()


def test_too_deep_a_recursion_is_the_users(
    provider: TracerProvider,
    exporter: InMemorySpanExporter,
    logged: Callable[[], list[logging.LogRecord]],
) -> None:
    """A module that calls itself for ever gets its RecursionError; the next iteration is clean."""

    class Endless(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self(x)

    training = Training()
    with ModTracker(training.model, tracer_provider=provider):
        for _ in range(3):
            with pytest.raises(RecursionError):
                Endless()(X)
            assert CORE.on
            errors = [span.status.status_code for span in exporter.get_finished_spans()]
            assert set(errors) == {trace.StatusCode.ERROR}
            exporter.clear()
            training.iterate()
            assert_tree_equals(shown(exporter), CLEAN)
            exporter.clear()
    assert not logged()
