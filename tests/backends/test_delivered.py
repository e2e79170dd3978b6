"""What `configure()` sends is what arrives: nothing is missing, nothing changed, nothing twice."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from otel_modtrack import semconv
from tests.backends.programs import Collector, free_port
from tests.backends.worker_traced import Traced
from tests.delivery.certificates import make_files
from tests.polling import poll

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tests.backends.programs import Binaries, Jaeger
    from tests.backends.spans import Span


# Beside the plain receiver, one that wants a token, and one that wants a certificate, both by TLS.
SECURE = """
extensions:
  health_check:
    endpoint: ${env:COLLECTOR_HEALTH}
  bearertokenauth:
    token: ${env:TOKEN}
receivers:
  otlp:
    protocols:
      grpc:
        endpoint: ${env:COLLECTOR_OTLP_GRPC}
      http:
        endpoint: ${env:COLLECTOR_OTLP_HTTP}
  otlp/token:
    protocols:
      grpc:
        endpoint: ${env:TOKEN_GRPC}
        tls: &tls
          cert_file: ${env:CERTIFICATE}
          key_file: ${env:KEY}
        auth: &auth
          authenticator: bearertokenauth
      http:
        endpoint: ${env:TOKEN_HTTP}
        tls: *tls
        auth: *auth
  otlp/mutual:
    protocols:
      grpc:
        endpoint: ${env:MUTUAL_GRPC}
        tls: &mutual
          cert_file: ${env:CERTIFICATE}
          key_file: ${env:KEY}
          client_ca_file: ${env:AUTHORITY}
      http:
        endpoint: ${env:MUTUAL_HTTP}
        tls: *mutual
exporters:
  file:
    path: ${env:COLLECTOR_FILE}
    flush_interval: 50ms
service:
  extensions: [health_check, bearertokenauth]
  pipelines:
    traces:
      receivers: [otlp, otlp/token, otlp/mutual]
      exporters: [file]
  telemetry:
    metrics:
      level: none
"""
TOKEN = "k7Zq-token-of-the-tests"  # noqa: S105 - of nothing
PROTOCOLS = ("http/protobuf", "grpc", "http/json")


class Doors:
    """A Collector, and what a program has to set to come in by each of its receivers."""

    def __init__(self, binaries: Binaries, folder: Path) -> None:
        server, client = make_files("collector"), make_files("client")
        names = [f"{door}_{way}" for door in ("TOKEN", "MUTUAL") for way in ("GRPC", "HTTP")]
        self._addresses = {name: f"127.0.0.1:{free_port()}" for name in names}
        files = {
            "CERTIFICATE": str(server.certificate),
            "KEY": str(server.key),
            "AUTHORITY": str(server.authority),
        }
        self._client = client
        environment = {"TOKEN": TOKEN, **files, **self._addresses}
        self.collector = Collector(binaries.collector, folder, SECURE, environment)

    def environment(self, door: str, protocol: str) -> dict[str, str]:
        """The variables; `door` is ``plain``, ``token`` or ``mutual``."""
        way = "GRPC" if protocol == "grpc" else "HTTP"
        found = {"OTEL_EXPORTER_OTLP_PROTOCOL": protocol, "OTEL_SERVICE_NAME": f"{door}-{protocol}"}
        if door == "plain":
            plain = {"GRPC": self.collector.grpc_endpoint, "HTTP": self.collector.http_endpoint}
            return {**found, "OTEL_EXPORTER_OTLP_ENDPOINT": plain[way]}
        found["OTEL_EXPORTER_OTLP_ENDPOINT"] = f"https://{self._addresses[f'{door.upper()}_{way}']}"
        found["OTEL_EXPORTER_OTLP_CERTIFICATE"] = str(self._client.authority)
        if door == "token":
            found["OTEL_EXPORTER_OTLP_HEADERS"] = f"authorization=Bearer%20{TOKEN}"
        else:
            found["OTEL_EXPORTER_OTLP_CLIENT_KEY"] = str(self._client.key)
            found["OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE"] = str(self._client.certificate)
        return found


@pytest.fixture(scope="module")
def doors(binaries: Binaries, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    """For all tests of this file."""
    doors = Doors(binaries, tmp_path_factory.mktemp("doors"))
    with doors.collector:
        yield doors


def run_all(environment: dict[str, str]) -> list[Span]:
    """A program that trains with recomputation, serves a request, and has a module that raises.

    Returns what its in-memory exporter had, when it has ended.
    """
    with Traced(environment) as program:
        program.do("remember")
        program.do("train", 3)
        program.do("serve")
        program.do("fail")
        sent: list[Span] = program.do("sent")
        program.end()
    names = {span.name for span in sent}
    assert {"train_step", "recompute GPT.layers.*.mlp", "POST /generate"} <= names
    assert [span.name for span in sent if span.status == "ERROR"] == [
        "train_step",
        "forward Sequential",
        "forward Sequential.*",
    ]
    assert any(span.links for span in sent)
    return sent


@pytest.mark.parametrize(
    ("door", "protocol"),
    [
        *(("plain", protocol) for protocol in PROTOCOLS),
        *((door, protocol) for door in ("token", "mutual") for protocol in PROTOCOLS[:2]),
    ],
)
def test_the_collector_writes_what_the_memory_has(doors: Doors, door: str, protocol: str) -> None:
    """Every span, once, and all of it; by TLS with a token or a client's certificate, too."""
    sent = run_all(doors.environment(door, protocol))
    traces = {span.trace_id for span in sent}
    collector = doors.collector

    def found() -> list[Span]:
        return [span for span in collector.spans() if span.trace_id in traces]

    poll(lambda: len(found()) >= len(sent), "all spans")
    assert found() == sent


