"""Shows how the training goes: a bar on a terminal, some lines elsewhere."""

from __future__ import annotations

import shutil
import sys

from tqdm import tqdm

__all__ = ["Progress"]

_LINES = 10


class _Bar(tqdm):  # type: ignore[misc]  # it publishes no types
    """A bar without a thread that watches it."""

    monitor_interval = 0


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
            # Also right for a terminal that does not know its size, where tqdm shows nothing.
            size = shutil.get_terminal_size()
            self._bar = _Bar(
                total=steps, unit="step", file=sys.stdout, ncols=size.columns, nrows=size.lines
            )

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
