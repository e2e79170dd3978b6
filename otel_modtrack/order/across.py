"""What the ranks of a job know together: where their orders differ, and where each of them stands.

`compare_ranks` is for orders that are there, and asks over the process group. `judge` is for ranks
that hang: it takes what each has told of itself, however that was got, and says what it means.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import logging
import math
import threading
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch

from otel_modtrack.activation import ACTIVATION
from otel_modtrack.order.difference import Difference, Side, first_difference
from otel_modtrack.order.model import Order
from otel_modtrack.regions import Phase

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from torch.distributed import ProcessGroup

__all__ = [
    "Kinds",
    "Launched",
    "Moment",
    "Position",
    "Report",
    "Work",
    "compare_ranks",
    "cut_off",
    "judge",
]

_CALLS: Final = (Phase.FORWARD, Phase.RECOMPUTE, Phase.BACKWARD)
_PAIRED: Final = ("send", "recv")
_PATIENCE: Final = 3  # how many times as long one way may go on before the others say they wait


# -- orders that are there ------------------------------------------------------------------------


def compare_ranks(order: Order, group: ProcessGroup | None = None) -> Difference | None:
    """Where the orders of several ranks first differ; None if they agree in all that they know.

    It is collective: each rank of the group calls it with its own order, and gets the same answer,
    in which the orders are called ``rank 0``, ``rank 1``. Equal orders cost a digest each. What it
    sends is counted on no module and is on no span.

    Args:
        order: of this rank. It is not changed.
        group: whose ranks are compared; all ranks if None.

    Raises:
        TypeError: if `order` is none.
        RuntimeError: if there is no process group.
        ValueError: if this rank is not in `group`.
    """
    if not isinstance(order, Order):
        msg = f"compare_ranks(order): an Order is wanted, not {type(order).__name__}"
        raise TypeError(msg)
    dist = torch.distributed
    if not (dist.is_available() and dist.is_initialized()):
        msg = (
            "compare_ranks() asks the other ranks, and there is no process group: call"
            " torch.distributed.init_process_group() first"
        )
        raise RuntimeError(msg)
    if dist.get_rank(group) < 0:
        msg = (
            f"compare_ranks(group=...): rank {dist.get_rank()} is not in that group; call it on"
            " the ranks of the group alone"
        )
        raise ValueError(msg)
    size = dist.get_world_size(group)
    if size == 1:
        return None
    told = order.as_dict()
    with _UNSEEN:
        digests: list[Any] = [None] * size
        dist.all_gather_object(digests, _digest_of_all(told), group)
        if len(set(digests)) == 1:
            return None
        found: list[Any] = [None] * size
        dist.all_gather_object(found, told, group)
    orders = [Order.from_dict(one) for one in found]
    for one, rank in zip(orders, dist.get_process_group_ranks(group), strict=True):
        one.name = f"rank {rank}"
    return first_difference(orders)


def _digest_of_all(told: Mapping[str, Any]) -> bytes:
    """Equal for orders that differ in name, step and rank alone."""
    same = {key: value for key, value in told.items() if key not in ("name", "step", "rank")}
    return hashlib.sha256(json.dumps(same).encode()).digest()


class _Unseen:
    """A block in which what this thread launches is taken down nowhere."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads: list[int] = []
        self._recorder: Any = None

    def __enter__(self) -> None:
        with self._lock:
            interception: Any = ACTIVATION._interception  # noqa: SLF001
            if not self._threads and interception is not None:
                self._recorder = recorder = interception._recorder  # noqa: SLF001
                seen, threads = recorder.seen, self._threads

                def seen_elsewhere(*args: Any) -> None:
                    if threading.get_ident() not in threads:
                        seen(*args)

                recorder.seen = seen_elsewhere
            self._threads.append(threading.get_ident())

    def __exit__(self, *_: object) -> None:
        with self._lock:
            with contextlib.suppress(ValueError):
                self._threads.remove(threading.get_ident())
            if not self._threads and self._recorder is not None:
                del self._recorder.seen  # the class's own is back
                self._recorder = None


_UNSEEN = _Unseen()


# -- where a rank stands --------------------------------------------------------------------------


class Moment(NamedTuple):
    """A step of a rank, or a call outside of steps.

    Attributes:
        steps: how many steps had begun, this one included.
        calls: how many calls outside of steps were over, since the rank is watched; -1 in a step.
        number: of the step; None where it is not known.
    """

    steps: int
    calls: int = -1
    number: int | None = None

    def is_that_of(self, other: Moment) -> bool:
        """Whether two ranks mean the same step or call."""
        if self.calls == other.calls == -1 and None not in (self.number, other.number):
            return self.number == other.number
        return self[:2] == other[:2]

    def __str__(self) -> str:
        if self.calls >= 0:
            return f"call {self.calls} outside of steps"
        return f"step {self.steps - 1 if self.number is None else self.number}"


