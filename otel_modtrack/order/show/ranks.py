"""The same step of all ranks: one step after the other, until one differs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_modtrack.order.show.compared import check_known, compare, report, tell_equal
from otel_modtrack.order.show.files import split_ranks
from otel_modtrack.order.show.telling import tell_numbers
from otel_modtrack.usage import UsageError
from otel_modtrack.view.choose import Selection, choose_units, select

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence, Set as AbstractSet

    from otel_modtrack.order.show.arguments import Options
    from otel_modtrack.order.show.compared import Compared, Outcome
    from otel_modtrack.order.show.files import Files
    from otel_modtrack.view.model import Node

__all__ = ["compare_steps_of_ranks"]


def compare_steps_of_ranks(side: Files, options: Options) -> Outcome:
    """Compare the ranks of trace files in the step that was chosen, or in each.

    Args:
        side: The files.
        options: What the user chose.

    Raises:
        UsageError: If no two ranks have such a step.
    """
    select(side.trees, options.selection, side.name)  # there is such a step
    what, found = _units(side)
    chosen = options.selection.step
    numbers = sorted({number for own in found.values() for number in own})
    if chosen is not None:
        numbers = [chosen]
    done: dict[int, Compared] = {}
    differs_in = None
    for number in numbers:
        there = [own[number] for own in found.values() if number in own]
        if len(there) > 1:
            done[number] = compare([side.part(one, options.phases) for one in there], "rank")
            if done[number].difference is not None:
                differs_in = number
                break
    missing = [one for rank, own in found.items() if (one := _missing(rank, own.keys(), numbers))]
    ends = any(one["ends"] for one in missing)
    if not done and (chosen is None or not ends):
        common = f"{what} in common" if chosen is None else f"{what} {chosen}"
        raise UsageError(f"no two ranks of {side.name} have a {common}; give files of one run")
    check_known(list(done.values()), side.name)
    differs = ends or differs_in is not None
    equal = [number for number in done if number != differs_in]
    if options.as_json:
        return {
            "agree": not differs,
            "unit": what,
            "ranks": list(found),
            "equal": equal,
            "differs_in": differs_in,
            "differences": [] if differs_in is None else [done[differs_in].as_dict()],
            "missing": missing,
        }, differs
    ranks = tell_numbers("rank", list(found))
    agree = f"agree in {tell_numbers(what, equal)}" if equal else ""
    blocks = []
    if differs_in is not None:
        both = f"{agree} and differ" if agree else "differ"
        blocks = [f"{ranks} {both} in {what} {differs_in}:", report(done[differs_in], options)]
    elif agree:
        blocks = [f"{ranks} {agree}: {tell_equal(list(done.values()))}"]
    if missing:
        blocks.append("\n".join(_tell_missing(missing, what, numbers)))
    return "\n\n".join(blocks), differs


def _units(side: Files) -> tuple[str, dict[int, dict[int, Sequence[Node]]]]:
    """The steps of each rank by their numbers; or, if none has steps, its traces, from 0.

    Raises:
        UsageError: If there are no ranks that could be compared.
    """
    ranks = {rank: nodes for rank, nodes in split_ranks(side.trees).items() if rank is not None}
    if len(ranks) <= 1:
        has = f"spans of rank {next(iter(ranks))} alone" if ranks else "no spans that tell a rank"
        raise UsageError(
            f"--diff without OTHER compares ranks, and {side.name} has {has}; give the files of "
            "all ranks, or name another file after --diff"
        )
    units = {rank: choose_units(nodes, Selection(), side.name) for rank, nodes in ranks.items()}
    what = "step" if any(one.what == "step" for one in units.values()) else "trace"
    found: dict[int, dict[int, Sequence[Node]]] = {}
    for rank, one in units.items():
        found[rank] = {}
        for at, roots in enumerate(one.parts if one.what == what else ()):
            number = roots[0].span.step if what == "step" else at
            assert number is not None  # noqa: S101 - it is a step
            found[rank][number] = roots  # of those after a restart, the last
    return what, found


def _missing(rank: int, own: AbstractSet[int], numbers: Sequence[int]) -> dict[str, Any] | None:
    """Which steps a rank lacks, and whether it ends before others; None if it has all."""
    lacks = [number for number in numbers if number not in own]
    if not lacks:
        return None
    last = max(own, default=None)
    return {"rank": rank, "last": last, "ends": last is None or last < numbers[-1], "lacks": lacks}


def _tell_missing(
    missing: Iterable[Mapping[str, Any]], what: str, numbers: Sequence[int]
) -> Iterator[str]:
    """Sentences, one for all ranks that lack the same."""
    alike: dict[tuple[int | None, tuple[int, ...]], list[int]] = {}
    for one in missing:
        alike.setdefault((one["last"], tuple(one["lacks"])), []).append(one["rank"])
    for (last, lacks), of_ranks in alike.items():
        ranks, several = tell_numbers("rank", of_ranks), len(of_ranks) > 1
        if last is None:
            yield f"{ranks} {'have' if several else 'has'} no {what} at all"
            continue
        before = [number for number in lacks if number < last]
        if before:
            lack = "lack" if several else "lacks"
            yield f"{ranks} {lack} {tell_numbers(what, before)}, which others have"
        if last < numbers[-1]:
            yield (
                f"{ranks} {'end' if several else 'ends'} after {what} {last}, where others go on "
                f"to {what} {numbers[-1]}: {'they' if several else 'it'} may hang, have ended, or "
                "not have written more yet"
            )
