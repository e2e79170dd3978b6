"""What is done at the start of a program by `otel-modtrack run`, before its first line."""

from __future__ import annotations

import os
import sys

from otel_modtrack.auto import kinds
from otel_modtrack.auto.arming import AUTO, Settings

__all__ = ["start"]


def start(folder: str) -> None:
    """Track this program, unless it only starts others. Never raises.

    Args:
        folder: of our ``sitecustomize``, that PYTHONPATH has first.
    """
    try:
        if kinds.is_launcher():
            return  # PYTHONPATH stays as it is: those that it starts are tracked
        _take_away(folder)
        if not kinds.is_helper():
            AUTO.arm(Settings(configures=True, carried=True))
    except Exception as error:  # noqa: BLE001 - nothing of ours may reach the user
        print(f"otel_modtrack: no spans: {type(error).__name__}: {error}", file=sys.stderr)  # noqa: T201


def _take_away(folder: str) -> None:
    """Have PYTHONPATH as it was: what this program starts is not tracked."""
    value = os.environ.get("PYTHONPATH", "")
    if value == folder:
        del os.environ["PYTHONPATH"]
    else:
        os.environ["PYTHONPATH"] = value.replace(folder + os.pathsep, "", 1)
