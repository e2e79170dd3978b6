"""Which regions of a unit get spans, and what the spans say of those that get none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_modtrack import semconv
from otel_modtrack.fold import Bounds, fold
from otel_modtrack.saying import attributes_of, span_name

if TYPE_CHECKING:
    from opentelemetry.util.types import AttributeValue

    from otel_modtrack.control import Control
    from otel_modtrack.regions import Region, Unit

__all__ = ["Spent", "choose", "folded_attributes", "folded_events"]

_TRACES_KEPT = 256
_NS = 1_000_000_000


class Spent:
    """How many spans each of the last traces has got."""

    def __init__(self) -> None:
        self._spans: dict[int, int] = {}

    def of(self, trace_id: int) -> int:
        """How many spans a trace has; 0 for one that is not known, or has no id yet."""
        return self._spans.get(trace_id, 0)

    def add(self, trace_id: int, count: int) -> None:
        """A trace gets more spans."""
        if not trace_id:
            return
        spans = self._spans
        spans[trace_id] = spans.get(trace_id, 0) + count
        while len(spans) > _TRACES_KEPT:  # the oldest; another thread may have been faster
            spans.pop(next(iter(spans)), None)


def choose(
    unit: Unit, regions: list[Region], control: Control, spent: Spent, trace_id: int
) -> list[Region]:
    """The regions that get spans; the others are in ``unit.folded``.

    Args:
        unit: that is over.
        regions: its regions, all of them closed.
        control: of the tracker.
        spent: what the trace has already.
        trace_id: of the unit; 0 where it has none yet.
    """
    policy, opener = control.policy, unit.opener
    if policy.outliers is not None and opener is not None:
        kind = (opener.phase, opener.subject.template)
        unit.outlier = control.is_outlier(kind, opener.end_ns - opener.start_ns)
        unit.alone = not unit.outlier and opener.failure is None
    most = None
    own = 1 if opener is None else 0  # the step's span
    if policy.budget:
        most = max(policy.budget - spent.of(trace_id) - own, 0)
    bounds = Bounds(most, round(policy.min_duration * _NS), unit.alone)
    unit.folded = folded = fold(unit, regions, bounds)
    if folded is not None:
        regions = [one for one in regions if one not in folded.into]
    spent.add(trace_id, len(regions) + own)
    return regions


def folded_attributes(unit: Unit, region: Region | None) -> dict[str, AttributeValue]:
    """What the span of a region (None: of the step) says of those in it that have none."""
    count = unit.folded.inside.get(region, 0) if unit.folded is not None else 0
    return {semconv.SPANS_FOLDED: count} if count else {}


def folded_events(
    unit: Unit, region: Region | None, most: int | None
) -> list[tuple[dict[str, AttributeValue], int]]:
    """The events of the span of a region (None: of the step), with their times (perf_counter ns).

    Args:
        unit: of the region.
        region: it.
        most: events that the span has room for; half of them are left to others.
    """
    if unit.folded is None:
        return []
    room = 64 if most is None else max(most // 2, 1)
    found = []
    for one in unit.folded.summaries(region, room):
        attributes: dict[str, AttributeValue] = {}
        if one.subject is not None:
            attributes[semconv.FOLDED_NAME] = span_name(one.subject, one.phase)
            told = attributes_of(one.subject, one.phase)
            for key in (semconv.PHASE, semconv.MODULE_TEMPLATE, semconv.MODULE_TYPE):
                if key in told:
                    attributes[key] = told[key]
        attributes[semconv.FOLDED_COUNT] = one.count
        attributes[semconv.FOLDED_TOTAL] = one.total_ns / _NS
        attributes[semconv.FOLDED_LONGEST] = one.longest_ns / _NS
        found.append((attributes, one.at_ns))
    found.sort(key=lambda event: event[1])
    return found
