"""Every variable that `configure` reads: what it makes of its values, and what it says to some."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from opentelemetry.sdk.trace import sampling

from otel_modtrack import ConfigurationError
from otel_modtrack.configuring import Telemetry
from otel_modtrack.otlp.settings import read_endpoint
from otel_modtrack.pipeline import _metric_sender, _sampler, _span_senders, build, read_limits
from otel_modtrack.resources import make_resource
from otel_modtrack.usage import UsageError
from tests.delivery.certificates import make_files

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

OTLP = "OTEL_EXPORTER_OTLP_"
OF_TRACES = "OTEL_EXPORTER_OTLP_TRACES_"


def put(environment: pytest.MonkeyPatch, variables: Mapping[str, str]) -> None:
    """Set them."""
    for name, value in variables.items():
        environment.setenv(name, value)


# -- addresses -----------------------------------------------------------------------------------

GRPC = {f"{OTLP}PROTOCOL": "grpc"}


@pytest.mark.parametrize(
    ("variables", "url", "secure"),
    [
        ({}, "http://localhost:4318/v1/traces", False),
        ({f"{OTLP}PROTOCOL": "http/json"}, "http://localhost:4318/v1/traces", False),
        ({f"{OTLP}ENDPOINT": "http://c:4318"}, "http://c:4318/v1/traces", False),
        ({f"{OTLP}ENDPOINT": "http://c:4318/"}, "http://c:4318/v1/traces", False),
        ({f"{OTLP}ENDPOINT": "https://c/otlp"}, "https://c/otlp/v1/traces", True),
        ({f"{OTLP}ENDPOINT": "https://c/otlp/?x=1"}, "https://c/otlp/v1/traces?x=1", True),
        ({f"{OTLP}ENDPOINT": "http://[::1]:4318"}, "http://[::1]:4318/v1/traces", False),
        ({f"{OTLP}ENDPOINT": "  http://c:1  "}, "http://c:1/v1/traces", False),
        ({f"{OTLP}ENDPOINT": ""}, "http://localhost:4318/v1/traces", False),
        # A signal's own is taken as it is.
        ({f"{OF_TRACES}ENDPOINT": "http://c:4318"}, "http://c:4318", False),
        ({f"{OF_TRACES}ENDPOINT": "https://c/spans"}, "https://c/spans", True),
        (
            {f"{OF_TRACES}ENDPOINT": "http://a/t", f"{OTLP}ENDPOINT": "http://b"},
            "http://a/t",
            False,
        ),
        ({f"{OF_TRACES}ENDPOINT": "", f"{OTLP}ENDPOINT": "http://b"}, "http://b/v1/traces", False),
        # gRPC has no paths; without a scheme it is encrypted unless told otherwise.
        (GRPC, "localhost:4317", False),
        ({**GRPC, f"{OTLP}ENDPOINT": "http://c:9"}, "c:9", False),
        ({**GRPC, f"{OTLP}ENDPOINT": "http://c:9/v1/traces"}, "c:9", False),
        ({**GRPC, f"{OTLP}ENDPOINT": "http://c"}, "c:4317", False),
        ({**GRPC, f"{OTLP}ENDPOINT": "https://c:9"}, "c:9", True),
        ({**GRPC, f"{OTLP}ENDPOINT": "https://c"}, "c:443", True),
        ({**GRPC, f"{OTLP}ENDPOINT": "https://c", f"{OTLP}INSECURE": "true"}, "c:443", True),
        ({**GRPC, f"{OTLP}ENDPOINT": "c:9"}, "c:9", True),
        ({**GRPC, f"{OTLP}ENDPOINT": "c:9", f"{OTLP}INSECURE": "true"}, "c:9", False),
        ({**GRPC, f"{OTLP}ENDPOINT": "c:9", f"{OTLP}INSECURE": "False"}, "c:9", True),
        ({**GRPC, f"{OTLP}INSECURE": "false"}, "localhost:4317", True),
        ({**GRPC, f"{OTLP}ENDPOINT": "[::1]:9", f"{OF_TRACES}INSECURE": "true"}, "[::1]:9", False),
        (
            {**GRPC, f"{OTLP}INSECURE": "true", f"{OF_TRACES}INSECURE": "false"},
            "localhost:4317",
            True,
        ),
        # The protocol of the signal comes before the general one.
        (
            {**GRPC, f"{OF_TRACES}PROTOCOL": "http/protobuf"},
            "http://localhost:4318/v1/traces",
            False,
        ),
    ],
)
def test_address(
    environment: pytest.MonkeyPatch, variables: dict[str, str], url: str, secure: bool
) -> None:
    """Paths, default ports and encryption are those of the specification."""
    put(environment, variables)
    endpoint = read_endpoint("traces")
    assert (endpoint.url, endpoint.secure) == (url, secure)


def test_signals_are_apart(environment: pytest.MonkeyPatch) -> None:
    """What is set for traces says nothing about metrics."""
    put(
        environment,
        {
            f"{OTLP}ENDPOINT": "http://all",
            f"{OTLP}TIMEOUT": "3",
            f"{OF_TRACES}ENDPOINT": "http://traces/t",
            f"{OF_TRACES}HEADERS": "a=1",
            f"{OF_TRACES}PROTOCOL": "http/json",
            f"{OF_TRACES}TIMEOUT": "4",
        },
    )
    traces, metrics = read_endpoint("traces"), read_endpoint("metrics")
    assert (traces.url, metrics.url) == ("http://traces/t", "http://all/v1/metrics")
    assert (traces.headers, metrics.headers) == ({"a": "1"}, {})
    assert (traces.protocol, metrics.protocol) == ("http/json", "http/protobuf")
    assert (traces.timeout_s, metrics.timeout_s) == (4, 3)


@pytest.mark.parametrize(
    ("text", "headers"),
    [
        ("", {}),
        ("a=1", {"a": "1"}),
        ("A=1, b = two ,", {"a": "1", "b": "two"}),
        ("authorization=Basic%20dG9rZW4=", {"authorization": "Basic dG9rZW4="}),
        ("x=a%2Cb%3Dc", {"x": "a,b=c"}),
        ("x=a%20", {"x": "a"}),  # spaces around a value are no part of it
        ("x=", {"x": ""}),
    ],
)
def test_headers(environment: pytest.MonkeyPatch, text: str, headers: dict[str, str]) -> None:
    """Names are in lower case, values decoded; the signal's own replace the general ones."""
    put(environment, {f"{OTLP}HEADERS": text})
    assert read_endpoint("traces").headers == headers
    put(environment, {f"{OTLP}HEADERS": "other=1", f"{OF_TRACES}HEADERS": text})
    assert read_endpoint("traces").headers == (headers or {"other": "1"})


