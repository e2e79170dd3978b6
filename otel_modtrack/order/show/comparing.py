"""What is compared with what: ranks, files, or steps."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from otel_modtrack.order.show.compared import check_known, compare, tell_all
from otel_modtrack.order.show.ranks import compare_steps_of_ranks
from otel_modtrack.order.show.telling import tell_numbers
from otel_modtrack.usage import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_modtrack.order.show.arguments import Options
    from otel_modtrack.order.show.compared import Outcome
    from otel_modtrack.order.show.files import Files
    from otel_modtrack.order.show.from_spans import Part

__all__ = ["compare_files", "compare_ranks", "compare_steps"]


def compare_ranks(side: Files, options: Options) -> Outcome:
    """The ranks of trace files; or orders that were saved, all together."""
    if side.saved:
        parts = side.parts(options.selection, options.phases)
        return tell_all([compare(parts, "rank")], options)
    return compare_steps_of_ranks(side, options)


def compare_files(sides: Sequence[Files], options: Options) -> Outcome:
    """What was chosen of some files with the same of others: rank by rank, if both have ranks."""
    both = [side.parts(options.selection, options.phases) for side in sides]
    return _compare_sides(both, [side.name for side in sides], "source", options)


def compare_steps(side: Files, options: Options) -> Outcome:
    """What was chosen with another step of the same files, rank by rank."""
    chosen = options.selection
    both = [
        side.parts(one, options.phases) for one in (chosen, replace(chosen, step=options.diff_step))
    ]
    if any(part.order.step == options.diff_step for part in both[0]):
        raise UsageError(
            f"step {options.diff_step} is compared with itself, for it is the last; choose another "
            "with --step or --diff-step"
        )
    names = [f"{one[0].unit} of {side.name}" for one in both]
    return _compare_sides(both, names, "step", options)


def _compare_sides(
    both: Sequence[Sequence[Part]], names: Sequence[str], piece: str, options: Options
) -> Outcome:
    """Two sides, which may have several ranks each.

    Args:
        both: The orders of either.
        names: What the sides are called in a message.
        piece: What tells them apart, ``source`` or ``step``.
        options: What the user chose.

    Raises:
        UsageError: If no rank is on both.
    """
    before, after = ({part.order.rank: part for part in parts} for parts in both)
    everything = [part for parts in both for part in parts]
    steps = {part.order.step for part in everything if part.order.step is not None}
    pieces = {piece, *(["step"] if len(steps) > 1 else [])}
    notes: list[str] = []
    is_ranked = len(before) + len(after) == len(everything) and not {None} & {*before, *after}
    if len(everything) == 2 or not is_ranked:  # noqa: PLR2004 - one and one
        compared = [compare(everything, *pieces)]
    else:
        common = [rank for rank in before if rank in after]
        if not common:
            raise UsageError(
                f"{names[0]} and {names[1]} have no rank in common; choose files of the same ranks"
            )
        for name, own in zip(names, (before, after), strict=True):
            alone = [rank for rank in own if rank not in common and rank is not None]
            if alone:
                verb = "is" if len(alone) == 1 else "are"
                notes.append(f"{tell_numbers('rank', alone)} {verb} in {name} alone")
        compared = [compare([before[r], after[r]], *pieces, rank=r) for r in common]
    check_known(compared, " and ".join(names))
    return tell_all(compared, options, notes)
