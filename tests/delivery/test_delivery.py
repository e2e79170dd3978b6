"""Whatever the backend does, each span is delivered once or counted as lost."""

from __future__ import annotations

import errno
import gzip
import itertools
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from otel_modtrack.otlp.senders import ExporterSender, FileSender
from otel_modtrack.version import __version__
from tests.delivery.answers import INVALID, TAKE, Answer, busy
from tests.delivery.certificates import make_files
from tests.delivery.pipes import PROTOCOLS, connected, pipe, receiver_for
from tests.polling import poll

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opentelemetry.sdk.trace import ReadableSpan

    from tests.delivery.receiver import Receiver

HTTP, JSON, GRPC = PROTOCOLS

every_protocol = pytest.mark.parametrize("protocol", PROTOCOLS)
both_transports = pytest.mark.parametrize("protocol", [HTTP, GRPC])


def gaps(receiver: Receiver) -> list[float]:
    """Seconds between the requests that it got."""
    times = [request.at_s for request in receiver.requests]
    return [after - before for before, after in itertools.pairwise(times)]


# -- a backend that behaves ----------------------------------------------------------------------


@every_protocol
@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_each_span_arrives_once(
    environment: pytest.MonkeyPatch, protocol: str, compression: str
) -> None:
    """In batches, with the headers that were asked for, compressed where that was asked for."""
    environment.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20abc,x-tenant=7")
    environment.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", compression)
    with connected(environment, protocol, authorization="Bearer abc") as receiver, pipe() as made:
        made.produce(500)
        assert made.delivery.flush(10)
        made.all_in(receiver)
        assert made.counts.waiting == 0
        assert 500 / 64 <= len(receiver.requests) < 500, "as batches"
        headers = receiver.requests[0].headers
        assert headers["x-tenant"] == "7"
        assert headers["user-agent"].startswith(f"otel-modtrack/{__version__}")
        if protocol != GRPC:
            kind = "json" if protocol == JSON else "x-protobuf"
            assert headers["content-type"] == f"application/{kind}"
            assert headers.get("content-encoding", "none") == compression
            assert receiver.requests[0].path == "/v1/traces"
        decoded = receiver.requests[0].decode()
        name = "pipe" if protocol != JSON else {"stringValue": "pipe"}
        attribute = (
            decoded["resourceSpans"][0]["resource"]["attributes"][0]["value"]
            if protocol == JSON
            else decoded.resource_spans[0].resource.attributes[0].value.string_value
        )
        assert attribute == name


@both_transports
def test_encrypted(environment: pytest.MonkeyPatch, protocol: str) -> None:
    """The server is checked against the authority that is named, and refused without it."""
    server = make_files("server")
    with connected(environment, protocol, tls=server) as receiver:
        with pipe(exit_s=10) as made:
            made.produce(3)
        reason = "UNAVAILABLE" if protocol == GRPC else "TLS failed"
        assert (made.counts.lost_by_reason, receiver.span_ids()) == ({reason: 3}, [])

        environment.setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", str(server.authority))
        # Of a machine where something else is set for all that use `requests`.
        environment.setenv("REQUESTS_CA_BUNDLE", str(make_files("other").certificate))
        with pipe() as made:
            made.produce(3)
        made.all_in(receiver)


@both_transports
def test_both_sides_show_a_certificate(environment: pytest.MonkeyPatch, protocol: str) -> None:
    """A client without one gets nothing delivered; one with its certificate and key does."""
    server, client = make_files("server"), make_files("client")
    environment.setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", str(server.authority))
    with connected(environment, protocol, tls=server, mutual=True) as receiver:
        with pipe(exit_s=10) as made:
            made.produce(3)
        made.check_sum()
        assert (made.counts.lost, receiver.span_ids()) == (3, [])

        environment.setenv("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", str(client.certificate))
        environment.setenv("OTEL_EXPORTER_OTLP_CLIENT_KEY", str(client.key))
        with pipe() as made:
            made.produce(3)
        made.all_in(receiver)


# -- a backend that refuses ----------------------------------------------------------------------


