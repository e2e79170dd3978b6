"""The training loop of the demo. This is all that a user's own loop needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from otel_modtrack import ModTracker

if TYPE_CHECKING:
    from collections.abc import Callable

    from opentelemetry.trace import TracerProvider
    from torch import Tensor

    from otel_modtrack.demo.model import GPT


__all__ = ["encode", "train"]

_BATCH = 16
_LEARNING_RATE = 3e-3


def encode(text: str) -> tuple[Tensor, int]:
    """Number the characters of a text: ([characters], how many different ones)."""
    numbers = {character: number for number, character in enumerate(sorted(set(text)))}
    return torch.tensor([numbers[character] for character in text]), len(numbers)


def train(  # noqa: PLR0913 - passed by keyword
    model: GPT,
    tokens: Tensor,
    *,
    steps: int,
    seed: int,
    tracer_provider: TracerProvider,
    on_step: Callable[[int, float], None],
) -> None:
    """Train on random stretches of the text.

    Args:
        model: Trained in place.
        tokens: The text, [characters].
        steps: How many batches.
        seed: Chooses the stretches.
        tracer_provider: Gets a trace for each step.
        on_step: Called after each step with its number and loss.
    """
    choose = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=_LEARNING_RATE)
    with ModTracker(model, tracer_provider=tracer_provider) as tracker:
        for step in range(steps):
            inputs, targets = _batch(tokens, model.context, choose)
            with tracker.step(step):
                loss = model(inputs, targets)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            on_step(step, loss.item())


def _batch(tokens: Tensor, context: int, choose: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return inputs and, one character on, targets: both [batch, context]."""
    starts = torch.randint(len(tokens) - context, (_BATCH, 1), generator=choose)
    stretches = tokens[starts + torch.arange(context + 1)]
    return stretches[:, :-1], stretches[:, 1:]
