"""What these tests train."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

__all__ = ["Net", "Reducing", "X", "train"]

X = torch.ones(1, 2)


class Net(nn.Module):
    """An encoder of two layers, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        self.head = nn.Linear(2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(x))


class Reducing(nn.Module):
    """Sums 4 float32 over the ranks in `inner`, and twice 8 of them in itself."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Summed()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            dist.all_reduce(torch.ones(8))
        return self.inner(x)


class Summed(nn.Module):
    """Sums 4 float32 over the ranks, also in its backward."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(torch.ones(4))
        out = self.layer(x)
        if out.requires_grad:
            out.register_hook(lambda _: dist.broadcast(torch.ones(1), 0))
        return out


def train(model: nn.Module) -> None:
    """A forward and a backward."""
    model(X).sum().backward()
