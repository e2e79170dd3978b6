"""A training step: what is exported together, under one span."""

from __future__ import annotations

import abc
import os
from typing import TYPE_CHECKING, Any, ClassVar

from opentelemetry import context as context_api, trace

from otel_modtrack import calls, carrier, optimizers, semconv, where
from otel_modtrack.control import Want
from otel_modtrack.core import CORE, THREADS
from otel_modtrack.loading import loaded
from otel_modtrack.order.changes import change_of
from otel_modtrack.place import Scope
from otel_modtrack.regions import Unit
from otel_modtrack.saying import tell
from otel_modtrack.spans import SpanSink

if TYPE_CHECKING:
    import types
    from collections.abc import Mapping, Sequence

    from opentelemetry.context.context import Context
    from opentelemetry.util.types import AttributeValue

    from otel_modtrack.core import ThreadState
    from otel_modtrack.regions import Failure
    from otel_modtrack.training import Progress

__all__ = ["Evaluation", "OpenStep", "Step"]


class OpenStep:
    """A step that is under way on a thread, however it was begun.

    Args:
        sink: where it goes.
        number: of the step.
        progress: of the thread's training.
        attributes: that its span has besides.

    Attributes:
        span: the step's; one that is not recording where the step is not recorded.
        want: what is to become of it.
        skipped: whether a gradient scaler skipped an optimizer's step in it.
    """

    def __init__(
        self,
        sink: SpanSink,
        number: int,
        progress: Progress,
        attributes: Mapping[str, AttributeValue] | None = None,
    ) -> None:
        self.span: trace.Span = trace.INVALID_SPAN
        self.want = sink.control.begin(number)
        self.skipped = False
        self.unit: Unit | None = None
        self.begun_ns = 0
        self._wall_ns = 0  # when it ended
        self._sink = sink
        self._number = number
        self._progress = progress
        self._attributes = attributes or {}

    def begin(self, context: Context, begun_ns: int = 0, *, current: bool = True) -> None:
        """Open the unit of the step, and start its span.

        Args:
            context: that the step hangs under.
            begun_ns: when it began (`time.perf_counter_ns`), if that was before.
            current: whether its span becomes the current one.
        """
        sink = self._sink
        if self.want is Want.LEAVE:
            self._measure()
            self.begun_ns = begun_ns or calls.clock()
            return
        unit = Unit(sink)
        unit.step = self._number
        self.begun_ns = begun_ns = begun_ns or calls.clock()
        context = carrier.around(context)
        if not current and sink.leaves_out(carrier.parent_in(context)):
            self._measure()
            return
        self.span = sink.start(
            semconv.TRAIN_STEP_SPAN,
            context,
            unit.wall_ns(begun_ns),
            {semconv.STEP_NUMBER: self._number, **_ranks(), **self._attributes},
        )
        if not self.span.is_recording():
            self._measure()
            return
        inside = trace.set_span_in_context(self.span, context)
        unit.scope = scope = Scope(inside, self.span.get_span_context())
        scope.outer = context
        if not current:
            scope.around = carrier.parent_in(context)
        self.unit = unit

    def _measure(self) -> None:
        """The step gets no span; what runs in it may be seen all the same."""
        self.unit = unit = self._sink.measure()
        if unit is not None:
            unit.step = self._number

    def load(self, loads: Sequence[tuple[int, int]]) -> None:
        """Batches were loaded for this step before it began: a span for each, in its trace.

        Args:
            loads: when they began and ended (`time.perf_counter_ns`).
        """
        unit = self.unit
        if not loads or unit is None or not isinstance(unit.sink, SpanSink):
            return
        place: Scope = unit.scope  # type: ignore[assignment]
        for begun_ns, ended_ns in loads:
            apart = Unit(unit.sink, place.beside())
            apart.opener = loaded(apart, begun_ns, ended_ns)
            CORE.flush(apart)

    def stop(self, failure: Failure | None = None, ended_ns: int = 0) -> None:
        """The step is over: its regions are handed on. Its span stays open.

        Args:
            failure: what left it.
            ended_ns: when it ended (`time.perf_counter_ns`), if that was before.
        """
        ended_ns = ended_ns or calls.clock()
        unit, self.unit, sink, span = self.unit, None, self._sink, self.span
        took_ns = ended_ns - self.begun_ns
        meter = sink.meter
        if unit is None or not isinstance(unit.sink, SpanSink):
            # Not recorded; or this is a forked child, and the step its parent's.
            if unit is not None:
                CORE.flush(unit)
                if meter is not None:
                    meter.step(took_ns / 1e9, None)
            return
        outlier = sink.control.is_outlier(semconv.TRAIN_STEP_SPAN, took_ns)
        unit.alone = self.want is Want.JUDGE and not outlier and failure is None
        dropped = sink.dropped
        self._wall_ns = unit.wall_ns(ended_ns)
        CORE.flush(unit)
        dropped = sink.dropped - dropped
        if dropped:
            span.set_attribute(semconv.SPANS_DROPPED, dropped)
        if outlier:
            span.set_attribute(semconv.STEP_OUTLIER, True)
        if self.skipped:
            span.set_attribute(semconv.STEP_SKIPPED, True)
        if failure is None:  # else the order is cut short
            self._tell_order(unit)
        sink.tell_inner(span, unit, None, spare=failure is not None)
        if failure is not None:
            tell(span, failure, unit)
        unit.told = unit.folded = None
        if meter is not None:
            meter.step(took_ns / 1e9, span.get_span_context())

    def _tell_order(self, unit: Unit) -> None:
        """Say on the step's span where its order first differs from the last recorded step's."""
        before, now = self._progress.order, unit.order
        self._progress.order = now
        if before is None or now is None:
            return
        attributes = change_of(before, now)
        if attributes:
            self.span.add_event(semconv.ORDER_CHANGED_EVENT, attributes, self._wall_ns)

    def end(self) -> None:
        """Export the step's span. Again: does nothing."""
        if self.span.is_recording():
            self._sink.end(self.span, self._wall_ns)


