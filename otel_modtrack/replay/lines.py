"""A line of OTLP JSON -> an export request.

Source: OpenTelemetry Protocol, *JSON Protobuf Encoding* and *File Exporter*.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from otel_modtrack.linefile import MalformedError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Request", "parse", "split", "to_protobuf"]

# A request holds resources, those hold scopes, and those the items that are counted.
_LAYERS: Final = {
    "traces": ("resourceSpans", "scopeSpans", "spans"),
    "metrics": ("resourceMetrics", "scopeMetrics", "metrics"),
    "logs": ("resourceLogs", "scopeLogs", "logRecords"),
}
_IDS: Final = ("traceId", "spanId", "parentSpanId")


@dataclass(frozen=True, slots=True)
class Request:
    """One export request.

    Attributes:
        signal: ``traces``, ``metrics`` or ``logs``.
        content: The request, parsed.
        text: The same as OTLP JSON, as it stands in the file.
        count: Spans, metrics or log records in it.
    """

    signal: str
    content: dict[str, Any]
    text: bytes
    count: int


def parse(text: bytes) -> Request:
    """Read a line.

    Raises:
        MalformedError: If it is not one export request.
    """
    try:
        content = json.loads(text)
        (signal,) = (name for name, layers in _LAYERS.items() if layers[0] in content)
        return Request(signal, content, text, sum(1 for _ in _items(signal, content)))
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
        raise MalformedError("no OTLP JSON") from None


def split(request: Request) -> tuple[Request, Request]:
    """Return two requests of half the items each, in order; there must be two at least."""
    first = request.count // 2
    return _part(request, 0, first), _part(request, first, request.count)


def to_protobuf(request: Request) -> bytes:
    """Encode a request for the endpoints that want protobuf.

    Raises:
        MalformedError: If it has a field of the wrong type.
    """
    # The extra `otlp`; and slow to import.
    from google.protobuf import json_format  # noqa: PLC0415
    from opentelemetry.proto.collector.logs.v1 import logs_service_pb2  # noqa: PLC0415
    from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2  # noqa: PLC0415
    from opentelemetry.proto.collector.trace.v1 import trace_service_pb2  # noqa: PLC0415

    kinds: dict[str, Any] = {
        "traces": trace_service_pb2.ExportTraceServiceRequest,
        "metrics": metrics_service_pb2.ExportMetricsServiceRequest,
        "logs": logs_service_pb2.ExportLogsServiceRequest,
    }
    message = kinds[request.signal]()
    try:
        json_format.ParseDict(
            _with_base64_ids(request.content), message, ignore_unknown_fields=True
        )
        encoded: bytes = message.SerializeToString()
    except (AttributeError, RecursionError, TypeError, ValueError, json_format.Error):
        raise MalformedError("no OTLP JSON") from None
    return encoded


def _items(signal: str, content: dict[str, Any]) -> Iterator[dict[str, Any]]:
    resources, scopes, items = _LAYERS[signal]
    for resource in content[resources]:
        for scope in resource.get(scopes, ()):
            for item in scope.get(items, ()):
                item.keys  # noqa: B018 - an AttributeError where it is no object
                yield item


def _part(request: Request, first: int, end: int) -> Request:
    """The items of a request from number ``first`` up to ``end``, under what they were under."""
    resources, scopes, items = _LAYERS[request.signal]
    at = 0
    kept = []
    for resource in request.content[resources]:
        kept_here = []
        for scope in resource.get(scopes, ()):
            found = scope.get(items, ())
            wanted = found[max(first - at, 0) : max(end - at, 0)]
            at += len(found)
            if wanted:
                kept_here.append({**scope, items: wanted})
        if kept_here:
            kept.append({**resource, scopes: kept_here})
    content = {**request.content, resources: kept}
    text = json.dumps(content, separators=(",", ":")).encode()
    return Request(request.signal, content, text, end - first)


def _with_base64_ids(value: Any) -> Any:
    """A copy in which ids are as protobuf's own JSON has bytes; OTLP's has them hexadecimal.

    Names of attributes are values there, so that none is taken for an id.
    """
    if isinstance(value, list):
        return [_with_base64_ids(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: base64.b64encode(bytes.fromhex(item)).decode()
        if key in _IDS
        else _with_base64_ids(item)
        for key, item in value.items()
    }
