"""Ranks of a training job that never was: they send spans whose metrics are known."""

from __future__ import annotations

import re
import time
import uuid
from typing import TYPE_CHECKING, Any

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Status, StatusCode, set_span_in_context

from otel_modtrack import semconv
from tests.backends.spans import Span, from_sdk

if TYPE_CHECKING:
    from tests.backends.programs import Collector

SERVICE = "collector-test"
BLOCK = {semconv.PHASE: "forward", semconv.MODULE_TYPE: "Block"}


class Rank:
    """One rank of a job: a step has a forward of two layers, a backward and an optimizer step.

    Times are made up, so that what is to be measured is known: a layer takes 3 ms, a step 10 ms.
    """

    def __init__(self, collector: Collector, rank: int) -> None:
        resource = {
            "service.name": SERVICE,
            "service.instance.id": str(uuid.uuid4()),
            semconv.RANK: rank,
        }
        self.provider = TracerProvider(resource=Resource(resource), shutdown_on_exit=False)
        self.memory = InMemorySpanExporter()
        self.provider.add_span_processor(SimpleSpanProcessor(self.memory))
        exporter = OTLPSpanExporter(f"{collector.http_endpoint}/v1/traces")
        self.provider.add_span_processor(BatchSpanProcessor(exporter))
        self.tracer = self.provider.get_tracer(semconv.SCOPE_NAME)
        self.rank = rank
        self.now_ns = time.time_ns()

    def step(self, *, ms: int = 10, error: bool = False) -> str:
        """One step with its spans, sent; returns its trace id."""
        start = self.now_ns
        attributes: dict[str, Any] = {
            semconv.RANK: self.rank,
            semconv.COLLECTIVE_COUNT: 2,
            semconv.COLLECTIVE_SIZE: 1000,
        }
        step = self._span("train_step", None, start, attributes)
        forward = self._span("forward GPT", step, start, BLOCK | {semconv.MODULE_TYPE: "GPT"})
        for layer in range(2):
            begin = start + layer * 3_000_000
            attributes = BLOCK | {semconv.MODULE_FQN: f"GPT.layers.{layer}"}
            block = self._span("forward GPT.layers.*", forward, begin, attributes)
            block.end(begin + 3_000_000)
        forward.end(start + 6_000_000)
        self._span("backward", step, start + 6_000_000, {}).end(start + 8_000_000)
        optimizer = self._span("optimizer_step AdamW", step, start + 8_000_000, {})
        if error:
            optimizer.set_status(Status(StatusCode.ERROR, "no convergence"))
        optimizer.end(start + 9_000_000)
        self.now_ns += ms * 1_000_000
        step.end(self.now_ns)
        assert self.provider.force_flush()
        return f"{step.get_span_context().trace_id:032x}"

    def _span(self, name: str, parent: Any, start_ns: int, attributes: dict[str, Any]) -> Any:
        context = set_span_in_context(parent) if parent else None
        return self.tracer.start_span(name, context, attributes=attributes, start_time=start_ns)

    def sent(self) -> list[Span]:
        """All that it has sent."""
        return from_sdk(self.memory.get_finished_spans())

    def close(self) -> None:
        """End the exporter's thread."""
        self.provider.shutdown()


def samples(text: str) -> list[tuple[str, dict[str, str], float]]:
    """The samples of a page of metrics: name, labels and value."""
    found = []
    for line in text.splitlines():
        match = re.match(r"(\w+)(?:\{(.*?)\})? (\S+)", line)
        if match and not line.startswith("#"):
            labels = dict(re.findall(r'(\w+)="(.*?)"', match[2] or ""))
            found.append((match[1], labels, float(match[3])))
    return found


def total(text: str, name: str, **labels: str) -> float:
    """The sum of a metric's samples that have these labels."""
    return sum(
        value
        for sample, its, value in samples(text)
        if sample == name and labels.items() <= its.items()
    )
