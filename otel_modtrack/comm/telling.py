"""What spans say of collectives: events where they were launched, sums on everything around."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from otel_modtrack import semconv

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from opentelemetry.util.types import AttributeValue

    from otel_modtrack.comm.records import Collective, Group, Launch
    from otel_modtrack.regions import Region, Unit

__all__ = ["EACH", "OFF", "SUMMED", "Event", "Told", "gather", "summary_of"]

OFF, SUMMED, EACH = "off", "summed", "each"  # what is told of collectives


class Summary(NamedTuple):
    """What an event says of the collectives it stands for; equal ones say the same."""

    operation: str
    count: int  # type: ignore[assignment]  # shadows tuple.count
    size: int
    dtype: str
    group: Group | None
    groups: str
    backend: str
    asynchronous: bool

    def attributes(self) -> dict[str, AttributeValue]:
        """As the event carries it."""
        found: dict[str, AttributeValue] = {
            semconv.COLLECTIVE_OPERATION: self.operation,
            semconv.COLLECTIVE_COUNT: self.count,
            semconv.COLLECTIVE_SIZE: self.size,
            semconv.COLLECTIVE_GROUP_NAME: self.groups,
            semconv.COLLECTIVE_BACKEND: self.backend,
            semconv.COLLECTIVE_ASYNC: self.asynchronous,
        }
        if self.dtype:
            found[semconv.COLLECTIVE_DTYPE] = self.dtype
        if self.group is not None:
            found[semconv.COLLECTIVE_GROUP_SIZE] = self.group.size
            if self.group.description:
                found[semconv.COLLECTIVE_GROUP_DESCRIPTION] = self.group.description
        return found


class Event(NamedTuple):
    """One ``modtrack.collective`` event.

    Attributes:
        at_ns: of the first launch (`time.perf_counter_ns`).
        summary: what it says.
        one: the collective that it is about, where it tells of one alone.
    """

    at_ns: int
    summary: Summary
    one: Collective | None = None

    def attributes(self) -> dict[str, AttributeValue]:
        """As the event carries it."""
        found = self.summary.attributes()
        if self.one is not None:
            found.update(_details(self.one))
        return found


class Told:
    """What one span says.

    Attributes:
        count, size: of what was launched in it and in what it contains; bytes.
        launched: directly in it, in order.
        alike: what all of these have in common; None if they differ.
    """

    __slots__ = ("alike", "count", "launched", "size")

    def __init__(self) -> None:
        self.count = 0
        self.size = 0
        self.launched: list[Collective] = []
        self.alike: Launch | None = None

    def attributes(self) -> dict[str, AttributeValue]:
        """What stands on the span itself."""
        return {semconv.COLLECTIVE_COUNT: self.count, semconv.COLLECTIVE_SIZE: self.size}

    def events(self, *, each: bool, most: int | None) -> list[Event]:
        """At most so many events, in order of time; what does not fit is summed.

        Args:
            each: one for each collective, as far as they fit; else one per operation and group.
            most: that the span has room for; any number if None.
        """
        single: Sequence[Collective] = self.launched if each else ()
        rest: Sequence[Collective] = () if each else self.launched
        if each and most is not None and len(single) > most:
            kept = most
            while True:  # the sums of what is left out take room themselves
                rest = self.launched[kept:]
                over = kept + len({_key(one) for one in rest}) - most
                if over <= 0 or not kept:
                    break
                kept = max(kept - over, 0)
            single = self.launched[:kept]
        found = [Event(one.at_ns, _summary([one]), one) for one in single]
        found += _sums(rest, None if most is None else most - len(found))
        if len(found) > 1:
            found.sort(key=lambda event: event.at_ns)
        return found


def gather(unit: Unit) -> dict[Region | None, Told]:
    """What is to be told of a unit's collectives, by region; None stands for the unit's step."""
    whole = Told()
    found: dict[Region | None, Told] = {None: whole}
    into = unit.folded.into if unit.folded is not None else {}
    last: Region | None = None
    around = [whole]
    here = whole
    for record in unit.collectives:
        place = record.region
        if place is not last:
            last = place
            around = [whole]
            one: Region | None = place
            while one is not None and one.unit is unit:
                told = found.get(one)
                if told is None:
                    told = found[one] = Told()
                around.append(told)
                one = one.parent
            # What has no span of its own is told by what stands for it.
            teller = into.get(place, place) if place is not None else None
            here = found.get(teller, whole) if len(around) > 1 else whole
        launch = record.launch
        if not here.launched:
            here.alike = launch
        elif here.alike is not launch:
            here.alike = None
        here.launched.append(record)
        size = launch.size
        for told in around:
            told.count += 1
            told.size += size
    return found


def _key(record: Collective) -> tuple[str, str]:
    return record.launch.operator.operation, record.launch.group.name


def _sums(records: Sequence[Collective], most: int | None) -> list[Event]:
    """One event per operation and group; those that find no room are one together."""
    if len(records) == 1 and (most is None or most > 0):
        return [Event(records[0].at_ns, _summary(records))]
    by_key: dict[Any, list[Collective]] = {}
    for record in records:
        by_key.setdefault(_key(record), []).append(record)
    together = list(by_key.values())
    if most is not None and len(together) > most:
        keep = max(most - 1, 0)
        last = [record for some in together[keep:] for record in some]
        together = [*together[:keep], last] if most > 0 else []
    return [Event(some[0].at_ns, _summary(some)) for some in together]


def _details(record: Collective) -> dict[str, AttributeValue]:
    found: dict[str, AttributeValue] = {semconv.COLLECTIVE_OPERATOR: record.launch.operator.name}
    details = record.details
    if details is None:  # seen before the mode was "each"
        return found
    if details.shapes:
        found[semconv.COLLECTIVE_SHAPES] = details.shapes
    if details.end_ns:
        found[semconv.COLLECTIVE_DURATION] = max(details.end_ns - record.at_ns, 0) / 1e9
    why = details.why
    if why is not None:
        if why.parameters:
            found[semconv.COLLECTIVE_PARAMETERS] = why.parameters
        if why.source:
            found[semconv.COLLECTIVE_PLACEMENTS_SOURCE] = why.source
            found[semconv.COLLECTIVE_PLACEMENTS_TARGET] = why.target
    return found


def _summary(records: Sequence[Collective]) -> Summary:
    first = records[0].launch
    if all(record.launch is first for record in records):
        return summary_of(first, len(records))
    launches = [record.launch for record in records]
    groups = _joined(launch.group.name for launch in launches)
    return Summary(
        _joined(launch.operator.operation for launch in launches),
        len(launches),
        sum(launch.size for launch in launches),
        _joined(name for launch in launches for name in launch.dtype.split(",")),
        first.group if groups == first.group.name else None,
        groups,
        _joined(launch.backend for launch in launches),
        any(launch.asynchronous for launch in launches),
    )


def summary_of(launch: Launch, count: int) -> Summary:
    """What is said of so many equal launches."""
    return Summary(
        launch.operator.operation,
        count,
        count * launch.size,
        launch.dtype,
        launch.group,
        launch.group.name,
        launch.backend,
        launch.asynchronous,
    )


def _joined(names: Iterable[str]) -> str:
    found = {name for name in names if name}
    return found.pop() if len(found) == 1 else ",".join(sorted(found))
