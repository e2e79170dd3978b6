"""`make backends` and `make jaeger`: what they do, and what they say when they cannot."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from typing import TYPE_CHECKING

import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from tests.backends.programs import ROOT, free_port, get
from tests.polling import poll

if TYPE_CHECKING:
    from pathlib import Path

    from tests.backends.programs import Binaries

SCRIPTS = ROOT / "scripts" / "backends"


def build(**env: str) -> subprocess.CompletedProcess[str]:
    """Run build.sh with other variables."""
    return subprocess.run(  # noqa: S603 - our own script
        [SCRIPTS / "build.sh"],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_what_is_built_is_used_again(binaries: Binaries) -> None:
    """A second build prints the same paths, makes nothing, and needs no Go."""
    done = build(PATH="/usr/bin:/bin")
    assert done.returncode == 0
    assert done.stderr == ""
    assert done.stdout.splitlines() == [str(binaries.jaeger), str(binaries.collector)]


def test_without_go_it_says_so(tmp_path: Path) -> None:
    """One sentence, and the exit code by which tests know that they have to be skipped."""
    if shutil.which("go", path="/usr/bin:/bin"):
        pytest.skip("Go is among the system's own programs here")
    done = build(PATH="/usr/bin:/bin", XDG_CACHE_HOME=str(tmp_path))
    assert done.returncode == 3
    assert done.stdout == ""
    assert done.stderr.startswith("== Go is not installed")
    assert done.stderr.count("\n") == 1


def test_a_download_that_fails_is_told(tmp_path: Path) -> None:
    """With Go's own reason and where the whole log is; nothing half built is left."""
    if shutil.which("go") is None:
        pytest.skip("Go is not installed")
    done = build(
        XDG_CACHE_HOME=str(tmp_path / "cache"), GOMODCACHE=str(tmp_path / "modules"), GOPROXY="off"
    )
    assert done.returncode == 4
    last = done.stderr.splitlines()[-1]
    assert last.startswith("== The download of Jaeger failed")
    folder = tmp_path / "cache" / "otel_modtrack" / "backends"
    assert {path.name for path in folder.iterdir()} <= {"failed.log", "lock"}
    assert "GOPROXY=off" in (folder / "failed.log").read_text()


def free_addresses() -> dict[str, str]:
    """The variables that move everything which `make jaeger` runs to other ports."""
    names = (
        "JAEGER_OTLP_GRPC JAEGER_OTLP_HTTP JAEGER_QUERY JAEGER_QUERY_GRPC JAEGER_HEALTH "
        "COLLECTOR_OTLP_GRPC COLLECTOR_OTLP_HTTP COLLECTOR_PROMETHEUS COLLECTOR_HEALTH"
    )
    addresses = {name: f"127.0.0.1:{free_port()}" for name in names.split()}
    return {**addresses, "COLLECTOR_TELEMETRY_PORT": str(free_port())}


def test_make_jaeger_says_when_a_port_is_taken(binaries: Binaries) -> None:
    """In a sentence with the address; and what it had started is stopped."""
    addresses = free_addresses()
    host, port = addresses["COLLECTOR_OTLP_HTTP"].split(":")
    with socket.create_server((host, int(port))):
        done = subprocess.run(  # noqa: S603 - our own script
            [SCRIPTS / "run.sh"],
            env={**os.environ, **addresses},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
    assert done.returncode == 1
    assert done.stderr.startswith("== Collector did not start. Error: ")
    assert f"listen tcp {host}:{port}: bind: address already in use" in done.stderr
    assert done.stderr.count("\n") == 2
    assert get(f"http://{addresses['JAEGER_QUERY']}/api/services") is None


def test_make_jaeger_runs_both_until_it_is_interrupted(binaries: Binaries, tmp_path: Path) -> None:
    """A span sent to the Collector's address is in Jaeger; Ctrl-C stops both; exit code 0."""
    addresses = free_addresses()
    variables = {**os.environ, **addresses}
    log = tmp_path / "log"
    with log.open("w") as file:
        process = subprocess.Popen(  # noqa: S603 - our own script
            [SCRIPTS / "run.sh"], env=variables, stdout=file, stderr=file, start_new_session=True
        )
    try:
        poll(lambda: "Ctrl-C" in log.read_text() or process.poll() is not None, "it runs", 30)
        assert f"http://{addresses['COLLECTOR_OTLP_HTTP']}" in log.read_text()
        provider = TracerProvider(
            resource=Resource({"service.name": "made"}), shutdown_on_exit=False
        )
        exporter = OTLPSpanExporter(f"http://{addresses['COLLECTOR_OTLP_HTTP']}/v1/traces")
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        provider.get_tracer("test").start_span("once").end()
        provider.shutdown()
        services = f"http://{addresses['JAEGER_QUERY']}/api/services"
        poll(lambda: '"made"' in (get(services) or ""), "the span is in Jaeger")
    finally:
        os.killpg(process.pid, signal.SIGINT)
        code = process.wait(30)
    assert code == 0, log.read_text()
    assert get(services) is None
    assert get(f"http://{addresses['COLLECTOR_HEALTH']}") is None
