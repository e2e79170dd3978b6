"""The models whose calls are timed: small, so that what is added to a call can be seen.

All stay in training mode in both modes (TransformerEncoder has a fused path in eval mode that calls
no modules), and none has dropout, so that every step does the same work.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["WORKLOADS", "Workload"]


@dataclasses.dataclass(frozen=True)
class Workload:
    """A model, what it is called with, and what its backward starts from."""

    model: nn.Module
    inputs: tuple[torch.Tensor, ...]
    loss: Callable[[torch.Tensor], torch.Tensor]

    def train(self) -> None:
        """One step: forward and backward. Gradients accumulate."""
        self.loss(self.model(*self.inputs)).backward()

    def infer(self) -> None:
        """One step: forward."""
        self.model(*self.inputs)

    def calls(self) -> int:
        """Module calls in one step."""
        count = 0

        def seen(*_: object) -> None:
            nonlocal count
            count += 1

        handle = nn.modules.module.register_module_forward_pre_hook(seen)
        try:
            self.infer()
        finally:
            handle.remove()
        return count


def chain() -> Workload:
    """100 Linear(8, 8) in a Sequential: 101 calls, next to no arithmetic."""
    layers = [nn.Linear(8, 8) for _ in range(100)]
    for layer in layers:
        nn.init.orthogonal_(layer.weight)  # neither vanishes nor explodes: no denormal numbers
    return Workload(nn.Sequential(*layers), (torch.randn(1, 8),), torch.sum)


def encoder() -> Workload:
    """A 6-layer TransformerEncoder, input [batch, seq, dim] = [1, 8, 256]."""
    layer = nn.TransformerEncoderLayer(256, nhead=8, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, num_layers=6, enable_nested_tensor=False)
    return Workload(model, (torch.randn(1, 8, 256),), torch.sum)


class Attention(nn.Module):
    """Causal self-attention with a Linear each for q, k, v and the output."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, seq, dim] to the same."""
        batch, seq, dim = x.shape
        q, k, v = (
            part(x).view(batch, seq, self.heads, dim // self.heads).transpose(1, 2)
            for part in (self.q, self.k, self.v)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(mixed.transpose(1, 2).reshape(batch, seq, dim))  # type: ignore[no-any-return]


class MLP(nn.Module):
    """Two Linear with a GELU between."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.up, self.act, self.down = nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, seq, dim] to the same."""
        return self.down(self.act(self.up(x)))  # type: ignore[no-any-return]


class Block(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(dim), Attention(dim, heads)
        self.ln_2, self.mlp = nn.LayerNorm(dim), MLP(dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, seq, dim] to the same."""
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))  # type: ignore[no-any-return]


class GPT(nn.Module):
    """GPT-2's shape, at a size where a call costs some ten microseconds."""

    def __init__(
        self, *, vocab: int = 64, seq: int = 16, dim: int = 32, heads: int = 4, depth: int = 6
    ) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocab, dim), nn.Embedding(seq, dim)
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, vocab, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Tokens [batch, seq] to logits [batch, seq, vocab]."""
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))  # type: ignore[no-any-return]


def gpt() -> Workload:
    """A GPT-2-like model of 6 blocks, tokens [batch, seq] = [1, 16]."""
    tokens = torch.randint(64, (1, 16))

    def loss(logits: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())

    return Workload(GPT(), (tokens,), loss)


WORKLOADS: dict[str, Callable[[], Workload]] = {"chain": chain, "encoder": encoder, "gpt": gpt}
