"""The road that `configure` builds for spans, without making anything global."""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING, Any

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider, sampling

from otel_modtrack.otlp.delivery import Delivery, Limits
from otel_modtrack.otlp.senders import SpanSender
from otel_modtrack.otlp.settings import read_endpoint
from otel_modtrack.pipeline import Processor
from tests.delivery.receiver import GrpcReceiver, HttpReceiver

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest

    from tests.delivery.receiver import Receiver

PROTOCOLS = ("http/protobuf", "http/json", "grpc")
EXIT_TIMEOUT_S = 5.0
SLACK_S = 5.0  # what a busy machine may take on top; whoever waits for an answer takes longer


def receiver_for(protocol: str, **others: Any) -> Receiver:
    """A receiver that speaks it; not started."""
    return (GrpcReceiver if protocol == "grpc" else HttpReceiver)(**others)


class Pipe:
    """A provider, the delivery behind it, and the ids of all spans that it made.

    Where it goes is read from the environment as `configure` does.
    """

    def __init__(self, limits: Limits, sender: Any = None) -> None:
        self.endpoint = read_endpoint("traces")
        self.sender = sender or SpanSender(self.endpoint)
        self.delivery = Delivery(self.sender, limits)
        self.counts = self.delivery.counts
        self.provider = TracerProvider(
            sampler=sampling.ALWAYS_ON,
            resource=Resource({"service.name": "pipe"}),
            shutdown_on_exit=False,
        )
        self.provider.add_span_processor(Processor(self.delivery, EXIT_TIMEOUT_S))
        self._tracer = self.provider.get_tracer("tests")
        self.span_ids: list[str] = []

    def produce(self, count: int, **attributes: Any) -> None:
        """Make so many spans, at once."""
        for _ in range(count):
            with self._tracer.start_as_current_span("span", attributes=attributes) as span:
                self.span_ids.append(f"{span.get_span_context().span_id:016x}")

    def check_sum(self) -> None:
        """Every span is delivered, lost or waiting."""
        counts = self.counts
        assert counts.delivered + counts.lost + counts.waiting == len(self.span_ids), counts

    def all_in(self, receiver: Receiver) -> None:
        """Every span is there, once."""
        assert receiver.span_ids() == sorted(self.span_ids)
        assert (self.counts.delivered, self.counts.lost) == (len(self.span_ids), 0)


@contextlib.contextmanager
def pipe(*, exit_s: float = EXIT_TIMEOUT_S, sender: Any = None, **limits: Any) -> Iterator[Pipe]:
    """A pipe that is shut down in the end, however the test ends; nothing of it is left."""
    usual = {"waiting": 10_000, "batch": 64, "delay_s": 0.01, "timeout_s": 10.0}
    made = Pipe(Limits(**{**usual, **limits}), sender)
    try:
        yield made
    finally:
        made.delivery.shutdown(exit_s)
        thread = made.delivery._thread
        if thread is not None:
            thread.join()


@contextlib.contextmanager
def connected(environment: pytest.MonkeyPatch, protocol: str, **others: Any) -> Iterator[Receiver]:
    """A receiver that listens, and that the environment names."""
    with receiver_for(protocol, **others) as receiver:
        environment.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
        environment.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
        yield receiver


@contextlib.contextmanager
def black_hole() -> Iterator[int]:
    """A port at which packets vanish: whoever connects gets neither an answer nor a refusal."""
    with contextlib.ExitStack() as opened:
        listener = opened.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):  # nobody accepts them: the backlog is full, and what comes is dropped
            waiting = opened.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]