@pytest.mark.parametrize(
    ("protocol", "reason"), [("http/protobuf", "HTTP 401"), ("grpc", "UNAUTHENTICATED")]
)
def test_no_token_no_entry(doors: Doors, protocol: str, reason: str) -> None:
    """The Collector does look at it: whoever has another one is refused, and told so."""
    environment = doors.environment("token", protocol)
    environment["OTEL_EXPORTER_OTLP_HEADERS"] += "x"
    with Traced(environment) as program:
        program.do("spans", 10)
        counts = program.do("flush")
        sent = program.do("ids")
        program.end()
    assert counts["lost"] == counts[reason] == 10
    assert not {int(span.span_id, 16) for span in doors.collector.spans()} & set(sent)


def check_jaeger(jaeger: Jaeger, sent: Sequence[Span]) -> None:
    """Jaeger has these spans, whole traces of them, and no others of their traces."""
    for trace_id in {span.trace_id for span in sent}:
        expected = [span for span in sent if span.trace_id == trace_id]
        assert jaeger.wait_for(trace_id, len(expected)) == expected


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_jaeger_has_what_the_memory_has(jaeger: Jaeger, protocol: str) -> None:
    """Every span, link, event and attribute, asked over its query API."""
    endpoint = jaeger.grpc_endpoint if protocol == "grpc" else jaeger.http_endpoint
    environment = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
        "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
        "OTEL_SERVICE_NAME": f"jaeger-{protocol}",
    }
    check_jaeger(jaeger, run_all(environment))


def test_jaeger_has_the_collectives_of_two_ranks(jaeger: Jaeger, tmp_path: Path) -> None:
    """With the events of what each launched, and each rank's Resource."""
    with ExitStack() as running:
        ranks = [
            running.enter_context(
                Traced(
                    {
                        "OTEL_EXPORTER_OTLP_ENDPOINT": jaeger.http_endpoint,
                        "RANK": str(rank),
                        "WORLD_SIZE": "2",
                        "LOCAL_RANK": str(rank),
                        "TORCHELASTIC_RUN_ID": "job",
                    }
                )
            )
            for rank in range(2)
        ]
        for rank, program in enumerate(ranks):
            program.do("remember")
            program.begin("collect", rank, 2, str(tmp_path / "store"))
        for program in ranks:
            program.answer()
        of_rank = [program.do("sent") for program in ranks]
        for program in ranks:
            program.end()
    for rank, sent in enumerate(of_rank):
        assert {span.resource[semconv.RANK] for span in sent} == {rank}
        [event] = [
            event for span in sent if span.name == "backward Linear" for event in span.events
        ]
        assert event.attributes[semconv.COLLECTIVE_OPERATION] == "all_reduce"
        check_jaeger(jaeger, sent)