class _Block(abc.ABC):
    """What a step and an evaluation have in common, as context managers.

    What is open on the thread is set aside, and a span is the current one, while they last.
    """

    _what: ClassVar[str]

    def __init__(self, attributes: Mapping[str, AttributeValue] | None) -> None:
        self._attributes = attributes
        self._token: Any = None
        self._state: ThreadState | None = None
        self._saved: Any = None

    @property
    @abc.abstractmethod
    def span(self) -> trace.Span:
        """Its span; one that does not record before it begins, or if it is not recorded."""

    @abc.abstractmethod
    def _begin(self) -> None: ...

    def __enter__(self) -> trace.Span:
        """Begin; its span is the current one."""
        try:
            self._begin()
        except Exception as error:  # noqa: BLE001 - nothing of ours may reach the user
            CORE.fault(f"the start of {self._what}", error)
        return self.span

    def _make_current(self, context: Context) -> None:
        self._token = context_api.attach(trace.set_span_in_context(self.span, context))

    def _set_aside(self, state: ThreadState) -> None:
        self._state = state
        self._saved = state.suspend()

    def _detach(self) -> ThreadState | None:
        """The span is the current one no more. Gives the state to be resumed, once."""
        if self._token is not None:
            context_api.detach(self._token)
            self._token = None
        state, self._state = self._state, None
        return state


