"""Trace files -> orders of names.

A module's span says which of the module calls of its phase it is (`semconv.ORDER_INDEX`), so the
order does not depend on clocks, and a call that was folded into another's span leaves a gap. The
spans that stand for folded calls say how many they are, and so where in the order those belong.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from otel_modtrack import semconv
from otel_modtrack.order.model import Call, Order, read_order
from otel_modtrack.view.choose import Selection, choose_parts, select
from otel_modtrack.view.faults import name_file
from otel_modtrack.view.model import build_trees, rank_order
from otel_modtrack.view.paint import join_some, printable
from otel_modtrack.view.reader import read_files
from otel_modtrack.view.tree import describe_part

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from otel_modtrack.view.model import Node, Span
    from otel_modtrack.view.reader import Fault

__all__ = ["CALLS", "SEQUENCES", "Files", "Part", "read_part", "split_ranks"]

CALLS: Final = ("forward", "recompute", "backward")
SEQUENCES: Final = (*CALLS, "parameters", "gradients")
_SAVED: Final = re.compile(rb'"modtrack_order"\s*:\s*\d')
_HEAD_BYTES: Final = 4096
_REGION: Final = "region"  # what a named region has in place of a module's class
_MOST_CALLS: Final = 10_000_000  # of a phase: what claims to be more is malformed


@dataclass(frozen=True, slots=True)
class Part:
    """An order, and where it is from.

    Attributes:
        order: of a step or trace of one rank; or as it was saved.
        source: the file.
        what: what a headline calls it: ``Step 19 of trainer, rank 0 of 2``.
        unit: ``step 19``, or ``trace 5f0c...``; "" for an order that was saved.
        service: of the process; "" where it has no name.
        world_size: how many ranks there are; None where nothing tells.
        trace_id: of the spans; None for an order that was saved.
        changed: attributes of the event of a step whose order is not that of the step before.
        diverged: what is said of ranks that went different ways, or "".
        by_time: whether the calls could be ordered by their start alone.
    """

    order: Order
    source: str
    what: str
    unit: str = ""
    service: str = ""
    world_size: int | None = None
    trace_id: str | None = None
    changed: Mapping[str, Any] | None = None
    diverged: str = ""
    by_time: bool = False


@dataclass(slots=True)
class Files:
    """What files hold: trace files, and orders that were saved.

    Attributes:
        name: what they are called in a message.
        trees: of the spans of trace files.
        saved: orders that were saved.
        faults: what was skipped.
        by_time: files of which calls could be ordered by their start alone, so far.
    """

    name: str
    trees: list[Node] = field(default_factory=list)
    saved: list[Part] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    by_time: dict[str, None] = field(default_factory=dict)

    @staticmethod
    def read(paths: Sequence[str]) -> Files:
        """Read files.

        Args:
            paths: files of OTLP JSON lines, ``-`` for stdin; or orders.

        Raises:
            UsageError: if one cannot be read, or the trace files have no spans.
        """
        files = Files(join_some([name_file(path) for path in paths], shown=3))
        traces = []
        for path in paths:
            if _is_saved(path):
                order = read_order(path)
                what = f"Order {printable(order.name)} of {printable(path)}"
                files.saved.append(Part(order, path, what))
            else:
                traces.append(path)
        if traces:
            found = read_files(traces)
            files.trees, files.faults = build_trees(found.spans), found.faults
        return files

    def parts(self, selection: Selection, phases: Sequence[str] = ()) -> list[Part]:
        """One step or trace of each rank; and what was saved.

        Args:
            selection: what was chosen; without a step or trace, the last that all ranks have.
            phases: what is left of the orders; all if empty.

        Raises:
            UsageError: if what was chosen is not there.
        """
        found = []
        if self.trees:
            nodes = select(self.trees, selection, self.name)
            if selection.step is None:
                nodes = [node for of_rank in split_ranks(nodes).values() for node in of_rank]
            parts = choose_parts(nodes, Selection(selection.step), self.name)
            found = [self.part(roots, phases) for roots in parts]
        return [*found, *(_only(part, phases) for part in self.saved)]

    def part(self, roots: Sequence[Node], phases: Sequence[str] = ()) -> Part:
        """The order of a step or trace of one rank.

        Args:
            roots: its outermost spans.
            phases: what is left of it; all if empty.
        """
        part = read_part(roots)
        if part.by_time:
            self.by_time[part.source] = None
        return _only(part, phases)


def _is_saved(path: str) -> bool:
    """Whether a file is an order. A pipe, which can be read once, is of OTLP."""
    try:
        if path == "-" or not Path(path).is_file():
            return False
        with Path(path).open("rb") as file:
            return _SAVED.search(file.read(_HEAD_BYTES)) is not None
    except (OSError, ValueError):  # whoever reads it says so
        return False


def _only(part: Part, phases: Sequence[str]) -> Part:
    if not phases:
        return part
    left_out: dict[str, Any] = {one: None for one in SEQUENCES if one not in phases}
    return replace(part, order=replace(part.order, **left_out))


def split_ranks(trees: Iterable[Node]) -> dict[int | None, list[Node]]:
    """The outermost spans of each rank, in order of rank; last, under None, what is of none.

    A span of no rank that has ranks below it, as a launcher's, is of none of them.

    Args:
        trees: in order of start.
    """
    found: dict[int | None, list[Node]] = {}
    for tree in trees:
        ranked = list(_outermost_of_ranks(tree))
        for node in ranked or [tree]:
            found.setdefault(node.span.process.rank, []).append(node)
    for nodes in found.values():
        nodes.sort(key=lambda node: node.span.start_ns)
    return dict(sorted(found.items(), key=lambda item: rank_order(item[0])))


def _outermost_of_ranks(tree: Node) -> Iterator[Node]:
    waiting: list[tuple[Node, int | None]] = [(tree, None)]
    while waiting:
        node, around = waiting.pop()
        rank = node.span.process.rank
        if rank is not None and rank != around:
            yield node
            around = rank
        waiting += [(child, around) for child in node.children]


def read_part(roots: Sequence[Node]) -> Part:
    """The order of a step or trace of one rank, of its module calls alone.

    Args:
        roots: its outermost spans.
    """
    first = roots[0].span
    reading = _Reading(first.process.rank, in_step=any(one.span.step is not None for one in roots))
    reading.read(roots)
    what, service, ranks = describe_part(roots)
    unit = what[:1].lower() + what[1:]
    steps = [root.span for root in roots if root.span.step is not None]
    orders = {phase: reading.calls(phase) for phase in CALLS}
    changed = [
        event.attributes
        for step in steps
        for event in step.events
        if event.name == semconv.ORDER_CHANGED_EVENT
    ]
    return Part(
        Order(
            unit,
            forward=_with_leaves(orders["forward"], reading.compiled),
            recompute=orders["recompute"],
            backward=orders["backward"],
            step=steps[0].step if len(steps) == 1 else None,
            rank=first.process.rank,
        ),
        source=first.process.source,
        what=what
        + (f" of {service}" if service else "")
        + ("" if ranks is None else ", rank {} of {}".format(*ranks)),
        unit=unit,
        service=first.process.service,
        world_size=first.process.world_size,
        trace_id=first.trace_id,
        changed=changed[-1] if changed else None,
        diverged=reading.diverged,
        by_time=reading.by_time,
    )


def _with_leaves(calls: list[Call], compiled: set[int]) -> list[Call]:
    """Calls of what was compiled into one piece are not looked into."""
    called = {call.parent for call in calls}
    return [
        replace(call, leaf=True) if at in compiled and at not in called else call
        for at, call in enumerate(calls)
    ]


@dataclass(slots=True, eq=False)
class _Seen:
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
    parent: _Seen | None
    folded: int = 0
    position: int = -1

    def above(self) -> Iterator[_Seen]:
        """Itself, and the calls that it is in, the innermost first."""
        one: _Seen | None = self
        while one is not None:
            yield one
            one = one.parent


@dataclass(slots=True)
class _Reading:
    """What spans say of the module calls of one rank.

    Attributes:
        rank: spans of others, below these, are passed over.
        in_step: whether it is a step; an evaluation in one has an order of its own.
        by_time: whether calls are ordered by their start alone: their indices are missing, or
            malformed.
        compiled: positions of forward calls of what was compiled.
        diverged: what is said of ranks that went different ways, or "".
    """

    rank: int | None
    in_step: bool
    by_time: bool = False
    compiled: set[int] = field(default_factory=set)
    diverged: str = ""
    _is_indexed: bool = True
    # By phase, and there by the outermost call that they are in, which has one count of its own or
    # goes on with that of another.
    _seen: dict[str, dict[int, list[_Seen]]] = field(
        default_factory=lambda: {phase: {} for phase in CALLS}
    )
    _outside: dict[str, int] = field(default_factory=lambda: dict.fromkeys(CALLS, 0))

    def read(self, roots: Sequence[Node]) -> None:
        """Look at all spans."""
        tops = 0
        waiting: list[tuple[Node, dict[str, _Seen], int]] = [
            (root, {}, 0) for root in reversed(roots)
        ]
        while waiting:
            node, around, top = waiting.pop()
            span = node.span
            if span.process.rank not in {None, self.rank} or (
                self.in_step and _is_evaluation(span)
            ):
                continue
            phase = span.phase
            if not top and phase is not None:
                tops += 1
                top = tops
            if phase in self._seen and span.fqn is not None and span.module_type != _REGION:
                one = _Seen(span, _index(span), around.get(phase))
                self._seen[phase].setdefault(top, []).append(one)
                self._is_indexed &= one.index >= 0
                around = {**around, phase: one}
            for event in span.events:
                if event.name == semconv.ORDER_DIVERGED_EVENT:
                    self.diverged = str(event.attributes.get(semconv.ORDER_REPORT, ""))
            for told, count in _folded(span):
                if told in around:
                    around[told].folded += count
                else:
                    self._outside[told] += count
            waiting += [(child, around, top) for child in reversed(node.children)]

    def calls(self, phase: str) -> list[Call]:
        """The calls of a phase, in order."""
        groups = list(self._seen[phase].values())
        seen = [one for group in groups for one in group]
        counts = _counts(groups) if self._is_indexed else None
        most = self._outside[phase] + sum(one.folded for one in seen)
        most += sum(count[-1].index + 1 for count in counts or ())
        if counts is not None and most <= _MOST_CALLS:
            found = self._laid_out(counts, self._outside[phase])
        else:
            self.by_time = True
            found = []
            for one in sorted(seen, key=lambda one: one.span.start_ns):  # stable: as in the tree
                _place(one, found)
        if phase == "forward":
            self.compiled.update(
                one.position for one in seen if one.span.attributes.get(semconv.COMPILED) is True
            )
        return found

    @staticmethod
    def _laid_out(counts: Sequence[Sequence[_Seen]], outside: int) -> list[Call]:
        """Calls at their places, and unknown ones in the gaps and where the last were folded."""
        calls: list[Call] = []

        def fill(number: int, last: _Seen | None) -> None:
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


def _place(one: _Seen, calls: list[Call]) -> None:
    one.position = len(calls)
    # A parent that comes later is malformed, or its clock is another.
    above = (each.position for each in one.above() if each is not one and each.position >= 0)
    calls.append(Call(one.span.fqn or "", next(above, None)))


def _counts(groups: Sequence[list[_Seen]]) -> list[list[_Seen]] | None:
    """Put together what was counted together, each in order; None where that is malformed.

    That is all of a step; of what was in no step, each outermost call by itself; and what another
    thread did.

    Args:
        groups: the calls in each outermost call.
    """
    everything = sorted((one for group in groups for one in group), key=lambda one: one.index)
    if _are_apart(everything):
        return [everything] if everything else []
    found: list[list[_Seen]] = []
    for group in sorted(groups, key=lambda group: min(one.span.start_ns for one in group)):
        group.sort(key=lambda one: one.index)
        if not _are_apart(group):
            return None
        first = group[0].index
        # The one that it goes on with most closely, or of several the last; 0 begins.
        before = [count for count in reversed(found) if first and count[-1].index < first]
        if before:
            max(before, key=lambda count: count[-1].index).extend(group)
        else:
            found.append(group)
    return found


def _are_apart(calls: Sequence[_Seen]) -> bool:
    return len({one.index for one in calls}) == len(calls)


def _is_evaluation(span: Span) -> bool:
    return span.name == semconv.EVALUATION_SPAN and span.scope in {"", semconv.SCOPE_NAME}


def _index(span: Span) -> int:
    value = span.attributes.get(semconv.ORDER_INDEX)
    return value if isinstance(value, int) and 0 <= value < _MOST_CALLS else -1


def _folded(span: Span) -> Iterator[tuple[str, int]]:
    """How many module calls of each phase the span stands for beside its own; at most."""
    for event in span.events:
        if event.name != semconv.FOLDED_EVENT:
            continue
        told = event.attributes
        count, phase = told.get(semconv.FOLDED_COUNT), told.get(semconv.PHASE)
        if not isinstance(count, int) or count <= 0 or told.get(semconv.MODULE_TYPE) == _REGION:
            continue
        if semconv.FOLDED_NAME not in told:  # of all kinds
            for each in CALLS:
                yield each, count
        elif phase in CALLS:
            yield phase, count
