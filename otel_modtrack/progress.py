"""Shows how far a command is, on stderr: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from typing import Final

from otel_modtrack.bars import make_bar

__all__ = ["Progress"]

_EVERY_S: Final = 5.0


class Progress:
    """Progress over a known number of bytes.

    Args:
        command: What is under way: ``replay``.
        size_bytes: Of all files.
        every_s: Between two lines, where there is no bar.
    """

    def __init__(self, command: str, size_bytes: int, *, every_s: float = _EVERY_S) -> None:
        self._command = command
        self._size_bytes = size_bytes
        self._every_s = every_s
        self._shown_s = time.monotonic()
        self._bar = None
        if sys.stderr.isatty():
            self._bar = make_bar(sys.stderr, total=size_bytes, unit="B", unit_scale=True)

    def show(self, position_bytes: int, what: str) -> None:
        """Show that so much was read, and what came of it: ``12 spans sent``."""
        if self._bar is not None:
            self._bar.set_postfix_str(what, refresh=False)
            self._bar.update(position_bytes - self._bar.n)
            return
        now_s = time.monotonic()
        if now_s - self._shown_s >= self._every_s:
            self._shown_s = now_s
            share = 100 * position_bytes // max(self._size_bytes, 1)
            self.say(f"{share}% read, {what}")

    def say(self, sentence: str) -> None:
        """Print a line, beside the bar if there is one."""
        line = f"otel-modtrack {self._command}: {sentence}"
        if self._bar is not None:
            self._bar.write(line, file=sys.stderr)
        else:
            print(line, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Leave the bar as it is and go to the next line. Again: does nothing."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None
