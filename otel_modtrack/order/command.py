"""What ``otel-modtrack order`` does: list the order of a step, or tell where orders differ."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from otel_modtrack import semconv
from otel_modtrack.numerals import plural
from otel_modtrack.order.arguments import FILES, LIST, RANKS, STEPS, Options
from otel_modtrack.order.difference import first_difference
from otel_modtrack.order.from_spans import CALLS, SEQUENCES, Files, split_ranks
from otel_modtrack.usage import UsageError
from otel_modtrack.view.choose import Selection, choose_units, select
from otel_modtrack.view.faults import name_file
from otel_modtrack.view.model import Node, Span
from otel_modtrack.view.narrow import Narrowing
from otel_modtrack.view.paint import BOLD, DIM, colour_phase, paint, printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence, Set as AbstractSet

    from otel_modtrack.order.difference import Difference
    from otel_modtrack.order.from_spans import Part
    from otel_modtrack.order.model import Call, Order

__all__ = ["order_files"]

_VERSION: Final = 1  # of documents: raised when a key is taken away or means something else
_LIST_INDEX: Final = re.compile(r"\.\d+(?=\.|$)")
# Deeper calls stand below one another, and have the number of their level.
_DEEPEST: Final = 40
_RUNS_TOLD: Final = 3

_Content = str | dict[str, Any]


def order_files(paths: Sequence[str], options: Options | None = None) -> int:
    """Print the order in which modules ran, or where orders first differ.

    Args:
        paths: Files of OTLP JSON lines, compressed by gzip or not, ``-`` for stdin; or orders that
            `Order.save` wrote.
        options: What is listed or compared; the last step is listed, if None.

    Returns:
        The exit code: 1 if orders differ, or else 0.

    Raises:
        UsageError: If a file cannot be read, or has nothing of what was chosen; or if options
            contradict each other.
    """
    options = options or Options()
    options.check()
    given = [each for each in (paths, options.diff) if each]
    if [path for each in given for path in each].count("-") > 1:
        raise UsageError("stdin can be read once only; give - once")
    sides = [Files.read(each) for each in given]
    faults = [fault for side in sides for fault in side.faults]
    for fault in faults:
        _say(f"skipped what could not be read in {fault.path}, {fault.where}: {fault.reason}")
    _check_files(sides, options)
    does = {LIST: _list, RANKS: _compare_ranks, FILES: _compare_files, STEPS: _compare_steps}
    content, code = does[options.does](sides, options)
    for path in dict.fromkeys(path for side in sides for path in side.by_time):
        _say(
            f"the module calls in {path} have no {semconv.ORDER_INDEX}, as in older files: they "
            "are in order of their start, and what was folded is left out"
        )
    if isinstance(content, dict):
        head = {
            "order": options.does,
            "version": _VERSION,
            **{
                key: list(map(name_file, each))
                for key, each in zip(("files", "other_files"), given, strict=False)
            },
            "skipped": [
                {"file": fault.path, "reason": fault.reason, "lines": fault.lines}
                for fault in faults
            ],
        }
        content = json.dumps({**head, **content}, indent=1)
    _print(content)
    return code


def _print(text: str) -> None:
    try:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise UsageError(
            f"cannot write to stdout: {error.strerror}; let it go to a file or a pipe with room"
        ) from None


def _say(sentence: str) -> None:
    sys.stderr.write(f"otel-modtrack order: {printable(sentence)}\n")


def _check_files(sides: Sequence[Files], options: Options) -> None:
    """Refuse what means nothing for such files.

    Raises:
        UsageError: If there is such an option.
    """
    chosen = options.selection
    if chosen.trace is not None and sum(bool(side.trees) for side in sides) > 1:
        raise UsageError(
            "--trace does nothing with --diff of trace files, for a trace is in one of them; leave "
            "one of them out"
        )
    saved = [part.source for side in sides for part in side.saved]
    if not saved:
        return
    is_one = f"{printable(saved[0])} is one order"
    if not any(side.trees for side in sides):
        values = {"--step": chosen.step, "--trace": chosen.trace, "--rank": chosen.rank}
        for option, value in values.items():
            if value is not None:
                raise UsageError(f"{option} does nothing here, for {is_one}; leave it out")
    if options.does == STEPS:
        raise UsageError(f"--diff-step compares steps, and {is_one}; leave one of them out")
    if options.does == RANKS and (sides[0].trees or len(saved) == 1):
        raise UsageError(
            f"--diff without OTHER compares ranks, and {is_one}; name after --diff what it is "
            "compared with"
        )


# -- the list --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Kept:
    """Positions of the calls that --module fits, and of these and what they are in."""

    matching: set[int]
    shown: set[int]


def _list(sides: Sequence[Files], options: Options) -> tuple[_Content, int]:
    """The order of each part."""
    (side,) = sides
    parts = side.parts(options.selection, options.phases)
    if not any(_is_known(part.order) for part in parts):
        raise UsageError(_why_nothing(side, parts, options))
    if options.as_json:
        return {"orders": [_as_document(part, name) for part, name in _named(parts)]}, 0
    kept = _keep(parts, options.modules) if options.modules else None
    blocks = []
    for at, part in enumerate(parts):
        of_part = {
            sequence: kept[at, sequence] if kept is not None else None for sequence in SEQUENCES
        }
        blocks.append(_headline(part))
        if kept is not None:
            matching = sum(len(one.matching) for one in of_part.values() if one is not None)
            fit = "fits" if matching == 1 else "fit"
            patterns = Narrowing(modules=options.modules).text
            blocks[-1] += (
                f"\n{plural(matching, 'call')} {fit} {patterns}, and what they are in is shown"
            )
        for sequence, of_sequence in of_part.items():
            if of_sequence is None or of_sequence.shown:
                blocks += _list_one(part, sequence, of_sequence, options)
    return "\n\n".join(blocks), 0


def _is_known(order: Order) -> bool:
    return any(getattr(order, sequence) for sequence in SEQUENCES)


def _why_nothing(side: Files, parts: Sequence[Part], options: Options) -> str:
    where = f"{parts[0].unit or parts[0].what} in {side.name}"
    found = side.parts(options.selection) if options.phases else []
    there = [one for one in CALLS if any(getattr(part.order, one) for part in found)]
    if there:
        phases = " or ".join(options.phases)
        return f"there is no {phases} in {where}: the phases there are {', '.join(there)}"
    return f"no span of {where} is a module's; give a file that a tracker wrote, or another --step"


def _named(parts: Sequence[Part]) -> Iterator[tuple[Part, str]]:
    """Each part with a name for its order: its own, if it was saved."""
    traced = [part for part in parts if part.unit]
    names = iter(_names(traced, "rank") if len(traced) > 1 else [part.unit for part in traced])
    for part in parts:
        yield part, next(names) if part.unit else part.order.name


def _as_document(part: Part, name: str) -> dict[str, Any]:
    """What `Order.as_dict` says, and where it is from."""
    document = {**replace(part.order, name=name).as_dict(), "file": part.source}
    if part.unit:
        changed = part.changed
        document |= {
            "service": part.service,
            "world_size": part.world_size,
            "trace_id": part.trace_id,
            "changed": None
            if changed is None
            else {
                "sequence": changed.get(semconv.ORDER_SEQUENCE),
                "position": changed.get(semconv.ORDER_POSITION),
                "fqn": changed.get(semconv.ORDER_FQN),
                "previous_fqn": changed.get(semconv.ORDER_PREVIOUS_FQN),
            },
            "diverged": part.diverged or None,
        }
    return document


def _headline(part: Part) -> str:
    """Tell what it is, how many calls there are, and what is odd about it."""
    lines = [f"{part.what}: {_tell_order(part.order)}"]
    changed = part.changed
    if changed is not None:
        sequence = changed.get(semconv.ORDER_SEQUENCE)
        position = changed.get(semconv.ORDER_POSITION)
        now, before = changed.get(semconv.ORDER_FQN), changed.get(semconv.ORDER_PREVIOUS_FQN)
        lines[0] += printable(f", order changed at {sequence} {position}")
        lines.append(
            printable(
                f"Its {sequence} call {position} is {now or 'none any more'}; in the step recorded "
                f"before, it was {before or 'none'}"
            )
        )
    if part.diverged:
        told = [printable(line) for line in part.diverged.splitlines()]
        lines += [f"The ranks went different ways: {told[0]}", *told[1:]]
    return "\n".join(lines)


def _keep(parts: Sequence[Part], patterns: Sequence[str]) -> dict[tuple[int, str], _Kept]:
    """Which calls are shown, by part and sequence; of what is no call, none.

    Raises:
        UsageError: If no module fits.
    """
    nodes: dict[tuple[int, str], list[Node]] = {}
    roots: list[Node] = []
    for at, part in enumerate(parts):
        for sequence in SEQUENCES:
            found = nodes[at, sequence] = []
            for call in getattr(part.order, sequence) or () if sequence in CALLS else ():
                names = {semconv.PHASE: sequence}
                if call.fqn:
                    names[semconv.MODULE_FQN] = call.fqn
                    names[semconv.MODULE_TEMPLATE] = _LIST_INDEX.sub(".*", call.fqn)
                node = Node(Span("", "", "", "", 0, 0, names))
                (roots if call.parent is None else found[call.parent].children).append(node)
                found.append(node)
    kept = Narrowing(modules=patterns).keep(roots)
    assert kept is not None  # noqa: S101 - there are patterns
    return {
        key: _Kept(
            {at for at, node in enumerate(found) if node in kept.matching},
            {at for at, node in enumerate(found) if node in kept.shown},
        )
        for key, found in nodes.items()
    }


def _list_one(part: Part, sequence: str, kept: _Kept | None, options: Options) -> list[str]:
    """One sequence, with its name above; nothing if there is none."""
    rows: Iterable[tuple[int, str]]
    found = getattr(part.order, sequence)
    if not found:
        return []
    marked = None
    if sequence in CALLS:
        rows = _Lines(found, kept, colour=options.colour).lay_out(options.depth)
        changed = part.changed or {}
        if changed.get(semconv.ORDER_SEQUENCE) == sequence:
            marked = changed.get(semconv.ORDER_POSITION)
    else:
        rows = enumerate(map(printable, found))
    width = len(str(len(found) - 1))
    title = colour_phase(sequence, colour=options.colour) or paint(
        sequence, BOLD, colour=options.colour
    )
    lines = [
        f"{'>' if at == marked else ' '} {paint(f'{at:>{width}}', DIM, colour=options.colour)}"
        f"  {text}"
        for at, text in rows
    ]
    return ["\n".join([title, *lines])]


class _Lines:
    """Calls as lines, indented. Of calls that come alike one after the other, the first is shown.

    Args:
        calls: In order.
        kept: What is shown; all if None.
        colour: Whether to use a terminal's colours.
    """

    def __init__(self, calls: Sequence[Call], kept: _Kept | None, *, colour: bool) -> None:
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


# -- comparing -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Compared:
    """What came out of comparing some orders.

    Attributes:
        names: Of the orders.
        unit: ``step 19``, if all of them are of that.
        step: 19 of it.
        counts: Of what was compared, by sequence; of the order that tells least.
        folded: Calls that are not known, in all of them together.
        difference: Where they first differ, if they do.
        rank: Whose orders they are, if all are of the same.
    """

    names: Sequence[str]
    unit: str
    step: int | None
    counts: Mapping[str, int]
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


def _compare(parts: Sequence[Part], *pieces: str, rank: int | None = None) -> _Compared:
    """Compare orders.

    Args:
        parts: With the orders.
        pieces: As of `_names`.
        rank: Whose orders they are.

    Raises:
        UsageError: If nothing is known in all of them.
    """
    names = _names(parts, *pieces)
    orders = [replace(part.order, name=name) for part, name in zip(parts, names, strict=True)]
    counts = _counts(orders)
    if not counts:
        raise UsageError(
            f"{_and(names)} have nothing in common that could be compared; give other orders, or "
            "other phases"
        )
    units = {part.unit for part in parts if part.unit}
    steps = {order.step for order in orders if order.step is not None}
    return _Compared(
        names,
        units.pop() if len(units) == 1 else "",
        steps.pop() if len(steps) == 1 else None,
        counts,
        sum(not call.fqn for one in orders for key in CALLS for call in getattr(one, key) or ()),
        first_difference(orders),
        rank,
    )


def _names(parts: Sequence[Part], *pieces: str) -> list[str]:
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


def _compare_ranks(sides: Sequence[Files], options: Options) -> tuple[_Content, int]:
    """The same step of all ranks; where none was chosen, each step until one differs."""
    (side,) = sides
    if side.saved:
        parts = side.parts(options.selection, options.phases)
        return _tell_pairs([_compare(parts, "rank")], [], options)
    select(side.trees, options.selection, side.name)  # there is such a step
    what, found = _units(side)
    numbers = sorted({number for of_rank in found.values() for number in of_rank})
    if options.selection.step is not None:
        numbers = [options.selection.step]
    done: dict[int, _Compared] = {}
    for number in numbers:
        there = [of_rank[number] for of_rank in found.values() if number in of_rank]
        if len(there) > 1:
            parts = [side.part(one, options.phases) for one in there]
            done[number] = compared = _compare(parts, "rank")
            if compared.difference is not None:
                break
    missing = [one for rank, own in found.items() if (one := _missing(rank, own.keys(), numbers))]
    ends = any(one["ends"] for one in missing)
    chosen = options.selection.step
    if not done and (chosen is None or not ends):
        common = f"{what} in common" if chosen is None else f"{what} {chosen}"
        raise UsageError(f"no two ranks of {side.name} have a {common}; give files of one run")
    _check_known(list(done.values()), side.name)
    code = int(ends or any(one.difference is not None for one in done.values()))
    if options.as_json:
        return {
            "agree": not code,
            "unit": what,
            "ranks": list(found),
            "equal": [number for number, one in done.items() if one.difference is None],
            "differs_in": next((n for n, one in done.items() if one.difference is not None), None),
            "differences": [one.as_dict() for one in done.values() if one.difference is not None],
            "missing": missing,
        }, code
    blocks = _tell_ranks(_numbers("rank", list(found)), what, done, options)
    if missing:
        blocks.append("\n".join(_tell_missing(missing, what, numbers)))
    return "\n\n".join(blocks), code


def _tell_ranks(
    ranks: str, what: str, done: Mapping[int, _Compared], options: Options
) -> list[str]:
    """In what ranks agree, and how they differ in the step that comes then."""
    equal = [number for number, one in done.items() if one.difference is None]
    agree = f"agree in {_numbers(what, equal)}" if equal else ""
    for number, one in done.items():
        if one.difference is not None:
            differ = f"differ in {what} {number}:"
            both = f"{agree} and {differ}" if agree else differ
            return [f"{ranks} {both}", _report(one, options)]
    return [f"{ranks} {agree}: {_tell_compared(list(done.values()))}"] if agree else []


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
        ranks, several = _numbers("rank", of_ranks), len(of_ranks) > 1
        if last is None:
            yield f"{ranks} {'have' if several else 'has'} no {what} at all"
            continue
        before = [number for number in lacks if number < last]
        if before:
            lack = "lack" if several else "lacks"
            yield f"{ranks} {lack} {_numbers(what, before)}, which others have"
        if last < numbers[-1]:
            yield (
                f"{ranks} {'end' if several else 'ends'} after {what} {last}, where others go on "
                f"to {what} {numbers[-1]}: {'they' if several else 'it'} may hang, have ended, or "
                "not have written more yet"
            )


def _compare_files(sides: Sequence[Files], options: Options) -> tuple[_Content, int]:
    """What was chosen of some files with the same of others: rank by rank, if both have ranks."""
    both = [side.parts(options.selection, options.phases) for side in sides]
    return _compare_sides(both, [side.name for side in sides], "source", options)


def _compare_steps(sides: Sequence[Files], options: Options) -> tuple[_Content, int]:
    """What was chosen with another step of the same files, rank by rank."""
    (side,) = sides
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
) -> tuple[_Content, int]:
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
        compared = [_compare(everything, *pieces)]
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
                notes.append(f"{_numbers('rank', alone)} {verb} in {name} alone")
        compared = [_compare([before[r], after[r]], *pieces, rank=r) for r in common]
    _check_known(compared, " and ".join(names))
    return _tell_pairs(compared, notes, options)


def _check_known(compared: Sequence[_Compared], name: str) -> None:
    """Refuse to call it agreement where there was nothing.

    Raises:
        UsageError: If there was none.
    """
    if compared and not any(any(one.counts.values()) or one.difference for one in compared):
        raise UsageError(
            f"no module calls of {name} could be compared; give files that a tracker wrote, "
            "or other phases"
        )


def _tell_pairs(
    compared: Sequence[_Compared], notes: Sequence[str], options: Options
) -> tuple[_Content, int]:
    """What came out of comparing the same ranks, or all orders together."""
    differ = [one for one in compared if one.difference is not None]
    if options.as_json:
        return {
            "agree": not differ,
            "ranks": [one.rank for one in compared if one.rank is not None],
            "differences": [one.as_dict() for one in differ],
        }, int(bool(differ))
    alike: dict[object, list[_Compared]] = {}
    for one in compared:
        alike.setdefault(_without_names(one.difference), []).append(one)
    blocks = []
    for group in alike.values():
        first = group[0]
        ranks = [one.rank for one in group if one.rank is not None]
        whose = f"{_numbers('rank', ranks)}: " if ranks else ""
        unit = f" in {first.unit}" if first.unit else ""
        if first.difference is None:
            blocks.append(f"{whose}{_and(first.names)} agree{unit}: {_tell_compared(group)}")
        else:
            blocks.append(f"{whose}{_and(first.names)} differ{unit}:")
            blocks.append(_report(first, options))
    return "\n\n".join([*blocks, *notes]), int(bool(differ))


def _without_names(difference: Difference | None) -> object:
    if difference is None:
        return None
    sides = tuple(replace(side, names=()) for side in difference.sides)
    return replace(difference, sides=sides)


def _report(compared: _Compared, options: Options) -> str:
    lines = [printable(line) for line in str(compared.difference).splitlines()]
    return "\n".join(
        paint(line, BOLD, colour=options.colour) if line.startswith(">") else line for line in lines
    )


# -- how it is said --------------------------------------------------------------------------------


def _counts(orders: Sequence[Order]) -> dict[str, int]:
    """How long each sequence is that all orders know; in that which tells least."""
    known = {key: [getattr(order, key) for order in orders] for key in SEQUENCES}
    return {
        key: min(map(len, all_of))
        for key, all_of in known.items()
        if not any(one is None for one in all_of)
    }


def _tell_counts(all_counts: Sequence[Mapping[str, int]]) -> str:
    """``42 forward calls, 21 backward``; ``40 to 42 forward calls`` of several."""
    told = []
    for key in SEQUENCES:
        found = [counts.get(key, 0) for counts in all_counts]
        least, most = min(found), max(found)
        if most:
            told.append(f"{least:,} {key}" if least == most else f"{least:,} to {most:,} {key}")
            if len(told) == 1 and key in CALLS:
                told[0] += " call" if most == 1 else " calls"
    return ", ".join(told) or "no calls"


def _tell_order(order: Order) -> str:
    """``42 forward calls, 21 backward, 12 of them folded``."""
    calls = [call for key in CALLS for call in getattr(order, key) or ()]
    folded = sum(not call.fqn for call in calls)
    of_them = ""
    if folded:
        of_them = ", all of them folded" if folded == len(calls) else f", {folded:,} of them folded"
    return _tell_counts([_counts([order])]) + of_them


def _tell_compared(compared: Sequence[_Compared]) -> str:
    folded = sum(one.folded for one in compared)
    verb = "is" if folded == 1 else "are"
    return _tell_counts([one.counts for one in compared]) + (
        f"; {plural(folded, 'folded call')} {verb} not compared" if folded else ""
    )


def _and(texts: Sequence[str]) -> str:
    """``a, b and c``."""
    return " and ".join(filter(None, [", ".join(texts[:-1]), texts[-1]]))


def _numbers(what: str, numbers: Sequence[int]) -> str:
    """``step 3``, ``steps 0 to 19``, ``steps 0, 2 and 4 to 7``, ``12 steps from 0 to 1,100``."""
    if len(numbers) == 1:
        return f"{what} {numbers[0]}"
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1] = runs[-1][0], number
        else:
            runs.append((number, number))
    if len(runs) > _RUNS_TOLD:
        return f"{plural(len(numbers), what)} from {numbers[0]} to {numbers[-1]}"
    told = []
    for first, last in runs:
        if last - first > 1:
            told.append(f"{first} to {last}")
        else:
            told += [str(number) for number in range(first, last + 1)]
    return f"{what}s {_and(told)}"
