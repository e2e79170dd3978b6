"""Spans with round numbers, and files of them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from otel_modtrack.view.model import Event, Node, Process, Span

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

__all__ = [
    "BASE_NS",
    "MS",
    "PROCESS",
    "as_json",
    "as_line",
    "launched",
    "make_parallel_step",
    "make_ranks",
    "make_run",
    "make_span",
    "make_step",
    "shape",
    "write",
]

MS = 1_000_000
BASE_NS = 1_700_000_000_000_000_000
PROCESS = Process("svc")
KEYS = {
    "phase": "modtrack.phase",
    "fqn": "modtrack.module.fqn",
    "template": "modtrack.module.template",
    "call": "modtrack.module.call_index",
    "step": "modtrack.step.number",
    "error": "error.type",
}


def make_span(
    span_id: str, parent_id: str, name: str, start_ms: float, end_ms: float, **attributes: Any
) -> Span:
    """Make a span of trace "t". Attributes are named by the end of their key."""
    return Span(
        trace_id="t",
        span_id=span_id,
        parent_id=parent_id,
        name=name,
        start_ns=BASE_NS + round(start_ms * MS),
        end_ns=BASE_NS + round(end_ms * MS),
        attributes={KEYS[key]: value for key, value in attributes.items()},
        failed="error" in attributes,
        scope="otel_modtrack",
        process=PROCESS,
    )


def _module(span_id: str, parent_id: str, label: str, start_ms: float, end_ms: float) -> Span:
    phase, fqn = label.split()
    template = "Net.l.*" if fqn.startswith("Net.l.") else fqn
    names = {"phase": phase, "fqn": fqn, "template": template}
    return make_span(span_id, parent_id, f"{phase} {template}", start_ms, end_ms, **names)


def make_step() -> list[Span]:
    """Make the spans of a step of 10 ms, children before parents as exporters see them."""
    return [
        _module("c", "b", "forward Net.l.0", 1, 2),
        _module("d", "b", "forward Net.l.1", 2, 4),
        _module("b", "a", "forward Net", 1, 5),
        _module("f", "e", "backward Net", 6, 9),
        make_span("e", "a", "backward", 5.5, 9.5),
        make_span("a", "", "train_step", 0, 10, step=7),
    ]


def launched(operation: str, count: int, size: int, group: str = "", **others: Any) -> Event:
    """Make the event of a span that launched collectives."""
    attributes: dict[str, Any] = {
        "modtrack.collective.operation": operation,
        "modtrack.collective.count": count,
        "modtrack.collective.size": size,
    }
    if group:
        attributes["modtrack.collective.group.description"] = group
    for name, value in others.items():
        attributes[f"modtrack.collective.{name.replace('_', '.')}"] = value
    return Event("modtrack.collective", attributes=attributes)


def make_parallel_step() -> list[Span]:
    """Make the same step on rank 1 of 2, with collectives in one layer and in the backward."""
    events: dict[str, tuple[Event, ...]] = {
        "d": (
            launched("all_gather", 1, 2048, "default_pg"),
            Event("exception", attributes={"exception.type": "ValueError"}),
            launched("all_reduce", 2, 64, "mesh_tp"),
            launched("all_gather", 3, 1024),
        ),
        "f": (launched("reduce_scatter", 1, 1_500_000, "undefined"), launched("barrier", 1, 0)),
    }
    ranks = {"modtrack.rank": 1, "modtrack.world_size": 2}
    return [
        replace(
            span,
            events=events.get(span.span_id, ()),
            attributes={**span.attributes, **(ranks if span.span_id == "a" else {})},
        )
        for span in make_step()
    ]


def make_run(
    *numbers: int, stretch: int = 1, process: Process = PROCESS, prefix: str = "t"
) -> list[Span]:
    """Make steps, one trace each, one second after the other.

    Args:
        numbers: Of the steps, in the order of the file; they begin in the order of the numbers.
        stretch: How many times as long everything takes in the step with the lowest number.
        process: What recorded them.
        prefix: Of their trace ids, which end with the step's number.
    """
    spans = []
    for number in numbers:
        times = stretch if number == min(numbers) else 1
        for span in make_step():
            start_ns = BASE_NS + number * 1000 * MS
            spans.append(
                replace(
                    span,
                    trace_id=f"{prefix}{number}",
                    start_ns=start_ns + times * (span.start_ns - BASE_NS),
                    end_ns=start_ns + times * (span.end_ns - BASE_NS),
                    attributes={"modtrack.step.number": number}
                    if span.name == "train_step"
                    else span.attributes,
                    process=process,
                )
            )
    return spans


def make_ranks(world_size: int, *numbers: int) -> list[Span]:
    """Make the same steps on each rank, the last rank first."""
    spans = []
    for rank in reversed(range(world_size)):
        process = Process("svc", rank, world_size)
        spans += make_run(*numbers, process=process, prefix=f"r{rank}t")
    return spans


def as_json(span: Span, *, int_as_string: bool = True) -> dict[str, Any]:
    """Encode a span as the OTLP JSON encoding wants it."""
    number = str if int_as_string else int

    def value(content: object) -> dict[str, Any]:
        if isinstance(content, int):
            return {"intValue": number(content)}
        if isinstance(content, float):
            return {"doubleValue": content}
        return {"stringValue": str(content)}

    return {
        "traceId": span.trace_id,
        "spanId": span.span_id,
        "parentSpanId": span.parent_id,
        "name": span.name,
        "startTimeUnixNano": number(span.start_ns),
        "endTimeUnixNano": number(span.end_ns),
        "attributes": [{"key": k, "value": value(v)} for k, v in span.attributes.items()],
        "events": [
            {
                "timeUnixNano": number(event.time_ns),
                "name": event.name,
                "attributes": [{"key": k, "value": value(v)} for k, v in event.attributes.items()],
            }
            for event in span.events
        ],
        "status": {"code": 2} if span.failed else {},
    }


def as_line(*spans: dict[str, Any], process: Process = PROCESS, scope: str = "") -> str:
    """Put spans into one export request."""
    attributes = [{"key": "service.name", "value": {"stringValue": process.service}}]
    if process.rank is not None:
        attributes += [
            {"key": f"modtrack.{name}", "value": {"intValue": str(value)}}  # type: ignore[dict-item]
            for name, value in (("rank", process.rank), ("world_size", process.world_size))
        ]
    scope_spans = [{"scope": {"name": scope or "otel_modtrack"}, "spans": list(spans)}]
    resource_spans = {"resource": {"attributes": attributes}, "scopeSpans": scope_spans}
    return json.dumps({"resourceSpans": [resource_spans]}) + "\n"


def write(path: Path, spans: Iterable[Span]) -> str:
    """Write a file with one line for each span. Returns its name."""
    path.write_text("".join(as_line(as_json(span), process=span.process) for span in spans))
    return str(path)


def shape(nodes: Iterable[Node]) -> list[Any]:
    """Return trees as nested lists of labels."""
    return [[node.span.label, *shape(node.children)] for node in nodes]
