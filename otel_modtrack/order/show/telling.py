"""How orders are named and counted in a sentence."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from otel_modtrack.numerals import plural, runs_in
from otel_modtrack.order.sequences import CALLS, SEQUENCES
from otel_modtrack.view.faults import name_file
from otel_modtrack.view.paint import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from otel_modtrack.order.model import Order
    from otel_modtrack.order.show.from_spans import Part

__all__ = [
    "count_folded",
    "join_all",
    "measure",
    "name_parts",
    "tell_lengths",
    "tell_numbers",
    "tell_order",
]

_RUNS_TOLD: Final = 3


def name_parts(parts: Sequence[Part], *pieces: str) -> list[str]:
    """What tells orders apart: ``rank 1``, ``step 7``, ``run.jsonl rank 0 step 7``.

    Args:
        parts: With the orders.
        pieces: What names have: ``source``, ``rank``, ``step``. Others are added if it takes them.
    """
    sources = {part.source for part in parts}
    short = {source: Path(source).name for source in sources}
    is_short = len(set(short.values())) == len(sources)
    all_pieces = [
        {
            "source": printable(name_file(short[part.source] if is_short else part.source)),
            "rank": "" if part.order.rank is None else f"rank {part.order.rank}",
            "step": "" if part.order.step is None else f"step {part.order.step}",
        }
        for part in parts
    ]
    found: list[list[str]] = []
    used = set(pieces)
    for more in ("", "rank", "source", "step"):
        used.add(more)
        found.append(
            [
                " ".join(text for piece, text in one.items() if piece in used and text)
                for one in all_pieces
            ]
        )
        if all(found[-1]) and len(set(found[-1])) == len(parts):
            return found[-1]
    return found[0] if all(found[0]) else found[-1]  # nothing tells them apart


def measure(orders: Sequence[Order]) -> dict[str, int]:
    """How long each sequence is that all orders know; in that which tells least."""
    known = {key: [getattr(order, key) for order in orders] for key in SEQUENCES}
    return {
        key: min(map(len, each))
        for key, each in known.items()
        if all(one is not None for one in each)
    }


def count_folded(orders: Iterable[Order]) -> int:
    """How many calls are not known."""
    return sum(
        not call.fqn for order in orders for key in CALLS for call in getattr(order, key) or ()
    )


def tell_lengths(lengths: Sequence[Mapping[str, int]]) -> str:
    """``42 forward calls, 21 backward``; ``40 to 42 forward calls`` of several.

    Args:
        lengths: Of one order or more, as `measure` finds them.
    """
    told: list[str] = []
    for key in SEQUENCES:
        found = [one.get(key, 0) for one in lengths]
        least, most = min(found), max(found)
        if most:
            told.append(f"{least:,} {key}" if least == most else f"{least:,} to {most:,} {key}")
            if len(told) == 1 and key in CALLS:
                told[0] += " call" if most == 1 else " calls"
    return ", ".join(told) or "no calls"


def tell_order(order: Order) -> str:
    """``42 forward calls, 21 backward, 12 of them folded``."""
    told = tell_lengths([measure([order])])
    folded = count_folded([order])
    if not folded:
        return told
    is_all = folded == sum(len(getattr(order, key) or ()) for key in CALLS)
    return f"{told}, {'all' if is_all else f'{folded:,}'} of them folded"


def join_all(texts: Sequence[str]) -> str:
    """``a, b and c``."""
    return " and ".join(filter(None, [", ".join(texts[:-1]), texts[-1]]))


def tell_numbers(what: str, numbers: Sequence[int]) -> str:
    """``step 3``, ``steps 0 to 19``, ``steps 0, 2 and 4 to 7``, ``12 steps from 0 to 1,100``."""
    if len(numbers) == 1:
        return f"{what} {numbers[0]}"
    runs = list(runs_in(numbers))
    if len(runs) > _RUNS_TOLD:
        return f"{plural(len(numbers), what)} from {numbers[0]} to {numbers[-1]}"
    told = []
    for first, last in runs:
        if last - first > 1:
            told.append(f"{first} to {last}")
        else:
            told += [str(number) for number in range(first, last + 1)]
    return f"{what}s {join_all(told)}"
