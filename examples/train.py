"""A training loop with one trace per step, printed as a tree. Needs the `otlp` extra's SDK."""

import torch
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from torch import nn

from otel_modtrack import ModTracker, region

exporter = InMemorySpanExporter()  # in your program: an OTLP exporter in a BatchSpanProcessor
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))

model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.AdamW(model.parameters())

with ModTracker(model, tracer_provider=provider) as tracker:
    for number in range(3):
        with tracker.step(number):
            x = torch.randn(16, 8)
            out = model(x)
            with region("loss"):
                loss = (out - x.sum(1, keepdim=True)).pow(2).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

spans = sorted(exporter.get_finished_spans(), key=lambda span: span.start_time)
depths = {}
for span in spans:
    depth = depths.get(span.parent.span_id, -1) + 1 if span.parent else 0
    depths[span.context.span_id] = depth
    print(f"{(span.end_time - span.start_time) / 1e6:9.3f} ms  {'  ' * depth}{span.name}")
