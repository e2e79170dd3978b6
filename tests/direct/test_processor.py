"""`OtlpSpanProcessor`, in the one line in which it takes the exporter's place."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from torch import nn

import otel_modtrack
from otel_modtrack import ModTracker
from otel_modtrack.otlp import OtlpSpanProcessor
from otel_modtrack.usage import ConfigurationError
from tests.delivery.answers import INVALID
from tests.delivery.pipes import connected, receiver_for
from tests.direct.decoded import from_json, from_request
from tests.direct.roads import HAS_JSON

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.delivery.receiver import Receiver

PROTOCOLS = ("http/protobuf", "grpc", *(("http/json",) if HAS_JSON else ()))


@pytest.fixture
def provider() -> Iterator[TracerProvider]:
    """One of the program's own; its threads have ended when the test is over."""
    provider = TracerProvider(resource=Resource({"service.name": "own"}), shutdown_on_exit=False)
    yield provider
    provider.shutdown()
    for thread in threading.enumerate():
        if thread.name == "otel_modtrack spans":
            thread.join(5)


def run(provider: TracerProvider) -> None:
    """A step, and a span of the program's own."""
    with ModTracker(tracer_provider=provider) as tracker, tracker.step(1):
        nn.Linear(2, 2)(torch.ones(1, 2)).sum().backward()
    provider.get_tracer("mine").start_span("mine").end()


def names(receiver: Receiver, protocol: str) -> list[str]:
    """What arrived."""
    bodies = [request.body for request in receiver.requests]
    found = from_json(*bodies) if protocol == "http/json" else from_request(*bodies)
    resource: Any = {"attributes": [{"key": "service.name", "value": {"stringValue": "own"}}]}
    assert all(one["resource"] == resource for one in found.values())
    return sorted(one["span"]["name"] for one in found.values())


WANTED = ["backward", "backward Linear", "forward Linear", "mine", "train_step"]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_by_the_environment(
    environment: pytest.MonkeyPatch, provider: TracerProvider, protocol: str
) -> None:
    """Without arguments it goes where the stock exporter would; all spans do."""
    with connected(environment, protocol) as receiver:
        processor = OtlpSpanProcessor()
        provider.add_span_processor(processor)
        run(provider)
        assert provider.force_flush()
        assert names(receiver, protocol) == WANTED
    counts = processor.counts
    assert (counts.delivered, counts.lost, counts.waiting) == (5, 0, 0)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_by_arguments(
    environment: pytest.MonkeyPatch, provider: TracerProvider, protocol: str
) -> None:
    """What is given is used, whatever the environment says."""
    environment.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://localhost:9")
    environment.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-other=1")
    with receiver_for(protocol, authorization="Bearer abc") as receiver:
        address = receiver.url if protocol == "grpc" else f"{receiver.url}/v1/traces"
        processor = OtlpSpanProcessor(
            address, protocol=protocol, headers={"Authorization": "Bearer abc"}
        )
        provider.add_span_processor(processor)
        run(provider)
        assert provider.force_flush()
        assert names(receiver, protocol) == WANTED
        assert "x-other" not in receiver.requests[0].headers


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"protocol": "thrift"}, "protocol='thrift' is not supported"),
        ({"endpoint": "no address"}, "endpoint= is no address"),
    ],
)
def test_arguments_that_cannot_be_used(
    environment: pytest.MonkeyPatch, arguments: dict[str, str], said: str
) -> None:
    """One sentence that says which."""
    with pytest.raises(ConfigurationError, match=said):
        OtlpSpanProcessor(**arguments)


def test_what_is_lost_is_told(
    environment: pytest.MonkeyPatch, provider: TracerProvider, caplog: pytest.LogCaptureFixture
) -> None:
    """In the counts, and in one line when the provider is shut down."""
    with connected(environment, "http/protobuf") as receiver:
        receiver.script(INVALID)
        processor = OtlpSpanProcessor()
        provider.add_span_processor(processor)
        run(provider)
        provider.shutdown()
        provider.shutdown()
    assert processor.counts.lost_by_reason == {"HTTP 400": 5}
    assert [line for line in caplog.messages if "were lost" in line] == [
        "5 of 5 spans were lost: 5 HTTP 400"
    ]


PROGRAM = """
import os, sys, torch
from opentelemetry.sdk.trace import TracerProvider
from otel_modtrack import ModTracker
from otel_modtrack.otlp import OtlpSpanProcessor

provider = TracerProvider()
processor = OtlpSpanProcessor(sys.argv[1])
provider.add_span_processor(processor)
model = torch.nn.Linear(2, 2)

def run():
    with ModTracker(model, tracer_provider=provider):
        model(torch.ones(1, 2))

run()
child = os.fork()
run()
assert provider.force_flush()
assert processor.counts.delivered == (1 if child == 0 else 2), processor.counts
if child == 0:
    os._exit(0)
_, status = os.waitpid(child, 0)
assert status == 0
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_forked(environment: pytest.MonkeyPatch) -> None:
    """A child delivers its own spans, once, with the Resource that the SDK gives it."""
    with receiver_for("http/protobuf") as receiver:
        done = subprocess.run(  # noqa: S603 - ours
            [sys.executable, "-W", "ignore", "-c", PROGRAM, f"{receiver.url}/v1/traces"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        found = from_request(*(request.body for request in receiver.requests))
    assert len(found) == 3
    resources = {json.dumps(one["resource"]) for one in found.values()}
    renews = hasattr(TracerProvider, "_update_resource")  # of the SDK's newer versions
    assert len(resources) == (2 if renews else 1)


def test_importing_costs_nothing() -> None:
    """The package is there without the SDK: what needs it is imported when it is asked for."""
    code = "import sys, otel_modtrack.otlp; assert 'opentelemetry.sdk' not in sys.modules"
    done = subprocess.run(  # noqa: S603 - ours
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    with pytest.raises(AttributeError, match="OtlpProcessor"):
        _ = otel_modtrack.otlp.OtlpProcessor


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"endpoint": 5}, r"^endpoint= wants an address, not int$"),
        ({"endpoint": "foo"}, r"^endpoint= is no address; .* http://localhost:4318/v1/traces$"),
        ({"exit_timeout_s": "x"}, r"^exit_timeout_s='x' is no number of 0 or more$"),
        ({"exit_timeout_s": -1}, r"^exit_timeout_s=-1 is no number of 0 or more$"),
        ({"headers": "a"}, r"^headers= wants a dict of texts, not str$"),
        ({"headers": {"a b": "c"}}, r"^headers=: 'a b' is no name of a header$"),
        ({"protocol": "grpc", "headers": {"a!": "b"}}, r"^headers= has a name in it that gRPC"),
        ({"headers": {"a": 1}}, r"^headers=: the value of 'a' is no text of one line"),
        ({"headers": {"a": "secret\n"}}, r"^headers=: the value of 'a' (?!.*secret)"),
    ],
)
def test_an_argument_that_cannot_be_used(wrong: dict[str, Any], sentence: str) -> None:
    """One sentence, when it is given; no value of a header in it."""
    with pytest.raises(ConfigurationError, match=sentence):
        OtlpSpanProcessor(**wrong)
