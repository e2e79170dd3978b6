"""A provider whose spans take our road, and what the stock exporter would send of them."""

from __future__ import annotations

import contextlib
import importlib.util
import json
from typing import TYPE_CHECKING, Any

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from otel_modtrack.otlp.delivery import Delivery, Limits
from otel_modtrack.otlp.processor import Processor
from otel_modtrack.otlp.senders import FileSender, SpanSender
from otel_modtrack.otlp.settings import read_endpoint
from tests.delivery.pipes import receiver_for
from tests.direct.decoded import from_json, from_request

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import pytest

    from otel_modtrack.otlp.records import Record

__all__ = ["HAS_JSON", "PROTOCOLS", "Counted", "Roads", "roads"]

HAS_JSON = importlib.util.find_spec("opentelemetry.exporter.otlp.json") is not None
FILE = "otlp_json_file"
PROTOCOLS = ("http/protobuf", "grpc", *(("http/json", FILE) if HAS_JSON else ()))


class Counted(Processor):
    """Ours, counting what comes which way."""

    def __init__(self, delivery: Delivery) -> None:
        super().__init__(delivery, 5.0)
        self.records = 0

    def put_records(self, records: Sequence[Record]) -> None:
        self.records += len(records)
        super().put_records(records)


class Roads:
    """A provider with our processor, and behind it one that keeps the SDK's spans.

    Attributes:
        provider: of both.
        ours: our processor.
        memory: what the SDK's exporters are given.
    """

    def __init__(self, protocol: str, receiver: Any, path: Path, provider: Any) -> None:
        self._protocol = protocol
        self._receiver = receiver
        self._path = path
        sender = FileSender(str(path)) if receiver is None else SpanSender(read_endpoint("traces"))
        self.delivery = Delivery(sender, Limits(20_000, 64, 0.01, 10.0))
        self.ours = Counted(self.delivery)
        self.memory = InMemorySpanExporter()
        self.provider: TracerProvider = provider
        provider.add_span_processor(self.ours)
        provider.add_span_processor(SimpleSpanProcessor(self.memory))

    def check(self, *, records: bool = True) -> dict[str, dict[str, Any]]:
        """What was received is what the stock exporter would have sent; gives it, by span id.

        Args:
            records: whether any of it has to have come without a span.
        """
        assert self.delivery.flush(10)
        spans = self.memory.get_finished_spans()
        counts = self.delivery.counts
        sampled = [span for span in spans if span.context.trace_flags & 1]
        assert (counts.delivered, counts.lost) == (len(sampled), 0)
        assert bool(self.ours.records) == records
        if self._receiver is None:
            found = from_json(*self._path.read_text().splitlines())
        elif self._protocol == "http/json":
            found = from_json(*(request.body for request in self._receiver.requests))
        else:
            found = from_request(*(request.body for request in self._receiver.requests))
        if "json" in self._protocol:
            from opentelemetry.exporter.otlp.json.common.trace_encoder import (  # noqa: PLC0415
                encode_spans as encode_json,
            )

            expected = from_json(json.dumps(encode_json(sampled).to_dict()))
        else:
            expected = from_request(encode_spans(sampled).SerializeToString())
        assert found == expected
        return found


@contextlib.contextmanager
def roads(
    environment: pytest.MonkeyPatch,
    path: Path,
    protocol: str = "http/protobuf",
    **settings: Any,
) -> Iterator[Roads]:
    """Both roads to a receiver, or a file; all of it is gone in the end.

    Args:
        environment: whose variables are set.
        path: of a file, where it is one.
        protocol: one of `PROTOCOLS`.
        settings: of the provider.
    """
    settings.setdefault("resource", Resource({"service.name": "tests", "number": 7}, "https://s/1"))
    with contextlib.ExitStack() as opened:
        receiver = None
        if protocol != FILE:
            receiver = opened.enter_context(receiver_for(protocol))
            environment.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
            environment.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
        provider = TracerProvider(shutdown_on_exit=False, **settings)
        made = Roads(protocol, receiver, path / "spans.jsonl", provider)
        opened.callback(made.delivery.shutdown, 5.0)
        yield made
