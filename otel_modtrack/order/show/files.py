"""Files -> orders: a step or trace of each rank from trace files, and orders that were saved."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from otel_modtrack.order.model import read_order
from otel_modtrack.order.sequences import SEQUENCES
from otel_modtrack.order.show.from_spans import Part, read_part
from otel_modtrack.view.choose import Selection, choose_parts, select
from otel_modtrack.view.model import build_trees, rank_order
from otel_modtrack.view.paint import printable
from otel_modtrack.view.printing import name_files
from otel_modtrack.view.reader import read_files

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from otel_modtrack.view.faults import Fault
    from otel_modtrack.view.model import Node

__all__ = ["Files", "split_ranks"]

_SAVED: Final = re.compile(rb'"modtrack_order"\s*:\s*\d')
_HEAD_BYTES: Final = 4096


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
        files = Files(name_files(paths))
        traces = []
        for path in paths:
            if _is_saved(path):
                order = read_order(path)
                what = f"Order {printable(order.name)} of {printable(path)}"
                files.saved.append(Part(order, path, what))
            else:
                traces.append(path)
        if traces:
            found = read_files(traces, "order")
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
