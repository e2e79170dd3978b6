"""What a program that calls `configure` delivers, counts and says when it ends."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.backends.programs import free_port
from tests.delivery.answers import INVALID, NEVER, TAKE, busy
from tests.delivery.pipes import SLACK_S, black_hole, receiver_for
from tests.delivery.programs import run
from tests.delivery.receiver import HttpReceiver

if TYPE_CHECKING:
    from tests.delivery.receiver import Receiver

EXIT_TIMEOUT_S = 1.0
EXPORTED = "otel.sdk.exporter.span.exported"

both_transports = pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])


def variables(protocol: str, url: str) -> dict[str, str]:
    """Spans go there, and metrics nowhere."""
    return {
        "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
        "OTEL_EXPORTER_OTLP_ENDPOINT": url,
        "OTEL_METRICS_EXPORTER": "none",
        "OTEL_BSP_SCHEDULE_DELAY": "60000",  # what is flushed together goes together
        "OTEL_PYTHON_MODTRACK_EXIT_TIMEOUT": f"{EXIT_TIMEOUT_S:g}",
    }


@both_transports
def test_backend_is_there(protocol: str) -> None:
    """All that waits at the end is delivered, also what a handler at the exit makes, in silence."""
    body = "atexit.register(produce, 5); produce(3000)"
    with receiver_for(protocol) as receiver:
        found = run(body, variables(protocol, receiver.url))
        assert receiver.span_ids() == sorted(found.spans)
    assert (found.delivered, found.lost, found.waiting) == (3005, {}, 0)
    assert found.said == ""


@both_transports
def test_black_hole(protocol: str) -> None:
    """The end comes in time, and one line says how many spans were lost, of how many, and why."""
    with black_hole() as port:
        found = run("produce(1234)", variables(protocol, f"http://127.0.0.1:{port}"))
    assert found.exit_s < EXIT_TIMEOUT_S + SLACK_S
    assert (found.delivered, sum(found.lost.values()), found.waiting) == (0, 1234, 0)
    (reason,) = found.lost  # the end, or the end of the request that was under way then
    assert found.said == f"1,234 of 1,234 spans were lost: 1,234 {reason}\n"


@both_transports
def test_dies_in_between(protocol: str) -> None:
    """What was delivered before stays delivered; only what was not is lost."""
    with receiver_for(protocol) as receiver:
        receiver.script(TAKE, NEVER)
        body = "produce(10); assert telemetry.flush(60); produce(20)"
        found = run(body, variables(protocol, receiver.url))
        assert receiver.span_ids() == sorted(found.spans[:10])
    assert found.exit_s < EXIT_TIMEOUT_S + SLACK_S
    assert (found.delivered, sum(found.lost.values()), found.waiting) == (10, 20, 0)
    assert "20 of 30 spans were lost: 20 " in found.said


def test_several_reasons() -> None:
    """A queue that is full, a refusal, a backend that is busy: each has its number."""
    with HttpReceiver() as receiver:
        receiver.script(INVALID, busy(60))
        body = """
produce(10)
telemetry.flush(60)
produce(50)
found = telemetry.spans
assert found.lost == sum(found.lost_by_reason.values()) >= 40
assert found.delivered + found.lost + found.waiting == 60
print(found)
"""
        few = {"OTEL_BSP_MAX_QUEUE_SIZE": "10", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "10"}
        found = run(body, variables("http/protobuf", receiver.url) | few)
        assert receiver.span_ids() == []
    assert (found.delivered, sum(found.lost.values()), found.waiting) == (0, 60, 0)
    assert found.lost["HTTP 400"] == 10
    assert found.lost["HTTP 503"] + found.lost["queue full"] == 50
    assert found.printed.startswith("<Counts delivered=0 lost=")
    refused, at_the_end = found.said.splitlines()
    assert refused == f"10 spans are lost: {receiver.url}/v1/traces said HTTP 400"
    assert at_the_end.startswith("60 of 60 spans were lost: ")


def test_absent() -> None:
    """A backend that never was there does not hold up the end, nor the program."""
    body = """
