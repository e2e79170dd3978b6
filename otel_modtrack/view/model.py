"""Spans as they were exported, and the trees that they form."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from otel_modtrack import semconv

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


__all__ = ["Node", "Span", "build_trees", "find_steps"]


@dataclass(frozen=True, slots=True)
class Span:
    """One finished span.

    Attributes:
        trace_id: The trace that it belongs to, as written in the file.
        span_id: Its own id, unique in the trace.
        parent_id: Its parent's id, or "" for a root.
        name: ``forward GPT.layers.*``.
        start_ns: Wall time in nanoseconds since 1970.
        end_ns: The same clock; never before ``start_ns``.
        attributes: Values by name.
        failed: True where the status is ERROR.
        service: ``service.name`` of the resource, or "".
    """

    trace_id: str
    span_id: str
    parent_id: str
    name: str
    start_ns: int
    end_ns: int
    attributes: Mapping[str, Any] = field(default_factory=dict)
    failed: bool = False
    service: str = ""

    @property
    def duration_ns(self) -> int:
        """Time from start to end."""
        return self.end_ns - self.start_ns

    @property
    def step(self) -> int | None:
        """Number of the training step, on the span of a step."""
        number = self.attributes.get(semconv.STEP_NUMBER)
        return number if isinstance(number, int) else None

    @property
    def label(self) -> str:
        """What tells the span from its siblings: its full module name where it has one."""
        if self.step is not None:
            return f"{self.name} {self.step}"
        phase = self.attributes.get(semconv.PHASE)
        fqn = self.attributes.get(semconv.MODULE_FQN)
        if phase is None or fqn is None:
            return self.name
        call_index = self.attributes.get(semconv.MODULE_CALL_INDEX)
        return f"{phase} {fqn}" if call_index is None else f"{phase} {fqn} #{call_index}"


@dataclass(slots=True, eq=False)
class Node:
    """A span and what happened in it, in order of start."""

    span: Span
    children: list[Node] = field(default_factory=list)

    @property
    def self_ns(self) -> int:
        """Time of the span that no child covers. Children that overlap count once."""
        covered_ns = 0
        reached_ns = self.span.start_ns
        for child in self.children:
            start_ns = max(child.span.start_ns, reached_ns)
            end_ns = min(child.span.end_ns, self.span.end_ns)
            if end_ns > start_ns:
                covered_ns += end_ns - start_ns
                reached_ns = end_ns
        return self.span.duration_ns - covered_ns

    def walk(self) -> Iterator[tuple[int, Node]]:
        """Yield (depth, node) for every node, parents first and siblings in order.

        Goes as deep as the model does: nothing recurses.
        """
        waiting = [(0, self)]
        while waiting:
            depth, node = waiting.pop()
            yield depth, node
            waiting.extend((depth + 1, child) for child in reversed(node.children))


def build_trees(spans: Iterable[Span]) -> list[Node]:
    """Hang every span under its parent.

    A span whose parent is not among them becomes a root. So does one of a ring of parents, which no
    sound program writes. A span that occurs twice, as after a repeated export, counts once.

    Returns:
        The roots in order of start. Every span is in exactly one tree.
    """
    in_order = sorted(spans, key=lambda span: (span.start_ns, -span.end_ns))
    nodes = {(span.trace_id, span.span_id): Node(span) for span in in_order}
    parents = {
        node: nodes.get((node.span.trace_id, node.span.parent_id)) for node in nodes.values()
    }
    roots = []
    for node, parent in parents.items():
        if parent is None:
            roots.append(node)
        else:
            parent.children.append(node)
    reached = {node for root in roots for _, node in root.walk()}
    for node, parent in parents.items():
        if node not in reached and parent is not None:
            parent.children.remove(node)
            roots.append(node)
            reached.update(below for _, below in node.walk())
    return sorted(roots, key=lambda root: root.span.start_ns)


def find_steps(roots: Iterable[Node]) -> list[Node]:
    """Return the training steps in the trees, in order of start."""
    steps = [node for root in roots for _, node in root.walk() if node.span.step is not None]
    return sorted(steps, key=lambda node: node.span.start_ns)
