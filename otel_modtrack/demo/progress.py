"""Shows how the training goes: a bar on a terminal, some lines elsewhere."""

from __future__ import annotations

import sys

from otel_modtrack.bars import make_bar

__all__ = ["Progress"]

_LINES = 10


class Progress:
    """Progress over a known number of steps.

    Args:
        steps: How many there will be.
    """

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._every = max(1, steps // _LINES)
        self._bar = None
        if sys.stdout.isatty():
            self._bar = make_bar(sys.stdout, total=steps, unit="step")

    def advance(self, step: int, loss: float) -> None:
        """Show that step number ``step``, from 0, is over."""
        if self._bar is not None:
            self._bar.set_postfix(loss=f"{loss:.3f}", refresh=False)
            self._bar.update()
        elif step % self._every == 0 or step == self._steps - 1:
            print(f"step {step:>5} of {self._steps}  loss {loss:.3f}", flush=True)

    def close(self) -> None:
        """Leave the bar as it is and go to the next line."""
        if self._bar is not None:
            self._bar.close()
