"""`otel-modtrack replay`: each line arrives once, and what does not is named."""

from __future__ import annotations

import contextlib
import gzip
import http.server
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from opentelemetry.exporter.otlp.json.file import FileMetricExporter, FileSpanExporter
from opentelemetry.exporter.otlp.json.file._log_exporter import FileLogExporter
from opentelemetry.exporter.otlp.proto.common._log_encoder import encode_logs
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Link, StatusCode

from otel_modtrack.cli import main
from otel_modtrack.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from opentelemetry.sdk.trace import ReadableSpan

TIMEOUT_S = 60
SPAN = '{"traceId":"%032x","spanId":"%016x","name":"forward Net","startTimeUnixNano":"1"}'
SECRET = "Bearer-hunter2"  # noqa: S105 - of no account


class Answer(NamedTuple):
    """What the receiver says to one request."""

    status: int = 200
    body: bytes = b"{}"
    headers: tuple[tuple[str, str], ...] = (("Content-Type", "application/json"),)


class Received(NamedTuple):
    """One request that the receiver answered with 200."""

    path: str
    headers: dict[str, str]
    body: bytes


class Receiver:
    """An OTLP/HTTP receiver that answers as it is told.

    Attributes:
        answer: Called with each body; None breaks the connection off.
        taken: What was answered with 200, in order.
        requests: How many there were in all.
    """

    def __init__(self) -> None:
        self.answer: Callable[[bytes], Answer | None] = lambda _: Answer()
        self.taken: list[Received] = []
        self.requests = 0
        self._connections: list[socket.socket] = []
        receiver = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                super().setup()
                receiver._connections.append(self.connection)

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.requests += 1
                answer = receiver.answer(body)
                if answer is None:
                    self.close_connection = True
                    return
                if answer.status == 200:
                    headers = {key.lower(): value for key, value in self.headers.items()}
                    receiver.taken.append(Received(self.path, headers, body))
                self.send_response(answer.status)
                for header in (*answer.headers, ("Content-Length", str(len(answer.body)))):
                    self.send_header(*header)
                self.end_headers()
                self.wfile.write(answer.body)

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = False  # they are waited for
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        """Stop, and wait for the threads."""
        self._server.shutdown()
        for connection in self._connections:
            with contextlib.suppress(OSError):  # it is closed already
                connection.shutdown(socket.SHUT_RDWR)
        self._server.server_close()
        self._thread.join()

    def span_ids(self) -> list[int]:
        """The numbers of the spans of `lines` that were taken."""
        return [
            int(span["spanId"], 16)
            for request in self.taken
            for resource in json.loads(request.body)["resourceSpans"]
            for scope in resource["scopeSpans"]
            for span in scope["spans"]
        ]


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    """A receiver, which the environment names."""
    for name in list(os.environ):
        if name.startswith("OTEL_") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    found = Receiver()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", found.url)
    yield found
    found.close()


def lines(*counts: int) -> list[str]:
    """Lines of so many spans each, which are numbered through all lines from 1."""
    found = []
    number = 0
    for count in counts:
        spans = [SPAN % (1, number + one) for one in range(1, count + 1)]
        number += count
        found.append(f'{{"resourceSpans":[{{"scopeSpans":[{{"spans":[{",".join(spans)}]}}]}}]}}\n')
    return found


def write(path: Path, *counts: int) -> Path:
    """A file of `lines`."""
    path.write_text("".join(lines(*counts)))
    return path


def replay(*arguments: object) -> int:
    """Run the command here; its exit code."""
    return main(["replay", *map(str, arguments)])


class Told(NamedTuple):
    """What a program produced, by the exporters that write files, and as the SDK has it."""

    spans: list[ReadableSpan]
    metrics: Any
    logs: list[Any]


