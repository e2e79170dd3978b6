"""Small models, each with one way in which an order may come about."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import nn


class Forks(nn.Module):
    """What torch's own test of its tracer has: a branch, a layer called twice, a weight unused."""

    def __init__(self) -> None:
        super().__init__()
        self.weight1 = nn.Parameter(torch.randn(6, 6))
        self.weight2 = nn.Parameter(torch.randn(6, 6))
        self.weight_unused = nn.Parameter(torch.randn(2, 2))
        self.layer0 = nn.Linear(6, 6)
        self.layer1 = nn.Linear(6, 6, bias=False)
        self.layer2 = nn.Sequential(
            nn.Linear(6, 3, bias=False), nn.ReLU(), nn.Linear(3, 6, bias=False)
        )
        self.relu = nn.ReLU()

    def forward(self, x: Any, run_all_layers: bool) -> Any:
        y = self.relu(self.layer2(self.relu(self.layer0(x)))) @ self.weight1
        if not run_all_layers:
            return y
        y = self.relu(self.layer1(y)) @ self.weight2
        return self.relu(self.layer0(y))


class Block(nn.Module):
    """A child, a parameter of its own, and a norm that only the first call runs through."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))
        self.inner = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Any) -> Any:
        return self.norm(self.inner(x)) * self.scale


class Nested(nn.Module):
    """Sequentials in Sequentials, and one block called twice with something between."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(4))
        self.block = Block()
        self.deep = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.GELU()), self.block)
        self.head = nn.Linear(4, 2)

    def forward(self, x: Any) -> Any:
        x = self.block(self.deep(x) + self.shift)
        return self.head(x * self.shift)


class Recurs(nn.Module):
    """Calls itself, and then uses a parameter once more."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(4))
        self.lin = nn.Linear(4, 4)
        self.depth = 2

    def forward(self, x: Any, depth: int | None = None) -> Any:
        depth = self.depth if depth is None else depth
        x = self.lin(x * self.w)
        if depth:
            x = self(x, depth - 1)
        return x + self.w


class Holds(nn.Module):
    """Has what recurs as a child."""

    def __init__(self) -> None:
        super().__init__()
        self.rec = Recurs()
        self.out = nn.Linear(4, 1)

    def forward(self, x: Any) -> Any:
        return self.out(self.rec(x, 1))


class Together(nn.Module):
    """Several parameters in one operation, one of them twice."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.ones(4, 4)), nn.Parameter(torch.ones(4))
        self.child = Block()

    def forward(self, x: Any) -> Any:
        x = F.linear(x, self.a, self.b)
        x = x + torch.mul(self.b, self.b)
        return F.linear(self.child(x), self.child.inner.weight)  # another's


class Tied(nn.Module):
    """One weight under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(8, 4)
        self.block = Block()
        self.head = nn.Linear(4, 8, bias=False)
        self.head.weight = self.table.weight

    def forward(self, x: Any) -> Any:
        return self.head(self.block(self.table(x)))


class Pair(NamedTuple):
    """Two tensors."""

    first: Any
    second: Any


def both(pair: Pair) -> Any:
    """For `torch.fx.wrap`: fx does not look into it."""
    return pair.first + pair.second


def through(module: nn.Module, x: Any) -> Any:
    """Likewise."""
    return module(x)


torch.fx.wrap("both")
torch.fx.wrap("through")


class Ways(nn.Module):
    """Each way of handing over a parameter."""

    def __init__(self) -> None:
        super().__init__()
        for name in "abcdefghi":
            setattr(self, name, nn.Parameter(torch.ones(2, 2)))
        self.one = nn.Parameter(torch.ones(2))
        self.lin = nn.Linear(2, 2)
        self.last = nn.Linear(2, 2, bias=False)

    def forward(self, x: Any) -> Any:
        x = F.linear(x, weight=self.d)
        x = x @ torch.cat([self.c, self.b], 1)[:, :2]
        x = x @ self.a.T
        x = F.layer_norm(x, (2,), weight=self.one)
        x = F.linear(x, self.lin.weight)
        x = torch.addmm(self.f, x, mat2=self.e)
        x = torch.einsum("ij,jk->ik", x, self.g)
        x = both(Pair(x, self.h))
        x = through(self.last, x)
        return x[self.i[0, 0].long() :]


class Asks(nn.Module):
    """Asks parameters for what they are like before another one is used."""

    def __init__(self) -> None:
        super().__init__()
        self.shape, self.used = nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(2, 2))
        self.lin = nn.Linear(2, 2)

    def forward(self, x: Any) -> Any:
        x = x.view(-1, self.shape.shape[0]).to(self.lin.weight.dtype)
        x = x.view(self.shape.size(0), torch.numel(self.shape) // 2)
        return self.lin(x @ self.used)


class Catches(nn.Module):
    """Goes on with its own parameter after a child has failed."""

    def __init__(self) -> None:
        super().__init__()
        self.fails = Fails()
        self.w = nn.Parameter(torch.ones(2))

    def forward(self, x: Any) -> Any:
        try:
            x = self.fails(x)
        except ArithmeticError:
            x = x + 1
        return x * self.w


class Fails(nn.Module):
    """Raises what it is told to, after its child has run; a fault of the model's own."""

    def __init__(self, error: BaseException | None = None) -> None:
        super().__init__()
        self.lin = nn.Linear(2, 2)
        self.error = error or ArithmeticError("no such number.\nSecond line")

    def forward(self, x: Any) -> Any:
        self.lin(x)
        raise self.error


class Decides(nn.Module):
    """Control flow that depends on a value, in a child."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(2, 2), Decider()])

    def forward(self, x: Any, flag: Any = None) -> Any:
        return self.blocks[1](self.blocks[0](x), flag)


class Decider(nn.Module):
    """Runs one of two."""

    def __init__(self) -> None:
        super().__init__()
        self.yes, self.no = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, x: Any, flag: Any) -> Any:
        if flag:
            return self.yes(x)
        return self.no(x)


class Untidy(nn.Module):
    """Changes itself, and draws random numbers, while it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("seen", torch.zeros(()))
        self.calls = 0
        self.kept: list[Any] = []
        self.last: Any = None

    def forward(self, x: Any) -> Any:
        self.calls += 1
        self.seen += 1
        self.kept.append(x)
        noise = torch.rand(4) + random.random()  # noqa: S311 - no secret
        self.last = self.norm(self.lin(x)) + noise + torch.tensor([1.0, 2, 3, 4])
        self.eval()
        self.lin.register_forward_hook(lambda module, args, out: None)
        return self.last
