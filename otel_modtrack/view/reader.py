"""Trace files, or the SDK's spans -> spans.

The format is OTLP JSON lines: each line is one export request, ``{"resourceSpans": [...]}``. The
OTLP JSON file exporter and the Collector's file exporter write it. A program that was killed leaves
a torn last line, so a line that cannot be read is skipped and reported, and the rest is shown.

Source: OpenTelemetry Protocol, *JSON Protobuf Encoding* (64-bit integers are decimal strings, ids
are hexadecimal), and *File Exporter*.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from otel_modtrack.linefile import LineFile, MalformedError
from otel_modtrack.progress import Progress
from otel_modtrack.usage import UsageError
from otel_modtrack.view.faults import (
    BAD_SPAN,
    INCOMPLETE,
    NO_OTLP,
    SPREAD,
    Fault,
    name_file,
    tell_why_nothing,
)
from otel_modtrack.view.model import Event, Link, Process, Span
from otel_modtrack.view.otlpjson import read_attributes, read_id, read_kind, read_time
from otel_modtrack.view.ranks import read_ranks, tell_ranks

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from opentelemetry.sdk.trace import ReadableSpan


__all__ = ["Fault", "TraceFile", "from_sdk", "read_files"]

_STATUS_ERROR: Final = (2, "STATUS_CODE_ERROR")
# What the query APIs of Jaeger and of Tempo put a request into, and Tempo's older one calls it.
_WRAPPINGS: Final = ("result", "trace")
_OLDER_NAME: Final = "batches"
_NO_NAME: Final = "(no name)"
_OTHER_SIGNALS: Final = frozenset({"resourceMetrics", "resourceLogs"})
# What a malformed part raises while it is taken apart.
_MALFORMED: Final = (AttributeError, KeyError, TypeError, ValueError)
# Fewer bytes are read before anybody wonders.
_WORTH_A_BAR_BYTES: Final = 16_000_000

_BEGINNING: Final = b'{"resourceSpans"'


@dataclass(frozen=True, slots=True)
class TraceFile:
    """What the files held.

    Attributes:
        spans: In the order of the files.
        faults: What was skipped.
    """

    spans: list[Span]
    faults: list[Fault]


def read_files(paths: Sequence[str], command: str = "view") -> TraceFile:
    """Read all spans of files of OTLP JSON lines, compressed by gzip or not.

    Shows on stderr how far it is, where that takes a while.

    Args:
        paths: Of the files; ``-`` for stdin.
        command: That reads them, and says how far it is.

    Raises:
        UsageError: If a file cannot be opened, or none has a span.
    """
    with ExitStack() as opened:
        files = [opened.enter_context(LineFile(path)) for path in paths]
        size_bytes = sum(file.size_bytes for file in files)
        progress = None
        if size_bytes > _WORTH_A_BAR_BYTES:
            progress = Progress(command, size_bytes)
            opened.callback(progress.close)
        reader = _Reader(progress)
        for file in files:
            reader.read(file)
    if not reader.spans:
        raise UsageError(tell_why_nothing(paths, reader.faults, passed_over=reader.passed_over))
    return TraceFile(tell_ranks(reader.spans), reader.faults)


class _Reader:
    """Takes files apart, and keeps one of what many spans have in common.

    Args:
        progress: Told after each line; None for no telling.
    """

    def __init__(self, progress: Progress | None) -> None:
        self.spans: list[Span] = []
        self.faults: list[Fault] = []
        self.passed_over = False  # metrics or logs
        self._progress = progress
        self._done_bytes = 0  # of the files before
        self._path = ""
        self._processes: dict[tuple[str, str], Process] = {}
        self._attributes: dict[str, Mapping[str, Any]] = {}

    def read(self, file: LineFile) -> None:
        """Append a file's spans, and note what could not be read."""
        self._path = name_file(file.path)
        number = 0
        try:
            for number, line in file:
                self._read_line(number, line, is_last=file.ends_open)
                if self._progress is not None:
                    position_bytes = self._done_bytes + file.position_bytes
                    self._progress.show(position_bytes, f"{len(self.spans):,} spans")
        except MalformedError as error:
            self._note(str(error), number + 1)
        self._done_bytes += file.size_bytes

    def _read_line(self, number: int, line: bytes, *, is_last: bool) -> None:
        try:
            request = json.loads(line)
            for wrapping in _WRAPPINGS:
                request = request.get(wrapping, request)
            if _OLDER_NAME in request:
                self._read_request(number, request[_OLDER_NAME])
            elif "resourceSpans" in request or not _OTHER_SIGNALS & set(request):
                self._read_request(number, request["resourceSpans"])
            else:
                self.passed_over = True
        except (*_MALFORMED, RecursionError):
            is_cut = is_last and (number > 1 or line.startswith(_BEGINNING))
            is_spread = line in {b"{", b"["}
            self._note(
                SPREAD if is_spread else INCOMPLETE if is_cut else NO_OTLP,
                number,
            )

    def _note(self, reason: str, number: int) -> None:
        for fault in self.faults:
            if (fault.path, fault.reason) == (self._path, reason):
                if number != fault.lines[-1]:
                    fault.lines.append(number)
                return
        self.faults.append(Fault(self._path, reason, [number]))

    def _read_request(self, number: int, parts: list[dict[str, Any]]) -> None:
        for part in parts:
            process = self._process((part.get("resource") or {}).get("attributes") or ())
            for scope_spans in part.get("scopeSpans") or ():
                scope = str((scope_spans.get("scope") or {}).get("name") or "")
                for span in scope_spans.get("spans") or ():
                    try:
                        self.spans.append(self._span(span, process, scope))
                    except _MALFORMED:
                        self._note(BAD_SPAN, number)

    def _process(self, pairs: Iterable[dict[str, Any]]) -> Process:
        key = self._path, repr(pairs)
        if key not in self._processes:
            self._processes[key] = _make_process(self._shared(pairs), self._path)
        return self._processes[key]

    def _span(self, span: dict[str, Any], process: Process, scope: str) -> Span:
        start_ns = read_time(span["startTimeUnixNano"])
        parent_id = span.get("parentSpanId") or ""
        status = span.get("status") or {}
        return Span(
            trace_id=read_id(span["traceId"]),
            span_id=read_id(span["spanId"]),
            parent_id="" if set(parent_id) == {"0"} else read_id(parent_id),
            # A field that is empty is left out.
            name=str(span.get("name") or _NO_NAME),
            start_ns=start_ns,
            # A span that has not ended has 0 here.
            end_ns=max(start_ns, read_time(span.get("endTimeUnixNano"))),
            attributes=self._shared(span.get("attributes") or ()),
            failed=status.get("code") in _STATUS_ERROR,
            status_message=str(status.get("message") or ""),
            kind=read_kind(span.get("kind")),
            scope=scope,
            process=process,
            events=tuple(self._event(event) for event in span.get("events") or ()),
            links=tuple(
                Link(
                    read_id(link["traceId"]),
                    read_id(link["spanId"]),
                    self._shared(link.get("attributes") or ()),
                )
                for link in span.get("links") or ()
            ),
        )

    def _event(self, event: dict[str, Any]) -> Event:
        return Event(
            str(event.get("name") or ""),
            read_time(event.get("timeUnixNano")),
            self._shared(event.get("attributes") or ()),
        )

    def _shared(self, pairs: Iterable[dict[str, Any]]) -> Mapping[str, Any]:
        """The attributes, as one object for all that have the same."""
        key = repr(pairs)
        found = self._attributes.get(key)
        if found is None:
            found = self._attributes[key] = read_attributes(pairs)
        return found


