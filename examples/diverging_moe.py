"""Two ranks that wait for each other for ever: which of them went where, before the timeout.

torchrun --nproc-per-node 2 examples/diverging_moe.py --diverge  (the log; its spans go nowhere)
"""

import argparse
import logging
from datetime import timedelta

import torch
import torch.distributed as dist
from opentelemetry.sdk.trace import TracerProvider
from torch import nn

from otel_modtrack import ModTracker

parser = argparse.ArgumentParser()
parser.add_argument("--diverge", action="store_true", help="rank 1 skips an expert in step 3")
parser.add_argument("--timeout", type=int, default=30, help="of the collectives, in seconds")
args = parser.parse_args()
logging.basicConfig()  # the report is an error in the log
dist.init_process_group("gloo", timeout=timedelta(seconds=args.timeout))
skips_in = 3 if args.diverge and dist.get_rank() == 1 else None


class Expert(nn.Linear):
    """Works on what it is given, less the mean of what all ranks are given."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(mean := x.detach().mean(0))
        return super().forward(x - mean / dist.get_world_size())


class MoE(nn.Module):
    """A mixture of two experts."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.head = nn.Linear(8, 2), nn.Linear(8, 1)
        self.experts = nn.ModuleList([Expert(8, 8), Expert(8, 8)])

    def forward(self, x: torch.Tensor, chosen: list[int]) -> torch.Tensor:
        weights = self.router(x).softmax(-1)
        return self.head(sum(weights[:, i, None] * self.experts[i](x) for i in chosen))


model = MoE()
optimizer = torch.optim.AdamW(model.parameters())
with (
    ModTracker(model, tracer_provider=TracerProvider()) as tracker,
    tracker.watch_order(args.timeout / 6),
):
    for number in range(5):
        with tracker.step(number):
            model(torch.randn(4, 8), [0] if number == skips_in else [0, 1]).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            dist.barrier()
print(f"rank {dist.get_rank()} is done")
