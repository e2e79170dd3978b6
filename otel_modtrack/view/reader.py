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
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from otel_modtrack.linefile import LineFile, MalformedError
from otel_modtrack.progress import Progress
from otel_modtrack.usage import UsageError
from otel_modtrack.view.model import Event, Link, Process, Span
from otel_modtrack.view.ranks import read_ranks, tell_ranks

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from opentelemetry.sdk.trace import ReadableSpan


__all__ = ["Fault", "TraceFile", "from_sdk", "read_files"]

_STATUS_ERROR: Final = (2, "STATUS_CODE_ERROR")
# As proto3's JSON may have them by name too.
_KINDS: Final = {
    f"SPAN_KIND_{name}": number
    for number, name in enumerate(
        ("UNSPECIFIED", "INTERNAL", "SERVER", "CLIENT", "PRODUCER", "CONSUMER")
    )
}
_OTHER_SIGNALS: Final = frozenset({"resourceMetrics", "resourceLogs"})
# What a malformed part raises while it is taken apart.
_MALFORMED: Final = (AttributeError, KeyError, TypeError, ValueError)
# Fewer bytes are read before anybody wonders.
_WORTH_A_BAR_BYTES: Final = 16_000_000

_NO_OTLP: Final = "no OTLP JSON"
_BEGINNING: Final = b'{"resourceSpans"'
_INCOMPLETE: Final = "incomplete: still being written, or its program was killed"


@dataclass(slots=True)
class Fault:
    """Lines of a file that were skipped, in whole or in part, for one reason.

    Attributes:
        path: Of the file.
        reason: In a few words.
        lines: Their numbers, from 1.
    """

    path: str
    reason: str
    lines: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class TraceFile:
    """What the files held.

    Attributes:
        spans: In the order of the files.
        faults: What was skipped.
    """

    spans: list[Span]
    faults: list[Fault]


def read_files(paths: Sequence[str]) -> TraceFile:
    """Read all spans of files of OTLP JSON lines, compressed by gzip or not.

    Shows on stderr how far it is, where that takes a while.

    Args:
        paths: Of the files; ``-`` for stdin.

    Raises:
        UsageError: If a file cannot be opened, or none has a span.
    """
    with ExitStack() as opened:
        files = [opened.enter_context(LineFile(path)) for path in paths]
        size_bytes = sum(file.size_bytes for file in files)
        progress = None
        if size_bytes > _WORTH_A_BAR_BYTES:
            progress = Progress("view", size_bytes)
            opened.callback(progress.close)
        reader = _Reader(progress)
        for file in files:
            reader.read(file)
    if not reader.spans:
        raise UsageError(_why_nothing(paths, reader.faults))
    return TraceFile(tell_ranks(reader.spans), reader.faults)


def _why_nothing(paths: Sequence[str], faults: Sequence[Fault]) -> str:
    shown = ", ".join(map(_shown, paths))
    if faults and faults[0].reason == _NO_OTLP:
        first = faults[0]
        return (
            f"{_shown(first.path)} is not a file of OTLP JSON lines: line {first.lines[0]} is no "
            "object with resourceSpans; give a file that the OTLP JSON file exporter or the "
            "Collector's file exporter wrote"
        )
    has = "have" if len(paths) > 1 else "has"
    return f"{shown} {has} no spans; let the program that writes it finish, or flush it"


def _shown(path: str) -> str:
    return "stdin" if path == "-" else path


class _Reader:
    """Takes files apart, and keeps one of what many spans have in common.

    Args:
        progress: Told after each line; None for no telling.
    """

    def __init__(self, progress: Progress | None) -> None:
        self.spans: list[Span] = []
        self.faults: list[Fault] = []
        self._progress = progress
        self._done_bytes = 0  # of the files before
        self._path = ""
        self._processes: dict[tuple[str, str], Process] = {}
        self._attributes: dict[str, Mapping[str, Any]] = {}

    def read(self, file: LineFile) -> None:
        """Append a file's spans, and note what could not be read."""
        self._path = _shown(file.path)
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
            # Jaeger's and Tempo's APIs answer with a request inside.
            request = request.get("result", request)
            if "resourceSpans" in request or not _OTHER_SIGNALS & set(request):
                self._read_request(number, request)
        except (*_MALFORMED, RecursionError):
            is_cut = is_last and (number > 1 or line.startswith(_BEGINNING))
            self._note(_INCOMPLETE if is_cut else _NO_OTLP, number)

    def _note(self, reason: str, number: int) -> None:
        for fault in self.faults:
            if (fault.path, fault.reason) == (self._path, reason):
                if number != fault.lines[-1]:
                    fault.lines.append(number)
                return
        self.faults.append(Fault(self._path, reason, [number]))

    def _read_request(self, number: int, request: dict[str, Any]) -> None:
        for resource_spans in request["resourceSpans"]:
            process = self._process(resource_spans.get("resource", {}).get("attributes", ()))
            for scope_spans in resource_spans.get("scopeSpans", ()):
                scope = str(scope_spans.get("scope", {}).get("name", ""))
                for span in scope_spans.get("spans", ()):
                    try:
                        self.spans.append(self._span(span, process, scope))
                    except _MALFORMED:
                        self._note("a span that lacks what every span has", number)

    def _process(self, pairs: list[dict[str, Any]]) -> Process:
        key = self._path, repr(pairs)
        if key not in self._processes:
            self._processes[key] = _make_process(self._shared(pairs), self._path)
        return self._processes[key]

    def _span(self, span: dict[str, Any], process: Process, scope: str) -> Span:
        start_ns = int(span["startTimeUnixNano"])
        parent_id = span.get("parentSpanId") or ""
        status = span.get("status") or {}
        kind = span.get("kind", 1)
        return Span(
            trace_id=span["traceId"].lower(),
            span_id=span["spanId"].lower(),
            parent_id="" if set(parent_id) == {"0"} else parent_id.lower(),
            name=str(span["name"]),
            start_ns=start_ns,
            # A span that has not ended has 0 here.
            end_ns=max(start_ns, int(span.get("endTimeUnixNano", 0))),
            attributes=self._shared(span.get("attributes", ())),
            failed=status.get("code") in _STATUS_ERROR,
            status_message=str(status.get("message", "")),
            kind=_KINDS.get(kind, 0) if isinstance(kind, str) else int(kind),
            scope=scope,
            process=process,
            events=tuple(self._event(event) for event in span.get("events", ())),
            links=tuple(
                Link(
                    link["traceId"].lower(),
                    link["spanId"].lower(),
                    self._shared(link.get("attributes", ())),
                )
                for link in span.get("links", ())
            ),
        )

    def _event(self, event: dict[str, Any]) -> Event:
        return Event(
            str(event.get("name", "")),
            int(event.get("timeUnixNano", 0)),
            self._shared(event.get("attributes", ())),
        )

    def _shared(self, pairs: Iterable[dict[str, Any]]) -> Mapping[str, Any]:
        """The attributes, as one object for all that have the same."""
        key = repr(pairs)
        found = self._attributes.get(key)
        if found is None:
            found = self._attributes[key] = {pair["key"]: _value(pair["value"]) for pair in pairs}
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
