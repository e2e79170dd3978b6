"""What all the files say of a span, an event and a link, so that they say it alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from otel_modtrack import semconv

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from otel_modtrack.view.lanes import Lane, ProcessLanes
    from otel_modtrack.view.model import Event, Link, Node, Process, Span

__all__ = [
    "CLOSE",
    "EVENT",
    "OPEN",
    "categorise",
    "describe_process",
    "describe_span",
    "find_flows",
    "moment_of",
    "name_event",
    "number_processes",
    "start_of",
    "total_collectives",
    "walk_lane",
]

# What walk_lane yields.
OPEN, EVENT, CLOSE = range(3)

_KINDS: Final = {2: "SERVER", 3: "CLIENT", 4: "PRODUCER", 5: "CONSUMER"}
_OTHER: Final = "span"
_LARGEST_PID: Final = 2**31


def start_of(processes: Sequence[ProcessLanes]) -> int:
    """Return the earliest start of all spans, in ns since 1970; 0 if there is none."""
    # The first span of a lane is its earliest.
    firsts = [lane.nodes[0].span.start_ns for process in processes for lane in process.lanes]
    return min(firsts, default=0)


def categorise(span: Span) -> str:
    """Return ``forward``, ``backward``, ``recompute``, ``optimizer``, ``step`` or ``span``."""
    return _OTHER if span.category == "other" else span.category


def describe_span(span: Span, *, is_outermost: bool) -> dict[str, Any]:
    """Return what is to be known of a span besides its attributes.

    Args:
        span: The span.
        is_outermost: Whether no span is around it in its lane. Only then its trace and its parent
            are told: what is inside it is of the same trace.
    """
    found: dict[str, Any] = {"otel.span_id": span.span_id}
    if is_outermost:
        found["otel.trace_id"] = span.trace_id
        if span.parent_id:
            found["otel.parent_span_id"] = span.parent_id
    if span.scope not in {"", semconv.SCOPE_NAME}:
        found["otel.scope"] = span.scope
    if span.kind in _KINDS:
        found["otel.kind"] = _KINDS[span.kind]
    if span.failed:
        found["otel.status"] = "ERROR"
    if span.status_message:
        found["otel.status_message"] = span.status_message
    if span.links:
        found["otel.links"] = [_describe_link(link, span) for link in span.links]
    return found


def _describe_link(link: Link, span: Span) -> dict[str, Any]:
    """Return what a link names: a span of the same trace by its id alone."""
    trace = {} if link.trace_id == span.trace_id else {"trace_id": link.trace_id}
    return {**trace, "span_id": link.span_id, **link.attributes}


def describe_process(process: Process) -> list[str]:
    """Return in a few texts what a process is: its service, and the file that it was read from."""
    return [text for text in (process.service, process.source) if text]


def number_processes(processes: Sequence[ProcessLanes]) -> list[int]:
    """Return a number above 0 for each: the system's, if all have one and no two the same.

    Else they are counted, from 1: viewers take 0 for the idle process.
    """
    numbers = [process.process.attributes.get("process.pid") for process in processes]
    found = [number for number in numbers if isinstance(number, int) and 0 < number < _LARGEST_PID]
    if len(set(found)) == len(processes):
        return found
    return list(range(1, len(processes) + 1))


def name_event(event: Event) -> tuple[str, str]:
    """Return an event's name and category: ``all_reduce`` and ``collective``."""
    if event.name == semconv.COLLECTIVE_EVENT:
        return str(event.attributes.get(semconv.COLLECTIVE_OPERATION, event.name)), "collective"
    return event.name or "event", "event"


def moment_of(event: Event, span: Span) -> int:
    """Return when an event is shown, in ns since 1970: at its time, but never outside its span."""
    return min(max(event.time_ns, span.start_ns), span.end_ns)


def walk_lane(lane: Lane) -> Iterator[tuple[int, Node, Event | None]]:
    """Yield (OPEN, span), (EVENT, span, event) and (CLOSE, span) as brackets nest.

    Spans open and close in order of time. A span's event comes where the span is the innermost one,
    or, if it has none such, after the child in whose time it is.
    """
    stack: list[tuple[Node, list[Event]]] = []
    for node, depth in zip(lane.nodes, lane.depths, strict=True):
        while len(stack) > depth:
            yield from _close(*stack.pop())
        if stack and stack[-1][1]:
            around, events = stack[-1]
            while events and moment_of(events[-1], around.span) <= node.span.start_ns:
                yield EVENT, around, events.pop()
        yield OPEN, node, None
        events = sorted(node.span.events, key=lambda event: event.time_ns, reverse=True)
        stack.append((node, events))
    while stack:
        yield from _close(*stack.pop())


def _close(node: Node, events: list[Event]) -> Iterator[tuple[int, Node, Event | None]]:
    while events:
        yield EVENT, node, events.pop()
    yield CLOSE, node, None


def find_flows(processes: Sequence[ProcessLanes]) -> list[tuple[Node, Node]]:
    """Return the spans that a link joins, the one that starts earlier first.

    A forward and its backward, for the most part. Links to spans that are not there lead nowhere.
    """
    nodes = {node.span.key: node for node in _all_nodes(processes)}
    flows = []
    for node in nodes.values():
        for link in node.span.links:
            target = nodes.get((link.trace_id, link.span_id))
            if target is not None and target is not node:
                first, second = sorted((target, node), key=lambda one: one.span.start_ns)
                flows.append((first, second))
    return flows


def total_collectives(process: ProcessLanes) -> list[tuple[int, int]]:
    """Return (ns since 1970, bytes launched until then) at each launch of a process."""
    launches = []
    for node in _all_nodes([process]):
        for event in node.span.events:
            size_bytes = event.attributes.get(semconv.COLLECTIVE_SIZE)
            if event.name == semconv.COLLECTIVE_EVENT and isinstance(size_bytes, int):
                launches.append((moment_of(event, node.span), size_bytes))
    launches.sort()
    total_bytes = 0
    totals = []
    for time_ns, size_bytes in launches:
        total_bytes += size_bytes
        totals.append((time_ns, total_bytes))
    return totals


def _all_nodes(processes: Sequence[ProcessLanes]) -> Iterator[Node]:
    return (node for process in processes for lane in process.lanes for node in lane.nodes)