@pytest.fixture
def told(tmp_path: Path) -> Told:
    """A program's spans, metrics and logs, one line of each, in spans.jsonl and so on."""
    resource = Resource({"service.name": "replayed", "modtrack.rank": 3})
    memory = InMemorySpanExporter()
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(memory))
    tracer = provider.get_tracer("otel_modtrack", "1.0")
    with tracer.start_as_current_span("train_step", attributes={"modtrack.step.number": 7}) as step:
        link = Link(step.get_span_context(), {"traceId": "no id, an attribute"})
        with tracer.start_as_current_span("backward", links=[link]) as span:
            span.add_event("modtrack.collective", {"size": 2**40, "shapes": ["[4, 8]"]})
            span.set_attribute("ratio", float("nan"))
            span.set_attribute("spanId", "aff1e0")
            span.set_status(StatusCode.ERROR, "out of memory")
    spans = list(memory.get_finished_spans())
    exporter = FileSpanExporter(tmp_path / "spans.jsonl")
    exporter.export(spans)
    exporter.shutdown()

    reader = InMemoryMetricReader()
    meters = MeterProvider([reader], resource=resource, shutdown_on_exit=False)
    meters.get_meter("otel_modtrack").create_histogram("modtrack.step.duration", "s").record(0.25)
    metrics = reader.get_metrics_data()
    metric_exporter = FileMetricExporter(tmp_path / "metrics.jsonl")
    metric_exporter.export(metrics)
    metric_exporter.shutdown()

    records = InMemoryLogRecordExporter()
    loggers = LoggerProvider(resource=resource, shutdown_on_exit=False)
    loggers.add_log_record_processor(SimpleLogRecordProcessor(records))
    loggers.get_logger("otel_modtrack").emit(body="loss is NaN", severity_text="WARN")
    logs = list(records.get_finished_logs())
    log_exporter = FileLogExporter(tmp_path / "logs.jsonl")
    log_exporter.export(logs)
    log_exporter.shutdown()
    return Told(spans, metrics, logs)