@both_transports
def test_refused(
    environment: pytest.MonkeyPatch, protocol: str, caplog: pytest.LogCaptureFixture
) -> None:
    """What is refused for good is lost at once, and said once; what comes after it is delivered."""
    reason = "INVALID_ARGUMENT" if protocol == GRPC else "HTTP 400"
    with connected(environment, protocol) as receiver, pipe() as made:
        receiver.script(INVALID, INVALID, TAKE)
        for _ in range(3):
            made.produce(3)
            assert made.delivery.flush(10)
        assert made.counts.lost_by_reason == {reason: 6}
        assert made.counts.delivered == 3
        assert receiver.span_ids() == sorted(made.span_ids[6:])
        assert len(receiver.requests) == 3, "none was tried again"
    assert [record.message for record in caplog.records if reason in record.message] == [
        f"3 spans are lost: {made.endpoint.shown} said {reason}"
    ]


@both_transports
@pytest.mark.parametrize("status", [429, 503])
def test_busy(environment: pytest.MonkeyPatch, protocol: str, status: int) -> None:
    """A backend that names a time is not asked before it; nothing is lost, nothing comes twice."""
    with connected(environment, protocol) as receiver, pipe() as made:
        again = busy(0.4, status=status) if protocol == GRPC else busy(1, status=status)
        receiver.script(again, TAKE)
        made.produce(10)
        poll(lambda: made.counts.delivered, "delivered")
        made.all_in(receiver)
        assert gaps(receiver)[0] >= (0.4 if protocol == GRPC else 1)


def test_busy_until_a_date(environment: pytest.MonkeyPatch) -> None:
    """Retry-After as a date is a time to wait, too; one that is over, or is none, does no harm."""
    with connected(environment, HTTP) as receiver, pipe() as made:
        receiver.script(
            busy(2, as_date=True),
            busy(-3600, as_date=True),
            Answer(503, headers={"Retry-After": "Mon, 01 Jan 0001 00:00:00 -0000"}),
            Answer(503, headers={"Retry-After": "tomorrow"}),
            TAKE,
        )
        made.produce(10)
        poll(lambda: made.counts.delivered, "delivered")
        made.all_in(receiver)
        assert gaps(receiver)[0] > 0.5, "a date has no fractions of a second"


@both_transports
def test_busy_and_in_no_hurry(environment: pytest.MonkeyPatch, protocol: str) -> None:
    """A backend that says to come again at once is not beset."""
    with connected(environment, protocol) as receiver, pipe(exit_s=0) as made:
        receiver.script(busy(0))
        made.produce(1)
        poll(lambda: len(receiver.requests) >= 4, "tried again")
        assert min(gaps(receiver)) > 0.09


@both_transports
def test_busy_without_a_time(environment: pytest.MonkeyPatch, protocol: str) -> None:
    """It is asked again after longer and longer times."""
    with connected(environment, protocol) as receiver, pipe() as made:
        receiver.script(busy(), busy(), busy(), TAKE)
        made.produce(10)
        poll(lambda: made.counts.delivered, "delivered")
        made.all_in(receiver)
        first, second, third = gaps(receiver)
        assert first >= 0.2
        assert second >= 0.4
        assert third >= 0.8


@both_transports
def test_too_large(environment: pytest.MonkeyPatch, protocol: str) -> None:
    """A batch over the size limit is split until it fits; a span that never fits is lost alone."""
    limit = 4096
    others = {"most_bytes": limit} if protocol == GRPC else {}
    with connected(environment, protocol, **others) as receiver, pipe() as made:
        receiver.script(Answer(most_bytes=limit))
        made.produce(60)
        made.produce(1, large="x" * 2 * limit)
        made.produce(60)
        assert made.delivery.flush(10)
        reason = "RESOURCE_EXHAUSTED" if protocol == GRPC else "HTTP 413"
        assert made.counts.lost_by_reason == {reason: 1}
        assert made.counts.delivered == 120
        assert receiver.span_ids() == sorted(made.span_ids[:60] + made.span_ids[61:])


def test_too_large_for_a_collector(environment: pytest.MonkeyPatch) -> None:
    """What the Collector refuses for its size, with 400 and these words, is split, too."""
    with connected(environment, HTTP) as receiver, pipe() as made:
        refusal = Answer(400, text="http: request body too large")
        receiver.script(refusal, TAKE)
        made.produce(10)
        assert made.delivery.flush(10)
        made.all_in(receiver)
        receiver.script(refusal)
        made.produce(1)
        assert made.delivery.flush(10)
        assert made.counts.lost_by_reason == {"HTTP 400": 1}


