"""A small character-level GPT. Ordinary torch: nothing in it is there for the tracker's sake."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from otel_modtrack import region

__all__ = ["GPT"]


class Attention(nn.Module):
    """Causal self-attention: [batch, seq, dim] -> [batch, seq, dim]."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q_proj = nn.Linear(dim, dim)
        self.k_proj = nn.Linear(dim, dim)
        self.v_proj = nn.Linear(dim, dim)
        self.out_proj = nn.Linear(dim, dim)

    def forward(self, hidden: Tensor) -> Tensor:
        """Attend from each position to itself and those before it."""
        batch, length, dim = hidden.shape
        q, k, v = (
            proj(hidden).view(batch, length, self.heads, -1).transpose(1, 2)
            for proj in (self.q_proj, self.k_proj, self.v_proj)
        )
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        merged: Tensor = self.out_proj(attended.transpose(1, 2).reshape(batch, length, dim))
        return merged


class MLP(nn.Module):
    """Two linear layers: [batch, seq, dim] -> [batch, seq, dim]."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.up_proj = nn.Linear(dim, 4 * dim)
        self.down_proj = nn.Linear(4 * dim, dim)

    def forward(self, hidden: Tensor) -> Tensor:
        """Widen, bend, narrow."""
        narrowed: Tensor = self.down_proj(functional.gelu(self.up_proj(hidden)))
        return narrowed


class Block(nn.Module):
    """One layer: attention and MLP, each on a normalised input and added to it."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.attn_norm = nn.LayerNorm(dim)
        self.attn = Attention(dim, heads)
        self.mlp_norm = nn.LayerNorm(dim)
        self.mlp = MLP(dim)

    def forward(self, hidden: Tensor) -> Tensor:
        """[batch, seq, dim] -> [batch, seq, dim]."""
        hidden = hidden + self.attn(self.attn_norm(hidden))
        result: Tensor = hidden + self.mlp(self.mlp_norm(hidden))
        return result


class GPT(nn.Module):
    """Predicts each next character.

    Args:
        vocabulary: How many characters there are.
        context: Most characters in a row.
        dim: Width of the hidden state.
        depth: Number of layers.
        heads: Attention heads a layer.
        checkpointing: Whether a block's activations are recomputed in the backward.
    """

    def __init__(  # noqa: PLR0913 - the sizes of a model
        self,
        vocabulary: int,
        *,
        context: int = 64,
        dim: int = 128,
        depth: int = 2,
        heads: int = 4,
        checkpointing: bool = False,
    ) -> None:
        super().__init__()
        self.context = context
        self.checkpointing = checkpointing
        self.token_embedding = nn.Embedding(vocabulary, dim)
        self.position_embedding = nn.Embedding(context, dim)
        self.layers = nn.ModuleList(Block(dim, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, vocabulary)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross entropy, a scalar, of ``targets`` [batch, seq] after ``tokens``."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        hidden = self.token_embedding(tokens) + self.position_embedding(positions)
        for block in self.layers:
            if self.checkpointing:
                hidden = checkpoint(block, hidden, use_reentrant=False)
            else:
                hidden = block(hidden)
        logits = self.head(self.norm(hidden))
        with region("loss"):
            return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