class Step(_Block):
    """One training step, as a context manager; see `ModTracker.step`."""

    _what = "a step"

    def __init__(self, number: int, attributes: Mapping[str, AttributeValue] | None = None) -> None:
        super().__init__(attributes)
        self._number = number
        self._step: OpenStep | None = None

    @property
    def span(self) -> trace.Span:
        """The step's span; one that does not record before the step, or if it is not recorded."""
        return self._step.span if self._step is not None else trace.INVALID_SPAN

    def _begin(self) -> None:
        sink = CORE.sink.ready()
        if not (CORE.on or CORE.resting) or not isinstance(sink, SpanSink):
            return
        state = THREADS.state
        if CORE.steps is not None:
            CORE.steps.give_way(state)
        if CORE.resting and sink.control.next(self._number) is Want.LEAVE:
            sink.control.passed()  # nothing is on: that was all
            state.progress.take_loads()
            return
        context = context_api.get_current()
        if context.get(sink.suppress_key):
            self._open(state, None)
            return
        loads = state.progress.take_loads()
        step = OpenStep(sink, self._number, state.progress, self._attributes)
        if step.want is Want.LEAVE:
            CORE.rest()
        else:
            CORE.wake()
        step.begin(context)
        self._step = step
        if step.want is not Want.LEAVE:
            self._make_current(context)
        self._open(state, step.unit)
        step.load(loads)

    def _open(self, state: ThreadState, unit: Unit | None) -> None:
        self._set_aside(state)
        state.unit = unit
        state.skip = unit is None or not CORE.on

    def stop(self, error: BaseException | None = None) -> None:
        """End the step's time, and hand its spans on; only its own is still open for attributes.

        `__exit__` exports that one, with the time of `stop`. Again: does nothing. Never raises.

        Args:
            error: that left the step, if any.
        """
        try:
            self._stop(error)
        except Exception as fault:  # noqa: BLE001 - nothing of ours may reach the user
            CORE.fault("the end of a step", fault)

    def _stop(self, error: BaseException | None) -> None:
        state = self._detach()
        if state is None:
            return
        failure = calls.describe(error) if error is not None else None
        optimizers.check(state, failure)
        state.resume(self._saved)
        if self._step is None:
            return
        try:
            self._step.stop(failure)
        finally:
            CORE.rest()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace_: types.TracebackType | None,
    ) -> None:
        """End the step and hand its spans on."""
        try:
            self.stop(error)
            self._export()
        except BaseException:  # a signal handler's: what is below it is exported already
            self._export()
            raise

    def _export(self) -> None:
        try:
            if self._step is not None:
                self._step.end()
        except Exception as fault:  # noqa: BLE001 - nothing of ours may reach the user
            CORE.fault("the end of a step", fault)


class Evaluation(_Block):
    """An evaluation, as a context manager; see `ModTracker.evaluation`."""

    _what = "an evaluation"

    def __init__(self, attributes: Mapping[str, AttributeValue] | None = None) -> None:
        super().__init__(attributes)
        self._span: trace.Span = trace.INVALID_SPAN
        self._unit: Unit | None = None  # for its clock
        self._around = False  # another evaluation was under way

    @property
    def span(self) -> trace.Span:
        """See `_Block.span`."""
        return self._span

    def _begin(self) -> None:
        sink = CORE.sink.ready()
        context = context_api.get_current()
        if not isinstance(sink, SpanSink) or not (CORE.on or CORE.resting):
            return
        state = THREADS.state
        self._around = state.progress.evaluating
        self._set_aside(state)
        state.progress.evaluating = True
        state.skip = not CORE.on
        if not sink.control.records_outside() or context.get(sink.suppress_key):
            return
        context = carrier.around(context)
        self._unit = unit = Unit(sink)
        self._span = sink.start(
            semconv.EVALUATION_SPAN,
            context,
            unit.now_wall_ns(),
            {**_ranks(), **(self._attributes or {})},
        )
        self._make_current(context)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace_: types.TracebackType | None,
    ) -> None:
        """End it."""
        try:
            self._end(error)
        except Exception as fault:  # noqa: BLE001 - nothing of ours may reach the user
            CORE.fault("the end of an evaluation", fault)

    def _end(self, error: BaseException | None) -> None:
        state = self._detach()
        if state is not None:
            state.progress.evaluating = self._around
            state.resume(self._saved)
        unit = self._unit
        if unit is None or not self._span.is_recording():
            return
        if error is not None:
            tell(self._span, calls.describe(error), unit)
        unit.sink.end(self._span, unit.now_wall_ns())  # type: ignore[attr-defined]


def _ranks() -> dict[str, int]:
    """Which of all processes this is, where torch.distributed is initialised."""
    rank, world_size = where.process()
    if not world_size:
        return {}
    found = {semconv.RANK: rank, semconv.WORLD_SIZE: world_size}
    local = os.environ.get("LOCAL_RANK", "")
    if local.isdecimal():
        found[semconv.LOCAL_RANK] = int(local)
    return found