def from_sdk(spans: Iterable[ReadableSpan]) -> list[Span]:
    """Turn finished spans of the SDK's into ours, as if they had been written and read back."""
    processes: dict[int, Process] = {}
    found = []
    for span in spans:
        process = processes.get(id(span.resource))
        if process is None:
            process = _make_process(dict(span.resource.attributes), "the program")
            processes[id(span.resource)] = process
        found.append(_one_from_sdk(span, process))
    return tell_ranks(found)


def _one_from_sdk(span: ReadableSpan, process: Process) -> Span:
    context = span.get_span_context()
    assert context is not None  # noqa: S101 - a finished span has one
    start_ns = span.start_time or 0
    scope = span.instrumentation_scope
    return Span(
        trace_id=f"{context.trace_id:032x}",
        span_id=f"{context.span_id:016x}",
        parent_id=f"{span.parent.span_id:016x}" if span.parent is not None else "",
        name=span.name,
        start_ns=start_ns,
        end_ns=max(start_ns, span.end_time or 0),
        attributes=dict(span.attributes or {}),
        failed=not span.status.is_unset and not span.status.is_ok,
        status_message=span.status.description or "",
        kind=span.kind.value + 1,  # the SDK counts from 0, OTLP from 1
        scope=scope.name if scope is not None else "",
        process=process,
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
    )


def _make_process(attributes: Mapping[str, Any], source: str) -> Process:
    rank, world_size = read_ranks(attributes) or (None, None)
    service = str(attributes.get("service.name", ""))
    return Process(service, rank, world_size, source, attributes)
