"""`otel-modtrack replay` to the real Collector and the real Jaeger: each span arrives, once."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.backends.programs import TO_FILE, narrowed
from tests.backends.spans import Span, from_otlp

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.backends.programs import Collector, Jaeger


def command(*arguments: object, **variables: str) -> str:
    """What the command prints, in an environment without other settings of telemetry."""
    plain = {key: value for key, value in os.environ.items() if not key.startswith("OTEL_")}
    done = subprocess.run(  # noqa: S603 - our own command
        [sys.executable, "-m", "otel_modtrack", *map(str, arguments)],
        env=plain | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def demo_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `otel-modtrack demo` has written."""
    path = tmp_path_factory.mktemp("demo") / "demo.jsonl"
    command("demo", "--steps", 6, "--out", path)
    return path


def spans_of(path: Path) -> list[Span]:
    """The spans of a file of JSON lines."""
    return from_otlp(*map(json.loads, path.read_text().splitlines()))


@pytest.mark.parametrize("protocol", ["http/json", "http/protobuf", "grpc"])
def test_collector(
    demo_file: Path, make_collector: Callable[..., Collector], protocol: str
) -> None:
    """Over each protocol the Collector gets what stands in the file, and the view shows its own."""
    collector = make_collector()
    endpoint = collector.grpc_endpoint if protocol == "grpc" else collector.http_endpoint
    command(
        *("replay", demo_file),
        OTEL_EXPORTER_OTLP_PROTOCOL=protocol,
        OTEL_EXPORTER_OTLP_ENDPOINT=endpoint,
    )
    wanted = spans_of(demo_file)
    assert len(wanted) > 300
    collector.wait_for(len(wanted))
    collector.stop()
    assert collector.spans() == wanted
    for view in ((), ("--top",)):
        shown = command("view", collector.environment["COLLECTOR_FILE"], *view)
        assert shown == command("view", demo_file, *view)
        assert "backward GPT.layers" in shown


@pytest.mark.parametrize("protocol", ["http/json", "grpc"])
def test_collector_that_takes_small_messages_only(
    demo_file: Path, tmp_path: Path, make_collector: Callable[..., Collector], protocol: str
) -> None:
    """A line over the Collector's own limit is split, and all of it arrives once."""
    collector = make_collector(narrowed(TO_FILE))
    endpoint = collector.grpc_endpoint if protocol == "grpc" else collector.http_endpoint
    lines = [json.loads(line) for line in demo_file.read_text().splitlines()]
    request = {"resourceSpans": [one for line in lines for one in line["resourceSpans"]]}
    for resource in request["resourceSpans"]:
        for scope in resource["scopeSpans"]:
            for span in scope["spans"]:
                text = {"key": "app.text", "value": {"stringValue": "x" * 10_000}}
                span.setdefault("attributes", []).append(text)
    path = tmp_path / "one-line.jsonl.gz"
    path.write_bytes(gzip.compress(json.dumps(request).encode()))
    out = command(
        *("replay", path),
        OTEL_EXPORTER_OTLP_PROTOCOL=protocol,
        OTEL_EXPORTER_OTLP_ENDPOINT=endpoint,
    )
    wanted = from_otlp(request)
    assert out.endswith(f": {len(wanted)} spans in 1 line\n")
    collector.wait_for(len(wanted))
    collector.stop()
    assert collector.spans() == wanted


def test_jaeger(demo_file: Path, jaeger: Jaeger) -> None:
    """Jaeger has each trace as it stands in the file."""
    command("replay", demo_file, OTEL_EXPORTER_OTLP_ENDPOINT=jaeger.http_endpoint)
    wanted = spans_of(demo_file)
    for trace_id in {span.trace_id for span in wanted}:
        trace = [span for span in wanted if span.trace_id == trace_id]
        assert jaeger.wait_for(trace_id, len(trace)) == trace
