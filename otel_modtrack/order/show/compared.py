"""What comes out of comparing some orders, and how it is told."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from otel_modtrack.numerals import plural
from otel_modtrack.order.difference import first_difference
from otel_modtrack.order.show.telling import (
    count_folded,
    join_all,
    measure,
    name_parts,
    tell_lengths,
    tell_numbers,
)
from otel_modtrack.usage import UsageError
from otel_modtrack.view.paint import BOLD, paint, printable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from otel_modtrack.order.difference import Difference
    from otel_modtrack.order.show.arguments import Options
    from otel_modtrack.order.show.from_spans import Part

__all__ = ["Compared", "Outcome", "check_known", "compare", "report", "tell_all", "tell_equal"]

# A text, or a document for scripts; and whether anything differs.
Outcome = tuple[str | dict[str, Any], bool]


@dataclass(frozen=True, slots=True)
class Compared:
    """What came out of comparing some orders.

    Attributes:
        names: Of the orders.
        unit: ``step 19``, if all of them are of that.
        step: 19 of it.
        lengths: Of what was compared, by sequence; of the order that tells least.
        folded: Calls that are not known, in all of them together.
        difference: Where they first differ, if they do.
        rank: Whose orders they are, if all are of the same.
    """

    names: Sequence[str]
    unit: str
    step: int | None
    lengths: Mapping[str, int]
    folded: int
    difference: Difference | None
    rank: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """The difference for scripts."""
        assert self.difference is not None  # noqa: S101 - differences alone are told
        return {
            "rank": self.rank,
            "step": self.step,
            "sentence": self.difference.sentence,
            **self.difference.as_dict(),
        }


def compare(parts: Sequence[Part], *pieces: str, rank: int | None = None) -> Compared:
    """Compare orders.

    Args:
        parts: With the orders.
        pieces: What their names have, as `name_parts` takes it.
        rank: Whose orders they are.

    Raises:
        UsageError: If nothing is known in all of them.
    """
    names = name_parts(parts, *pieces)
    orders = [replace(part.order, name=name) for part, name in zip(parts, names, strict=True)]
    lengths = measure(orders)
    if not lengths:
        raise UsageError(
            f"{join_all(names)} have nothing in common that could be compared; give other orders, "
            "or other phases"
        )
    units = {part.unit for part in parts if part.unit}
    steps = {order.step for order in orders if order.step is not None}
    return Compared(
        names,
        unit=units.pop() if len(units) == 1 else "",
        step=steps.pop() if len(steps) == 1 else None,
        lengths=lengths,
        folded=count_folded(orders),
        difference=first_difference(orders),
        rank=rank,
    )


def check_known(compared: Sequence[Compared], name: str) -> None:
    """Refuse to call it agreement where there was nothing.

    Raises:
        UsageError: If there was none.
    """
    if compared and not any(any(one.lengths.values()) or one.difference for one in compared):
        raise UsageError(
            f"no module calls of {name} could be compared; give files that a tracker wrote, "
            "or other phases"
        )


def tell_all(compared: Sequence[Compared], options: Options, notes: Sequence[str] = ()) -> Outcome:
    """Tell in what orders agree and differ; once for all ranks of which the same is true.

    Args:
        compared: Of each rank, or of all orders together.
        options: What the user chose.
        notes: Sentences that come last.
    """
    differ = [one for one in compared if one.difference is not None]
    if options.as_json:
        return {
            "agree": not differ,
            "ranks": [one.rank for one in compared if one.rank is not None],
            "differences": [one.as_dict() for one in differ],
        }, bool(differ)
    alike: dict[object, list[Compared]] = {}
    for one in compared:
        alike.setdefault(_without_names(one.difference), []).append(one)
    blocks = []
    for group in alike.values():
        first = group[0]
        ranks = [one.rank for one in group if one.rank is not None]
        whose = f"{tell_numbers('rank', ranks)}: " if ranks else ""
        unit = f" in {first.unit}" if first.unit else ""
        if first.difference is None:
            blocks.append(f"{whose}{join_all(first.names)} agree{unit}: {tell_equal(group)}")
        else:
            blocks.append(f"{whose}{join_all(first.names)} differ{unit}:")
            blocks.append(report(first, options))
    return "\n\n".join([*blocks, *notes]), bool(differ)


def _without_names(difference: Difference | None) -> object:
    if difference is None:
        return None
    sides = tuple(replace(side, names=()) for side in difference.sides)
    return replace(difference, sides=sides)


def tell_equal(compared: Sequence[Compared]) -> str:
    """How much was compared."""
    told = tell_lengths([one.lengths for one in compared])
    folded = sum(one.folded for one in compared)
    if not folded:
        return told
    verb = "is" if folded == 1 else "are"
    return f"{told}; {plural(folded, 'folded call')} {verb} not compared"


def report(compared: Compared, options: Options) -> str:
    """The difference, and what is around it."""
    lines = [printable(line) for line in str(compared.difference).splitlines()]
    return "\n".join(
        paint(line, BOLD, colour=options.colour) if line.startswith(">") else line for line in lines
    )
