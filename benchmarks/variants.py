"""What is put around the loop: nothing, torch's own trackers, hand-made spans, and ours."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING, Any

import torch
from opentelemetry import context as context_api, trace
from torch import nn
from torch.autograd import graph
from torch.distributed._tools.mod_tracker import ModTracker as TorchModTracker
from torch.nn.modules import module as hooks
from torch.utils.module_tracker import ModuleTracker

from otel_modtrack import ModTracker, Policy, semconv
from otel_modtrack.core import CORE
from otel_modtrack.sdk import SdkSink

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from opentelemetry.sdk.trace import TracerProvider
    from telemetry import Telemetry

    from otel_modtrack.regions import Unit

__all__ = [
    "EMPTY",
    "MODTRACKER",
    "OFF",
    "RECORDED",
    "RESTING",
    "SPANS",
    "UNSAMPLED",
    "UNTRACKED",
    "Variant",
    "naive",
    "still_on",
    "tracked",
    "untracked",
    "variants",
]

UNTRACKED = "untracked"
EMPTY = "empty global hooks"
MODTRACKER = "torch ModTracker"
RECORDED = "ours: recorded"
SPANS = "ours: spans, dropped by a processor"
UNSAMPLED = "ours: parent not sampled"
RESTING = "ours: steps left out by a policy"
OFF = "ours: off"


@dataclasses.dataclass(frozen=True)
class Variant:
    """One way to run the loop.

    Attributes:
        name: as shown.
        use: a context manager around the timed steps; it gives what has to be done after the
            last of them, within the time that is measured.
        around: makes of the step what is timed instead, while `use` is entered.
    """

    name: str
    use: Callable[[nn.Module], AbstractContextManager[Callable[[], object]]]
    around: Callable[[Callable[[], None]], Callable[[], None]] = lambda step: step


def _nothing() -> None:
    pass


# -- torch's own ------------------------------------------------------------------------------


@contextlib.contextmanager
def untracked(_: nn.Module) -> Iterator[Callable[[], object]]:
    """Nothing at all."""
    yield _nothing


def _no_op(*_: object) -> None:
    pass


@contextlib.contextmanager
def _empty_hooks(_: nn.Module) -> Iterator[Callable[[], object]]:
    handles = [
        hooks.register_module_forward_pre_hook(_no_op),
        hooks.register_module_forward_hook(_no_op),
    ]
    yield _nothing
    for handle in handles:
        handle.remove()


@contextlib.contextmanager
def _torch_mod_tracker(_: nn.Module) -> Iterator[Callable[[], object]]:
    with TorchModTracker():
        yield _nothing


@contextlib.contextmanager
def _torch_module_tracker(_: nn.Module) -> Iterator[Callable[[], object]]:
    with ModuleTracker():
        yield _nothing


@contextlib.contextmanager
def _torch_profiler(_: nn.Module) -> Iterator[Callable[[], object]]:
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], with_modules=True
    ):
        yield _nothing


@contextlib.contextmanager
def _torch_profiler_stacks(_: nn.Module) -> Iterator[Callable[[], object]]:
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], with_modules=True, with_stack=True
    ):
        yield _nothing


# -- spans by hand ----------------------------------------------------------------------------


class _NaiveSpans:
    """What one would write first: a span of the SDK's started and ended in hooks."""

    def __init__(self, tracer: trace.Tracer, model: nn.Module) -> None:
        self._tracer = tracer
        self._names = {module: name for name, module in model.named_modules()}
        self._forward: list[tuple[trace.Span, Any]] = []
        self._backward: dict[nn.Module, trace.Span] = {}

    def _start(self, module: nn.Module, phase: str) -> trace.Span:
        name = self._names[module]
        return self._tracer.start_span(
            f"{phase} {name}",
            attributes={
                semconv.MODULE_FQN: name,
                semconv.MODULE_TYPE: type(module).__name__,
                semconv.PHASE: phase,
            },
        )

    def forward_begins(self, module: nn.Module, _: object) -> None:
        span = self._start(module, "forward")
        self._forward.append((span, context_api.attach(trace.set_span_in_context(span))))

    def forward_ends(self, *_: object) -> None:
        span, token = self._forward.pop()
        context_api.detach(token)
        span.end()

    def backward_begins(self, module: nn.Module, _: object) -> None:
        self._backward[module] = self._start(module, "backward")

    def backward_ends(self, module: nn.Module, *_: object) -> None:
        self._backward.pop(module).end()


def naive(provider: TracerProvider, after: Callable[[], object], *, backward: bool) -> Any:
    """Spans by hand, and what has to be done after the last of them."""
    tracer = provider.get_tracer("naive")

    @contextlib.contextmanager
    def use(model: nn.Module) -> Iterator[Callable[[], object]]:
        spans = _NaiveSpans(tracer, model)
        handles = [
            hooks.register_module_forward_pre_hook(spans.forward_begins),
            hooks.register_module_forward_hook(spans.forward_ends),
        ]
        if backward:
            handles += [
                hooks.register_module_full_backward_pre_hook(spans.backward_begins),
                hooks.register_module_full_backward_hook(spans.backward_ends),
            ]
        yield after
        for handle in handles:
            handle.remove()

    return use


# -- ours -------------------------------------------------------------------------------------


class RecordSink(SdkSink):
    """The SDK's sink up to where spans would be made: units are recorded, folded, and dropped."""

    def flush(self, unit: Unit) -> None:
        """Drop the records of a finished unit."""
        unit.regions = []
        unit.flushed = True


