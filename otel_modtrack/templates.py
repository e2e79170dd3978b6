"""What the spans of the SDK's roads say: made once for all regions that say the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from opentelemetry import trace
from opentelemetry.attributes import BoundedAttributes
from opentelemetry.sdk import trace as sdk_trace

from otel_modtrack import semconv
from otel_modtrack.comm.telling import summary_of
from otel_modtrack.otlp.records import UNSET, Template
from otel_modtrack.saying import attributes_of, exception_attributes, span_name
from otel_modtrack.shaping import folded_attributes, folded_events

if TYPE_CHECKING:
    from collections.abc import Mapping

    from opentelemetry.util.types import AttributeValue

    from otel_modtrack.comm.telling import Told
    from otel_modtrack.regions import Region, Unit

__all__ = ["Templates"]

_Made = TypeVar("_Made")

_INDICES_KEPT = 32  # call indices whose attributes are kept for the next step
_KEPT = 2048  # attributes of collectives that are kept for the next step


class Templates:
    """What regions say, within a provider's limits.

    Args:
        limits: the provider's.
    """

    def __init__(self, limits: sdk_trace.SpanLimits) -> None:
        self._limits = limits
        self._told: dict[object, Any] = {}

    def says(self, region: Region, *, each: bool) -> tuple[Template, tuple[sdk_trace.Event, ...]]:
        """All that a region's span says, if not all of it is said by others of its kind.

        Args:
            region: it.
            each: whether each collective is told by itself.
        """
        unit, failure = region.unit, region.failure
        template = self.static(region)
        attributes: Any = template.attributes
        events: tuple[sdk_trace.Event, ...] = ()
        told = unit.told.get(region) if unit.told is not None else None
        if told is not None:
            template = self._with_sums(region, told, template)
            attributes = template.attributes
        if unit.folded is not None and (count := folded_attributes(unit, region)):
            attributes = self._bounded({**attributes, **count})
            events = self._folded(region)
        if told is not None:
            events += self._collectives(
                unit, told, each=each, spare=(failure is not None) + len(events)
            )
        if unit.outlier and region is unit.opener:
            attributes = self._bounded({**attributes, semconv.STEP_OUTLIER: True})
        status = UNSET
        if failure is not None:
            attributes = self._bounded({**attributes, semconv.ERROR_TYPE: failure.type})
            status = trace.Status(trace.StatusCode.ERROR, failure.message)
            events = (*events, self._exception(region))
        scope: Any = unit.scope
        if scope.extra is not None and region is unit.opener:  # the sampler's, for the first
            attributes = self._bounded({**attributes, **scope.extra})
        if attributes is not template.attributes:
            template = Template(template.name, attributes, status)
        return template, events

    def _folded(self, region: Region) -> tuple[sdk_trace.Event, ...]:
        unit = region.unit
        return tuple(
            sdk_trace.Event(
                semconv.FOLDED_EVENT, self._bounded(attributes, event=True), unit.base_ns + at_ns
            )
            for attributes, at_ns in folded_events(unit, region, self._limits.max_events)
        )

    def _collectives(
        self, unit: Unit, told: Told, *, each: bool, spare: int
    ) -> tuple[sdk_trace.Event, ...]:
        if not told.launched:
            return ()
        most, name = self._limits.max_events, semconv.COLLECTIVE_EVENT
        if most is not None:
            most -= spare
        alike = told.alike
        if alike is not None and not each and (most is None or most > 0):
            # The usual case: the same each step, so that all but the time is there already.
            count = len(told.launched)
            attributes = self._told.get((alike, count))
            if attributes is None:
                told_attributes = summary_of(alike, count).attributes()
                attributes = self._keep((alike, count), self._bounded(told_attributes, event=True))
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

    def _with_sums(self, region: Region, told: Told, static: Template) -> Template:
        """What the region says with its sums; made once, for steps launch the same again."""
        key = (region.subject, region.phase, region.index, region.place, told.count, told.size)
        found: Template | None = self._told.get(key)
        if found is None:
            attributes = self._bounded({**static.attributes, **told.attributes()})
            found = self._keep(key, Template(static.name, attributes))
        return found

    def _keep(self, key: object, made: _Made) -> _Made:
        kept = self._told
        if len(kept) >= _KEPT:
            kept.clear()
        kept[key] = made
        return made

    def _exception(self, region: Region) -> sdk_trace.Event:
        failure: Any = region.failure
        return sdk_trace.Event(
            semconv.EXCEPTION_EVENT,
            self._bounded(exception_attributes(failure), event=True),
            region.unit.wall_ns(failure.at_ns),
        )

    def static(self, region: Region) -> Template:
        """Name and attributes, made once and shared by all regions that have the same.

        Kept are those of the place that the call had last: in most programs it has it each step.
        """
        subject, phase, index, place = region.subject, region.phase, region.index, region.place
        key = phase if index is None else (phase, index)
        found = subject.cache.get(key)
        if found is None or found[1] != place or found[2] is not self:
            attributes = attributes_of(subject, phase)
            if index is not None:
                attributes[semconv.MODULE_CALL_INDEX] = index
            if place is not None:
                attributes[semconv.ORDER_INDEX] = place
            made = Template(span_name(subject, phase), self._bounded(attributes))
            found = (made, place, self)
            if index is None or index < _INDICES_KEPT:
                subject.cache[key] = found
        return found[0]

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
