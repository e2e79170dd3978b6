"""A file of OTLP JSON lines -> export requests: each line is one.

Source: OpenTelemetry Protocol, *JSON Protobuf Encoding* and *File Exporter*.
"""

from __future__ import annotations

import base64
import gzip
import json
import os
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from otel_modtrack.usage import UsageError

if TYPE_CHECKING:
    import io
    from collections.abc import Iterator

    from typing_extensions import Self

__all__ = ["LineFile", "MalformedError", "Request", "parse", "split", "to_protobuf"]

# A request holds resources, those hold scopes, and those the items that are counted.
_LAYERS: Final = {
    "traces": ("resourceSpans", "scopeSpans", "spans"),
    "metrics": ("resourceMetrics", "scopeMetrics", "metrics"),
    "logs": ("resourceLogs", "scopeLogs", "logRecords"),
}
_IDS: Final = ("traceId", "spanId", "parentSpanId")
_GZIP_MAGIC: Final = b"\x1f\x8b"


class MalformedError(Exception):
    """The line, or the rest of the file, cannot be read. The message says why, in a few words."""


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


class LineFile:
    """A file, compressed by gzip or not, as numbered lines.

    Args:
        path: Of the file.

    Attributes:
        path: As it was given.
        size_bytes: As it lies on the disk.

    Raises:
        UsageError: If it cannot be opened.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            self._stored = Path(path).open("rb")  # noqa: SIM115 - closed by __exit__
            is_gzip = self._stored.peek(2)[:2] == _GZIP_MAGIC
        except OSError as error:
            raise UsageError(
                f"cannot read {path}: {error.strerror}; give files of OTLP JSON lines"
            ) from None
        self.size_bytes = os.fstat(self._stored.fileno()).st_size
        self._lines: io.BufferedReader | gzip.GzipFile = self._stored
        if is_gzip:
            self._lines = gzip.GzipFile(fileobj=self._stored)

    @property
    def position_bytes(self) -> int:
        """How much of it was read, as it lies on the disk; 0 of a pipe."""
        return self._stored.tell() if self._stored.seekable() else 0

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        """Each line that is not blank, with its number, from 1.

        Raises:
            MalformedError: If the file ends before its compressed content does, or is damaged.
        """
        try:
            for number, line in enumerate(self._lines, start=1):
                if text := line.strip():
                    yield number, text
        except EOFError:
            raise MalformedError("the file is cut off here") from None
        except (OSError, zlib.error):
            raise MalformedError("the file cannot be read from here on") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._lines.close()
        self._stored.close()


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
