"""The fast road: finished spans, handed to the processors of the SDK's provider.

A span of the SDK's own costs 14-17 us on the user's thread; a `ReadableSpan` with shared attributes
and parents costs 3.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from opentelemetry import trace
from opentelemetry.attributes import BoundedAttributes
from opentelemetry.sdk import trace as sdk_trace
from opentelemetry.sdk.trace import export, sampling

from otel_modtrack import semconv
from otel_modtrack.carrier import parent_in
from otel_modtrack.comm.telling import EACH, summary_of
from otel_modtrack.ids import PrivateIds, draw, is_stock_generator
from otel_modtrack.regions import Phase, Region, Subject, Unit
from otel_modtrack.saying import attributes_of, exception_attributes, span_name
from otel_modtrack.shaping import folded_attributes, folded_events
from otel_modtrack.spans import SpanSink

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from opentelemetry.context.context import Context
    from opentelemetry.util.types import AttributeValue

    from otel_modtrack.comm.telling import Told
    from otel_modtrack.place import Scope

__all__ = ["SdkSink"]

_INDICES_KEPT = 32  # call indices whose attributes are kept for the next step
_KEPT = 2048  # attributes of collectives that are kept for the next step
_NEEDED = ("sampler", "resource", "span_processor", "id_generator", "_span_limits")
_UNSET = trace.Status(trace.StatusCode.UNSET)
_INTERNAL = trace.SpanKind.INTERNAL
_SAMPLED = trace.TraceFlags.SAMPLED
_RANDOM = getattr(trace.TraceFlags, "RANDOM_TRACE_ID", 0)
# Processors that do nothing before a span is over.
_IDLE = (sdk_trace.SpanProcessor, export.SimpleSpanProcessor, export.BatchSpanProcessor)
_IDLE_STARTS = {kind.on_start for kind in _IDLE}
_IDLE_ENDINGS = {getattr(kind, "_on_ending", None) for kind in _IDLE}


class SdkSink(SpanSink):
    """Spans for the SDK's `TracerProvider`."""

    tracer: sdk_trace.Tracer

    def __init__(self, tracer: sdk_trace.Tracer, provider_key: int = 0) -> None:
        super().__init__(tracer, provider_key)
        if is_stock_generator(tracer.id_generator):
            tracer.id_generator = PrivateIds()
        self.ids = tracer.id_generator
        # For records: what `PrivateIds` has preset is for spans that are started.
        self._span_id: Callable[[], int] = (
            functools.partial(draw, 64)
            if type(self.ids) is PrivateIds
            else self.ids.generate_span_id
        )
        self._scope_info = getattr(tracer, "_instrumentation_scope", None)
        self._limits = tracer._span_limits  # noqa: SLF001 - probed in `fits`
        self.most_events = self._limits.max_events
        self._told: dict[object, BoundedAttributes] = {}
        self._processors: object = None
        self._passive = False
        self._by_trace = _decides_by_trace(tracer.sampler)

    @staticmethod
    def fits(tracer: object) -> bool:
        """Whether this is the SDK's tracer, with everything that we read from it."""
        return isinstance(tracer, sdk_trace.Tracer) and all(hasattr(tracer, n) for n in _NEEDED)

    # -- sampling --------------------------------------------------------------------------------

    def follows_parent(self) -> bool:
        """See `SpanSink.follows_parent`."""
        return isinstance(self.tracer.sampler, sampling.ParentBased)

    def _sampled(self, subject: Subject, scope: Scope) -> Unit | None:
        name, attributes = (
            span_name(subject, Phase.FORWARD),
            attributes_of(subject, Phase.FORWARD),
        )
        trace_id = scope.trace_id or self.ids.generate_trace_id()
        result = self.tracer.sampler.should_sample(
            scope.context, trace_id, name, _INTERNAL, attributes, ()
        )
        if not result.decision.is_recording():  # type: ignore[no-untyped-call]
            return None
        scope.trace_id = trace_id
        sampled = result.decision.is_sampled()  # type: ignore[no-untyped-call]
        flags = _SAMPLED if sampled else trace.TraceFlags.DEFAULT
        if scope.parent is not None:
            flags |= scope.parent.trace_flags & _RANDOM
        elif getattr(self.ids, "is_trace_id_random", bool)():
            flags |= _RANDOM
        scope.flags = trace.TraceFlags(flags)
        scope.state = result.trace_state
        if dict(result.attributes or {}) != attributes:
            scope.extra = result.attributes
        return Unit(self, scope)

    def _is_passive(self) -> bool:
        """Whether no processor wants to see spans start."""
        processors = getattr(self.tracer.span_processor, "_span_processors", None)
        if processors is not self._processors or processors is None:
            self._processors = processors
            self._passive = processors is not None and all(
                type(one).on_start in _IDLE_STARTS
                and getattr(type(one), "_on_ending", None) in _IDLE_ENDINGS
                for one in processors
            )
        return self._passive

    # -- ids -------------------------------------------------------------------------------------

    def span_context(self, region: Region) -> trace.SpanContext:
        """See `SpanSink.span_context`: ids alone, no span."""
        known = region.span
        if known is None:
            pending = [region]  # a loop: a recursion might meet the user's recursion limit
            while (
                (above := pending[-1].parent) is not None
                and above.span is None
                and pending[-1].context is None
            ):
                pending.append(above)
            while pending:
                one = pending.pop()
                known = self._give_ids(one, self._above(one))
        elif not isinstance(known, trace.SpanContext):
            return known.get_span_context()  # type: ignore[no-any-return]
        return known  # type: ignore[no-any-return]

    def _give_ids(self, region: Region, above: trace.SpanContext | None) -> trace.SpanContext:
        scope: Scope = region.unit.scope  # type: ignore[assignment]
        if above is not None:
            trace_id = above.trace_id
        else:
            if not scope.trace_id:
                scope.trace_id = self.ids.generate_trace_id()
            trace_id = scope.trace_id
        region.span = found = _span_context(trace_id, self._span_id(), scope.flags, scope.state)
        return found

    def _above(self, region: Region) -> trace.SpanContext | None:
        """The parent's span context; None for the root of a trace."""
        if region.context is not None:
            return parent_in(region.context)
        parent = region.parent
        if parent is not None:
            known = parent.span
            return known if type(known) is trace.SpanContext else self.span_context(parent)
        return region.unit.scope.parent  # type: ignore[no-any-return,attr-defined]

    def _start(self, region: Region, context: Context) -> trace.Span:
        scope: Scope = region.unit.scope  # type: ignore[assignment]
        preset = getattr(self.ids, "preset", None)
        if preset is not None:
            known = region.span
            preset.span_id = known.span_id if known is not None else 0
            preset.trace_id = scope.trace_id
        try:
            span = super()._start(region, context)
        finally:
            if preset is not None:
                preset.span_id = preset.trace_id = 0
        if region.parent is None and not scope.trace_id:
            scope.trace_id = span.get_span_context().trace_id
        return span

    def _context_above(self, region: Region) -> Context:
        """See `SpanSink._context_above`; a trace is joined through the id, without a parent."""
        if region.context is None and region.parent is None:
            return region.unit.scope.context  # type: ignore[no-any-return,attr-defined]
        return super()._context_above(region)

    # -- spans -----------------------------------------------------------------------------------

    def write_all(self, regions: list[Region]) -> None:
        """See `SpanSink.write_all`."""
        if not (self._by_trace and self._is_passive()):
            super().write_all(regions)
            return
        on_end = self.tracer.span_processor.on_end
        for region in regions:
            known = region.span
            try:
                if known is None or isinstance(known, trace.SpanContext):
                    on_end(self._readable(region))
                else:
                    self.finish(region, known)
            except Exception as error:  # noqa: BLE001 - a processor or exporter of the user's
                self.lost(error)

    def _readable(self, region: Region) -> sdk_trace.ReadableSpan:
        unit, forward, failure = region.unit, region.forward, region.failure
        above = self._above(region)
        context = region.span
        if context is None:
            context = self._give_ids(region, above)
        name, attributes, _, _ = self._static(region)
        status: trace.Status = _UNSET
        events: tuple[sdk_trace.Event, ...] = ()
        told = unit.told.get(region) if unit.told is not None else None
        if told is not None:
            attributes = self._with_sums(region, told, attributes)
        if unit.folded is not None and (count := folded_attributes(unit, region)):
            attributes = self._bounded({**attributes, **count})
            events = self._folded(region)
        if told is not None:
            events += self._collectives(unit, told, spare=(failure is not None) + len(events))
        if unit.outlier and region is unit.opener:
            attributes = self._bounded({**attributes, semconv.STEP_OUTLIER: True})
        if failure is not None:
            attributes = self._bounded({**attributes, semconv.ERROR_TYPE: failure.type})
            status = trace.Status(trace.StatusCode.ERROR, failure.message)
            events = (*events, self._exception(region))
        scope: Any = unit.scope
        if scope.extra is not None and region.parent is None:  # the sampler's, for the first
            attributes = self._bounded({**attributes, **scope.extra})
            scope.extra = None
        return sdk_trace.ReadableSpan(
            name,
            context,
            above,
            self.tracer.resource,
            attributes,
            events,
            () if forward is None else (trace.Link(self.span_context(forward)),),
            _INTERNAL,
            None,
            status,
            unit.base_ns + region.start_ns,
            unit.base_ns + region.end_ns,
            self._scope_info,
        )

    def _folded(self, region: Region) -> tuple[sdk_trace.Event, ...]:
        unit = region.unit
        return tuple(
            sdk_trace.Event(
                semconv.FOLDED_EVENT, self._bounded(attributes, event=True), unit.base_ns + at_ns
            )
            for attributes, at_ns in folded_events(unit, region, self.most_events)
        )

    def _collectives(self, unit: Unit, told: Told, *, spare: int) -> tuple[sdk_trace.Event, ...]:
        if not told.launched:
            return ()
        each, most, name = self.collectives == EACH, self.most_events, semconv.COLLECTIVE_EVENT
        if most is not None:
            most -= spare
        alike = told.alike
        if alike is not None and not each and (most is None or most > 0):
            # The usual case: the same each step, so that all but the time is there already.
            count = len(told.launched)
            attributes = self._told.get((alike, count))
            if attributes is None:
                attributes = self._keep((alike, count), summary_of(alike, count).attributes(), True)
            return (sdk_trace.Event(name, attributes, unit.base_ns + told.launched[0].at_ns),)
        return tuple(
            [
                sdk_trace.Event(
                    name,
                    self._bounded(event.attributes(), event=True),
                    unit.base_ns + event.at_ns,
                )
                for event in told.events(each=each, most=most)
            ]
        )

    def _with_sums(
        self, region: Region, told: Told, attributes: BoundedAttributes
    ) -> BoundedAttributes:
        """The region's attributes and its sums; made once, for steps launch the same again."""
        key = (region.subject, region.phase, region.index, region.place, told.count, told.size)
        found = self._told.get(key)
        if found is None:
            found = self._keep(key, {**attributes, **told.attributes()}, False)
        return found

    def _keep(
        self, key: object, attributes: Mapping[str, AttributeValue], event: bool
    ) -> BoundedAttributes:
        kept = self._told
        if len(kept) >= _KEPT:
            kept.clear()
        found = kept[key] = self._bounded(attributes, event=event)
        return found

    def _exception(self, region: Region) -> sdk_trace.Event:
        failure: Any = region.failure
        return sdk_trace.Event(
            semconv.EXCEPTION_EVENT,
            self._bounded(exception_attributes(failure), event=True),
            region.unit.wall_ns(failure.at_ns),
        )

    def _static(self, region: Region) -> tuple[str, BoundedAttributes, int | None, SdkSink]:
        """Name and attributes, made once and shared by all regions that have the same.

        Kept are those of the place that the call had last: in most programs it has it each step.
        """
        subject, phase, index, place = region.subject, region.phase, region.index, region.place
        key = phase if index is None else (phase, index)
        found = subject.cache.get(key)
        if found is None or found[2] != place or found[3] is not self:
            attributes = attributes_of(subject, phase)
            if index is not None:
                attributes[semconv.MODULE_CALL_INDEX] = index
            if place is not None:
                attributes[semconv.ORDER_INDEX] = place
            found = (span_name(subject, phase), self._bounded(attributes), place, self)
            if index is None or index < _INDICES_KEPT:
                subject.cache[key] = found
        return found

    def _bounded(
        self, attributes: Mapping[str, AttributeValue], *, event: bool = False
    ) -> BoundedAttributes:
        limits = self._limits
        return BoundedAttributes(
            limits.max_event_attributes if event else limits.max_span_attributes,
            attributes,
            immutable=True,
            max_value_len=limits.max_span_attribute_length,
        )


def _span_context(
    trace_id: int, span_id: int, flags: trace.TraceFlags, state: trace.TraceState | None
) -> trace.SpanContext:
    return trace.SpanContext(
        trace_id, span_id, is_remote=False, trace_flags=flags, trace_state=state
    )


def _as_tuple(
    trace_id: int, span_id: int, flags: trace.TraceFlags, state: trace.TraceState | None
) -> trace.SpanContext:
    # Without checking ids that are ours: a third of the time. Probed below.
    return tuple.__new__(trace.SpanContext, (trace_id, span_id, False, flags, state, True))


if _as_tuple(1, 2, trace.TraceFlags(1), trace.TraceState()) == _span_context(
    1, 2, trace.TraceFlags(1), trace.TraceState()
):
    _span_context = _as_tuple


def _decides_by_trace(sampler: sampling.Sampler) -> bool:
    """Whether the sampler says the same for every span of a trace below a sampled one."""
    if type(sampler) is sampling.ParentBased:
        return True
    return type(sampler) in (sampling.StaticSampler, sampling.TraceIdRatioBased)
