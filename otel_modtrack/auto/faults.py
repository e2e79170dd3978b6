"""Says what went wrong while a program was made ready to be tracked."""

from __future__ import annotations

import sys

from otel_modtrack.usage import UsageError

__all__ = ["complain"]


def complain(error: BaseException) -> None:
    """Say in one sentence that nothing is tracked, and why. Never raises."""
    try:
        import logging  # noqa: PLC0415 - a program without faults need not import it

        known = isinstance(error, (UsageError, ImportError))
        logging.getLogger("otel_modtrack").error(
            "otel_modtrack: no spans: %s", error if known else f"{type(error).__name__}: {error}"
        )
    except Exception:  # noqa: BLE001 - the log is broken
        print("otel_modtrack: no spans", file=sys.stderr)  # noqa: T201
