"""Real architectures, from config with small random weights: the oracle finds no wrong node."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

from tests.tracker import architectures
from tests.tracker.oracle import watched

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.tracker.oracle import Watched

# What transformers itself says while it is imported or used, with the two versions tested.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

STEPS = 2


def train(model: nn.Module, loss_of: Callable[[], torch.Tensor]) -> Watched:
    """Train two steps, watched; returns what came out, in which nothing is wrong."""
    torch.manual_seed(0)
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watched(model) as run:
        for number in range(STEPS):
            with run.tracker.step(number):
                loss_of().backward()
                optimizer.step()
                optimizer.zero_grad()
    return run


def phases(run: Watched) -> dict[str, int]:
    """How many regions there are in each phase."""
    found: dict[str, int] = {}
    for span in run.spans:
        phase = span.attributes.get("modtrack.phase", span.name)
        found[phase] = found.get(phase, 0) + 1
    return found


@pytest.mark.parametrize("checkpointing", [False, "non-reentrant", "reentrant"])
def test_llama(checkpointing: str | bool) -> None:
    """A decoder-only language model, with gradient checkpointing off and on."""
    run = train(*architectures.llama(checkpointing))
    assert run.verdict.labelled > 150
    assert ("recompute" in phases(run)) == bool(checkpointing)


def test_t5() -> None:
    """An encoder-decoder, whose encoder's output every decoder layer reads."""
    run = train(*architectures.t5())
    assert run.verdict.labelled > 250


def test_bert() -> None:
    """An encoder."""
    run = train(*architectures.bert())
    assert run.verdict.labelled > 150


def test_vit() -> None:
    """A vision transformer."""
    run = train(*architectures.vit())
    assert run.verdict.labelled > 120


def test_mixtral() -> None:
    """A mixture of experts: which expert runs depends on the data."""
    run = train(*architectures.mixtral())
    assert run.verdict.labelled > 150


def test_whisper() -> None:
    """Speech to text: convolutions, an encoder and a decoder."""
    run = train(*architectures.whisper())
    assert run.verdict.labelled > 250


def test_clip() -> None:
    """Two towers, of text and of images, with one loss."""
    run = train(*architectures.clip())
    assert run.verdict.labelled > 200


def test_unet() -> None:
    """A U-Net: a pool that is called twice, skips, in-place activations."""
    run = train(*architectures.unet())
    assert run.verdict.labelled > 60


def test_timm() -> None:
    """A convolutional network of timm's."""
    run = train(*architectures.timm())
    assert run.verdict.labelled > 80


def test_lora() -> None:
    """A language model with LoRA adapters of peft's on some of its layers, the rest frozen."""
    run = train(*architectures.lora())
    assert run.verdict.labelled > 100
