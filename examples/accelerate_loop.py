"""A loop written with Accelerate: a step is what it accumulates. Needs the `otlp` extra's SDK."""

import torch
from accelerate import Accelerator
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from torch import nn

from otel_modtrack import ModTracker
from otel_modtrack.integrations.accelerate import steps

exporter = InMemorySpanExporter()  # in your program: otel_modtrack.configure(service_name="...")
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
loader = torch.utils.data.DataLoader(torch.randn(48, 8), batch_size=8)
model, optimizer, loader = accelerator.prepare(net, optimizer, loader)

first = 0
with ModTracker(model, tracer_provider=provider) as tracker:
    for epoch in range(2):
        with steps(accelerator, tracker, loader, first=first, epoch=epoch) as batches:
            for x in batches:
                with accelerator.accumulate(model):
                    loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean()
                    accelerator.backward(loss)
                    optimizer.step()
                    optimizer.zero_grad()
                batches.tell(loss=loss.item())
        first = batches.number
        with tracker.evaluation(), torch.no_grad():
            for x in loader:
                model(x)

spans = sorted(exporter.get_finished_spans(), key=lambda span: span.start_time)
for top in spans:
    if top.name in {"train_step", "evaluation"}:
        inside = [one for one in spans if one.context.trace_id == top.context.trace_id]
        calls = sum(one.name == "forward Sequential" for one in inside)
        told = {
            key: round(value, 6) if isinstance(value, float) else value
            for key, value in top.attributes.items()
        }
        print(f"{top.name:10} {calls} forward {len(inside):3} spans", told)
