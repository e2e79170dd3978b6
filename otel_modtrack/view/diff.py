"""Two runs -> what got slower or faster, per step."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Final

from otel_modtrack.usage import UsageError
from otel_modtrack.view.choose import Units
from otel_modtrack.view.paint import GREEN, RED, ms, paint, render_table
from otel_modtrack.view.top import SELF, paint_row, sum_rows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from otel_modtrack.view.narrow import Kept
    from otel_modtrack.view.top import Row


__all__ = ["Change", "PerStep", "Side", "compare", "leave_out_warm_up", "measure", "render_changes"]

_HEADER: Final = (
    "before ms",
    " after ms",
    "difference",
    "       %",
    "of medians",
    "calls",
    "span",
)


@dataclass(frozen=True, slots=True)
class PerStep:
    """What the spans of one name took per step.

    Attributes:
        self_ns: Time that no span in them covers, on average.
        total_ns: Time, on average; of what runs within itself the outermost only.
        self_median_ns: The first of these in a step in the middle.
        total_median_ns: The second of these in a step in the middle.
        calls: How many there were, on average.
    """

    self_ns: float = 0.0
    total_ns: float = 0.0
    self_median_ns: float = 0.0
    total_median_ns: float = 0.0
    calls: float = 0.0


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two runs.

    Attributes:
        units: The steps, or traces, that are compared.
        left_out: How many steps are not, because they are the first.
        rows: What they were made of, by category and name: in each step where there is any.
    """

    units: Units
    left_out: int
    rows: Mapping[tuple[str, str], Sequence[Row]]

    @property
    def mean_ns(self) -> float:
        """Of a step, or trace."""
        return self.units.duration_ns / self.units.count

    @property
    def median_ns(self) -> float:
        """Of a step, or trace, in the middle."""
        return median(sum(root.span.duration_ns for root in part) for part in self.units.parts)


@dataclass(frozen=True, slots=True)
class Change:
    """A kind of module in both runs.

    Attributes:
        name: ``forward GPT.layers.*``.
        category: ``forward``.
        module: ``GPT.layers.*``, or "".
        before: None if it is only in the later one.
        after: None if it is only in the earlier one.
    """

    name: str
    category: str
    module: str
    before: PerStep | None
    after: PerStep | None

    def difference_ns(self, sort: str) -> float:
        """How much longer it takes per step; what is not there takes no time.

        Args:
            sort: `top.SELF` or `top.TOTAL`.
        """
        return _mean(self.after, sort) - _mean(self.before, sort)

    def median_difference_ns(self, sort: str) -> float:
        """How much longer it takes in a step in the middle; one odd step does not move it.

        Args:
            sort: `top.SELF` or `top.TOTAL`.
        """
        return _median(self.after, sort) - _median(self.before, sort)


def leave_out_warm_up(units: Units) -> tuple[Units, int]:
    """Leave out the first step of each process that has more: it allocates, compiles and tunes.

    Returns:
        The rest, and how many were left out.
    """
    if units.what != "step":
        return units, 0
    processes: dict[tuple[int | None, str], list[int]] = {}
    for index, root in enumerate(units.roots):
        process = root.span.process
        # Of one process there may be several files.
        key = process.rank, repr(sorted(process.attributes.items()))
        processes.setdefault(key, []).append(index)
    first = {indices[0] for indices in processes.values() if len(indices) > 1}
    roots = [root for index, root in enumerate(units.roots) if index not in first]
    return Units(units.what, roots, units.outside), len(first)


def measure(units: Units, left_out: int, *, by: str, kept: Kept | None = None) -> Side:
    """Sum up one of the two runs.

    Args:
        units: What is compared.
        left_out: How many steps are not.
        by: `top.TEMPLATE` or `top.FQN`.
        kept: What counts; all if None.
    """
    rows: dict[tuple[str, str], list[Row]] = {}
    for part in units.parts:
        for row in sum_rows(part, by=by, kept=kept):
            rows.setdefault((row.category, row.name), []).append(row)
    return Side(units, left_out, rows)


def compare(before: Side, after: Side, *, sort: str) -> list[Change]:
    """Set the two runs side by side, the largest difference first.

    Args:
        before: The earlier run.
        after: The later run.
        sort: `top.SELF`, whose differences add up to that of the step, or `top.TOTAL`.

    Raises:
        UsageError: If one has steps and the other has none.
    """
    if before.units.what != after.units.what:
        with_steps = "the earlier" if before.units.what == "step" else "the later"
        raise UsageError(
            f"only {with_steps} run has steps: these two cannot be compared; give two of a kind"
        )
    changes = []
    for category, name in dict.fromkeys([*before.rows, *after.rows]):
        old, new = (side.rows.get((category, name), []) for side in (before, after))
        module = [*old, *new][0].module
        changes.append(
            Change(
                name,
                category,
                module,
                _per_step(old, before.units.count),
                _per_step(new, after.units.count),
            )
        )
    return sorted(changes, key=lambda change: (-abs(change.difference_ns(sort)), change.name))


def _per_step(rows: Sequence[Row], count: int) -> PerStep | None:
    """Of so many steps; those that have no row took no time for it."""
    if not rows:
        return None
    none = [0] * (count - len(rows))
    return PerStep(
        sum(row.self_ns for row in rows) / count,
        sum(row.total_ns for row in rows) / count,
        median([*none, *(row.self_ns for row in rows)]),
        median([*none, *(row.total_ns for row in rows)]),
        sum(row.calls for row in rows) / count,
    )


def _mean(times: PerStep | None, sort: str) -> float:
    if times is None:
        return 0.0
    return times.self_ns if sort == SELF else times.total_ns


def _median(times: PerStep | None, sort: str) -> float:
    if times is None:
        return 0.0
    return times.self_median_ns if sort == SELF else times.total_median_ns


def render_changes(changes: Sequence[Change], *, sort: str, colour: bool = False) -> str:
    """Tabulate changes.

    Args:
        changes: In order.
        sort: The time that is shown: `top.SELF` or `top.TOTAL`.
        colour: Whether to use a terminal's colours: red for slower, green for faster.
    """
    rows = []
    for change in changes:
        difference_ns = change.difference_ns(sort)
        rows.append(
            (
                "-" if change.before is None else ms(_mean(change.before, sort)),
                "-" if change.after is None else ms(_mean(change.after, sort)),
                _difference(difference_ns, colour=colour),
                _relative(change, sort),
                _difference(change.median_difference_ns(sort), colour=colour),
                _calls(change),
                paint_row(change.name, colour=colour),
            )
        )
    return render_table(_HEADER, rows, colour=colour)


def _difference(difference_ns: float, *, colour: bool) -> str:
    text = f"{difference_ns / 1e6:+.3f}"
    if not difference_ns:
        return text
    return paint(text, RED if difference_ns > 0 else GREEN, colour=colour)


def _relative(change: Change, sort: str) -> str:
    """Tell the difference as a share of what was before, if there was anything."""
    if change.before is None:
        return "new"
    if change.after is None:
        return "gone"
    before_ns = _mean(change.before, sort)
    return f"{100 * change.difference_ns(sort) / before_ns:+.1f}%" if before_ns else "-"


def _calls(change: Change) -> str:
    """Tell the calls per step, once if they are as many."""
    before = "0" if change.before is None else f"{change.before.calls:.4g}"
    after = "0" if change.after is None else f"{change.after.calls:.4g}"
    return before if before == after else f"{before} > {after}"