def test_numbers_and_choices(environment: pytest.MonkeyPatch) -> None:
    """Timeout and compression have defaults, and may be set, for all or for traces."""
    assert (read_endpoint("traces").timeout_s, read_endpoint("traces").compression) == (10, "none")
    put(environment, {f"{OTLP}TIMEOUT": "0.5", f"{OTLP}COMPRESSION": "gzip"})
    assert (read_endpoint("traces").timeout_s, read_endpoint("traces").compression) == (0.5, "gzip")
    put(environment, {f"{OF_TRACES}TIMEOUT": "1e300", f"{OF_TRACES}COMPRESSION": "none"})
    endpoint = read_endpoint("traces")
    assert (endpoint.timeout_s, endpoint.compression) == (1e9, "none"), "what a clock can take"


def test_files(environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Certificates and keys are read; the key may be in the file of its certificate."""
    files = make_files("client")
    put(
        environment,
        {
            f"{OTLP}CERTIFICATE": str(files.authority),
            f"{OTLP}CLIENT_CERTIFICATE": "/nowhere",
            f"{OTLP}CLIENT_KEY": str(files.key),
            f"{OF_TRACES}CLIENT_CERTIFICATE": str(files.certificate),
        },
    )
    tls = read_endpoint("traces").tls
    assert (tls.certificate, tls.client_key) == (str(files.authority), str(files.key))
    assert tls.client_certificate == str(files.certificate)

    both = tmp_path / "both.pem"
    both.write_bytes(files.certificate.read_bytes() + files.key.read_bytes())
    environment.delenv(f"{OTLP}CLIENT_KEY")
    put(environment, {f"{OF_TRACES}CLIENT_CERTIFICATE": str(both)})
    assert read_endpoint("traces").tls.client_certificate == str(both)


# -- what is beside the endpoint -----------------------------------------------------------------


def test_limits(environment: pytest.MonkeyPatch) -> None:
    """OTEL_BSP_* say how many spans wait, how many go at once, and how long they may wait."""
    limits = read_limits(7)
    assert (limits.waiting, limits.batch, limits.delay_s, limits.timeout_s) == (65_536, 2048, 5, 7)
    put(environment, {"OTEL_BSP_MAX_QUEUE_SIZE": "100"})
    assert (read_limits(7).waiting, read_limits(7).batch) == (100, 100)
    put(
        environment,
        {
            "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "10",
            "OTEL_BSP_SCHEDULE_DELAY": "9" * 400,
            "OTEL_BSP_EXPORT_TIMEOUT": "1000",
        },
    )
    limits = read_limits(7)
    assert (limits.waiting, limits.batch, limits.delay_s) == (100, 10, 1e6)


@pytest.mark.parametrize(
    ("name", "argument", "description"),
    [
        ("", "", sampling.DEFAULT_ON),
        ("always_on", "", sampling.ALWAYS_ON),
        ("always_off", "", sampling.ALWAYS_OFF),
        ("parentbased_always_on", "", sampling.DEFAULT_ON),
        ("parentbased_always_off", "", sampling.DEFAULT_OFF),
        ("traceidratio", "", sampling.TraceIdRatioBased(1.0)),
        ("traceidratio", "0.25", sampling.TraceIdRatioBased(0.25)),
        ("parentbased_traceidratio", "0", sampling.ParentBasedTraceIdRatio(0.0)),
    ],
)
def test_sampler(
    environment: pytest.MonkeyPatch, name: str, argument: str, description: sampling.Sampler
) -> None:
    """OTEL_TRACES_SAMPLER and its argument choose one of the SDK's."""
    put(environment, {"OTEL_TRACES_SAMPLER": name, "OTEL_TRACES_SAMPLER_ARG": argument})
    assert _sampler().get_description() == description.get_description()


@pytest.mark.parametrize(
    ("exporters", "kinds"),
    [
        ("", ["SpanSender"]),
        ("otlp", ["SpanSender"]),
        ("otlp_proto_grpc", ["SpanSender"]),
        ("console, otlp", ["ExporterSender", "SpanSender"]),
        ("otlp_json_file", ["FileSender"]),
        ("none", []),
    ],
)
def test_span_exporters(
    environment: pytest.MonkeyPatch, tmp_path: Path, exporters: str, kinds: list[str]
) -> None:
    """OTEL_TRACES_EXPORTER names one or several; a file of a rank's own is written by default."""
    environment.chdir(tmp_path)
    put(environment, {"OTEL_TRACES_EXPORTER": exporters, "RANK": "3", "WORLD_SIZE": "4"})
    found = [sender for sender, _ in _span_senders()]
    for sender in found:
        sender.close()
    assert [type(sender).__name__ for sender in found] == kinds
    written = [path.name for path in tmp_path.iterdir()]
    assert written == (["modtrack-spans.rank3.jsonl"] if "FileSender" in kinds else [])
    if exporters == "otlp_proto_grpc":
        assert found[0].endpoint.url == "localhost:4317"


def test_metric_exporters(environment: pytest.MonkeyPatch) -> None:
    """OTEL_METRICS_EXPORTER is otlp unless it is none."""
    put(environment, {f"{OTLP}METRICS_ENDPOINT": "http://m/v1"})
    sender = _metric_sender()
    assert sender is not None
    assert sender.endpoint.url == "http://m/v1"
    put(environment, {"OTEL_METRICS_EXPORTER": "none"})
    assert _metric_sender() is None


def test_resource(environment: pytest.MonkeyPatch) -> None:
    """Who this is: by the environment, else by the argument; and what the launcher says."""
    assert make_resource("mine").attributes["service.name"] == "mine"
    assert "modtrack.rank" not in make_resource(None).attributes
    put(
        environment,
        {
            "OTEL_RESOURCE_ATTRIBUTES": "service.name=given,team=a%2Cb",
            "RANK": "3",
            "WORLD_SIZE": "4",
            "LOCAL_RANK": "1",
            "TORCHELASTIC_RUN_ID": "run-7",
        },
    )
    found = make_resource("mine").attributes
    assert (found["service.name"], found["team"]) == ("given", "a,b")
    assert (found["modtrack.rank"], found["modtrack.world_size"]) == (3, 4)
    assert (found["modtrack.local_rank"], found["modtrack.job.id"]) == (1, "run-7")
    assert found["process.pid"] == os.getpid()
    put(environment, {"OTEL_SERVICE_NAME": "named"})
    assert make_resource("mine").attributes["service.name"] == "named"


# -- values that cannot be used ------------------------------------------------------------------

WRONG = [
    (f"{OTLP}PROTOCOL", "http", {}),
    (f"{OF_TRACES}PROTOCOL", "GRPC", {}),
    (f"{OTLP}METRICS_PROTOCOL", "thrift", {}),
    (f"{OTLP}ENDPOINT", "collector:4318", {}),
    (f"{OTLP}ENDPOINT", "ftp://collector", {}),
    (f"{OTLP}ENDPOINT", "http://", {}),
    (f"{OTLP}ENDPOINT", "http://collector:port", {}),
    (f"{OTLP}ENDPOINT", "http://collector:0", {}),
    (f"{OTLP}ENDPOINT", "http://collector:70000", {}),
    (f"{OTLP}ENDPOINT", "http://[::1", {}),
    (f"{OTLP}ENDPOINT", "http://my collector", {}),
    (f"{OF_TRACES}ENDPOINT", "nothing", {}),
    (f"{OTLP}METRICS_ENDPOINT", "nothing", {}),
    (f"{OTLP}ENDPOINT", "http://user:word@collector", GRPC),
    (f"{OTLP}ENDPOINT", "collector:port", GRPC),
    (f"{OTLP}HEADERS", "no-equals-sign", {}),
    (f"{OTLP}HEADERS", "=value", {}),
    (f"{OTLP}HEADERS", "a name=value", {}),
    (f"{OTLP}HEADERS", "a=1,b=line%0Abreak", {}),
    (f"{OF_TRACES}HEADERS", "a=snow☃", {}),
    (f"{OTLP}HEADERS", "odd!name=1", GRPC),
    (f"{OTLP}HEADERS", "trace-bin=1", GRPC),
    (f"{OTLP}TIMEOUT", "soon", {}),
    (f"{OTLP}TIMEOUT", "0", {}),
    (f"{OF_TRACES}TIMEOUT", "-1", {}),
    (f"{OTLP}TIMEOUT", "nan", {}),
    (f"{OTLP}TIMEOUT", "inf", {}),
    (f"{OTLP}COMPRESSION", "deflate", {}),
    (f"{OTLP}INSECURE", "yes", {**GRPC, f"{OTLP}ENDPOINT": "collector:4317"}),
    (f"{OTLP}CERTIFICATE", "/nowhere.pem", {}),
    (f"{OTLP}CERTIFICATE", os.devnull, {}),
    (f"{OF_TRACES}CLIENT_CERTIFICATE", "/nowhere.pem", {}),
    (f"{OTLP}CLIENT_CERTIFICATE", os.devnull, {}),
    (f"{OTLP}CLIENT_KEY", "/nowhere.pem", {}),
    (f"{OTLP}CLIENT_KEY", os.devnull, {}),
    ("OTEL_TRACES_EXPORTER", "zipkin-of-old", {}),
    ("OTEL_METRICS_EXPORTER", "console", {}),
    ("OTEL_PYTHON_MODTRACK_FILE", "/nowhere/x", {"OTEL_TRACES_EXPORTER": "otlp_json_file"}),
    ("OTEL_PYTHON_MODTRACK_EXIT_TIMEOUT", "5s", {}),
    ("OTEL_PYTHON_MODTRACK_EXIT_TIMEOUT", "-1", {}),
    ("OTEL_TRACES_SAMPLER", "sometimes", {}),
    ("OTEL_TRACES_SAMPLER_ARG", "2", {"OTEL_TRACES_SAMPLER": "traceidratio"}),
    ("OTEL_TRACES_SAMPLER_ARG", "half", {"OTEL_TRACES_SAMPLER": "parentbased_traceidratio"}),
    ("OTEL_RESOURCE_ATTRIBUTES", "team", {}),
    ("OTEL_RESOURCE_ATTRIBUTES", os.fsdecode(b"team=caf\xe9"), {}),  # no UTF-8
    ("OTEL_BSP_MAX_QUEUE_SIZE", "0", {}),
    ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "1.5", {}),
    ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "9", {"OTEL_BSP_MAX_QUEUE_SIZE": "8"}),
    ("OTEL_BSP_SCHEDULE_DELAY", "-5", {}),
    ("OTEL_BSP_EXPORT_TIMEOUT", "never", {}),
    ("OTEL_METRIC_EXPORT_INTERVAL", "0", {}),
    ("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "sideways", {}),
    ("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "many", {}),
]


@pytest.mark.parametrize(("variable", "value", "others"), WRONG)
def test_wrong_value(
    environment: pytest.MonkeyPatch, variable: str, value: str, others: dict[str, str]
) -> None:
    """One sentence names the variable and the mend; nothing is left behind."""
    put(environment, {"OTEL_TRACES_EXPORTER": "otlp", variable: value, **others})
    telemetry = Telemetry()
    with pytest.raises(ConfigurationError) as caught:
        build(telemetry, None)
    sentence = str(caught.value)
    assert re.search(rf"\b{variable}\b", sentence)
    assert re.search(r"; (set|correct|write|percent|put|name|use|lower|install) ", sentence)
    assert len(sentence) < 250
    assert "\n" not in sentence
    assert not sentence.endswith(".")
    assert isinstance(caught.value, (ValueError, UsageError))
    assert not telemetry._deliveries


def test_key_that_is_not_the_certificates(environment: pytest.MonkeyPatch) -> None:
    """A key of another certificate is told, and so is one without any certificate."""
    client, server = make_files("client"), make_files("server")
    put(environment, {f"{OTLP}CLIENT_KEY": str(client.key)})
    with pytest.raises(ConfigurationError, match=r"CLIENT_KEY is set without .*CLIENT_CERTIFICATE"):
        read_endpoint("traces")
    put(environment, {f"{OTLP}CLIENT_CERTIFICATE": str(server.certificate)})
    with pytest.raises(ConfigurationError, match=r"CLIENT_CERTIFICATE and .*CLIENT_KEY do not fit"):
        read_endpoint("traces")


def test_key_with_a_passphrase(environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It is told, and nobody is asked for the passphrase on the terminal."""
    files = make_files("client")
    locked = tmp_path / "locked.key"
    subprocess.run(  # noqa: S603
        ["openssl", "ec", "-in", files.key, "-out", locked, "-aes128", "-passout", "pass:word"],  # noqa: S607
        check=True,
        capture_output=True,
    )
    put(
        environment,
        {
            f"{OTLP}CLIENT_CERTIFICATE": str(files.certificate),
            f"{OTLP}CLIENT_KEY": str(locked),
        },
    )
    with pytest.raises(ConfigurationError, match="without a passphrase"):
        read_endpoint("traces")


_PROGRAM = """
import os, sys
from opentelemetry import trace
from otel_modtrack import ConfigurationError, configure

for variable, value in (("OTEL_SDK_DISABLED", "maybe"), ("OTEL_SPAN_EVENT_COUNT_LIMIT", "many")):
    os.environ[variable] = value
    try:
        configure()
    except ConfigurationError as error:
        print(error)
    del os.environ[variable]
assert type(trace.get_tracer_provider()) is trace.ProxyTracerProvider
os.environ["OTEL_SDK_DISABLED"] = "True"
telemetry = configure(service_name="x")
assert type(telemetry.tracer_provider) is trace.ProxyTracerProvider
assert configure() is telemetry and telemetry.flush() and telemetry.shutdown()
print("torch" in sys.modules)
"""


def test_configure() -> None:
    """A wrong value leaves no provider; OTEL_SDK_DISABLED means none; torch is not needed."""
    known = {name: os.environ[name] for name in ("HOME", "PATH") if name in os.environ}
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-W", "error", "-c", _PROGRAM],
        capture_output=True,
        text=True,
        check=False,
        env=known,
    )
    assert (done.returncode, done.stderr) == (0, "")
    first, second, has_torch = done.stdout.splitlines()
    assert first == "OTEL_SDK_DISABLED=maybe is neither; set it to true or false"
    assert "OTEL_SPAN_EVENT_COUNT_LIMIT" in second
    assert second.endswith("; correct or unset it")
    assert has_torch == "False"
