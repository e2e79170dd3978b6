"""Faults of ours in what torch calls while it launches a collective."""

from __future__ import annotations

import threading

from otel_modtrack.core import CORE

__all__ = ["FIRING", "fault"]


class _Firing(threading.local):
    """`here`: whether a hook or kernel of ours is on this thread's stack, and has failed."""

    here = False


FIRING = _Firing()


def fault(where: str, error: Exception) -> None:
    """Say so and switch tracking off.

    Hooks and kernels stay where they are, and do nothing, until the tracker is left: torch crashes
    if they are taken away while it calls them.

    Raises:
        Exception: `error` itself, if a signal handler of the user's raised it in our code.
    """
    FIRING.here = True
    try:
        CORE.fault(where, error)
    finally:
        FIRING.here = False
