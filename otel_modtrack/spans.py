"""Turns regions into spans: after the fact, all at once, in whatever provider the user has.

Two roads. The SDK's provider gets finished `ReadableSpan`s (`sdk`). Where a processor wants to see
spans start, or a sampler may decide span by span, and for any other implementation of the API,
spans are started and ended through the API with the times recorded.
A region whose span the user has asked for is a real span already, whatever the road.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from opentelemetry import trace

from otel_modtrack import carrier, semconv
from otel_modtrack.carrier import SUPPRESS_KEY, parent_in
from otel_modtrack.comm.telling import EACH, OFF, SUMMED, gather
from otel_modtrack.control import Control
from otel_modtrack.current import RegionContext, context_variable
from otel_modtrack.interrupts import from_signal_handler
from otel_modtrack.place import Scope, while_it_lasts
from otel_modtrack.policy import Policy
from otel_modtrack.regions import Kind, Phase, Region, Sink, Subject, Unit, close_all
from otel_modtrack.saying import attributes_of, number, put_in_order, span_name, tell
from otel_modtrack.shaping import Spent, choose, folded_attributes, folded_events
from otel_modtrack.sinks import Unrecorded

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from opentelemetry.context.context import Context
    from opentelemetry.util.types import AttributeValue

    from otel_modtrack.metrics import Meter

__all__ = ["SpanSink", "make_sink"]

logger = logging.getLogger("otel_modtrack")

clock = time.perf_counter_ns
_MOST_EVENTS = 128  # a span's, unless its provider says otherwise; the SDK's default


class SpanSink(Sink):
    """Spans through the API alone: right for every provider, and the base of the faster road.

    Args:
        tracer: the tracer that spans are started with.
        provider_key: tells providers apart.

    Attributes:
        control: what is recorded, and in how many spans.
        meter: where durations and collectives go as metrics; None for nowhere.
        unrecorded: the sink of what is measured and gets no spans.
        sees_all: tells whether every module call has to be seen, whatever is recorded.
        dropped: regions that could not be handed to the provider so far.
        collectives: what is told of them, `OFF`, `SUMMED` or `EACH`.
        most_events: that a span of this provider has room for; None for any number.
    """

    wants_backward = True
    suppress_key = SUPPRESS_KEY

    def __init__(self, tracer: trace.Tracer, provider_key: int = 0) -> None:
        self.tracer = tracer
        self.provider_key = provider_key
        self.var = context_variable()
        self.dropped = 0
        self.collectives = SUMMED
        self.most_events: int | None = _MOST_EVENTS
        self.control: Control = Control(Policy())
        self.meter: Meter | None = None
        self.unrecorded = Unrecorded(self)
        self.sees_all: Callable[[], bool] = lambda: False
        self._spent = Spent()
        self._complained = False
        self._interrupted: Exception | None = None

    # -- where a unit hangs, and whether it is recorded ------------------------------------------

    def begin(self, subject: Subject) -> Unit | None:
        """See `Sink.begin`. What the parent's sampling decision switched off costs a flag test."""
        context = self.var.get()
        if context.get(self.suppress_key):
            return None
        if not self.control.records_outside():
            return self.measure()
        parent = parent_in(context)
        if parent is None:
            context = carrier.around(context)
            parent = parent_in(context)
        if self.leaves_out(parent):
            return self.measure()
        return self._sampled(subject, Scope(context, parent)) or self.measure()

    def measure(self) -> Unit | None:
        """A unit for what gets no spans, if it is to be measured, or hooks wait for it."""
        return Unit(self.unrecorded) if self.meter is not None or self.sees_all() else None

    def begin_backward(self, forward: Region) -> Unit | None:
        """See `Sink.begin_backward`: in the trace of the forward, under what is active there."""
        context = self.var.get()
        if context.get(self.suppress_key):
            return None
        if isinstance(forward.unit.sink, Unrecorded):  # what was not recorded is measured at most
            return self.measure()
        built = self.span_context(forward)
        active = parent_in(context)
        if active is not None and active.trace_id == built.trace_id:
            scope = Scope(context, active)
        else:
            scope = while_it_lasts(forward.unit.scope)  # type: ignore[arg-type]
            scope.trace_id, scope.joined = built.trace_id, built
        scope.flags, scope.state = built.trace_flags, built.trace_state
        return Unit(self, scope)

    def below_step(self, region: Region, current: Any) -> Any:
        """See `Sink.below_step`: under a span of the user's that is part of the step's trace."""
        if region.parent is not None or region.unit.opener is not None:
            return None
        step = region.unit.scope.parent  # type: ignore[attr-defined]
        active = parent_in(current)
        if active is None or active.span_id == step.span_id or active.trace_id != step.trace_id:
            return None
        around = region.unit.scope.around  # type: ignore[attr-defined]
        return None if around is not None and active.span_id == around.span_id else current

    def leaves_out(self, parent: trace.SpanContext | None) -> bool:
        """Whether what is below a parent is known not to be sampled, without a sampler's word."""
        return parent is not None and not int(parent.trace_flags) & 1 and self.follows_parent()

    def follows_parent(self) -> bool:
        """Whether a parent that is not sampled settles it."""
        return True

    def _sampled(self, subject: Subject, scope: Scope) -> Unit | None:
        """A unit, if the provider wants its first region recorded."""
        unit = Unit(self, scope)
        region = Region(subject, None, Phase.FORWARD, clock(), unit)
        span = self._start(region, scope.context)
        if not span.is_recording():
            return None
        scope.early = span
        return unit

    # -- the span of a region that is still open -------------------------------------------------

    def open_context(self, region: Region, current: Any) -> Context:
        """See `Sink.open_context`."""
        return RegionContext(region, current, self.span)

    def span(self, region: Region) -> trace.Span:
        """The region's span, started now if it was not; what the user sees as current."""
        known = region.span
        if known is not None and not isinstance(known, trace.SpanContext):
            return known  # type: ignore[no-any-return]
        if region.unit.flushed or _is_folded(region):
            return trace.NonRecordingSpan(self.span_context(region))
        return self._materialise(region)

    def _materialise(self, region: Region) -> trace.Span:
        span: trace.Span | None = None
        pending = [region]  # a loop: a recursion might meet the user's recursion limit
        while (
            (above := pending[-1].parent) is not None
            and pending[-1].context is None
            and not isinstance(above.span, trace.Span)
            and not above.unit.flushed
            and not _is_folded(above)
        ):
            pending.append(above)
        while pending:
            region = pending.pop()
            span = self._early(region)
            if span is None:
                span = self._start(region, self._context_above(region))
            region.span = span
        return span  # type: ignore[return-value]

    def _early(self, region: Region) -> trace.Span | None:
        """The span that was started to ask the provider, if `region` is the unit's first."""
        scope = self._scope(region)
        if region.parent is not None or region.phase == Phase.BACKWARD:
            return None
        span, scope.early = scope.early, None
        return span

    def _context_above(self, region: Region) -> Context:
        scope = self._scope(region)
        if region.context is not None:
            return region.context  # type: ignore[no-any-return]
        if region.parent is not None:
            return trace.set_span_in_context(self.span(region.parent), scope.context)
        if scope.parent is None and scope.joined is not None:
            return trace.set_span_in_context(trace.NonRecordingSpan(scope.joined), scope.context)
        return scope.context

    def _scope(self, region: Region) -> Scope:
        return region.unit.scope  # type: ignore[return-value]

    def _start(self, region: Region, context: Context) -> trace.Span:
        return self.start(
            span_name(region.subject, region.phase),
            context,
            region.unit.wall_ns(region.start_ns),
            attributes_of(region.subject, region.phase),
            self.links(region),
        )

    def start(
        self,
        name: str,
        context: Context,
        start_ns: int,
        attributes: Mapping[str, AttributeValue],
        links: tuple[trace.Link, ...] = (),
    ) -> trace.Span:
        """Start a span through the API. Lost where a processor raises.

        Args:
            name: of the span.
            context: that its parent is in.
            start_ns: nanoseconds since the epoch.
            attributes: that it starts with.
            links: likewise.
        """
        try:
            return self.tracer.start_span(
                name,
                context=context,
                kind=trace.SpanKind.INTERNAL,
                attributes=attributes,
                links=links,
                start_time=start_ns,
            )
        except Exception as error:
            if from_signal_handler(error):
                raise
            self.lost(error)
            return trace.NonRecordingSpan(trace.get_current_span(context).get_span_context())

    def end(self, span: trace.Span, end_ns: int) -> None:
        """End a span through the API; `end_ns` is nanoseconds since the epoch."""
        try:
            span.end(end_ns)
        except Exception as error:
            if from_signal_handler(error):
                raise
            self.lost(error)

    def links(self, region: Region) -> tuple[trace.Link, ...]:
        """Each backward span is linked to its forward's."""
        return (trace.Link(self.span_context(region.forward)),) if region.forward else ()

    def span_context(self, region: Region) -> trace.SpanContext:
        """The ids of a region, given out now if it has none."""
        known = region.span
        if known is None:
            known = self.span(region)
        return known if isinstance(known, trace.SpanContext) else known.get_span_context()

    # -- when all is over ------------------------------------------------------------------------

    def flush(self, unit: Unit) -> None:
        """See `Sink.flush`. A fault of a processor of the user's is logged, once, and counted."""
        regions, unit.regions = unit.regions, []
        number(regions)
        unit.order = put_in_order(regions)
        close_all(regions)
        for region in unit.bodies:  # one that outlived its parent hangs where it fits
            while region.parent is not None and region.parent.end_ns < region.end_ns:
                region.parent = region.parent.parent
        spans = choose(unit, regions, self.control, self._spent, self._trace_id(unit))
        self._take_ids(unit)
        if unit.collectives and self.collectives != OFF:
            unit.told = gather(unit)
        self.write_all(spans)
        unit.flushed = True
        if self.meter is not None:
            self.meter.take(unit, regions, self._context_of(unit))
        unit.collectives.clear()
        if unit.opener is not None:  # else the step's span tells
            unit.told = unit.folded = None
        interrupted, self._interrupted = self._interrupted, None
        if interrupted is not None:
            raise interrupted

    def _trace_id(self, unit: Unit) -> int:
        """The trace that a unit is in; 0 where its spans, not started yet, will begin one."""
        scope: Scope = unit.scope  # type: ignore[assignment]
        if scope.trace_id or unit.opener is None:
            return scope.trace_id
        known = unit.opener.span
        return 0 if known is None else self.span_context(unit.opener).trace_id

    def _take_ids(self, unit: Unit) -> None:
        """What refers to a region without a span refers to the one that stands for it."""
        if unit.folded is not None:
            step = unit.scope.parent  # type: ignore[attr-defined]
            for region, target in unit.folded.into.items():
                region.span = step if target is None else self.span_context(target)

    def _context_of(self, unit: Unit) -> Callable[[Region], trace.SpanContext | None]:
        """Tells where the span of one of the unit's regions is, if it has one."""
        folded = unit.folded
        sampled = int(unit.scope.flags) & 1  # type: ignore[attr-defined]

        def context_of(region: Region) -> trace.SpanContext | None:
            if not sampled or (folded is not None and region in folded.into):
                return None
            return self.span_context(region)

        return context_of

    def write_all(self, regions: list[Region]) -> None:
        """Hand on the spans of regions that are over: all are started before any is ended."""
        started = []
        for region in regions:
            try:
                started.append((region, self.span(region)))
            except Exception as error:  # noqa: BLE001 - a processor or exporter of the user's
                self.lost(error)
        for region, span in started:
            try:
                self.finish(region, span)
            except Exception as error:  # noqa: BLE001 - likewise
                self.lost(error)

    def lost(self, error: Exception) -> None:
        """A span could not be handed on. What a signal handler raised is kept for `flush`."""
        if from_signal_handler(error):
            self._interrupted = error
            return
        self.dropped += 1
        if not self._complained:
            self._complained = True
            logger.error(
                "a span could not be handed on; further ones are counted only", exc_info=error
            )

    def finish(self, region: Region, span: Any) -> None:
        """End a span that was started through the API."""
        if isinstance(span, trace.SpanContext) or not span.is_recording():
            return
        unit = region.unit
        if region.index is not None:
            span.set_attribute(semconv.MODULE_CALL_INDEX, region.index)
        if region.place is not None:
            span.set_attribute(semconv.ORDER_INDEX, region.place)
        if region.subject.compiled and region.subject.kind is Kind.MODULE:
            span.set_attribute(semconv.COMPILED, True)
        if unit.outlier and region is unit.opener:
            span.set_attribute(semconv.STEP_OUTLIER, True)
        self.tell_inner(span, unit, region, spare=region.failure is not None)
        if region.failure is not None:
            tell(span, region.failure, unit)
        span.end(unit.wall_ns(region.end_ns))
        region.span = span.get_span_context()

    def tell_inner(
        self, span: trace.Span, unit: Unit, region: Region | None, *, spare: int
    ) -> None:
        """Say on a span, through the API, what has no spans of its own in `region`.

        That is collectives, and regions that were folded.

        Args:
            span: that stands for it; still open.
            unit: whose collectives and regions they are.
            region: it; None for the step.
            spare: for how many more events there must be room.
        """
        most = self.most_events
        if most is not None:
            most -= len(getattr(span, "events", ())) + spare
        if unit.folded is not None:
            span.set_attributes(folded_attributes(unit, region))
            summaries = folded_events(unit, region, most)
            for attributes, at_ns in summaries:
                span.add_event(semconv.FOLDED_EVENT, attributes, unit.wall_ns(at_ns))
            most = most if most is None else most - len(summaries)
        told = unit.told.get(region) if unit.told is not None else None
        if told is None or not told.count:
            return
        span.set_attributes(told.attributes())
        for event in told.events(each=self.collectives == EACH, most=most):
            span.add_event(semconv.COLLECTIVE_EVENT, event.attributes(), unit.wall_ns(event.at_ns))


def _is_folded(region: Region) -> bool:
    folded = region.unit.folded
    return folded is not None and region in folded.into


def make_sink(
    provider: trace.TracerProvider | None, version: str, *, measures: bool = False
) -> SpanSink | None:
    """The sink for a provider (None: the global one); None if nothing would come out of it.

    Args:
        provider: of tracers.
        version: of the instrumentation scope.
        measures: whether it is wanted for its metrics, too.
    """
    if provider is None:
        provider = trace.get_tracer_provider()
    tracer: trace.Tracer = trace.NoOpTracer()
    if not isinstance(provider, (trace.ProxyTracerProvider, trace.NoOpTracerProvider)):
        tracer = provider.get_tracer(semconv.SCOPE_NAME, version)
    if isinstance(tracer, trace.NoOpTracer):
        return SpanSink(tracer) if measures else None
    try:
        from otel_modtrack.sdk import SdkSink  # noqa: PLC0415 - the SDK is optional
    except ImportError:
        return SpanSink(tracer, id(provider))
    kind = SdkSink if SdkSink.fits(tracer) else SpanSink
    return kind(tracer, id(provider))  # type: ignore[arg-type]
