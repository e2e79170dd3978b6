"""What the positions of ranks that hang mean."""

from __future__ import annotations

import itertools
import logging
from typing import TYPE_CHECKING, Final, NamedTuple

from otel_modtrack.order.difference import Difference, first_difference
from otel_modtrack.order.model import Order
from otel_modtrack.order.positions import Kinds, Moment, Position, Report, Work, names
from otel_modtrack.order.sequences import CALLS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

__all__ = ["cut_off", "judge"]

_PAIRED: Final = ("send", "recv")
_PATIENCE: Final = 3  # how many times as long one way may go on before the others say they wait


def judge(
    found: Mapping[int, Position], world: int, after_s: float, unwatched: Collection[int] = ()
) -> Report | None:
    """What the positions of the ranks mean; None if they mean nothing, or not yet.

    Args:
        found: the ranks that have told, or have left.
        world: how many ranks there are.
        after_s: how long a rank stands still before it is taken to hang, in seconds.
        unwatched: ranks that were never asked, for they have not begun to watch.
    """
    live = [found[rank] for rank in sorted(found) if not found[rank].left]
    stuck = [one for one in live if one.now is not None and one.still_s >= after_s]
    if not stuck:
        return None
    lines = _lines(found, world, after_s, unwatched)
    episodes = [(one.rank, one.episode) for one in stuck]
    parting = _parting_of(live)
    if parting is not None and _all_still(parting, found, after_s):
        headline = f"the ranks went different ways in {parting.moment}, and none of them goes on: "
        text = f"{headline}{parting.difference}\n\n{lines}"
        return Report(Kinds.DIVERGED, text, parting.difference, logging.ERROR, episodes)
    if _launched_differently(stuck):
        text = f"the ranks wait in different collectives of one process group\n\n{lines}"
        return Report(Kinds.DIVERGED, text, None, logging.ERROR, episodes)
    if parting is not None and max(one.still_s for one in stuck) < _PATIENCE * after_s:
        return None  # it may be that one of them is about to stand still, too
    silent = [rank for rank in range(world) if rank not in found and rank not in unwatched]
    failed = [one.rank for one in found.values() if one.left and one.error]
    usual = parting or _parting_of(live, usual=True)
    text = f"{_headline(live, stuck, silent, failed, usual is None)}\n\n{lines}"
    if usual is not None:
        as_before = "" if parting is not None else ", as they did in a step that they went through"
        text += f"\n\ntheir orders differ{as_before}: {usual.difference.sentence}"
    if failed:
        level = logging.ERROR
    elif silent or usual is not None or any(map(_waits, live)) or len(_behind(live)) < len(live):
        level = logging.WARNING
    else:  # all take their time at one place
        level = logging.INFO
    return Report(Kinds.GONE if silent or failed else Kinds.WAITING, text, None, level, episodes)


def cut_off(here: Position, after_s: float, why: str) -> Report:
    """What a rank says that does not go on, and cannot ask the others.

    Args:
        here: where it is.
        after_s: as for `judge`.
        why: it cannot.
    """
    text = (
        f"{names([here.rank])} has not gone on, and the store of the process group does not answer"
        f" ({why}): has the process ended that serves it?\n\n"
        f"{names([here.rank])}: {_line(here, after_s).replace(_SECONDS, _seconds(here.still_s))}"
    )
    return Report(Kinds.GONE, text, stuck=[(here.rank, here.episode)])


class _Parting(NamedTuple):
    """Where ranks went different ways; `sides` has the ranks of the difference's sides."""

    moment: Moment
    difference: Difference
    sides: list[set[int]]


def _parting_of(live: Sequence[Position], *, usual: bool = False) -> _Parting | None:
    """Where ranks went different ways that went the same in a step before, if they all know one.

    A rank that has only not come as far as another is not on another way. Each is compared with the
    one of its like that has come farthest.

    Args:
        live: the ranks' positions.
        usual: whether those that went different ways before are compared, too.
    """
    todo = sorted(live, key=lambda one: one.progress, reverse=True)
    while todo:
        first, *rest = todo
        alike: list[Position] = []
        todo = []
        for one in rest:
            (todo if not usual and _differ_usually(first, one) else alike).append(one)
        points = [point for one in alike if (point := _point_of(first, one)) is not None]
        if points:
            point = min(points, key=lambda one: (one[0].steps, one[0].calls, *one[1:]))
            found = _parting_at(point, [first, *alike])
            if found is not None:
                return found
    return None


