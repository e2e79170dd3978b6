"""Lanes for viewers that draw a span below what is open around it: in a lane, all spans nest."""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from otel_modtrack.view.model import rank_order

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from otel_modtrack.view.model import Node, Process

__all__ = ["Lane", "ProcessLanes", "lay_out"]


@dataclass(frozen=True, slots=True)
class Lane:
    """Spans of which any two either nest or are apart.

    Attributes:
        name: ``spans``, or ``spans 2`` for the second of a process.
        nodes: In order of start, a parent before what is in it.
        depths: How many spans of the lane are open around each, and all of those are above it in
            its tree.
    """

    name: str
    nodes: list[Node] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ProcessLanes:
    """The lanes of one process.

    Attributes:
        process: What recorded the spans.
        name: ``rank 1``, and its service, file or number too where another is called so.
        lanes: One where everything nests; more for threads or requests that run at the same time.
    """

    process: Process
    name: str
    lanes: list[Lane]


def lay_out(roots: Sequence[Node]) -> list[ProcessLanes]:
    """Place every span of the trees in a lane of its process.

    A span is in its parent's lane, below it, where it lies inside it and nothing else is there at
    that time. Otherwise (a thread, a request, a span that outlasts its parent or that another
    process called) it begins anew in the first lane that is free. No time is changed.

    Args:
        roots: The trees, of any number of processes.

    Returns:
        The processes by rank, those without one last, and then in order of start.
    """
    in_order = list(_parents_first(roots))
    # Stable: what starts at the same time stays parents first.
    in_order.sort(key=lambda pair: pair[0].span.start_ns)
    placings: dict[Process, _Placing] = {}
    for node, parent in in_order:
        process = node.span.process
        placing = placings.get(process)
        if placing is None:
            placing = placings[process] = _Placing()
        placing.place(node, parent)
    processes = sorted(placings, key=lambda process: rank_order(process.rank))
    return [
        ProcessLanes(process, name, placings[process].lanes)
        for process, name in zip(processes, _name_all(processes), strict=True)
    ]


def _parents_first(roots: Sequence[Node]) -> Iterator[tuple[Node, Node | None]]:
    """Yield every node with its parent, siblings by start, and the shorter before the longer.

    So a span without duration comes before the one that begins as it ends.
    """
    waiting: list[tuple[Node, Node | None]] = [(root, None) for root in _latest_first(roots)]
    while waiting:
        pair = waiting.pop()
        yield pair
        node = pair[0]
        waiting.extend((child, node) for child in _latest_first(node.children))


def _latest_first(siblings: Sequence[Node]) -> list[Node]:
    return sorted(siblings, key=lambda node: (node.span.start_ns, node.span.end_ns), reverse=True)


class _Placing:
    """The lanes of a process while spans are placed, in order of start."""

    def __init__(self) -> None:
        self.lanes: list[Lane] = []
        self._open: list[list[Node]] = []  # of each lane, outermost first
        self._lane_of: dict[Node, int] = {}
        self._busy: list[tuple[int, int]] = []  # heap of (until when, lane)
        self._idle: list[int] = []  # heap

    def place(self, node: Node, parent: Node | None) -> None:
        """Append the span to a lane."""
        number = None if parent is None else self._lane_of.get(parent)
        if number is None or parent is None or not self._fits(self._open[number], node, parent):
            number = self._free(node)
        lane, stack = self.lanes[number], self._open[number]
        lane.nodes.append(node)
        lane.depths.append(len(stack))
        stack.append(node)
        self._lane_of[node] = number

    @staticmethod
    def _fits(stack: list[Node], node: Node, parent: Node) -> bool:
        """Close what has ended, up to the parent, and tell whether the parent is open around it."""
        span = node.span
        while stack:
            top = stack[-1]
            if top is parent and span.end_ns <= top.span.end_ns:
                return True
            if top.span.end_ns > span.start_ns:
                return False
            stack.pop()
        return False

    def _free(self, node: Node) -> int:
        """Return the first lane in which nothing is open, and take it."""
        while self._busy and self._busy[0][0] <= node.span.start_ns:
            heapq.heappush(self._idle, heapq.heappop(self._busy)[1])
        if self._idle:
            number = heapq.heappop(self._idle)
            self._open[number].clear()
        else:
            number = len(self.lanes)
            self.lanes.append(Lane("spans" if number == 0 else f"spans {number + 1}"))
            self._open.append([])
        heapq.heappush(self._busy, (node.span.end_ns, number))
        return number


def _name_all(processes: Sequence[Process]) -> list[str]:
    """Return a name for each: its label, and where several share it what tells them apart."""
    names = [process.label or "spans" for process in processes]
    services = [process.service for process in processes]
    sources = [process.source for process in processes]
    for details in services, sources:
        seen: dict[str, set[str]] = {}
        for name, detail in zip(names, details, strict=True):
            seen.setdefault(name, set()).add(detail)
        names = [
            f"{name} ({detail})" if len(seen[name]) > 1 else name
            for name, detail in zip(names, details, strict=True)
        ]
    counts: Counter[str] = Counter()
    for index, name in enumerate(names):
        counts[name] += 1
        if counts[name] > 1:
            names[index] = f"{name} #{counts[name]}"
    return names
