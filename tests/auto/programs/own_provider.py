"""Sets its own tracer provider in `main`, long after torch was imported."""

# ruff: noqa: T201 - they print

import torch
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


def main() -> None:
    """Export into memory, and say what is there."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    with trace.get_tracer("app").start_as_current_span("request"), torch.no_grad():
        torch.nn.Sequential(torch.nn.Linear(2, 2))(torch.ones(1, 2))
    print([span.name for span in exporter.get_finished_spans()])
    assert trace.get_tracer_provider() is provider


if __name__ == "__main__":
    main()
