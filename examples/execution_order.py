"""In which order a model runs, and three things that rely on another one. Needs no provider."""

import torch
from torch import Tensor, nn

from otel_modtrack import ModTracker
from otel_modtrack.order import Order, OrderError, TracingConfig, trace_execution_order


class Block(nn.Module):
    """Its first layer runs last."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Linear(32, 8)
        self.up = nn.Linear(8, 32)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.up(x).relu())


class Skips(nn.Module):
    """Runs its second block for some inputs only."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(4, 8)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.scale = nn.Parameter(torch.ones(8))
        self.head = nn.Linear(8, 1)

    def forward(self, x: Tensor, *, short: bool | None = None) -> Tensor:
        x = self.blocks[0](self.embed(x))
        if x.sum() > 0 if short is None else short:
            return self.head(x * self.scale)
        return self.head(self.blocks[1](x) * self.scale)


torch.manual_seed(0)
model = Skips()
print("1. What a tracer finds, and what runs")
try:
    trace_execution_order(model)
except OrderError as error:
    print(f"{error}\n")
symbolic = trace_execution_order(model, TracingConfig(concrete_args={"short": False}))
with ModTracker(model) as tracker, tracker.record_order():
    model(torch.ones(2, 4), short=True).sum().backward()
recorded = tracker.execution_order
print(symbolic.diff(recorded))

print("\n2. In which order a prefetcher should fetch", *recorded.parameters, sep="\n")

print("\n3. DDP fills its buckets in the reverse order of model.parameters()")
names = [f"Skips.{name}" for name, _ in model.named_parameters()]
arrived = set(recorded.gradients)
assumed = Order("DDP", gradients=[name for name in reversed(names) if name in arrived])
print(assumed.diff(recorded))
