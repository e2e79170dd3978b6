"""A progress bar for a terminal, where tqdm is installed."""

from __future__ import annotations

import shutil
from typing import IO, Any

__all__ = ["make_bar"]


def make_bar(stream: IO[str], **options: Any) -> Any:
    """A bar of tqdm's on `stream`, without a thread that watches it; None without tqdm.

    Args:
        stream: a terminal.
        options: of tqdm's own.
    """
    try:
        from tqdm import tqdm  # noqa: PLC0415 - an extra
    except ImportError:
        return None

    class Bar(tqdm):  # type: ignore[misc]  # it publishes no types
        monitor_interval = 0

    # Also right for a terminal that does not know its size, where tqdm shows nothing.
    columns, rows = shutil.get_terminal_size()
    return Bar(file=stream, ncols=columns, nrows=rows, **options)
