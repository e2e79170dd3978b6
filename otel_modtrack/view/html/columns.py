"""Spans -> columns: one number for each span and property."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from otel_modtrack import semconv
from otel_modtrack.view.html.binary import Writer
from otel_modtrack.view.html.layout import lay_out
from otel_modtrack.view.html.tables import Texts, describe_process, number_processes, to_json

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from otel_modtrack.view.model import Node, Span

__all__ = ["encode_trees"]

# What the page tells apart. The same order is in frontend/src/kinds.ts.
_KINDS: Final = {
    category: number
    for number, category in enumerate(
        ("other", "step", "forward", "backward", "recompute", "optimizer")
    )
}
_OTHER_EVENT, _COLLECTIVE, _EXCEPTION = range(3)
_EVENTS: Final = {semconv.COLLECTIVE_EVENT: _COLLECTIVE, semconv.EXCEPTION_EVENT: _EXCEPTION}
_COLUMNS: Final = {
    "start": "f64",  # ns after the epoch
    "duration": "f64",  # ns
    "process": "u32",
    "name": "u32",
    "label": "u32",
    "fqn": "u32",
    "kind": "u8",
    "failed": "u8",
    "set": "u32",  # attributes, kind and scope
    "trace": "u32",
    "event_span": "u32",
    "event_time": "f64",
    "event_kind": "u8",
    "event_name": "u32",
    "event_set": "u32",
    "link_span": "u32",
    "link_target": "i32",  # -1 for a span that is not among these
    "link_set": "u32",
}
_REPORT_EVERY: Final = 5_000


def encode_trees(
    roots: Sequence[Node],
    meta: Mapping[str, Any],
    report: Callable[[int, int], None] | None = None,
) -> str:
    """Pack the spans of trees for the page.

    Args:
        roots: The trees, of all files.
        meta: What else the page shall know, for its head.
        report: Called now and then with how many spans are done, and of how many.

    Returns:
        One line of base64.
    """
    nodes = [node for root in roots for _, node in root.walk()]
    nodes.sort(key=lambda node: (node.span.start_ns, -node.span.end_ns))
    columns = _Columns([node.span for node in nodes])
    for position in range(0, len(nodes), _REPORT_EVERY):
        columns.read(position, position + _REPORT_EVERY)
        if report is not None:
            report(min(position + _REPORT_EVERY, len(nodes)), len(nodes))
    return columns.pack(meta, _number_parents(nodes))


def _number_parents(nodes: Sequence[Node]) -> list[int]:
    """Return the position of each node's parent, or -1."""
    positions = {node: position for position, node in enumerate(nodes)}
    parents = [-1] * len(nodes)
    for node, position in positions.items():
        for child in node.children:
            parents[positions[child]] = position
    return parents


class _Columns:
    """The columns while they grow.

    Args:
        spans: In order of start.
    """

    def __init__(self, spans: Sequence[Span]) -> None:
        self._spans = spans
        self._epoch_ns = spans[0].start_ns if spans else 0
        self._processes = number_processes(spans)
        self._positions = {span.key: position for position, span in enumerate(spans)}
        self._columns: dict[str, list[float]] = {name: [] for name in _COLUMNS}
        self._strings = Texts()
        self._traces = Texts()
        self._sets = Texts()
        # Spans share their attributes, so most are written without being looked at again.
        self._known_sets: dict[tuple[int, str, int], int] = {}

    def read(self, first: int, end: int) -> None:
        """Take in the spans from one position up to another."""
        for position, span in enumerate(self._spans[first:end], start=first):
            self._read_span(span)
            self._read_events(position, span)
            self._read_links(position, span)

    def _put(self, **values: float) -> None:
        for name, value in values.items():
            self._columns[name].append(value)

    def _read_span(self, span: Span) -> None:
        key = id(span.attributes), span.scope, span.kind
        number = self._known_sets.get(key)
        if number is None:
            content = {"attributes": span.attributes, "scope": span.scope, "kind": span.kind}
            number = self._known_sets[key] = self._sets.add(to_json(content))
        self._put(
            start=span.start_ns - self._epoch_ns,
            duration=span.duration_ns,
            process=self._processes[span.process],
            name=self._strings.add(span.name),
            label=self._strings.add(span.label),
            fqn=self._strings.add(span.fqn or span.name),
            kind=_KINDS.get(span.category, 0),
            failed=span.failed,
            set=number,
            trace=self._traces.add(span.trace_id),
        )

    def _read_events(self, position: int, span: Span) -> None:
        for event in span.events:
            self._put(
                event_span=position,
                event_time=(event.time_ns or span.start_ns) - self._epoch_ns,
                event_kind=_EVENTS.get(event.name, _OTHER_EVENT),
                event_name=self._strings.add(event.name),
                event_set=self._sets.add(to_json(event.attributes)),
            )

    def _read_links(self, position: int, span: Span) -> None:
        for link in span.links:
            target = self._positions.get((link.trace_id, link.span_id), -1)
            content: dict[str, Any] = {"attributes": link.attributes}
            if target < 0:
                content |= {"trace_id": link.trace_id, "span_id": link.span_id}
            number = self._sets.add(to_json(content))
            self._put(link_span=position, link_target=target, link_set=number)

    def pack(self, meta: Mapping[str, Any], parents: Sequence[int]) -> str:
        """Return the line of base64.

        Args:
            meta: What else the page shall know.
            parents: Position of each span's parent, or -1.
        """
        writer = Writer()
        for name, kind in _COLUMNS.items():
            writer.add_numbers(name, kind, self._columns[name])
        writer.add_numbers("parent", "i32", parents)
        writer.add_numbers("row", "u32", self._rows(parents))
        writer.add_texts("sets", self._sets.in_order())
        writer.add_texts("ids", (span.span_id for span in self._spans))
        spans = list(enumerate(self._spans))
        return writer.pack(
            {
                **meta,
                "epoch_ns": str(self._epoch_ns),
                "strings": self._strings.in_order(),
                "traces": self._traces.in_order(),
                "processes": [describe_process(process) for process in self._processes],
                "steps": [
                    (position, span.step) for position, span in spans if span.step is not None
                ],
                "messages": {
                    position: span.status_message for position, span in spans if span.status_message
                },
            }
        )

    def _rows(self, parents: Sequence[int]) -> list[int]:
        """Return the row of each span among those of its process."""
        rows = [0] * len(self._spans)
        members: list[list[int]] = [[] for _ in self._processes]
        places = []
        for position, span in enumerate(self._spans):
            lane = members[self._processes[span.process]]
            places.append(len(lane))
            lane.append(position)
        for lane in members:
            spans = [self._spans[position] for position in lane]
            # What another process called begins a tree of its own here.
            above = [
                places[parent]
                if (parent := parents[position]) >= 0
                and self._spans[parent].process is self._spans[position].process
                else -1
                for position in lane
            ]
            starts = [span.start_ns for span in spans]
            ends = [span.end_ns for span in spans]
            for position, row in zip(lane, lay_out(starts, ends, above), strict=True):
                rows[position] = row
        return rows
