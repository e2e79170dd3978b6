"""Trains with DistributedDataParallel; knows only what torchrun tells."""

import sys

import torch
import torch.distributed as dist
from torch import nn

torch.set_num_threads(1)
dist.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(4, 4)))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
model(torch.ones(2, 4)).sum().backward()
optimizer.step()
sys.stdout.write(f"{dist.get_rank()} {sys.argv[1:]}\n")  # in one go: lines of two ranks do not mix
sys.stdout.flush()
dist.destroy_process_group()