def _recorded(telemetry: Telemetry) -> Any:
    @contextlib.contextmanager
    def use(model: nn.Module) -> Iterator[Callable[[], object]]:
        with ModTracker(model, tracer_provider=telemetry.dropping):
            sink: Any = CORE.sink
            CORE.sink = RecordSink(sink.tracer, sink.provider_key)
            yield _nothing
            still_on()

    return use


def still_on() -> None:
    """A fault of ours switches tracking off; what is timed then is not tracking.

    Raises:
        RuntimeError: if that has happened.
    """
    if not CORE.on:
        raise RuntimeError("tracking was switched off by a fault; see the log")


def tracked(provider: TracerProvider, after: Callable[[], object] = _nothing) -> Any:
    """Ours, and likewise."""

    @contextlib.contextmanager
    def use(model: nn.Module) -> Iterator[Callable[[], object]]:
        with ModTracker(model, tracer_provider=provider):
            yield after
            still_on()

    return use


def _unsampled(telemetry: Telemetry) -> Any:
    parent = trace.NonRecordingSpan(
        trace.SpanContext(1, 1, is_remote=False, trace_flags=trace.TraceFlags(0))
    )

    @contextlib.contextmanager
    def use(model: nn.Module) -> Iterator[Callable[[], object]]:
        with (
            trace.use_span(parent),
            ModTracker(model, tracer_provider=telemetry.dropping),
        ):
            yield _nothing
            still_on()

    return use


class _Resting:
    """Each step is marked, and the policy wants none of them."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._tracker: ModTracker

    @contextlib.contextmanager
    def use(self, model: nn.Module) -> Iterator[Callable[[], object]]:
        """The tracker is on, and rests."""
        provider = self._telemetry.dropping
        with ModTracker(model, tracer_provider=provider, policy=Policy(every=0)) as tracker:
            self._tracker = tracker
            yield _nothing
            if not CORE.resting:
                raise RuntimeError("the tracker does not rest: nothing is measured")

    def around(self, step: Callable[[], None]) -> Callable[[], None]:
        """The step, marked."""
        tracker = self._tracker

        def marked() -> None:
            with tracker.step(1):
                step()

        return marked


class _Ordered:
    """The order of each step is recorded, and made."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._tracker: ModTracker

    @contextlib.contextmanager
    def use(self, model: nn.Module) -> Iterator[Callable[[], object]]:
        """The tracker is on."""
        with ModTracker(model, tracer_provider=self._telemetry.dropping) as tracker:
            self._tracker = tracker
            yield _nothing
            still_on()

    def around(self, step: Callable[[], None]) -> Callable[[], None]:
        """The step, recorded."""
        tracker = self._tracker

        def recorded() -> None:
            with tracker.record_order():
                step()

        return recorded


def _code_of_calls() -> tuple[object, ...]:
    """What module calls and backwards run: attributes, their code, and the global hooks."""
    return (
        nn.Module.__call__,
        nn.Module.__call__.__code__,
        torch.autograd._engine_run_backward,  # noqa: SLF001 - what `backward()` calls
        graph._engine_run_backward.__code__,  # noqa: SLF001
        *hooks._global_forward_hooks,  # noqa: SLF001
        *hooks._global_forward_pre_hooks,  # noqa: SLF001
        *hooks._global_backward_hooks,  # noqa: SLF001
        *hooks._global_backward_pre_hooks,  # noqa: SLF001
    )


_UNTOUCHED = _code_of_calls()  # before any tracker was entered


def _off(telemetry: Telemetry) -> Any:
    @contextlib.contextmanager
    def use(model: nn.Module) -> Iterator[Callable[[], object]]:
        with ModTracker(model, tracer_provider=telemetry.dropping):
            model_code = nn.Module.__call__.__code__
        if model_code is _UNTOUCHED[1]:
            raise RuntimeError("the tracker was not on: nothing is measured")
        now = _code_of_calls()
        if len(now) != len(_UNTOUCHED) or any(a is not b for a, b in zip(now, _UNTOUCHED)):  # noqa: B905 - lengths are compared
            raise RuntimeError("off, yet module calls do not run torch's own code")
        yield _nothing

    return use


def variants(telemetry: Telemetry) -> list[Variant]:
    """All of them, in the order of the table; the untracked loop is the first."""
    resting, ordered = _Resting(telemetry), _Ordered(telemetry)
    return [
        Variant(UNTRACKED, untracked),
        Variant(EMPTY, _empty_hooks),
        Variant(MODTRACKER, _torch_mod_tracker),
        Variant("torch ModuleTracker", _torch_module_tracker),
        Variant("torch.profiler", _torch_profiler),
        Variant("torch.profiler, stacks", _torch_profiler_stacks),
        Variant(
            "naive spans, forward, OTLP",
            naive(telemetry.exporting, telemetry.drain, backward=False),
        ),
        Variant(
            "naive spans, both, OTLP", naive(telemetry.exporting, telemetry.drain, backward=True)
        ),
        Variant(RECORDED, _recorded(telemetry)),
        Variant(SPANS, tracked(telemetry.dropping)),
        Variant("ours: spans, and the order", ordered.use, ordered.around),
        Variant("ours: spans, OTLP", tracked(telemetry.exporting, telemetry.drain)),
        Variant(UNSAMPLED, _unsampled(telemetry)),
        Variant(RESTING, resting.use, resting.around),
        Variant(OFF, _off(telemetry)),
    ]
