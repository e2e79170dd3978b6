"""Faults of ours in what torch calls while it launches a collective."""

from __future__ import annotations

import threading

from otel_modtrack.core import CORE

__all__ = ["FIRING", "fault"]


class _Firing(threading.local):
    """What happens on this thread.

    Attributes:
        here: whether a hook or kernel of ours is on the stack, and has failed.
        probing: whether hook or kernel are being tried out: then a fault is only noted.
        met: what was noted.
        unseen: what is launched is ours, and taken down nowhere.
    """

    here = False
    probing = False
    met: Exception | None = None
    unseen = False


FIRING = _Firing()


def fault(where: str, error: Exception) -> None:
    """Say so and switch tracking off.

    Hooks and kernels stay where they are, and do nothing, until the tracker is left: torch crashes
    if they are taken away while it calls them. While they are tried out, whoever enters a tracker
    waits for this thread and tells what it met.

    Raises:
        Exception: `error` itself, if a signal handler of the user's raised it in our code.
    """
    if FIRING.probing:
        FIRING.met = error
        return
    FIRING.here = True
    try:
        CORE.fault(where, error)
    finally:
        FIRING.here = False
