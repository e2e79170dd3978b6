"""Regions that get no span of their own: which ones, and what is said of them instead.

Knows neither torch nor OpenTelemetry.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_modtrack.regions import Region, Subject, Unit

__all__ = ["Bounds", "Folded", "Summary", "fold"]

_Key = tuple[str, str, str, object]  # phase, template, type, kind


class Bounds(NamedTuple):
    """What a unit's spans have to keep to.

    Attributes:
        most: spans, at most; None for any number.
        shortest_ns: that a span has to be.
        alone: whether only the step, or the outermost region, gets a span.
    """

    most: int | None
    shortest_ns: int
    alone: bool


class Summary:
    """What is said of regions of one phase and template that were folded into one region.

    Attributes:
        subject: of one of them; None where the summary is of several templates.
        phase: theirs.
        count: how many there are.
        total_ns, longest_ns: their durations together, and the longest of them.
        at_ns: when the first of them began (`time.perf_counter_ns`).
    """

    __slots__ = ("at_ns", "count", "longest_ns", "phase", "subject", "total_ns")

    def __init__(self, subject: Subject | None, phase: str, at_ns: int) -> None:
        self.subject = subject
        self.phase = phase
        self.at_ns = at_ns
        self.count = self.total_ns = self.longest_ns = 0

    def add(self, count: int, total_ns: int, longest_ns: int, at_ns: int) -> None:
        """Take in others."""
        self.count += count
        self.total_ns += total_ns
        self.longest_ns = max(self.longest_ns, longest_ns)
        self.at_ns = min(self.at_ns, at_ns)


class Folded:
    """What was folded in a unit.

    Attributes:
        into: of each folded region, the region that has a span and stands for it; None: the step.
        inside: by region with a span (None: the step), how many in it have none.
    """

    def __init__(self) -> None:
        self.into: dict[Region, Region | None] = {}
        self.inside: dict[Region | None, int] = {}
        self._summaries: dict[Region | None, dict[_Key, Summary]] = {}

    def summaries(self, region: Region | None, most: int) -> list[Summary]:
        """What `region` says, the largest total first.

        Args:
            region: that has a span; None: the step.
            most: summaries; those that find no room are one together.
        """
        found = sorted(
            self._summaries.get(region, {}).values(), key=lambda one: (-one.total_ns, one.at_ns)
        )
        if len(found) > most:
            keep = max(most - 1, 0)
            rest = Summary(None, "", found[keep].at_ns)
            for one in found[keep:]:
                rest.add(one.count, one.total_ns, one.longest_ns, one.at_ns)
            found = [*found[:keep], rest]
        return found

    def add(self, region: Region, target: Region | None) -> None:
        """Fold a region into another, or into the step."""
        self.into[region] = target
        subject, took_ns = region.subject, region.end_ns - region.start_ns
        key = (region.phase, subject.template, subject.type, subject.kind)
        summaries = self._summaries.setdefault(target, {})
        summary = summaries.get(key)
        if summary is None:
            summary = summaries[key] = Summary(subject, region.phase, region.start_ns)
        summary.add(1, took_ns, took_ns, region.start_ns)


def fold(unit: Unit, regions: list[Region], bounds: Bounds) -> Folded | None:
    """Choose the regions that get no spans; None where all of them do.

    Never chosen are: what failed; what the program has asked for (it may have set attributes on the
    span, or started others below it); and what would have nothing to be folded into.

    Args:
        unit: that is over.
        regions: its regions.
        bounds: to keep to.
    """
    over = 0 if bounds.most is None else len(regions) - bounds.most
    if over <= 0 and not bounds.alone and not bounds.shortest_ns:
        return None
    in_step = unit.opener is None
    can = [
        one
        for one in regions
        if one.span is None
        and one.failure is None
        and one is not unit.opener
        and (in_step if one.parent is None else one.parent.unit is unit)
    ]
    if bounds.alone:
        chosen = can
    else:
        shortest_ns = bounds.shortest_ns
        chosen = [one for one in can if one.end_ns - one.start_ns < shortest_ns]
        over -= len(chosen)
        if over > 0:
            left = [one for one in can if one.end_ns - one.start_ns >= shortest_ns]
            left.sort(key=lambda one: (-_depth(one), one.end_ns - one.start_ns))
            chosen += left[:over]
    if not chosen:
        return None
    folded = Folded()
    without = set(chosen)
    for one in chosen:
        around = [above for above in _above(one) if above not in without]
        folded.add(one, around[0] if around else None)
        for above in [*around, None] if in_step else around:
            folded.inside[above] = folded.inside.get(above, 0) + 1
    return folded


def _above(region: Region) -> Iterator[Region]:
    """The regions of its unit that a region is in, innermost first."""
    above = region.parent
    while above is not None and above.unit is region.unit:
        yield above
        above = above.parent


def _depth(region: Region) -> int:
    return sum(1 for _ in _above(region))