@every_protocol
def test_some_are_rejected(environment: pytest.MonkeyPatch, protocol: str) -> None:
    """Spans that a backend refuses out of a request are lost; a count that cannot be is none."""
    with connected(environment, protocol) as receiver, pipe() as made:
        receiver.script(Answer(rejected=4, text="bad spans"), Answer(rejected=-7), TAKE)
        made.produce(10)
        assert made.delivery.flush(10)
        assert (made.counts.delivered, made.counts.lost_by_reason) == (6, {"rejected": 4})
        assert len(receiver.span_ids()) == 6
        made.produce(10)
        assert made.delivery.flush(10)
        assert (made.counts.delivered, made.counts.lost) == (16, 4)
        receiver.script(Answer(rejected=1000))
        made.produce(10)
        assert made.delivery.flush(10)
        assert (made.counts.delivered, made.counts.lost) == (16, 14)


@pytest.mark.parametrize(
    "answer",
    [
        Answer(body=b"\xff\xff garbage"),
        Answer(body=b"\xff" * 1_000_000),
        Answer(body=b"garbage", headers={"Content-Encoding": "gzip"}),
        Answer(body=gzip.compress(b"\0" * 10_000_000), headers={"Content-Encoding": "gzip"}),
        Answer(body=b"[1, 2", headers={"Content-Type": "application/json"}),
        Answer(body=b'{"partialSuccess": 7}', headers={"Content-Type": "application/json"}),
        Answer(202),
    ],
    ids=["bytes", "many", "not compressed", "a bomb", "no JSON", "other JSON", "accepted"],
)
@both_transports
def test_answer_makes_no_sense(
    environment: pytest.MonkeyPatch, protocol: str, answer: Answer
) -> None:
    """What was answered with success is delivered, whatever else the answer says."""
    with connected(environment, protocol) as receiver, pipe() as made:
        receiver.script(answer)
        made.produce(10)
        assert made.delivery.flush(10)
        assert len(receiver.requests) == 1
        assert (made.counts.delivered, made.counts.lost) == (10, 0)


def test_redirected(environment: pytest.MonkeyPatch) -> None:
    """Nothing is sent to another address than the one that is set: it has a token with it."""
    with connected(environment, HTTP) as receiver, receiver_for(HTTP) as other, pipe() as made:
        receiver.script(Answer(307, headers={"Location": f"{other.url}/v1/traces"}))
        made.produce(1)
        assert made.delivery.flush(10)
        assert made.counts.lost_by_reason == {"HTTP 307": 1}
        assert other.requests == []


def test_span_that_cannot_be_encoded(
    environment: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is lost alone, and the reason is told."""
    with connected(environment, HTTP) as receiver, pipe() as made:
        made.produce(20)
        with made.provider.get_tracer("tests").start_as_current_span("\ud800") as span:
            bad = f"{span.get_span_context().span_id:016x}"
        made.produce(20)
        assert made.delivery.flush(10)
        assert made.counts.lost_by_reason == {"encoding (UnicodeEncodeError)": 1}
        assert receiver.span_ids() == sorted(made.span_ids)
        assert bad not in receiver.span_ids()
    assert "1 spans are lost: encoding (UnicodeEncodeError)" in caplog.messages


# -- spans that go elsewhere ----------------------------------------------------------------------


def test_file(tmp_path: Path) -> None:
    """Each batch is one line of OTLP JSON; what a full disk did not take is lost, and counted."""
    path = tmp_path / "spans.jsonl"
    with pipe(sender=FileSender(str(path))) as made:
        made.produce(100)
    assert (made.counts.delivered, made.counts.lost) == (100, 0)
    written = [
        span["spanId"]
        for line in path.read_text().splitlines()
        for resource in json.loads(line)["resourceSpans"]
        for scope in resource["scopeSpans"]
        for span in scope["spans"]
    ]
    assert written == made.span_ids

    if not Path("/dev/full").exists():
        return
    with pipe(sender=FileSender("/dev/full")) as made:
        made.produce(100)
    assert made.counts.lost_by_reason == {os.strerror(errno.ENOSPC): 100}


class Broken(InMemorySpanExporter):
    """An exporter that fails, then raises, then works."""

    calls = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.calls += 1
        if self.calls == 1:
            return SpanExportResult.FAILURE
        if self.calls == 2:
            raise LookupError
        return super().export(spans)


def test_exporter_of_another_kind() -> None:
    """An exporter that fails or raises loses its batch, and gets the next one."""
    exporter = Broken()
    with pipe(sender=ExporterSender(exporter, "elsewhere")) as made:
        for _ in range(3):
            made.produce(3)
            assert made.delivery.flush(10)
        assert made.counts.lost_by_reason == {"the exporter failed": 3, "LookupError": 3}
        assert made.counts.delivered == len(exporter.get_finished_spans()) == 3
