"""The fast roads: finished spans, or records of them, for the processors of the SDK's provider.

A span of the SDK's own costs 14-17 us on the user's thread, and 22-38 to encode. A `ReadableSpan`
with shared attributes and parents costs 3. A record costs 1, and 1 to encode (`otlp.records`): our
own processors get these, and whoever else there is gets spans.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from opentelemetry import trace
from opentelemetry.sdk import trace as sdk_trace
from opentelemetry.sdk.trace import export, sampling

from otel_modtrack.carrier import parent_in
from otel_modtrack.comm.telling import EACH
from otel_modtrack.ids import PrivateIds, draw, draw_span_ids, is_stock_generator
from otel_modtrack.otlp.processor import Processor
from otel_modtrack.otlp.records import Place
from otel_modtrack.regions import Phase, Region, Subject, Unit
from otel_modtrack.saying import attributes_of, span_name
from otel_modtrack.spans import SpanSink
from otel_modtrack.templates import Templates

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from opentelemetry.context.context import Context

    from otel_modtrack.otlp.records import Record
    from otel_modtrack.place import Scope

__all__ = ["SdkSink"]

_NEEDED = ("sampler", "resource", "span_processor", "id_generator", "_span_limits")
_INTERNAL = trace.SpanKind.INTERNAL
_SAMPLED = trace.TraceFlags.SAMPLED
_RANDOM = getattr(trace.TraceFlags, "RANDOM_TRACE_ID", 0)
# Processors that do nothing before a span is over.
_IDLE = (sdk_trace.SpanProcessor, export.SimpleSpanProcessor, export.BatchSpanProcessor)
_IDLE_STARTS = {kind.on_start for kind in _IDLE}
_IDLE_ENDINGS = {getattr(kind, "_on_ending", None) for kind in _IDLE}
# Processors that leave a span as it is for those behind them.
_HARMLESS = {kind.on_end for kind in (*_IDLE, Processor)}
_OnEnd = Callable[[sdk_trace.ReadableSpan], None]
_Places = dict[tuple[int, bool], Place]  # by trace, and whether the parent is in another process
_NONE: tuple[sdk_trace.Event, ...] = ()


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
        limits = tracer._span_limits  # noqa: SLF001 - probed in `fits`
        self.most_events = limits.max_events
        self._templates = Templates(limits)
        self._processors: object = None
        self._passive = False
        self._direct: list[Processor] = []  # that take records
        self._others: list[_OnEnd] = []  # of all other processors
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
            self._passive = processors is not None and all(
                type(one).on_start in _IDLE_STARTS
                and getattr(type(one), "_on_ending", None) in _IDLE_ENDINGS
                for one in processors
            )
            self._direct, self._others = _roads(self.tracer, processors or ())
            self._processors = processors  # last: a signal's exception may come in between
        return self._passive

    # -- ids -------------------------------------------------------------------------------------

    def span_context(self, region: Region) -> trace.SpanContext:
        """See `SpanSink.span_context`: ids alone, no span."""
        known = region.span
        if known is None:
            pending = [region]  # a loop: a recursion might meet the user's recursion limit
            while (
                pending[-1].own_id is None
                and (above := pending[-1].parent) is not None
                and above.span is None
                and pending[-1].context is None
            ):
                pending.append(above)
            while pending:
                one = pending.pop()
                known = self._give_ids(one, self._above(one) if one.own_id is None else None)
        elif not isinstance(known, trace.SpanContext):
            return known.get_span_context()  # type: ignore[no-any-return]
        return known  # type: ignore[no-any-return]

    def _give_ids(self, region: Region, above: trace.SpanContext | None) -> trace.SpanContext:
        scope: Scope = region.unit.scope  # type: ignore[assignment]
        trace_id = above.trace_id if above is not None else self._trace_id_of(scope)
        own_id = region.own_id
        span_id = self._span_id() if own_id is None else int.from_bytes(own_id, "big")
        region.span = found = _span_context(trace_id, span_id, scope.flags, scope.state)
        return found

    def _trace_id_of(self, scope: Scope) -> int:
        """The trace that a unit is in, begun now if it is in none."""
        if not scope.trace_id:
            scope.trace_id = self.ids.generate_trace_id()
        return scope.trace_id

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
        if not self._direct or not regions:
            self._hand_on(regions)
            return
        left = [one for one in regions if not _is_real(one.span)] if self._others else []
        records = self._records(regions)
        for processor in self._direct:
            processor.put_records(records)
        self._hand_on(left)

    def _hand_on(self, regions: list[Region]) -> None:
        """Spans, for all processors that take no records."""
        for region in regions:
            try:
                if _is_real(region.span):
                    self.finish(region, region.span)
                    continue
                span = self._readable(region)
                for on_end in self._others:
                    on_end(span)
            except Exception as error:  # noqa: BLE001 - a processor or exporter of the user's
                self.lost(error)

    def _readable(self, region: Region) -> sdk_trace.ReadableSpan:
        unit, forward = region.unit, region.forward
        above = self._above(region)
        context = region.span
        if context is None:
            context = self._give_ids(region, above)
        template, events = self._templates.says(region, each=self.collectives == EACH)
        return sdk_trace.ReadableSpan(
            template.name,
            context,
            above,
            self.tracer.resource,
            template.attributes,
            events,
            () if forward is None else (trace.Link(self.span_context(forward)),),
            _INTERNAL,
            None,
            template.status,
            unit.base_ns + region.start_ns,
            unit.base_ns + region.end_ns,
            self._scope_info,
        )

    def _records(self, regions: list[Region]) -> list[Record]:  # noqa: C901, PLR0912 - a call costs as much as what it does
        """A record of each region that has no span; the spans of the others are finished.

        Most regions are in the trace of their unit, below another of it, and nobody has asked for
        their ids. For these everything is there: `_look_up` is for the others.
        """
        unit = regions[0].unit
        scope: Any = unit.scope
        trace_id, base_ns, root = self._trace_id_of(scope), unit.base_ns, scope.parent
        is_sampled = scope.flags & 1
        is_plain = unit.told is None and unit.folded is None and not unit.outlier
        is_plain = is_plain and scope.extra is None
        static = self._templates.static
        places: _Places = {}
        outer = inner = self._place(places, scope, trace_id)
        root_id = b""
        if root is not None:
            outer = self._place(places, scope, root.trace_id, remote=root.is_remote)
            root_id = root.span_id.to_bytes(8, "big")
        records: list[Record] = []
        for region, drawn in zip(regions, self._draw(len(regions))):  # noqa: B905 - equal
            try:
                parent, place = region.parent, inner
                own_id, above_id = drawn, None
                if region.span is None and region.context is None and drawn:
                    if parent is None:
                        place, above_id = outer, root_id
                    elif parent.unit is unit:
                        above_id = parent.own_id
                if above_id is not None:
                    region.own_id = drawn
                elif _is_real(region.span):
                    self.finish(region, region.span)
                    continue
                else:
                    place, own_id, above_id = self._look_up(region, places, drawn)
                if not is_sampled:
                    continue
                forward, link = region.forward, None
                if forward is not None:
                    link = forward.own_id
                    if link is None or forward.unit is not unit or place.trace_id != trace_id:
                        link = self._link(forward, place.trace_id)
                if is_plain and region.failure is None:
                    template, events = static(region), _NONE
                else:
                    template, events = self._templates.says(region, each=self.collectives == EACH)
                start_ns, end_ns = base_ns + region.start_ns, base_ns + region.end_ns
                records.append((place, template, own_id, above_id, start_ns, end_ns, link, events))
            except Exception as error:  # noqa: BLE001 - a processor or exporter of the user's
                self.lost(error)
        return records

    def _draw(self, count: int) -> Iterable[bytes]:
        if type(self.ids) is PrivateIds:
            return draw_span_ids(count)
        return itertools.repeat(b"", count)  # one after the other, by its own generator

    def _place(
        self, places: _Places, scope: Scope, trace_id: int, *, remote: bool = False
    ) -> Place:
        found = places.get((trace_id, remote))
        if found is None:
            resource, info = self.tracer.resource, self._scope_info
            found = Place(trace_id, scope.flags, scope.state, resource, info, remote=remote)
            places[trace_id, remote] = found
        return found

    def _look_up(self, region: Region, places: _Places, drawn: bytes) -> tuple[Place, bytes, bytes]:
        """Where a region is, its id and its parent's, whatever they are.

        Args:
            region: without a span of its own.
            places: of its unit, so far.
            drawn: the id that it gets if it has none; b"" to ask for one.
        """
        scope: Any = region.unit.scope
        above = self._above(region)
        if region.span is None and drawn:
            region.own_id = drawn
        context = region.span or self._give_ids(region, above)
        own_id = context.span_id.to_bytes(8, "big")
        # What is below it takes the id from here, if that is in the unit's trace.
        region.own_id = own_id if context.trace_id == scope.trace_id else None
        if above is None:
            return self._place(places, scope, context.trace_id), own_id, b""
        place = self._place(places, scope, context.trace_id, remote=above.is_remote)
        return place, own_id, above.span_id.to_bytes(8, "big")

    def _link(self, forward: Region, trace_id: int) -> bytes:
        """A record's link; see `records`."""
        scope: Any = forward.unit.scope
        if forward.own_id is not None and scope.trace_id == trace_id:
            return forward.own_id
        context = self.span_context(forward)
        span_id = context.span_id.to_bytes(8, "big")
        if context.trace_id == trace_id:
            return span_id
        return context.trace_id.to_bytes(16, "big") + span_id


def _is_real(known: Any) -> bool:
    """Whether what a region was given is a span that was started, not ids alone."""
    return known is not None and not isinstance(known, trace.SpanContext)


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


def _roads(
    tracer: sdk_trace.Tracer, processors: Sequence[Any]
) -> tuple[list[Processor], list[_OnEnd]]:
    """The processors that get records, and what all others are given spans by.

    One of ours that stands behind a processor nobody knows gets spans: that may change them.
    """
    direct: list[Processor] = []
    others: list[_OnEnd] = []
    is_known = (
        type(tracer) is sdk_trace.Tracer
        and type(tracer.span_processor) is sdk_trace.SynchronousMultiSpanProcessor
    )
    if not is_known:
        return direct, [tracer.span_processor.on_end]
    for one in processors:
        on_end = getattr(one.on_end, "__func__", None)
        if is_known and on_end is Processor.on_end and one.takes_records:
            direct.append(one)
        else:
            others.append(one.on_end)
            is_known = is_known and on_end in _HARMLESS
    return direct, others
