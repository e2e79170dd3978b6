"""Inference under a request's span: the model's spans join the trace that is already active."""

import torch
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor
from torch import nn

from otel_modtrack import ModTracker

provider = TracerProvider()
provider.add_span_processor(
    SimpleSpanProcessor(
        ConsoleSpanExporter(
            formatter=lambda span: f"{span.context.trace_id:032x} {span.name}\n",
        )
    )
)
trace.set_tracer_provider(provider)  # what your service's instrumentation has done already


class Classifier(nn.Module):
    """Says on its span what it decided."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits = self.head(self.body(x).relu())
        trace.get_current_span().set_attribute("app.classes", logits.shape[-1])
        return logits


model = Classifier().eval()
with ModTracker(model):  # on for the life of the process; no step() needed
    for _ in range(2):
        with trace.get_tracer("service").start_as_current_span("POST /classify"), torch.no_grad():
            model(torch.randn(1, 4))
