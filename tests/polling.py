"""Waiting for what other threads and processes do."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["TIMEOUT_S", "poll"]

# Nothing takes this long unless it hangs, also where others use the machine.
TIMEOUT_S = 120.0


def poll(check: Callable[[], Any], what: str, timeout_s: float = TIMEOUT_S) -> Any:
    """The first true value of `check()`; AssertionError naming `what` where none came in time."""
    end_s = time.monotonic() + timeout_s
    while not (value := check()):
        assert time.monotonic() < end_s, f"{what}: not within {timeout_s:g} s"
        time.sleep(0.005)
    return value