produce(10)
assert not telemetry.flush(0.1)
while not telemetry._deliveries[0]._is_down:
    time.sleep(0.001)
produce(10)
"""
    found = run(body, variables("grpc", f"http://localhost:{free_port()}"))
    assert found.exit_s < EXIT_TIMEOUT_S + SLACK_S
    assert (found.delivered, sum(found.lost.values()), found.waiting) == (0, 20, 0)
    waits, at_the_end = found.said.splitlines()
    assert waits.startswith("spans cannot be delivered to localhost:")
    assert at_the_end.startswith("20 of 20 spans were lost: ")


def exported(receiver: Receiver) -> dict[str, int]:
    """The last that its metrics said about spans: by error.type, delivered ones under ""."""
    found: dict[str, int] = {}
    for request in receiver.requests:
        for resource in request.decode().resource_metrics:
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    if metric.name != EXPORTED:
                        continue
                    found = {}
                    for point in metric.sum.data_points:
                        attributes = {one.key: one.value.string_value for one in point.attributes}
                        found[attributes.get("error.type", "")] = point.as_int
    return found


def test_metrics_of_the_end() -> None:
    """The last metrics tell what the program itself tells when all is over."""
    with HttpReceiver() as receiver, HttpReceiver() as of_metrics:
        receiver.script(INVALID, TAKE, TAKE, NEVER)
        own = {
            "OTEL_METRICS_EXPORTER": "otlp",
            "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": f"{of_metrics.url}/metrics",
        }
        body = """
import json
for count in (10, 20, 30):
    produce(count)
    assert telemetry.flush(60)
print(json.dumps(telemetry.spans.lost_by_reason))
produce(40)
"""
        found = run(body, variables("http/protobuf", receiver.url) | own)
        assert json.loads(found.printed) == {"HTTP 400": 10}
        assert (found.delivered, sum(found.lost.values())) == (50, 50)
        assert exported(of_metrics) == {"": 50, **found.lost}
        assert {request.path for request in of_metrics.requests} == {"/metrics"}
        assert found.exit_s < EXIT_TIMEOUT_S + SLACK_S


def test_metrics_of_a_run() -> None:
    """While the program runs, every so often, they tell what is delivered and what is lost."""
    with HttpReceiver() as receiver, HttpReceiver() as of_metrics:
        receiver.script(INVALID, TAKE)
        own = {
            "OTEL_METRICS_EXPORTER": "otlp",
            "OTEL_METRIC_EXPORT_INTERVAL": "50",
            "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": f"{of_metrics.url}/metrics",
        }
        body = """
for count in (10, 20):
    produce(count)
    assert telemetry.flush(60)
metrics = telemetry._reader._delivery.counts
known = metrics.delivered
while metrics.delivered < known + 3:
    time.sleep(0.001)
over_s = time.monotonic()
report()
sys.stdout.flush()
os._exit(0)  # no metrics of the end
"""
        run(body, variables("http/protobuf", receiver.url) | own)
        assert exported(of_metrics) == {"": 20, "HTTP 400": 10}


def test_instrument_that_takes_its_time() -> None:
    """A program's own callback does not hold up the end, nor keep spans from being delivered."""
    with HttpReceiver() as receiver:
        body = """
def slow(_):
    time.sleep(60)
    return []
telemetry.meter_provider.get_meter("tests").create_observable_gauge("slow", [slow])
produce(10)
"""
        own = {"OTEL_METRICS_EXPORTER": "otlp"}
        found = run(body, variables("http/protobuf", receiver.url) | own)
        assert receiver.span_ids() == sorted(found.spans)
    assert found.exit_s < EXIT_TIMEOUT_S + SLACK_S
    assert (found.delivered, found.lost) == (10, {})
