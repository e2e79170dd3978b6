"""Trains and answers in every way that takes one process."""

# ruff: noqa: T201 - they print

import atexit
import pickle
import sys
import threading

import torch
from torch import nn


class Early(nn.Module):
    """Defined where torch has just been imported."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def train(model: nn.Module, steps: int) -> None:
    """A plain loop."""
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        loss = model(torch.ones(2, 4)).square().sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(f"{loss.item():.6f}")


def late_class() -> type[nn.Module]:
    """A class that is made later."""

    class Late(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x).relu()

    return Late


def at_exit() -> None:
    """Uses what belongs to the program."""
    with torch.no_grad():
        print("at exit", tuple(early(torch.ones(1, 4)).shape))


atexit.register(at_exit)
torch.set_num_threads(1)
torch.manual_seed(0)
early, critic = Early(), nn.Sequential(nn.Linear(4, 4), nn.ReLU())
train(early, 2)
train(critic, 1)
with torch.no_grad():
    late_class()(4, 4)(torch.ones(1, 4))
    compiled = torch.compile(critic, backend="eager")
    compiled(torch.ones(1, 4))
copy = pickle.loads(pickle.dumps(early))  # noqa: S301 - our own
print(type(copy) is Early, type(copy).__module__, nn.Module.__call__.__qualname__)
thread = threading.Thread(target=train, args=(copy, 1))
thread.start()
thread.join()
train(early, 1)
sys.stdout.flush()