def test_each_line_is_sent_once_as_it_stands(
    receiver: Receiver, told: Told, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The bodies are the lines, in order, to the path of their signal, as OTLP JSON."""
    files = [tmp_path / f"{name}.jsonl" for name in ("spans", "metrics", "logs")]
    assert replay(*files) == 0
    assert [request.body for request in receiver.taken] == [
        file.read_bytes().strip() for file in files
    ]
    paths = [request.path for request in receiver.taken]
    assert paths == ["/v1/traces", "/v1/metrics", "/v1/logs"]
    assert {request.headers["content-type"] for request in receiver.taken} == {"application/json"}
    shown = capsys.readouterr()
    assert shown.out == (
        f"Sent to {receiver.url}/v1/traces (http/json): 2 spans in 1 line\n"
        f"Sent to {receiver.url}/v1/metrics (http/json): 1 metric in 1 line\n"
        f"Sent to {receiver.url}/v1/logs (http/json): 1 log record in 1 line\n"
    )
    assert shown.err == ""


def test_protobuf_is_what_the_exporters_would_have_sent(
    receiver: Receiver, told: Told, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over http/protobuf, gzipped, each request equals the stock encoders' of the same data."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
    receiver.answer = lambda _: Answer(
        body=b"", headers=(("Content-Type", "application/x-protobuf"),)
    )
    assert replay(*(tmp_path / f"{name}.jsonl" for name in ("spans", "metrics", "logs"))) == 0
    wanted = [encode_spans(told.spans), encode_metrics(told.metrics), encode_logs(told.logs)]
    kinds = [ExportTraceServiceRequest, ExportMetricsServiceRequest, ExportLogsServiceRequest]
    for request, kind, encoded in zip(receiver.taken, kinds, wanted, strict=True):
        assert request.headers["content-type"] == "application/x-protobuf"
        # As text: NaN equals nothing.
        assert str(kind.FromString(gzip.decompress(request.body))) == str(encoded)


def test_compressed_file(receiver: Receiver, tmp_path: Path) -> None:
    """A file compressed by gzip is read as such, whatever its name."""
    path = tmp_path / "spans.jsonl"
    path.write_bytes(gzip.compress("".join(lines(2, 3)).encode()))
    assert replay(path) == 0
    assert receiver.span_ids() == [1, 2, 3, 4, 5]


def test_pipe(receiver: Receiver) -> None:
    """What another program writes is read as it comes."""
    subprocess.run(
        [sys.executable, "-m", "otel_modtrack", "replay", "/dev/stdin"],
        input=gzip.compress("".join(lines(2, 3)).encode()),
        check=True,
    )
    assert receiver.span_ids() == [1, 2, 3, 4, 5]


def test_too_large_is_split(
    receiver: Receiver, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the backend finds too large arrives in parts, in order and under its resource."""
    path = tmp_path / "spans.jsonl"
    resources = [
        {
            "resource": {"attributes": [{"key": "rank", "value": {"intValue": str(rank)}}]},
            "scopeSpans": [
                {
                    "scope": {"name": name},
                    "spans": [
                        json.loads(SPAN % (1, 100 * rank + 10 * at + one)) for one in range(1, 4)
                    ],
                }
                for at, name in enumerate(("a", "b"))
            ],
        }
        for rank in (0, 1)
    ]
    path.write_text(json.dumps({"resourceSpans": resources}) + "\n" + lines(1)[0])
    receiver.answer = lambda body: Answer(413 if len(body) > 600 else 200)
    assert replay(path) == 0
    assert receiver.span_ids() == [1, 2, 3, 11, 12, 13, 101, 102, 103, 111, 112, 113, 1]
    for request in receiver.taken[:-1]:
        for resource in json.loads(request.body)["resourceSpans"]:
            rank = int(resource["resource"]["attributes"][0]["value"]["intValue"])
            for scope in resource["scopeSpans"]:
                numbers = [int(span["spanId"], 16) for span in scope["spans"]]
                assert {number // 100 for number in numbers} == {rank}
                assert {"ab"[number // 10 % 10] for number in numbers} == {scope["scope"]["name"]}
    assert "13 spans in 2 lines" in capsys.readouterr().out


def test_one_span_too_large(
    receiver: Receiver, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A single span that is too large is named by its line, and the rest arrives."""
    path = write(tmp_path / "spans.jsonl", 1, 4)
    wide = SPAN % (1, 3)
    receiver.answer = lambda body: Answer(413 if wide[:80].encode() in body else 200)
    assert replay(path) == 2
    assert receiver.span_ids() == [1, 2, 4, 5]
    shown = capsys.readouterr()
    assert "4 spans in 1 line\n" in shown.out
    assert f"not sent: {path}, line 2: 1 span: too large (HTTP 413)\n" in shown.err


def test_too_large_for_a_collector(receiver: Receiver, tmp_path: Path) -> None:
    """What is large and gets 400, as a Collector answers it, is split; a small line is not."""
    path = tmp_path / "spans.jsonl"
    one = SPAN.replace("forward Net", "x" * 700_000)
    spans = ",".join(one % (1, number) for number in (1, 2, 3))
    path.write_text(f'{{"resourceSpans":[{{"scopeSpans":[{{"spans":[{spans}]}}]}}]}}\n')
    receiver.answer = lambda body: Answer(400 if len(body) > 1_000_000 else 200)
    assert replay(path) == 0
    assert receiver.span_ids() == [1, 2, 3]


def test_stopped_in_the_middle_of_a_line(
    receiver: Receiver, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where the backend goes away between the parts of a line, what has arrived is counted."""
    path = write(tmp_path / "spans.jsonl", 1, 4)
    answers = iter([Answer(), Answer(413), Answer(), Answer(503)])
    receiver.answer = lambda _: next(answers)
    assert replay("--wait", 0, path) == 2
    shown = capsys.readouterr()
    assert shown.out.endswith(": 3 spans in 1 line\n")
    assert f"stopped at {path}, line 2 (of which 2 spans arrived): " in shown.err


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_backend_that_asks_to_come_again(
    receiver: Receiver, tmp_path: Path, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line is sent again until it is taken, and then no more."""
    path = write(tmp_path / "spans.jsonl", 1, 1, 1)
    answers = iter([Answer(), Answer(status, b"", (("Retry-After", "0"),)), None])
    receiver.answer = lambda _: next(answers, Answer())
    assert replay(path) == 0
    assert receiver.span_ids() == [1, 2, 3]
    assert receiver.requests == 5
    assert f"{receiver.url}/v1/traces: HTTP {status}; trying again\n" in capsys.readouterr().err


def test_backend_that_asks_for_more_time_than_there_is(
    receiver: Receiver, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Longer than --wait nobody waits: it is said for how long the backend takes nothing."""
    path = write(tmp_path / "spans.jsonl", 1, 1)
    answers = iter([Answer(), Answer(503, b"", (("Retry-After", "3600"),))])
    receiver.answer = lambda _: next(answers)
    assert replay(path) == 2
    shown = capsys.readouterr()
    assert "1 span in 1 line\n" in shown.out
    assert (
        f"stopped at {path}, line 2: {receiver.url}/v1/traces takes nothing for 3,600 s "
        "(HTTP 503): try later, or wait longer with --wait. Go on with: otel-modtrack replay "
        f"--from 2 {path}\n"
    ) in shown.err


def test_refused_line_is_named_and_the_rest_goes_on(
    receiver: Receiver, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Lines that the backend refuses are told by number, with their spans."""
    path = write(tmp_path / "spans.jsonl", 1, 2, 3, 4, 5)
    answers = iter([Answer(), Answer(400), Answer(400), Answer(), Answer(400)])
    receiver.answer = lambda _: next(answers)
    assert replay(path) == 2
    shown = capsys.readouterr()
    assert "5 spans in 2 lines\n" in shown.out
    assert f"not sent: {path}, lines 2-3, 5: 10 spans: refused (HTTP 400)\n" in shown.err
    assert shown.err.endswith("otel-modtrack replay: not everything was sent: see above\n")


def test_partial_success(
    receiver: Receiver, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Spans that the backend rejects from what it takes are counted, and not sent again."""
    path = write(tmp_path / "spans.jsonl", 4, 1)
    answers = iter([Answer(body=b'{"partialSuccess":{"rejectedSpans":"3"}}'), Answer()])
    receiver.answer = lambda _: next(answers)
    assert replay(path) == 2
    assert receiver.requests == 2
    shown = capsys.readouterr()
    assert "2 spans in 1 line\n" in shown.out
    assert f"not sent: {path}, line 1: 3 spans: rejected by the backend\n" in shown.err


def test_backend_that_refuses_all(
    receiver: Receiver,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A refusal that every line would get ends it at once; no secret is in what is said."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", f"authorization={SECRET}")
    path = write(tmp_path / "spans.jsonl", 1, 1)
    receiver.answer = lambda _: Answer(401, f"{SECRET} is no token".encode())
    assert replay(path, path) == 2
    assert receiver.requests == 1
    shown = capsys.readouterr()
    assert shown.out.endswith(": 0 spans in 0 lines\n")
    assert f"stopped at {path}, line 1: {receiver.url}/v1/traces refuses all traces" in shown.err
    assert (
        f"OTEL_EXPORTER_OTLP_HEADERS. Go on with: otel-modtrack replay --from 1 {path} {path}"
        in (shown.err)
    )
    assert SECRET not in shown.out + shown.err


def test_backend_that_takes_spans_only(
    receiver: Receiver, told: Told, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Metrics that no backend takes do not hold up the spans, and are asked about once."""
    path = tmp_path / "all.jsonl"
    metrics = (tmp_path / "metrics.jsonl").read_text()
    path.write_text(metrics + (tmp_path / "spans.jsonl").read_text() + metrics)
    receiver.answer = lambda body: Answer(404 if b"resourceMetrics" in body else 200)
    assert replay(path) == 2
    assert receiver.requests == 2
    shown = capsys.readouterr()
    assert shown.out.endswith(": 2 spans in 1 line\n")
    assert (
        f"not sent: {path}, lines 1, 3: 2 metrics: {receiver.url}/v1/metrics refuses" in shown.err
    )


@pytest.mark.parametrize(
    "line",
    [
        b"no JSON",
        b'{"resourceSpans":[{"scopeSpans":[{"spans":[{"traceId":"01',  # torn
        b"[]",
        b"3",
        b'{"spans":[]}',
        b'{"resourceSpans":[],"resourceLogs":[]}',
        b'{"resourceSpans":3}',
        b'{"resourceSpans":[{"scopeSpans":[{"spans":[7]}]}]}',
        b"[" * 100_000,
        b'{"resourceSpans":"\xff"}',
    ],
    ids=lambda line: line[:40].decode(errors="replace"),
)
def test_malformed_line(
    receiver: Receiver, tmp_path: Path, line: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line that is no export request is named, and those around it arrive."""
    path = tmp_path / "spans.jsonl"
    first, last = lines(1, 1)
    path.write_bytes(first.encode() + b"\n" + line + b"\n" + last.encode())
    assert replay(path) == 2
    assert receiver.span_ids() == [1, 2]
    assert f"not sent: {path}, line 3: no OTLP JSON\n" in capsys.readouterr().err


def test_malformed_for_protobuf(
    receiver: Receiver,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A field of the wrong type is found where protobuf is wanted."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
    path = tmp_path / "spans.jsonl"
    first, second = lines(1, 1)
    path.write_text(first.replace('"1"', '"soon"') + second)
    assert replay(path) == 2
    assert receiver.requests == 1
    assert f"not sent: {path}, line 1: 1 span: no OTLP JSON\n" in capsys.readouterr().err


@pytest.mark.parametrize("damage", ["cut off", "overwritten"])
def test_damaged_compressed_file(
    receiver: Receiver, tmp_path: Path, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """What can be read of it arrives; where it ends is said, and the next file is sent."""
    path = tmp_path / "spans.jsonl.gz"
    content = gzip.compress("".join(lines(1, 1, 1)).encode(), compresslevel=0)
    half = len(content) // 2
    path.write_bytes(content[:half] + (b"" if damage == "cut off" else b"\xff" * half))
    whole = write(tmp_path / "whole.jsonl", 1)
    assert replay(path, whole) == 2
    assert receiver.span_ids()[-1] == 1
    said = capsys.readouterr().err
    assert f"not sent: {path}, line " in said
    assert "cut off" in said or "cannot be read from here on" in said


def test_from(receiver: Receiver, tmp_path: Path) -> None:
    """--from counts in the first file only, and one past its last line is its end."""
    first, second = write(tmp_path / "1.jsonl", 1, 1, 1), write(tmp_path / "2.jsonl", 1, 1)
    assert replay("--from", 3, first, second) == 0
    assert receiver.span_ids() == [3, 1, 2]
    assert replay("--from", 4, first) == 0
    assert receiver.requests == 3


def test_from_beyond_the_end(
    receiver: Receiver, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line that is not there is no success."""
    path = write(tmp_path / "1.jsonl", 1, 1)
    assert replay("--from", 9, path) == 2
    assert receiver.requests == 0
    assert f"{path} has no line 9; its last is line 2\n" in capsys.readouterr().err


def test_files_are_opened_before_anything_is_sent(
    receiver: Receiver, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file that is not there is said at once."""
    path = write(tmp_path / "1.jsonl", 1)
    assert replay(path, tmp_path / "none.jsonl") == 2
    assert receiver.requests == 0
    assert capsys.readouterr().err == (
        f"otel-modtrack replay: cannot read {tmp_path}/none.jsonl: No such file or directory; "
        "give files of OTLP JSON lines\n"
    )


def test_no_backend(
    receiver: Receiver,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Where nothing listens it is said, with the address and the mend."""
    path = write(tmp_path / "spans.jsonl", 1)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://user:hunter2@127.0.0.1:9")
    assert replay("--wait", 0, path) == 2
    said = capsys.readouterr().err
    assert "no answer from http://127.0.0.1:9/v1/traces (no connection): check that" in said
    assert f"otel-modtrack replay --from 1 {path}\n" in said
    assert "hunter2" not in said


def test_wrong_variable(
    receiver: Receiver,
    told: Told,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A variable that is of no use is named: those of metrics when there are some."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "smoke")
    spans, metrics = tmp_path / "spans.jsonl", tmp_path / "metrics.jsonl"
    assert replay(spans) == 0
    assert replay(spans, metrics) == 2
    shown = capsys.readouterr()
    assert shown.out.count(": 2 spans in 1 line\n") == 2
    why = "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL=smoke is not supported"
    assert f"stopped at {metrics}, line 1: {why}" in shown.err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda one: one.name)
def test_interrupted_and_gone_on_with(
    receiver: Receiver, tmp_path: Path, number: signal.Signals
) -> None:
    """What is interrupted says where to go on; gone on with there, each span arrives once."""
    path = write(tmp_path / "spans.jsonl", 2, 2, 2)
    asked, over = threading.Event(), threading.Event()

    def answer(_: bytes) -> Answer | None:
        if receiver.requests < 3:
            return Answer()
        asked.set()
        over.wait(TIMEOUT_S)
        return None

    receiver.answer = answer
    with subprocess.Popen(  # noqa: S603 - our own command
        [sys.executable, "-m", "otel_modtrack", "replay", path],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        assert asked.wait(TIMEOUT_S)
        running.send_signal(number)
        out, err = running.communicate(timeout=TIMEOUT_S)
    over.set()
    assert running.returncode == 130
    assert out.endswith(": 4 spans in 2 lines\n")
    assert "Traceback" not in err
    assert (
        f"line 3 (which may have arrived). Go on with: otel-modtrack replay --from 3 {path}" in err
    )
    receiver.answer = lambda _: Answer()
    assert replay("--from", 3, path) == 0
    assert Counter(receiver.span_ids()) == Counter(range(1, 7))


def test_neither_torch_nor_the_sdk_is_imported(receiver: Receiver, tmp_path: Path) -> None:
    """Sending a file does not wait for what it does not need."""
    path = write(tmp_path / "spans.jsonl", 1)
    script = (
        "import sys; from otel_modtrack.cli import main; "
        f"assert main(['replay', {str(path)!r}]) == 0; "
        "unwanted = {'torch', 'opentelemetry.sdk', 'tqdm'} & set(sys.modules); "
        "sys.exit(str(unwanted or ''))"
    )
    done = subprocess.run(  # noqa: S603 - our own command
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.stderr.strip() == ""
    assert receiver.span_ids() == [1]


def test_bar_on_a_terminal(receiver: Receiver, tmp_path: Path) -> None:
    """A terminal shows a bar over the bytes of the files, with what was sent."""
    pty = pytest.importorskip("pty")
    path = write(tmp_path / "spans.jsonl", 3, 4)
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "rb", buffering=0) as screen:
        try:
            done = subprocess.run(  # noqa: S603 - our own command
                [sys.executable, "-m", "otel_modtrack", "replay", path],
                stdout=subprocess.PIPE,
                stderr=theirs,
                check=True,
            )
        finally:
            os.close(theirs)
        shown = screen.read(4096).decode()
    assert done.stdout.endswith(b": 7 spans in 2 lines\n")
    assert "100%" in shown
    assert "7 spans" in shown


def test_lines_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a terminal there is a line now and then."""
    progress = Progress("replay", 200, every_s=0.0)
    progress.show(50, "3 spans sent")
    Progress("replay", 200).show(50, "never so soon")
    progress.close()
    assert capsys.readouterr().err == "otel-modtrack replay: 25% read, 3 spans sent\n"
