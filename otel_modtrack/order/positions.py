"""Where a rank stands, and what ranks found out together: what they send each other."""

from __future__ import annotations

import json
import logging
import math
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from otel_modtrack.numerals import runs_in
from otel_modtrack.order.difference import Difference, Side
from otel_modtrack.order.model import Order
from otel_modtrack.order.sequences import CALLS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = [
    "Kinds",
    "Launched",
    "Moment",
    "Position",
    "Report",
    "Work",
    "names",
    "ranks_in",
]


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
        return all(self.fqns(sequence) == other.fqns(sequence) for sequence in CALLS)

    @property
    def length(self) -> int:
        """How many calls have begun."""
        return sum(len(getattr(self.order, sequence) or ()) for sequence in CALLS)


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
            if any(rank in ranks_in(name) for name in side.names):
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
            told["difference"] = Difference.from_dict(found)
        told["stuck"] = [(rank, episode) for rank, episode in told["stuck"]]
        return Report(**told)


def names(ranks: Iterable[int]) -> str:
    """``rank 3``, ``ranks 0-2, 5``."""
    numbers = sorted(ranks)
    parts = []
    for first, last in runs_in(numbers):
        parts.append(f"{first}" if first == last else f"{first}-{last}")
    return f"{'rank' if len(numbers) == 1 else 'ranks'} {', '.join(parts)}"


def ranks_in(name: str) -> set[int]:
    """The ranks that `_names` has made a name of."""
    found: set[int] = set()
    for part in name.partition(" ")[2].split(", "):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found