@dataclass(frozen=True, slots=True)
class Work:
    """What has begun in a step, or in a call outside of steps; `ended` if that is all."""

    moment: Moment
    order: Order
    ended: bool = False

    def fqns(self, sequence: str) -> list[str]:
        """The modules of a sequence."""
        return [call.fqn for call in getattr(self.order, sequence) or ()]

    def as_list(self) -> list[Any]:
        """What `from_list` takes, of plain things."""
        return [self.moment, self.order.as_dict(), self.ended]

    @staticmethod
    def from_list(told: Sequence[Any]) -> Work:
        """What `as_list` has made a list of."""
        moment, order, ended = told
        return Work(Moment(*moment), Order.from_dict(order), ended)

    def is_like(self, other: Work) -> bool:
        """Whether the same modules have run."""
        return all(self.fqns(sequence) == other.fqns(sequence) for sequence in _CALLS)

    @property
    def length(self) -> int:
        """How many calls have begun."""
        return sum(len(getattr(self.order, sequence) or ()) for sequence in _CALLS)


class Launched(NamedTuple):
    """A collective.

    Attributes:
        operation: ``all_reduce``.
        group: its process group: ``0 (default_pg)``.
        size: number of ranks in that.
        number: how many were launched in that group by then, since the rank is watched.
        place: what it was launched in: ``forward MoE.experts.1``; "" where that was nothing.
        waits: whether the rank waits in it, as far as can be seen.
    """

    operation: str
    group: str
    size: int
    number: int
    place: str
    waits: bool

    def __str__(self) -> str:
        how = "waits in" if self.waits else "its last collective was"
        return (
            f"{how} {self.operation} (no. {self.number} in group {self.group} of {self.size}"
            f" ranks), launched in {self.place or 'no module'}"
        )


@dataclass(slots=True)
class Position:
    """Where a rank is, as it tells the others.

    Attributes:
        rank: which one.
        still_s: how long nothing has begun or ended there, in seconds.
        episode: tells one standstill of the rank from the next.
        now: the step or call that is open; None if none is.
        past: some that are over, the latest first.
        inside: what runs, the outermost first: ``forward MoE``, ``forward MoE.experts.1``; of a
            rank that has failed, what that was in.
        latest: the module call that began last: phase, position, fqn; None if there is none.
        line: of the program, where the rank is: ``moe.py:31``; "" if it is not known.
        launched: the collective that it has launched last, where they are seen.
        left: whether it is watched no more.
        error: class of the exception that ended that, or "".
    """

    rank: int
    still_s: float = 0.0
    episode: int = 0
    now: Work | None = None
    past: Sequence[Work] = ()
    inside: Sequence[str] = ()
    latest: tuple[str, int, str] | None = None
    line: str = ""
    launched: Launched | None = None
    left: bool = False
    error: str = ""

    def to_bytes(self) -> bytes:
        """For the store."""
        told = {name: getattr(self, name) for name in self.__slots__}
        told["now"] = self.now.as_list() if self.now is not None else None
        told["past"] = [work.as_list() for work in self.past]
        return zlib.compress(json.dumps(told).encode())

    @staticmethod
    def from_bytes(data: bytes) -> Position:
        """What `to_bytes` has made bytes of."""
        told = json.loads(zlib.decompress(data))
        told["now"] = Work.from_list(told["now"]) if told["now"] is not None else None
        told["past"] = [Work.from_list(work) for work in told["past"]]
        if told["latest"] is not None:
            told["latest"] = tuple(told["latest"])
        if told["launched"] is not None:
            told["launched"] = Launched(*told["launched"])
        return Position(**told)

    @property
    def progress(self) -> tuple[int, int, float]:
        """Grows as the rank goes on."""
        if self.now is not None:
            return self.now.moment.steps, self.now.moment.calls, self.now.length
        if self.past:
            return self.past[0].moment.steps, self.past[0].moment.calls, math.inf
        return 0, -1, 0

    @property
    def place(self) -> str:
        """What it is in, in words."""
        if self.inside:
            return self.inside[-1]
        return f"{self.now.moment}, outside of modules" if self.now is not None else "no step"

    def work_at(self, moment: Moment) -> Work | None:
        """What has begun in a step or call, if the rank still knows."""
        known = (*self.past, self.now) if self.now is not None else self.past
        return next((one for one in known if one.moment.is_that_of(moment)), None)


