"""The programs that `test_queries.py` asks about: two ranks of a training, and a service.

    RANK=0 WORLD_SIZE=2 ... asked.py train     # as torchrun starts it, once for each rank
    asked.py serve

What is slow, and what raises, is known: rank 1 in every forward; `GPT.layers.1.mlp` from step 4 on;
the backward of each `attn`; the fourth decode step of the service's third request. Rank 1 ends with
a step in which `GPT.layers.0.attn.q_proj` raises. A rank prints what its tracker has counted.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from opentelemetry import trace
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from otel_modtrack import ModTracker, configure, region

STEPS = 8
SLOW_FROM = 4
SLOW_S = 0.05


def work(seconds: float) -> None:
    """Compute for as long as that."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        torch.ones(64, 64).mm(torch.ones(64, 64))


class SlowBackward(torch.autograd.Function):
    """The identity, whose gradient takes its time."""

    @staticmethod
    def forward(context: Any, hidden: Tensor) -> Tensor:
        return hidden.clone()

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        work(SLOW_S / 2)
        return gradient


class Attention(nn.Module):
    """Its backward is slow. It does not take what is wider than it."""

    def __init__(self) -> None:
        super().__init__()
        self.q_proj = nn.Linear(64, 64)

    def forward(self, hidden: Tensor) -> Tensor:
        return SlowBackward.apply(self.q_proj(hidden))


class MLP(nn.Module):
    """Its forward is as slow as it is told."""

    slow_s = 0.0

    def __init__(self) -> None:
        super().__init__()
        self.up_proj = nn.Linear(64, 64)

    def forward(self, hidden: Tensor) -> Tensor:
        work(self.slow_s)
        return self.up_proj(hidden).tanh()


class Block(nn.Module):
    """One layer."""

    def __init__(self) -> None:
        super().__init__()
        self.attn = Attention()
        self.mlp = MLP()

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + self.mlp(self.attn(hidden))


class GPT(nn.Module):
    """Two layers, each recomputed in the backward."""

    def __init__(self, slow_s: float) -> None:
        super().__init__()
        self.slow_s = slow_s
        self.layers = nn.ModuleList(Block() for _ in range(2))

    def forward(self, hidden: Tensor) -> Tensor:
        work(self.slow_s)
        for block in self.layers:
            hidden = checkpoint(block, hidden, use_reentrant=False)
        return hidden


def train() -> None:
    """One rank."""
    configure()
    dist.init_process_group("gloo")
    shards = dist.new_group([0, 1], group_desc="shards")
    rank = dist.get_rank()
    model = GPT(SLOW_S if rank == 1 else 0.0)
    wrapped = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ModTracker(wrapped) as tracker:
        for number in range(STEPS):
            if number == SLOW_FROM:
                model.layers[1].mlp.slow_s = SLOW_S
            with tracker.step(number):
                loss = wrapped(torch.ones(4, 64)).sum()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                with region("gather_losses"):
                    losses = [torch.zeros(1) for _ in range(2)]
                    dist.all_gather(losses, loss.detach().reshape(1), shards)
        if rank == 1:
            with contextlib.suppress(RuntimeError), tracker.step(STEPS):
                model(torch.ones(4, 63))
        counted = tracker.collectives.by_operation()
        sys.stdout.write(json.dumps({name: [it.count, it.size] for name, it in counted.items()}))
    dist.destroy_process_group()


def serve() -> None:
    """Three requests, each of six decode steps."""
    telemetry = configure(service_name="text-service")
    sys.path.append(str(Path(__file__).parents[2] / "examples" / "service"))
    from model import Writer  # noqa: PLC0415

    writer = Writer()
    steps = iter([0.0] * 15 + [SLOW_S] + [0.0] * 2)
    writer.model.head.register_forward_hook(lambda *_: work(next(steps)))
    tracer = trace.get_tracer("requests")
    with ModTracker(writer.model):
        for seed in range(3):
            with tracer.start_as_current_span("POST /stream", kind=trace.SpanKind.SERVER):
                "".join(writer.write("The ", 6, seed))
    telemetry.shutdown()


if __name__ == "__main__":
    torch.set_num_threads(1)
    {"train": train, "serve": serve}[sys.argv[1]]()
