"""Jaeger and the Collector as tests start, ask, stop and kill them.

    with Collector(binaries.collector, tmp_path) as collector:
        send(collector.http_endpoint)
        assert collector.wait_for(81) == from_sdk(exporter.get_finished_spans())
        collector.kill()
        collector.start()  # on the same ports; spans() keeps what was written before

Usually the fixtures of `conftest.py` do that. Every program listens on ports of its own on
127.0.0.1, is ready when `start()` returns, and writes its log into the folder it was given.
"""

from __future__ import annotations

import json
import urllib.parse
import urllib.request
from typing import TYPE_CHECKING, Any

from tests.backends.program import ROOT, Binaries, Program, free_port, get
from tests.backends.spans import Span, from_otlp
from tests.polling import poll

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from typing_extensions import Self

__all__ = [
    "ROOT",
    "TO_FILE",
    "Binaries",
    "Collector",
    "Jaeger",
    "Program",
    "free_port",
    "get",
    "narrowed",
]

# What a Collector of the tests does unless told otherwise: whatever it is sent is soon in a file.
TO_FILE = """
extensions:
  health_check:
    endpoint: ${env:COLLECTOR_HEALTH}
receivers:
  otlp:
    protocols:
      grpc:
        endpoint: ${env:COLLECTOR_OTLP_GRPC}
      http:
        endpoint: ${env:COLLECTOR_OTLP_HTTP}
exporters:
  file:
    path: ${env:COLLECTOR_FILE}
    flush_interval: 50ms
service:
  extensions: [health_check]
  pipelines:
    traces:
      receivers: [otlp]
      exporters: [file]
  telemetry:
    metrics:
      level: none
"""


def narrowed(config: str) -> str:
    """The same, and no message over 1 MiB is taken."""
    return config.replace(
        "${env:COLLECTOR_OTLP_GRPC}", "${env:COLLECTOR_OTLP_GRPC}\n        max_recv_msg_size_mib: 1"
    ).replace(
        "${env:COLLECTOR_OTLP_HTTP}",
        "${env:COLLECTOR_OTLP_HTTP}\n        max_request_body_size: 1048576",
    )


