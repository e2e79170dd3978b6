"""What must be the same with tracking on and off, in a form that can be compared."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

__all__ = ["generators", "graph_of"]


def generators() -> Any:
    """The states of the random number generators."""
    kind, keys, *rest = np.random.get_state()  # noqa: NPY002
    return random.getstate(), kind, keys.tobytes(), rest, torch.get_rng_state().numpy().tobytes()


def graph_of(out: torch.Tensor, base: int) -> list[Any]:
    """The autograd graph: each node's name, number and edges."""
    found: dict[Any, int] = {}
    shown = []
    stack = [out.grad_fn] if out.grad_fn is not None else []
    while stack:
        node = stack.pop()
        if node in found:
            continue
        found[node] = len(found)
        number = node._sequence_nr()
        below = [(one.name() if one else None, at) for one, at in node.next_functions]
        shown.append((node.name(), number - base if number < 2**62 else None, below))
        stack += [one for one, _ in node.next_functions if one is not None]
    return shown
