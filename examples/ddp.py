"""Data parallel: which module each all-reduce of gradients belongs to, and how much it moves.

Run it with: torchrun --nproc-per-node 2 examples/ddp.py
"""

import torch
import torch.distributed as dist
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from otel_modtrack import ModTracker
from otel_modtrack.view.command import view_spans

dist.init_process_group("gloo")
rank = dist.get_rank()
exporter = InMemorySpanExporter()  # in your program: an OTLP exporter in a BatchSpanProcessor
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(64, 256), nn.BatchNorm1d(256), nn.Linear(256, 256), nn.Linear(256, 1))
model = DistributedDataParallel(net, bucket_cap_mb=0.1)  # small, so that there are several buckets
optimizer = torch.optim.AdamW(model.parameters())
torch.manual_seed(rank)  # each rank has data of its own

with ModTracker(model, tracer_provider=provider) as tracker:
    for number in range(3):
        with tracker.step(number):
            x = torch.randn(32, 64)
            loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

for turn in range(dist.get_world_size()):  # one rank after the other
    if rank == turn:
        view_spans(exporter.get_finished_spans(), top=0)
        print(flush=True)
    dist.barrier()
if rank == 0:
    print(f"All steps of rank 0:\n\n{tracker.collectives.table()}")
dist.destroy_process_group()
