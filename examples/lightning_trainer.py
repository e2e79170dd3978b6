"""A Lightning Trainer: each training step and each validation as a trace of its own.

Needs the `otlp` extra's SDK, and lightning.
"""

import logging

import lightning.pytorch as pl
import torch
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from torch import nn

from otel_modtrack.integrations.lightning import ModTrackCallback

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)  # it says which devices there are

exporter = InMemorySpanExporter()  # in your program: otel_modtrack.configure(service_name="...")
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))


class Regression(pl.LightningModule):
    """Learns to add."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))

    def training_step(self, batch: torch.Tensor) -> torch.Tensor:
        return (self.net(batch) - batch.sum(1, keepdim=True)).pow(2).mean()

    validation_step = training_step

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=0.01)


loader = torch.utils.data.DataLoader(torch.randn(64, 8), batch_size=8)
trainer = pl.Trainer(
    max_epochs=2,
    accumulate_grad_batches=4,
    accelerator="cpu",
    callbacks=[ModTrackCallback(tracer_provider=provider, loss=True, learning_rate=True)],
    barebones=True,  # no logger, no checkpoints, no progress bar
)
trainer.fit(Regression(), loader, loader)

spans = sorted(exporter.get_finished_spans(), key=lambda span: span.start_time)
for top in spans:
    if top.name in {"train_step", "evaluation"}:
        inside = [one for one in spans if one.context.trace_id == top.context.trace_id]
        calls = sum(one.name == "forward Regression.net" for one in inside)
        told = {
            key: round(value, 6) if isinstance(value, float) else value
            for key, value in top.attributes.items()
        }
        print(f"{top.name:10} {calls} forward {len(inside):3} spans", told)