class Kinds:
    """What a report is about; the later ones outweigh those before."""

    WAITING: Final = "waiting"  # a rank is slow, or nothing tells more
    GONE: Final = "gone"  # a rank does not answer, or was left by an exception
    DIVERGED: Final = "diverged"  # ranks went different ways, and none of them goes on

    ALL: Final = (WAITING, GONE, DIVERGED)


@dataclass(frozen=True, slots=True)
class Report:
    """What the ranks found out together while one of them did not go on. ``str`` of it is `text`.

    Attributes:
        kind: ``waiting``, ``gone`` or ``diverged``; see `Kinds`.
        text: a line that says what it is, and one for each rank, or for several that say the same.
        difference: where the ranks went different ways; None if they did not.
        level: how grave it is, as `logging` counts: an error, if it cannot be that a rank is slow.
        stuck: the ranks that did not go on, and which of their standstills that is.
    """

    kind: str
    text: str
    difference: Difference | None = None
    level: int = logging.WARNING
    stuck: Sequence[tuple[int, int]] = ()

    def __str__(self) -> str:
        return self.text

    def side_of(self, rank: int) -> Side | None:
        """The side that a rank is on, if it has gone as far as to where they differ."""
        for side in self.difference.sides if self.difference is not None else ():
            if any(rank in _ranks_in(name) for name in side.names):
                return side
        return None

    def to_bytes(self) -> bytes:
        """For the store."""
        told = {name: getattr(self, name) for name in self.__slots__}
        if self.difference is not None:
            told["difference"] = self.difference.as_dict()
        return json.dumps(told).encode()

    @staticmethod
    def from_bytes(data: bytes) -> Report:
        """What `to_bytes` has made bytes of."""
        told = json.loads(data)
        found = told["difference"]
        if found is not None:
            told["difference"] = Difference(
                found["sequence"],
                found["position"],
                tuple(found["before"]),
                tuple(
                    Side(
                        tuple(side["names"]),
                        side["fqn"],
                        side["position"],
                        tuple(side["inside"]),
                        tuple(side["after"]),
                    )
                    for side in found["sides"]
                ),
            )
        told["stuck"] = [(rank, episode) for rank, episode in told["stuck"]]
        return Report(**told)


# -- what that means ------------------------------------------------------------------------------


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
        f"{_names([here.rank])} has not gone on, and the store of the process group does not answer"
        f" ({why}): has the process ended that serves it?\n\n"
        f"{_names([here.rank])}: {_line(here, after_s).replace(_SECONDS, _seconds(here.still_s))}"
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
    for index, sequence in enumerate(_CALLS):
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
    sequence = _CALLS[index]
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
        order = Order(_names(numbers), **{sequence: getattr(works[key].order, sequence)})
        members[order.name] = set(numbers)
        orders.append(order)
    difference = first_difference(orders) if orders else None
    if difference is None:  # they differ in the numbers of roots alone
        return None
    sides = [set().union(*(members[name] for name in side.names)) for side in difference.sides]
    return _Parting(moment, difference, sides)


def _reaches(work: Work, index: int, at: int) -> bool:
    """Whether it has something at a position, or has gone on without."""
    length = len(work.fqns(_CALLS[index]))
    later = any(getattr(work.order, sequence) for sequence in _CALLS[index + 1 :])
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
        return f"{waiting}; {_names(failed)} {_do(failed, 'has', 'have')} failed"
    if silent:
        asked = "does not answer: has it" if len(silent) == 1 else "do not answer: have they"
        return f"{waiting}, and {_names(silent)} {asked} ended?"
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
        lines.append(f"{_names(numbers)}: {text.replace(_SECONDS, _seconds(still_s))}")
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
    return _names(one.rank for one in positions)


def _names(ranks: Iterable[int]) -> str:
    """``rank 3``, ``ranks 0-2, 5``."""
    numbers = sorted(ranks)
    parts = []
    for first, last in _runs(numbers):
        parts.append(f"{first}" if first == last else f"{first}-{last}")
    return f"{'rank' if len(numbers) == 1 else 'ranks'} {', '.join(parts)}"


def _runs(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    for _, together in itertools.groupby(enumerate(numbers), lambda one: one[1] - one[0]):
        members = [number for _, number in together]
        yield members[0], members[-1]


def _ranks_in(name: str) -> set[int]:
    """The ranks that `_names` has made a name of."""
    found: set[int] = set()
    for part in name.partition(" ")[2].split(", "):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found