def _differ_usually(one: Position, other: Position) -> bool:
    """Whether two ranks ran other modules in the last step that both have gone through.

    That is so with stages of a pipeline, or with experts that each rank has its own of.
    """
    open_now = [work.moment for work in (one.now, other.now) if work is not None]
    for mine, theirs in itertools.product(one.past, other.past):
        moment = mine.moment
        if moment.is_that_of(theirs.moment) and not any(map(moment.is_that_of, open_now)):
            return not mine.is_like(theirs)
    return False


def _point_of(one: Position, other: Position) -> tuple[Moment, int, int] | None:
    """Where two ranks part: step or call, sequence, position in that; None if they do not."""
    for work in (other.now, one.now):
        if work is not None:
            mine, theirs = one.work_at(work.moment), other.work_at(work.moment)
            if mine is not None and theirs is not None:
                point = _point_in(mine, theirs)
                return (work.moment, *point) if point is not None else None
    return None


def _point_in(one: Work, other: Work) -> tuple[int, int] | None:
    """Where two orders part, neither of which need be over: sequence, and position in that."""
    lags: dict[bool, tuple[int, int]] = {}  # whether it is the other's: sequence and position
    for index, sequence in enumerate(CALLS):
        mine, theirs = one.fqns(sequence), other.fqns(sequence)
        for at, (fqn, fqn_there) in enumerate(zip(mine, theirs, strict=False)):
            if fqn != fqn_there:
                return index, at
        if len(mine) != len(theirs):
            lags.setdefault(len(mine) > len(theirs), (index, min(len(mine), len(theirs))))
    for is_others, lag in lags.items():
        if (other if is_others else one).ended:  # nothing more comes
            return lag
    # Each has begun what the other has not: neither is only behind.
    return min(lags.values()) if len(lags) > 1 else None


def _parting_at(point: tuple[Moment, int, int], ranks: Sequence[Position]) -> _Parting | None:
    moment, index, at = point
    sequence = CALLS[index]
    alike: dict[tuple[str, ...], list[Position]] = {}
    works: dict[tuple[str, ...], Work] = {}
    for one in ranks:
        work = one.work_at(moment)
        if work is not None and _reaches(work, index, at):
            key = tuple(work.fqns(sequence))
            alike.setdefault(key, []).append(one)
            works.setdefault(key, work)
    orders: list[Order] = []
    members: dict[str, set[int]] = {}
    for key, group in sorted(alike.items(), key=lambda one: one[1][0].rank):
        numbers = [one.rank for one in group]
        order = Order(names(numbers), **{sequence: getattr(works[key].order, sequence)})
        members[order.name] = set(numbers)
        orders.append(order)
    difference = first_difference(orders) if orders else None
    if difference is None:  # they differ in the numbers of roots alone
        return None
    sides = [set().union(*(members[name] for name in side.names)) for side in difference.sides]
    return _Parting(moment, difference, sides)


def _reaches(work: Work, index: int, at: int) -> bool:
    """Whether it has something at a position, or has gone on without."""
    length = len(work.fqns(CALLS[index]))
    later = any(getattr(work.order, sequence) for sequence in CALLS[index + 1 :])
    return length > at or (length == at and (work.ended or later))


def _all_still(parting: _Parting, found: Mapping[int, Position], after_s: float) -> bool:
    """Whether on each side there is a rank that does not go on."""
    return all(any(found[rank].still_s >= after_s for rank in side) for side in parting.sides)