class Collector(Program):
    """An OpenTelemetry Collector; without `config` it writes all spans it is sent into a file.

    A configuration of one's own takes its addresses from these variables, and one that has a file
    exporter on COLLECTOR_FILE can be asked for `spans()`:
    COLLECTOR_OTLP_GRPC, COLLECTOR_OTLP_HTTP, COLLECTOR_PROMETHEUS, COLLECTOR_HEALTH (host:port
    each; the health_check extension must be there), COLLECTOR_TELEMETRY_PORT, COLLECTOR_FILE. `env`
    adds others, as COLLECTOR_BACKEND.

    Attributes:
        grpc_address, http_address, prometheus_address, telemetry_address: host:port.
        grpc_endpoint, http_endpoint: The same as OTEL_EXPORTER_OTLP_ENDPOINT wants it, http://...
    """

    def __init__(
        self,
        binary: Path,
        folder: Path,
        config: Path | str = TO_FILE,
        env: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(binary, folder, config, env)
        self.grpc_address = f"127.0.0.1:{free_port()}"
        self.http_address = f"127.0.0.1:{free_port()}"
        self.prometheus_address = f"127.0.0.1:{free_port()}"
        self.telemetry_address = f"127.0.0.1:{free_port()}"
        self.grpc_endpoint = f"http://{self.grpc_address}"
        self.http_endpoint = f"http://{self.http_address}"
        self._starts = 0

    @property
    def environment(self) -> dict[str, str]:
        """The variables that the configuration takes its addresses from."""
        return {
            "COLLECTOR_OTLP_GRPC": self.grpc_address,
            "COLLECTOR_OTLP_HTTP": self.http_address,
            "COLLECTOR_PROMETHEUS": self.prometheus_address,
            "COLLECTOR_TELEMETRY_PORT": self.telemetry_address.split(":")[1],
            "COLLECTOR_HEALTH": self.health_address,
            "COLLECTOR_FILE": str(self.folder / f"spans-{self._starts}.jsonl"),
        }

    def start(self) -> Self:
        """Start it, on the same ports as before; what it writes goes to a new file."""
        # A killed one may have left half a line.
        self._starts += 1
        return super().start()

    def spans(self, trace_id: str | None = None) -> list[Span]:
        """The spans written so far, over all starts, `ordered`; of one trace, if one is given."""
        documents = [json.loads(line) for line in self._lines()]
        spans = from_otlp(*documents)
        return spans if trace_id is None else [span for span in spans if span.trace_id == trace_id]

    def count(self) -> int:
        """How many spans were written so far: quick for hundreds of thousands."""
        return sum(line.count(b'"startTimeUnixNano":') for line in self._lines())

    def wait_for(self, count: int, trace_id: str | None = None) -> list[Span]:
        """The spans, once there are at least `count`."""

        def enough() -> bool:
            return (self.count() if trace_id is None else len(self.spans(trace_id))) >= count

        poll(enough, f"{count} spans in the Collector's file")
        return self.spans(trace_id)

    def metrics(self) -> str:
        """What its prometheus exporter shows, as OpenMetrics text; "" where there is none."""
        request = urllib.request.Request(
            f"http://{self.prometheus_address}/metrics",
            headers={"Accept": "application/openmetrics-text"},
        )
        with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310 - ours
            return answer.read().decode()

    def _lines(self) -> list[bytes]:
        """The complete lines of its files."""
        files = sorted(self.folder.glob("spans-*.jsonl"))
        return [
            line
            for file in files
            for line in file.read_bytes().splitlines(keepends=True)
            if line.endswith(b"\n")
        ]


class Jaeger(Program):
    """Jaeger in one process, its storage in memory: a restart forgets what it had.

    Attributes:
        grpc_address, http_address: Where it takes OTLP: host:port.
        grpc_endpoint, http_endpoint: The same as OTEL_EXPORTER_OTLP_ENDPOINT wants it, http://...
        query_url: The base of its query API and page.
    """

    health_path = "/status"

    def __init__(self, binary: Path, folder: Path, env: Mapping[str, str] | None = None) -> None:
        super().__init__(binary, folder, ROOT / "scripts" / "backends" / "jaeger.yaml", env)
        self.grpc_address = f"127.0.0.1:{free_port()}"
        self.http_address = f"127.0.0.1:{free_port()}"
        self.grpc_endpoint = f"http://{self.grpc_address}"
        self.http_endpoint = f"http://{self.http_address}"
        self.query_url = f"http://127.0.0.1:{free_port()}"
        self._query_grpc = f"127.0.0.1:{free_port()}"

    @property
    def environment(self) -> dict[str, str]:
        """The variables that the configuration takes its addresses from."""
        return {
            "JAEGER_OTLP_GRPC": self.grpc_address,
            "JAEGER_OTLP_HTTP": self.http_address,
            "JAEGER_QUERY": self.query_url.removeprefix("http://"),
            "JAEGER_QUERY_GRPC": self._query_grpc,
            "JAEGER_HEALTH": self.health_address,
        }

    def trace(self, trace_id: str) -> list[Span]:
        """The spans of a trace, `ordered`; none where Jaeger does not know it."""
        body = get(f"{self.query_url}/api/v3/traces/{trace_id}")
        return from_otlp(json.loads(body)["result"]) if body else []

    def wait_for(self, trace_id: str, count: int) -> list[Span]:
        """The spans of a trace, once there are at least `count`."""
        poll(lambda: len(self.trace(trace_id)) >= count, f"{count} spans in Jaeger")
        return self.trace(trace_id)

    def services(self) -> list[str]:
        """The names of the services that have sent spans."""
        return json.loads(get(f"{self.query_url}/api/services") or "{}").get("data") or []

    def find(self, service: str, **parameters: str) -> list[dict[str, Any]]:
        """The traces of a service as its page's search finds them, in Jaeger's own JSON.

        Args:
            service: A service's name.
            parameters: Others of /api/traces: operation, tags (a JSON object), minDuration, limit.
        """
        query = urllib.parse.urlencode({"service": service, "lookback": "1h", **parameters})
        return json.loads(get(f"{self.query_url}/api/traces?{query}") or "{}").get("data") or []
