"""The calls of one sequence as indented lines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from otel_modtrack.numerals import plural
from otel_modtrack.view.paint import BOLD, DIM, paint, printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence, Set as AbstractSet

    from otel_modtrack.order.model import Call

__all__ = ["Kept", "Outline"]

# Deeper calls stand below one another, and have the number of their level.
_DEEPEST: Final = 40


@dataclass(frozen=True, slots=True)
class Kept:
    """What is shown of a sequence.

    Attributes:
        matching: Positions of the calls that --module fits.
        shown: Of these, and of the calls that they are in.
    """

    matching: AbstractSet[int]
    shown: AbstractSet[int]


class Outline:
    """Calls as lines, indented. Of calls that come alike one after the other, the first is shown.

    Args:
        calls: In order.
        kept: What is shown; all if None.
        colour: Whether to use a terminal's colours.
    """

    def __init__(self, calls: Sequence[Call], kept: Kept | None, *, colour: bool) -> None:
        self._calls = calls
        self._kept = kept
        self._colour = colour
        count = len(calls)
        self._children: list[list[int]] = [[] for _ in range(count)]
        self._outermost: list[int] = []
        for at, call in enumerate(calls):
            (self._outermost if call.parent is None else self._children[call.parent]).append(at)
        # Of each call: how many there are in it, itself included, also of those that are shown; and
        # what it looks like, as a number.
        self._sizes = [1] * count
        self._shown = [1 if kept is None or at in kept.shown else 0 for at in range(count)]
        self._looks = [0] * count
        known: dict[tuple[str, tuple[int, ...]], int] = {}
        for at in reversed(range(count)):
            inside = self._children[at]
            look = calls[at].fqn, tuple(self._looks[one] for one in inside)
            self._looks[at] = known.setdefault(look, len(known))
            self._sizes[at] += sum(self._sizes[one] for one in inside)
            self._shown[at] += sum(self._shown[one] for one in inside)

    def lay_out(self, depth: int | None) -> Iterator[tuple[int, str]]:
        """Yield the position and the text of each line.

        Args:
            depth: How many levels are shown; all if None.
        """
        waiting = [(run, 0) for run in reversed(self._runs(self._outermost))]
        while waiting:
            (at, times), level = waiting.pop()
            is_cut = depth is not None and level >= depth - 1
            yield at, self._line(at, times, level, is_cut=is_cut)
            if not is_cut:
                waiting += [(run, level + 1) for run in reversed(self._runs(self._children[at]))]

    def _runs(self, positions: Iterable[int]) -> list[tuple[int, int]]:
        """Calls that stand beside each other, and how often they come alike one after the other."""
        found: list[tuple[int, int]] = []
        end = -1  # of the last
        for at in positions:
            if not self._shown[at]:
                continue
            if found and at == end and self._looks[at] == self._looks[found[-1][0]]:
                found[-1] = found[-1][0], found[-1][1] + 1
            else:
                found.append((at, 1))
            end = at + self._sizes[at]
        return found

    def _line(self, at: int, times: int, level: int, *, is_cut: bool) -> str:
        indent = "  " * min(level, _DEEPEST)
        if level > _DEEPEST:
            indent += f"(level {level + 1:,}) "
        fqn = self._calls[at].fqn
        if not fqn:
            return indent + paint(f"... {plural(times, 'call')} folded", DIM, colour=self._colour)
        text = printable(fqn)
        if self._kept is not None and at not in self._kept.matching:
            text = paint(text, DIM, colour=self._colour)
        below = self._shown[at] - 1
        return (
            indent
            + text
            + (f" (+{below:,} below)" if is_cut and below else "")
            + (paint(f" x {times:,}", BOLD, colour=self._colour) if times > 1 else "")
        )