def _launched_differently(stuck: Sequence[Position]) -> bool:
    """Whether ranks wait in collectives of a group that should be one and the same."""
    operations: dict[tuple[str, int, int], str] = {}
    for one in stuck:
        launched = one.launched
        if launched is not None and launched.waits and launched.operation not in _PAIRED:
            key = (launched.group, launched.size, launched.number)
            if operations.setdefault(key, launched.operation) != launched.operation:
                return True
    return False


# -- in words -------------------------------------------------------------------------------------


def _headline(
    live: Sequence[Position],
    stuck: Sequence[Position],
    silent: Sequence[int],
    failed: Sequence[int],
    comparable: bool,
) -> str:
    waiting = f"{_names_of(stuck)} {_do(stuck, 'has', 'have')} not gone on"
    if failed:
        return f"{waiting}; {names(failed)} {_do(failed, 'has', 'have')} failed"
    if silent:
        asked = "does not answer: has it" if len(silent) == 1 else "do not answer: have they"
        return f"{waiting}, and {names(silent)} {asked} ended?"
    if comparable:
        behind = _behind(live)
        late = {one.rank for one in behind}
        ahead = [one for one in stuck if one.rank not in late]
        places = {one.place for one in behind}
        if ahead and len(places) == 1:
            verb, which = _do(ahead, "waits", "wait"), _do(behind, "is", "are")
            there = f"which {which} in {places.pop()}"
            return f"{_names_of(ahead)} {verb} for {_names_of(behind)}, {there}"
    return f"{waiting} for {_seconds(min(one.still_s for one in stuck))}"


def _behind(live: Sequence[Position]) -> list[Position]:
    """Those that have come least far; of ranks in one module, those that have launched less."""
    groups = {one.launched.group for one in live if one.launched is not None}
    counts = {
        one.rank: one.launched.number if one.launched is not None and len(groups) == 1 else 0
        for one in live
    }
    least = min((*one.progress, counts[one.rank]) for one in live)
    return [one for one in live if (*one.progress, counts[one.rank]) == least]


def _waits(one: Position) -> bool:
    return one.launched is not None and one.launched.waits


def _lines(
    found: Mapping[int, Position], world: int, after_s: float, unwatched: Collection[int]
) -> str:
    """A line for each rank, or for several that say the same."""
    ranks: dict[str, list[int]] = {}
    for rank in range(world):
        one = found.get(rank)
        if one is not None:
            text = _line(one, after_s)
        else:
            text = "is not watched" if rank in unwatched else "does not answer"
        ranks.setdefault(text, []).append(rank)
    still = {rank: one.still_s for rank, one in found.items() if not one.left}
    lines = []
    for text, numbers in ranks.items():
        still_s = min(still.get(rank, 0.0) for rank in numbers)
        lines.append(f"{names(numbers)}: {text.replace(_SECONDS, _seconds(still_s))}")
    return "\n".join(lines)


_SECONDS: Final = "<seconds>"
_TENTHS_BELOW: Final = 10


def _line(one: Position, after_s: float) -> str:
    after = f", after {one.past[0].moment}" if one.past else ""
    if one.left:
        if not one.error:
            return f"has left the watch{after}"
        place = f" in {one.past[0].moment}, in {one.inside[-1]}" if one.inside else after
        return f"ended with {one.error}{place}"
    if one.now is None:
        parts = [f"in no step{after}"]
    else:
        parts = [f"{one.now.moment}, in {one.place}" if one.inside else one.place]
        if one.line:
            parts[0] += f" at {one.line}"
        if one.latest is not None:
            phase, at, fqn = one.latest
            what = "" if f"{phase} {fqn}" == one.place else f" ({fqn})"
            parts.append(f"position {at} of the {phase}{what}")
    parts.append("goes on" if one.still_s < after_s else f"still for {_SECONDS}")
    text = ", ".join(parts)
    return f"{text}; {one.launched}" if one.launched is not None else text


def _seconds(value: float) -> str:
    return f"{value:.0f} s" if value >= _TENTHS_BELOW else f"{value:.1f} s"


def _do(several: Sequence[object], singular: str, plural: str) -> str:
    return singular if len(several) == 1 else plural


def _names_of(positions: Iterable[Position]) -> str:
    return names(one.rank for one in positions)
