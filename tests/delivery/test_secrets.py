"""Tokens, passwords and keys go where they are meant to go, and are told nowhere."""

from __future__ import annotations

import base64
import logging
import traceback
from typing import TYPE_CHECKING

import grpc
import pytest
import requests

from otel_modtrack import ConfigurationError
from otel_modtrack.configuring import Telemetry
from otel_modtrack.otlp.settings import read_endpoint
from otel_modtrack.pipeline import build
from tests.delivery.answers import TAKE, Answer, busy
from tests.delivery.certificates import make_files
from tests.delivery.pipes import connected, pipe, receiver_for
from tests.delivery.programs import run
from tests.delivery.receiver import HttpReceiver
from tests.polling import poll

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SECRET = "s3cr3t-t0ken"  # noqa: S105 - nobody's
PARTS = (SECRET, "s3cr3t", "t0ken", base64.b64encode(SECRET.encode()).decode())
OTLP = "OTEL_EXPORTER_OTLP_"
GRPC = {f"{OTLP}PROTOCOL": "grpc"}


def check(*texts: object) -> None:
    """None of them tells the secret, or half of it."""
    for text in texts:
        for part in PARTS:
            assert part not in str(text)
            assert part not in repr(text)


class Records(logging.Handler):
    """All that anyone logs at any level."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.found: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(record)


@pytest.fixture
def records() -> Iterator[list[logging.LogRecord]]:
    """All that is logged in a test; in the end it is checked as a handler would write it."""
    root, handler, form = logging.getLogger(), Records(), logging.Formatter("%(name)s %(message)s")
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield handler.found
    root.setLevel(level)
    root.removeHandler(handler)
    for record in handler.found:
        check(form.format(record), record.args, record.__dict__)


def test_records_are_seen(records: list[logging.LogRecord]) -> None:
    """What others send by urllib3 is logged as ever: only our own requests are not."""
    with HttpReceiver() as receiver:
        requests.get(f"{receiver.url}/?a=b", timeout=5)
    assert any("/?a=b" in record.getMessage() for record in records)


# -- what a server says --------------------------------------------------------------------------

REFUSED = grpc.StatusCode.PERMISSION_DENIED
QUOTING = {
    "refused": Answer(403, REFUSED, text=f"no: Bearer {SECRET}"),
    "not known": Answer(401, grpc.StatusCode.UNAUTHENTICATED, text=SECRET),
    "broken": Answer(500, grpc.StatusCode.INTERNAL, text=SECRET, details=SECRET.encode()),
    "busy": Answer(503, grpc.StatusCode.UNAVAILABLE, text=SECRET, details=busy(0.1).details),
    "too large": Answer(413, grpc.StatusCode.RESOURCE_EXHAUSTED, text=SECRET),
    "rejected": Answer(rejected=1, text=SECRET),
    "garbage": Answer(body=SECRET.encode() * 9),
    "broken off": Answer(body=SECRET.encode(), cut="middle"),
}
QUOTING_BY_HTTP = {
    "header": Answer(400, headers={"X-Error": SECRET, "Set-Cookie": f"a={SECRET}"}),
    "broken header": Answer(400, headers={f"Bearer {SECRET}\r\n{SECRET}": "1"}),
    "broken header of success": Answer(headers={f"Bearer {SECRET}\r\n{SECRET}": "1"}),
    "no compression": Answer(body=SECRET.encode(), headers={"Content-Encoding": "gzip"}),
    "redirect": Answer(307, headers={"Location": f"http://user:{SECRET}@[x/{SECRET}"}),
    "time": Answer(503, headers={"Retry-After": SECRET}),
}


@pytest.mark.parametrize(
    ("protocol", "answer"),
    [
        *[("http/protobuf", answer) for answer in (QUOTING | QUOTING_BY_HTTP).values()],
        *[("grpc", answer) for answer in QUOTING.values()],
    ],
    ids=[*(QUOTING | QUOTING_BY_HTTP), *(f"{name}, gRPC" for name in QUOTING)],
)
def test_server_quotes_it(
    environment: pytest.MonkeyPatch, records: list[logging.LogRecord], protocol: str, answer: Answer
) -> None:
    """What a server says about a request is not repeated: it may quote the token."""
    environment.setenv(f"{OTLP}HEADERS", f"authorization=Bearer%20{SECRET}")
    with connected(environment, protocol, authorization=f"Bearer {SECRET}") as receiver:
        receiver.script(answer)
        with pipe(exit_s=0.3, timeout_s=1) as made:
            made.produce(1)
            poll(lambda: receiver.requests, "it was sent")
            made.delivery.flush(0.3)
        made.check_sum()
        check(made.counts, dict(made.counts.lost_by_reason), made.endpoint, made.sender)
        for request in receiver.requests:
            assert request.headers["authorization"] == f"Bearer {SECRET}"
            check(request.body, request.decode())
            check({key: value for key, value in request.headers.items() if key != "authorization"})


def test_no_connection(environment: pytest.MonkeyPatch, records: list[logging.LogRecord]) -> None:
    """Nor is it told what was to be sent where nobody answers, or nobody is trusted."""
    files = make_files("server")
    environment.setenv(f"{OTLP}HEADERS", f"authorization={SECRET}")
    for protocol in ("http/protobuf", "grpc"):
        with connected(environment, protocol, tls=files) as receiver, pipe(exit_s=0.3) as made:
            made.produce(1)
            made.delivery.flush(0.3)
        check(made.counts)
        assert receiver.requests == []
        with pipe(exit_s=0.3) as made:  # the receiver is gone
            made.produce(1)
            made.delivery.flush(0.3)
        check(made.counts)
        assert made.counts.lost == 1


# -- addresses with credentials ------------------------------------------------------------------


def test_credentials_in_the_address(
    environment: pytest.MonkeyPatch, records: list[logging.LogRecord]
) -> None:
    """User, password and query go to the server, and into no log, error or count."""
    with HttpReceiver() as receiver:
        address = f"user%40x:{SECRET}%2F@localhost:{receiver.port}/otlp?key={SECRET}"
        environment.setenv(f"{OTLP}ENDPOINT", f"http://{address}")
        receiver.script(Answer(400, text=SECRET), busy(0.1), TAKE)
        with pipe() as made:
            made.produce(1)
            assert made.delivery.flush(10)
            made.produce(1)
            assert made.delivery.flush(10)
        assert (made.counts.delivered, made.counts.lost) == (1, 1)
        request = receiver.requests[-1]
        assert request.path == f"/otlp/v1/traces?key={SECRET}"
        assert base64.b64decode(request.headers["authorization"].partition(" ")[2]) == (
            f"user@x:{SECRET}/".encode()
        )
        assert made.endpoint.shown == f"http://localhost:{receiver.port}/otlp/v1/traces"
        check(made.counts, made.endpoint, made.endpoint.tls, made.sender)


def test_netrc(
    environment: pytest.MonkeyPatch, records: list[logging.LogRecord], tmp_path: Path
) -> None:
    """What ~/.netrc has for the host is not sent, and does not take the place of what is set."""
    netrc = tmp_path / "netrc"
    netrc.write_text(f"machine localhost login user password {SECRET}\n")
    environment.setenv("NETRC", str(netrc))
    with connected(environment, "http/protobuf") as receiver:
        with pipe() as made:
            made.produce(1)
        environment.setenv(f"{OTLP}HEADERS", "authorization=mine")
        with pipe() as made:
            made.produce(1)
        first, second = receiver.requests
    assert "authorization" not in first.headers
    assert second.headers["authorization"] == "mine"


def test_proxy(environment: pytest.MonkeyPatch, records: list[logging.LogRecord]) -> None:
    """A proxy gets its own credentials, and no others are made of them."""
    with HttpReceiver() as proxy:
        environment.setenv("http_proxy", f"http://user:{SECRET}@localhost:{proxy.port}")
        environment.setenv(f"{OTLP}ENDPOINT", "http://collector.invalid:4318")
        with pipe() as made:
            made.produce(1)
        made.all_in(proxy)
        assert proxy.requests[0].path == "http://collector.invalid:4318/v1/traces"
        assert proxy.requests[0].headers["proxy-authorization"].startswith("Basic ")
        assert "authorization" not in proxy.requests[0].headers

        environment.setenv("https_proxy", f"http://user:{SECRET}@localhost:{proxy.port}")
        environment.setenv(f"{OTLP}ENDPOINT", "https://collector.invalid:4318")
        proxy.script(Answer(text=SECRET))  # the reason why it opens no tunnel
        with pipe(exit_s=0.3) as made:
            made.produce(1)
            made.delivery.flush(0.3)
        assert made.counts.lost == 1
        check(made.counts)


# -- values that cannot be used ------------------------------------------------------------------

PEM = f"-----BEGIN PRIVATE KEY-----\n{SECRET}{'A' * 300}\n-----END PRIVATE KEY-----\n"


@pytest.mark.parametrize(
    ("variable", "value", "others"),
    [
        (f"{OTLP}HEADERS", SECRET, {}),
        (f"{OTLP}HEADERS", f"authorization Bearer {SECRET}", {}),
        (f"{OTLP}HEADERS", f"Bearer {SECRET}=", {}),
        (f"{OTLP}HEADERS", f"a=1,{SECRET},b=2", {}),
        (f"{OTLP}HEADERS", f"authorization={SECRET}%0A", {}),
        (f"{OTLP}HEADERS", f"authorization={SECRET}%0Ax", {}),
        (f"{OTLP}HEADERS", f"authorization={SECRET}☃", {}),
        (f"{OTLP}HEADERS", f"={SECRET}", {}),
        (f"{OTLP}TRACES_HEADERS", f"{SECRET}☃=1", {}),
        (f"{OTLP}METRICS_HEADERS", SECRET, {}),
        (f"{OTLP}HEADERS", f"{SECRET}!={SECRET}", GRPC),
        (f"{OTLP}HEADERS", f"{SECRET}-bin={SECRET}", GRPC),
        (f"{OTLP}ENDPOINT", f"ftp://user:{SECRET}@collector", {}),
        (f"{OTLP}ENDPOINT", f"user:{SECRET}@collector:4318", {}),
        (f"{OTLP}ENDPOINT", f"http://user:{SECRET}@collector:port", {}),
        (f"{OTLP}ENDPOINT", f"http://user:{SECRET}@", {}),
        # An unencoded / ? or # ends the address, and what follows looks like a path.
        (f"{OTLP}ENDPOINT", f"http://user:{SECRET}/@collector", {}),
        (f"{OTLP}ENDPOINT", f"http://user:12/{SECRET}@collector", {}),
        (f"{OTLP}ENDPOINT", f"http://user:12?{SECRET}@collector", {}),
        (f"{OTLP}ENDPOINT", f"http://user:12#{SECRET}@collector", {}),
        (f"{OTLP}ENDPOINT", f"http://user:{SECRET}@[::1", {}),
        (f"{OTLP}ENDPOINT", f"https://user:{SECRET}@collector:4317", GRPC),
        (f"{OTLP}ENDPOINT", f"user:{SECRET}@collector:4317", GRPC),
        # The key itself in place of its file.
        (f"{OTLP}CLIENT_KEY", PEM, {}),
        (f"{OTLP}CLIENT_KEY", SECRET, {}),
        (f"{OTLP}CLIENT_CERTIFICATE", PEM, {}),
        (f"{OTLP}CERTIFICATE", PEM, {}),
        ("OTEL_RESOURCE_ATTRIBUTES", SECRET, {}),
    ],
)
def test_wrong_value(
    environment: pytest.MonkeyPatch,
    records: list[logging.LogRecord],
    variable: str,
    value: str,
    others: dict[str, str],
) -> None:
    """The error names the variable, and neither it nor any other behind it quotes the value."""
    for name, text in {**others, variable: value}.items():
        environment.setenv(name, text)
    if value.endswith("%0A"):  # a line end around the value is none in it
        assert read_endpoint("traces").headers == {"authorization": SECRET}
        return
    with pytest.raises(ConfigurationError) as caught:
        build(Telemetry(), None)
    assert variable in str(caught.value)
    check_error(caught.value)


def check_error(error: BaseException | None) -> None:
    """Neither an error nor one that it came from tells the secret, printed or not."""
    while error is not None:
        check(error, error.args, *traceback.format_exception_only(error))
        check(getattr(error, "filename", ""))
        error = error.__cause__ or error.__context__


def test_files_that_cannot_be_used(records: list[logging.LogRecord], tmp_path: Path) -> None:
    """An error about a file tells nothing of what is in it."""
    bad = tmp_path / "bad.pem"
    bad.write_text(PEM)
    good = make_files("client")
    for variable, others in (
        ("CERTIFICATE", {}),
        ("CLIENT_CERTIFICATE", {}),
        ("CLIENT_KEY", {f"{OTLP}CLIENT_CERTIFICATE": str(good.certificate)}),
    ):
        with pytest.MonkeyPatch.context() as environment:
            for name, text in {**others, f"{OTLP}{variable}": str(bad)}.items():
                environment.setenv(name, text)
            with pytest.raises(ConfigurationError, match=f"{OTLP}{variable}") as caught:
                read_endpoint("traces")
            check_error(caught.value)


# -- a whole program -----------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_program(protocol: str) -> None:
    """All that a program prints, with every log at its lowest level, tells no token and no key."""
    server, client = make_files("server"), make_files("client")
    variables = {
        f"{OTLP}PROTOCOL": protocol,
        f"{OTLP}HEADERS": f"authorization=Bearer%20{SECRET}",
        f"{OTLP}CERTIFICATE": str(server.authority),
        f"{OTLP}CLIENT_CERTIFICATE": str(client.certificate),
        f"{OTLP}CLIENT_KEY": str(client.key),
        "OTEL_METRIC_EXPORT_INTERVAL": "50",
        "OTEL_PYTHON_MODTRACK_EXIT_TIMEOUT": "0.5",
    }
    body = """
import logging
logging.basicConfig(level=logging.DEBUG)
for count in (1, 2, 3):
    produce(count)
    assert telemetry.flush(20)
for one in (telemetry, telemetry.spans, telemetry.tracer_provider, telemetry.meter_provider,
            telemetry._deliveries, telemetry.tracer_provider.resource.attributes,
            telemetry._reader, telemetry._deliveries[0]._sender.endpoint):
    print(repr(one))
produce(4)
"""
    with receiver_for(protocol, tls=server, mutual=True) as receiver:
        bad = Answer(403, REFUSED, text=SECRET, headers={f"Bearer {SECRET}\r\n{SECRET}": "1"})
        receiver.script(Answer(403, REFUSED, text=SECRET), bad, TAKE)
        found = run(body, variables | {f"{OTLP}ENDPOINT": receiver.url})
        assert len(receiver.requests) > 2
        assert receiver.requests[-1].headers["authorization"] == f"Bearer {SECRET}"
        for request in receiver.requests:
            check(request.body)
    key = client.key.read_text().splitlines()[1]
    for text in (found.said, found.printed):
        assert "BEGIN" not in text
        assert key not in text
        check(text)
    assert "spans" in found.said
