"""Shows how far the replay is, on stderr: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import shutil
import sys
import time
from typing import Any, Final

__all__ = ["Progress"]

_EVERY_S: Final = 5.0


class Progress:
    """Progress over a known number of bytes.

    Args:
        size_bytes: Of all files.
        every_s: Between two lines, where there is no bar.
    """

    def __init__(self, size_bytes: int, *, every_s: float = _EVERY_S) -> None:
        self._size_bytes = size_bytes
        self._every_s = every_s
        self._shown_s = time.monotonic()
        self._bar = _make_bar(size_bytes) if sys.stderr.isatty() else None

    def show(self, position_bytes: int, what: str) -> None:
        """Show that so much was read, and what was sent by now."""
        if self._bar is not None:
            self._bar.set_postfix_str(what, refresh=False)
            self._bar.update(position_bytes - self._bar.n)
            return
        now_s = time.monotonic()
        if now_s - self._shown_s >= self._every_s:
            self._shown_s = now_s
            share = 100 * position_bytes // max(self._size_bytes, 1)
            self.say(f"{share}% read, {what} sent")

    def say(self, sentence: str) -> None:
        """Print a line, beside the bar if there is one."""
        line = f"otel-modtrack replay: {sentence}"
        if self._bar is not None:
            self._bar.write(line, file=sys.stderr)
        else:
            print(line, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Leave the bar as it is and go to the next line. Again: does nothing."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def _make_bar(size_bytes: int) -> Any:
    try:
        from tqdm import tqdm  # noqa: PLC0415 - an extra
    except ImportError:
        return None

    class Bar(tqdm):  # type: ignore[misc]  # it publishes no types
        """A bar without a thread that watches it."""

        monitor_interval = 0

    # Also right for a terminal that does not know its size, where tqdm shows nothing.
    columns, rows = shutil.get_terminal_size()
    return Bar(
        total=size_bytes,
        unit="B",
        unit_scale=True,
        file=sys.stderr,
        ncols=columns,
        nrows=rows,
    )
