"""Forks, and trains on both sides."""

# ruff: noqa: T201 - they print

import os
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader

torch.set_num_threads(1)
torch.manual_seed(0)


def train(kind: str) -> None:
    """One step."""
    model = nn.Sequential(getattr(nn, kind)(), nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    print(kind, flush=True)


train("ReLU")
pid = os.fork()
if not pid:
    train("Tanh")
    sys.exit(5)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
embedding = nn.Embedding(2, 4)


def load(batch: list[int]) -> torch.Tensor:
    """Run a module in the worker that loads."""
    with torch.no_grad():
        return embedding(torch.tensor(batch))


print([tuple(batch.shape) for batch in DataLoader(range(2), num_workers=1, collate_fn=load)])
