"""One span, comparable whatever it came through: the SDK, a Collector's file, or Jaeger's API."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from opentelemetry.sdk.trace import ReadableSpan

_STATUS = ("UNSET", "OK", "ERROR")


@dataclass(frozen=True)
class Event:
    """An event of a span: its attributes are those of OTLP, arrays as tuples."""

    name: str
    time_ns: int
    attributes: Mapping[str, Any]


@dataclass(frozen=True)
class Link:
    """A link of a span; both ids in hexadecimal."""

    trace_id: str
    span_id: str
    attributes: Mapping[str, Any]


@dataclass(frozen=True)
class Span:
    """All that OTLP carries of a span and a test compares; two that are equal carry the same.

    Ids are in hexadecimal, and `parent_id` is "" for a root; `kind` is OTLP's number (1 is
    INTERNAL); `resource` and `scope` (name and version) are those under which it came.
    """

    trace_id: str
    span_id: str
    parent_id: str
    name: str
    kind: int
    start_ns: int
    end_ns: int
    attributes: Mapping[str, Any]
    events: tuple[Event, ...]
    links: tuple[Link, ...]
    status: str
    status_message: str
    resource: Mapping[str, Any]
    scope: tuple[str, str]


def ordered(spans: Iterable[Span]) -> list[Span]:
    """The spans in an order that is the same whatever way they came: by trace, start and id."""
    return sorted(spans, key=lambda span: (span.trace_id, span.start_ns, span.span_id))


def from_sdk(spans: Iterable[ReadableSpan]) -> list[Span]:
    """What an exporter of the SDK's was given, `ordered`."""
    return ordered(map(_from_readable, spans))


def from_otlp(*documents: Mapping[str, Any]) -> list[Span]:
    """The spans of OTLP JSON documents, each with `resourceSpans`, `ordered`."""
    return ordered(
        _from_json(span, _attributes(resource.get("resource", {})), _scope(scope.get("scope", {})))
        for document in documents
        for resource in document.get("resourceSpans", ())
        for scope in resource.get("scopeSpans", ())
        for span in scope.get("spans", ())
    )


def _from_readable(span: ReadableSpan) -> Span:
    scope = span.instrumentation_scope
    return Span(
        trace_id=f"{span.context.trace_id:032x}",
        span_id=f"{span.context.span_id:016x}",
        parent_id=f"{span.parent.span_id:016x}" if span.parent else "",
        name=span.name,
        kind=span.kind.value + 1,
        start_ns=span.start_time,
        end_ns=span.end_time,
        attributes=dict(span.attributes or {}),
        events=tuple(
            Event(event.name, event.timestamp, dict(event.attributes or {}))
            for event in span.events
        ),
        links=tuple(
            Link(
                f"{link.context.trace_id:032x}",
                f"{link.context.span_id:016x}",
                dict(link.attributes or {}),
            )
            for link in span.links
        ),
        status=span.status.status_code.name,
        status_message=span.status.description or "",
        resource=dict(span.resource.attributes),
        scope=(scope.name, scope.version or "") if scope else ("", ""),
    )


def _from_json(
    span: Mapping[str, Any], resource: Mapping[str, Any], scope: tuple[str, str]
) -> Span:
    status = span.get("status", {})
    return Span(
        trace_id=span["traceId"],
        span_id=span["spanId"],
        parent_id=span.get("parentSpanId", ""),
        name=span["name"],
        kind=span.get("kind", 0),
        start_ns=int(span["startTimeUnixNano"]),
        end_ns=int(span["endTimeUnixNano"]),
        attributes=_attributes(span),
        events=tuple(
            Event(event["name"], int(event["timeUnixNano"]), _attributes(event))
            for event in span.get("events", ())
        ),
        links=tuple(
            Link(link["traceId"], link["spanId"], _attributes(link))
            for link in span.get("links", ())
        ),
        status=_STATUS[status.get("code", 0)],
        status_message=status.get("message", ""),
        resource=resource,
        scope=scope,
    )


def _scope(scope: Mapping[str, Any]) -> tuple[str, str]:
    return scope.get("name", ""), scope.get("version", "")


def _attributes(holder: Mapping[str, Any]) -> dict[str, Any]:
    return {item["key"]: _value(item["value"]) for item in holder.get("attributes", ())}


def _value(value: Mapping[str, Any]) -> Any:
    """A Python value of OTLP JSON's, as the SDK holds it; 64-bit integers come as strings."""
    kind, held = next(iter(value.items()), ("", None))
    if kind == "intValue":
        return int(held)
    if kind == "doubleValue":
        return float(held)
    if kind == "arrayValue":
        return tuple(_value(item) for item in held.get("values", ()))
    if kind == "kvlistValue":
        return {item["key"]: _value(item["value"]) for item in held.get("values", ())}
    return held
