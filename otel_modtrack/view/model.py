"""Spans as they were exported, and the trees that they form."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from otel_modtrack import semconv
from otel_modtrack.sizes import render_size

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence


__all__ = [
    "Collectives",
    "Event",
    "Link",
    "Node",
    "Process",
    "Span",
    "build_trees",
    "rank_order",
    "read_collectives",
    "sum_collectives",
]

# What torch calls the groups that nobody named.
_UNNAMED_GROUPS: Final = frozenset({"default_pg", "undefined", ""})


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened at one moment of a span.

    Attributes:
        name: ``modtrack.collective``.
        time_ns: Wall time in nanoseconds since 1970.
        attributes: Values by name.
    """

    name: str
    time_ns: int = 0
    attributes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Link:
    """What a span names besides its parent: a backward its forward."""

    trace_id: str
    span_id: str
    attributes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Process:
    """What recorded spans: a process of a job, or a service.

    Attributes:
        service: ``service.name`` of the resource, or "".
        rank: Of this process among all; None where no span or resource tells.
        world_size: How many processes there are; None likewise.
        source: The file that it was read from.
        attributes: Of the resource.
    """

    service: str = ""
    rank: int | None = None
    world_size: int | None = None
    source: str = ""
    attributes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """What tells it from others: ``rank 1``, or else the service's or the file's name."""
        return f"rank {self.rank}" if self.rank is not None else self.own_service or self.source

    @property
    def own_service(self) -> str:
        """The service's name; "" for the SDK's name for one that has none, which says nothing."""
        return "" if self.service.startswith("unknown_service") else self.service


@dataclass(frozen=True, slots=True)
class Collectives:
    """Launches of one operation in one process group.

    Attributes:
        operation: ``all_reduce``.
        group: What the program calls the group, or "" where it has no name for it.
        count: How many launches.
        size_bytes: Payload of this rank.
    """

    operation: str
    group: str
    count: int
    size_bytes: int

    @property
    def label(self) -> str:
        """What was launched: ``all_reduce x2 1.2 MiB (tp)``."""
        parts = [
            self.operation,
            f"x{self.count}" if self.count != 1 else "",
            render_size(self.size_bytes) if self.size_bytes else "",
            f"({self.group})" if self.group else "",
        ]
        return " ".join(filter(None, parts))


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
        attributes: Values by name. Spans that have the same ones share them.
        failed: True where the status is ERROR.
        status_message: What the status says, or "".
        kind: As OTLP numbers it: 1 is INTERNAL, 2 SERVER, 3 CLIENT, 4 PRODUCER, 5 CONSUMER.
        scope: Name of the instrumentation scope: ``otel_modtrack``.
        process: What recorded it. Spans of one process share it.
        events: In the order of the file.
        links: In the order of the file.
    """

    trace_id: str
    span_id: str
    parent_id: str
    name: str
    start_ns: int
    end_ns: int
    attributes: Mapping[str, Any] = field(default_factory=dict)
    failed: bool = False
    status_message: str = ""
    kind: int = 1
    scope: str = ""
    process: Process = field(default_factory=Process)
    events: Sequence[Event] = ()
    links: Sequence[Link] = ()

    @property
    def key(self) -> tuple[str, str]:
        """What no other span has: ids are unique in their trace only."""
        return self.trace_id, self.span_id

    @property
    def folded(self) -> int:
        """How many regions are told by this span, for they have none of their own."""
        return sum(
            int(event.attributes.get(semconv.FOLDED_COUNT, 0))
            for event in self.events
            if event.name == semconv.FOLDED_EVENT
        )

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
    def rank(self) -> tuple[int, int] | None:
        """(rank, world size) of the process of a distributed program."""
        rank, world_size = self.process.rank, self.process.world_size
        return None if rank is None or world_size is None else (rank, world_size)

    @property
    def phase(self) -> str | None:
        """``forward``, ``backward`` or ``recompute``, on a module's or named region's span."""
        return self._text(semconv.PHASE)

    @property
    def fqn(self) -> str | None:
        """``GPT.layers.17.mlp``, on a module's or named region's span."""
        return self._text(semconv.MODULE_FQN)

    @property
    def template(self) -> str | None:
        """``GPT.layers.*.mlp``, on a module's or named region's span."""
        return self._text(semconv.MODULE_TEMPLATE)

    @property
    def module_type(self) -> str | None:
        """The module's class, on a module's span."""
        return self._text(semconv.MODULE_TYPE)

    @property
    def category(self) -> str:
        """``forward``, ``backward``, ``recompute``, ``optimizer``, ``step`` or ``other``."""
        phase = self.phase
        if phase is not None:
            return phase
        if self.step is not None:
            return "step"
        if self.scope in {"", semconv.SCOPE_NAME}:
            if self.name == semconv.BACKWARD_SPAN:
                return "backward"
            if self.name.startswith(f"{semconv.OPTIMIZER_STEP_SPAN} "):
                return "optimizer"
        return "other"

    @property
    def call(self) -> str:
        """``forward GPT.head``, which all calls of a module in a phase share; or else the name."""
        phase, fqn = self.phase, self.fqn
        return self.name if phase is None or fqn is None else f"{phase} {fqn}"

    @property
    def label(self) -> str:
        """What tells the span from its siblings: its full module name where it has one."""
        if self.step is not None:
            return f"{self.name} {self.step}"
        call_index = self.attributes.get(semconv.MODULE_CALL_INDEX)
        is_module = self.phase is not None and self.fqn is not None
        return f"{self.call} #{call_index}" if is_module and call_index is not None else self.call

    def _text(self, name: str) -> str | None:
        value = self.attributes.get(name)
        return value if isinstance(value, str) else None


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


def rank_order(rank: int | None) -> tuple[bool, int]:
    """What ranks are sorted by: their number, and what is of none comes last."""
    return rank is None, rank or 0


def sum_collectives(spans: Iterable[Span]) -> list[Collectives]:
    """Sum what the spans launched directly, by operation and group, in order of appearance."""
    sums: dict[tuple[str, str], tuple[int, int]] = {}
    for span in spans:
        for event in span.events:
            found = read_collectives(event)
            if found is not None:
                key = found.operation, found.group
                count, size_bytes = sums.get(key, (0, 0))
                sums[key] = count + found.count, size_bytes + found.size_bytes
    return [Collectives(*key, *value) for key, value in sums.items()]


def read_collectives(event: Event) -> Collectives | None:
    """Return what an event tells about collectives; None for another event, or a malformed one."""
    if event.name != semconv.COLLECTIVE_EVENT:
        return None
    operation = event.attributes.get(semconv.COLLECTIVE_OPERATION)
    count = event.attributes.get(semconv.COLLECTIVE_COUNT)
    size_bytes = event.attributes.get(semconv.COLLECTIVE_SIZE)
    if not (isinstance(operation, str) and isinstance(count, int) and isinstance(size_bytes, int)):
        return None
    group = str(event.attributes.get(semconv.COLLECTIVE_GROUP_DESCRIPTION, ""))
    return Collectives(operation, "" if group in _UNNAMED_GROUPS else group, count, size_bytes)


def build_trees(spans: Iterable[Span]) -> list[Node]:
    """Hang every span under its parent.

    A span whose parent is not among them becomes a root. So does one of a ring of parents, which no
    sound program writes. A span that occurs twice, as after a repeated export, counts once.

    Returns:
        The roots in order of start. Every span is in exactly one tree.
    """
    in_order = sorted(spans, key=lambda span: (span.start_ns, -span.end_ns))
    nodes = {span.key: Node(span) for span in in_order}
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
