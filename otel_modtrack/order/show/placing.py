"""Calls of one phase that have spans -> an order, with unknown calls where some were folded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from otel_modtrack.order.model import Call

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from otel_modtrack.view.model import Span

__all__ = ["MOST_CALLS", "Seen", "place_by_index", "place_by_time"]

MOST_CALLS: Final = 10_000_000  # of a phase: what claims to be more is malformed


@dataclass(slots=True, eq=False)
class Seen:
    """A module call that has a span.

    Attributes:
        span: its span.
        index: which call of its phase it is; -1 where the span does not tell.
        parent: the innermost call of the phase that it ran in.
        folded: calls of the phase that ran in it, and in no other with a span, and have none.
        position: in the order; -1 until known.
    """

    span: Span
    index: int
    parent: Seen | None
    folded: int = 0
    position: int = -1

    def above(self) -> Iterator[Seen]:
        """Itself, and the calls that it is in, the innermost first."""
        one: Seen | None = self
        while one is not None:
            yield one
            one = one.parent


def place_by_index(groups: Sequence[list[Seen]], outside: int) -> list[Call] | None:
    """The calls at their indices, and unknown ones in the gaps and where the last were folded.

    Args:
        groups: the calls in each outermost call.
        outside: how many calls were folded that are in none of these.

    Returns:
        The order; None where the indices are malformed.
    """
    counts = _counts(groups)
    if counts is None:
        return None
    most = outside + sum(one.folded for group in groups for one in group)
    most += sum(count[-1].index + 1 for count in counts)
    return _lay_out(counts, outside) if most <= MOST_CALLS else None


def place_by_time(seen: Iterable[Seen]) -> list[Call]:
    """The calls in order of their start; of those that start together, as they are given."""
    calls: list[Call] = []
    for one in sorted(seen, key=lambda one: one.span.start_ns):
        _place(one, calls)
    return calls


def _lay_out(counts: Sequence[Sequence[Seen]], outside: int) -> list[Call]:
    calls: list[Call] = []

    def fill(number: int, last: Seen | None) -> None:
        """Unknown calls after a known one: in it as long as some were folded into it."""
        nonlocal outside
        for one in last.above() if last is not None else ():
            inside = min(number, one.folded)
            one.folded -= inside
            number -= inside
            calls.extend([Call("", one.position)] * inside)
        outside = max(outside - number, 0)
        calls.extend([Call("")] * number)

    for count in counts:
        begun, last = len(calls), None
        for one in count:
            fill(begun + one.index - len(calls), last)
            _place(one, calls)
            last = one
        fill(sum(one.folded for one in count[-1].above()), last)
    fill(outside, None)
    return calls


def _place(one: Seen, calls: list[Call]) -> None:
    one.position = len(calls)
    # A parent that comes later is malformed, or its clock is another.
    above = (each.position for each in one.above() if each is not one and each.position >= 0)
    calls.append(Call(one.span.fqn or "", next(above, None)))


def _counts(groups: Sequence[list[Seen]]) -> list[list[Seen]] | None:
    """Put together what was counted together, each in order; None where that is malformed.

    That is all of a step; of what was in no step, each outermost call by itself; and what another
    thread did.
    """
    everything = sorted((one for group in groups for one in group), key=lambda one: one.index)
    if _are_apart(everything):
        return [everything] if everything else []
    found: list[list[Seen]] = []
    for group in sorted(groups, key=lambda group: min(one.span.start_ns for one in group)):
        own = sorted(group, key=lambda one: one.index)
        if not _are_apart(own):
            return None
        first = own[0].index
        # The one that it goes on with most closely, or of several the last; 0 begins.
        before = [count for count in reversed(found) if first and count[-1].index < first]
        if before:
            max(before, key=lambda count: count[-1].index).extend(own)
        else:
            found.append(own)
    return found


def _are_apart(calls: Sequence[Seen]) -> bool:
    return len({one.index for one in calls}) == len(calls)
