"""Trace file, or the SDK's spans -> spans.

The format is OTLP JSON lines: each line is one export request, ``{"resourceSpans": [...]}``. The
OTLP JSON file exporter and the Collector's file exporter write it. A program that was killed leaves
a torn last line, so a line that cannot be read is skipped and reported, and the rest is shown.

Source: OpenTelemetry Protocol, *JSON Protobuf Encoding* (64-bit integers are decimal strings, ids
are hexadecimal), and *File Exporter*.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from otel_modtrack.usage import UsageError
from otel_modtrack.view.model import Event, Span

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from opentelemetry.sdk.trace import ReadableSpan


__all__ = ["TraceFile", "from_sdk", "read_trace_file"]

_STATUS_ERROR: Final = (2, "STATUS_CODE_ERROR")
_OTHER_SIGNALS: Final = frozenset({"resourceMetrics", "resourceLogs"})
# What a malformed part raises while it is taken apart.
_MALFORMED: Final = (AttributeError, KeyError, TypeError, ValueError)


@dataclass(frozen=True, slots=True)
class TraceFile:
    """What a file held.

    Attributes:
        spans: In the order of the file.
        bad_lines: Numbers, from 1, of the lines of which something could not be read.
    """

    spans: list[Span]
    bad_lines: list[int]


def read_trace_file(path: str | Path) -> TraceFile:
    """Read all spans of a file of OTLP JSON lines.

    Raises:
        UsageError: If the file cannot be opened or has no span.
    """
    try:
        with Path(path).open(encoding="utf-8", errors="replace") as lines:
            found = _read_lines(lines)
    except OSError as error:
        raise UsageError(
            f"cannot read {path}: {error.strerror}; give a file that `otel-modtrack demo` wrote"
        ) from None
    if found.spans:
        return found
    if found.bad_lines:
        raise UsageError(
            f"{path} is not a file of OTLP JSON lines: line {found.bad_lines[0]} is no object with "
            "resourceSpans; give a file that the OTLP JSON file exporter or the Collector's file "
            "exporter wrote"
        )
    raise UsageError(f"{path} has no spans; let the program that writes it finish, or flush it")


def _read_lines(lines: Iterable[str]) -> TraceFile:
    spans: list[Span] = []
    bad_lines = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            request = json.loads(line)
            if "resourceSpans" not in request and _OTHER_SIGNALS & set(request):
                continue
            sound = _read_request(request, spans)
        except (*_MALFORMED, RecursionError):
            sound = False
        if not sound:
            bad_lines.append(number)
    return TraceFile(spans, bad_lines)


def _read_request(request: dict[str, Any], spans: list[Span]) -> bool:
    """Append the request's spans. Returns False if one of them was malformed."""
    sound = True
    for resource_spans in request["resourceSpans"]:
        resource = _attributes(resource_spans.get("resource", {}).get("attributes", ()))
        service = str(resource.get("service.name", ""))
        for scope_spans in resource_spans.get("scopeSpans", ()):
            for span in scope_spans.get("spans", ()):
                try:
                    spans.append(_span(span, service))
                except _MALFORMED:
                    sound = False
    return sound


def _span(span: dict[str, Any], service: str) -> Span:
    start_ns = int(span["startTimeUnixNano"])
    parent_id = span.get("parentSpanId") or ""
    return Span(
        trace_id=span["traceId"],
        span_id=span["spanId"],
        parent_id="" if set(parent_id) == {"0"} else parent_id,
        name=str(span["name"]),
        start_ns=start_ns,
        # A span that has not ended has 0 here.
        end_ns=max(start_ns, int(span.get("endTimeUnixNano", 0))),
        attributes=_attributes(span.get("attributes", ())),
        failed=span.get("status", {}).get("code") in _STATUS_ERROR,
        service=service,
        events=tuple(
            Event(str(event.get("name", "")), _attributes(event.get("attributes", ())))
            for event in span.get("events", ())
        ),
    )


def from_sdk(span: ReadableSpan) -> Span:
    """Turn a finished span of the SDK's into ours, as if it had been written and read back."""
    context = span.get_span_context()
    assert context is not None  # noqa: S101 - a finished span has one
    start_ns = span.start_time or 0
    return Span(
        trace_id=f"{context.trace_id:032x}",
        span_id=f"{context.span_id:016x}",
        parent_id=f"{span.parent.span_id:016x}" if span.parent is not None else "",
        name=span.name,
        start_ns=start_ns,
        end_ns=max(start_ns, span.end_time or 0),
        attributes=dict(span.attributes or {}),
        failed=not span.status.is_unset and not span.status.is_ok,
        service=str(span.resource.attributes.get("service.name", "")),
        events=tuple(Event(event.name, dict(event.attributes or {})) for event in span.events),
    )


def _attributes(pairs: Iterable[dict[str, Any]]) -> dict[str, Any]:
    return {pair["key"]: _value(pair["value"]) for pair in pairs}


def _value(value: dict[str, Any]) -> object:
    """Return the Python value of an OTLP AnyValue; None for one without a value."""
    for kind, content in value.items():
        if kind == "intValue":
            return int(content)
        if kind == "doubleValue":
            return float(content)  # also "NaN" and "Infinity"
        if kind == "arrayValue":
            return tuple(_items(content))
        return content
    return None


def _items(array: dict[str, Any]) -> Iterator[object]:
    return (_value(item) for item in array.get("values", ()))
