"""The demo's model, made to write text. Nothing here knows of HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from otel_modtrack import region
from otel_modtrack.demo import model
from otel_modtrack.demo.text import english_text

if TYPE_CHECKING:
    from collections.abc import Iterator


class GPT(model.GPT):
    """The demo's GPT with the logits of the next character, in place of a loss."""

    def forward(self, tokens: Tensor) -> Tensor:  # type: ignore[override]
        """Return the logits [vocabulary] of what follows ``tokens`` [1, seq]."""
        positions = torch.arange(tokens.shape[1])
        hidden = self.token_embedding(tokens) + self.position_embedding(positions)
        for block in self.layers:
            hidden = block(hidden)
        return self.head(self.norm(hidden))[0, -1]


class Writer:
    """Continues texts. Its weights are random, and so is what it writes.

    Threads may use one writer at the same time: what belongs to a text is in `write`.
    """

    def __init__(self) -> None:
        self._characters = sorted(set(english_text()))
        self._numbers = {character: at for at, character in enumerate(self._characters)}
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.model = GPT(len(self._characters)).eval()

    @region("generate")  # of a generator: the region lasts until its last step
    def write(self, prompt: str, length: int, seed: int) -> Iterator[str]:
        """Yield ``length`` characters that follow the prompt, one at a time.

        Each step may run on another thread: nothing that is bound to a thread, as a `with
        torch.inference_mode()` is, may be open at the yield.
        """
        choose = torch.Generator().manual_seed(seed)
        tokens = [self._numbers.get(character, 0) for character in prompt]
        for _ in range(length):
            with region("decode_step"), torch.inference_mode():
                logits = self.model(torch.tensor([tokens[-self.model.context :]]))
                token = int(torch.multinomial(logits.softmax(-1), 1, generator=choose))
            tokens.append(token)
            yield self._characters[token]
