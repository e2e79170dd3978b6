"""What is done when the process leaves: at its normal end, on SIGTERM, as a multiprocessing worker.

SIGINT needs nothing: its KeyboardInterrupt is a normal end. SIGKILL leaves no time.
"""

from __future__ import annotations

import atexit
import logging
import multiprocessing
import multiprocessing.util
import os
import signal
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["at_exit", "at_sigterm", "at_worker_exit", "ended_by", "mention"]

logger = logging.getLogger("otel_modtrack")


def ended_by() -> BaseException | None:
    """What has ended the program, asked at its end; None if no exception has."""
    last: Any = (
        sys.exc_info()[1]  # of a worker, which ends while it is handled
        or getattr(sys, "last_exc", None)  # Python 3.12
        or getattr(sys, "last_value", None)
    )
    return last if isinstance(last, BaseException) else None


def at_exit(leave: Callable[[], None]) -> None:
    """Call `leave` at the interpreter's end. What is registered later is called earlier."""
    atexit.register(leave)


def at_worker_exit(leave: Callable[[], None]) -> None:
    """Call `leave` where this is a worker of multiprocessing's: those leave by os._exit.

    For forked workers this has to be called in the worker itself.
    """
    if multiprocessing.parent_process() is not None:
        # No object to be tied to: called when the worker's function is over.
        multiprocessing.util.Finalize(None, leave, exitpriority=10)


def at_sigterm(send: Callable[[], None], leave: Callable[[], None]) -> None:
    """Deliver what is there before SIGTERM ends the process.

    A handler that is there is called as before, and decides: `send` only begins to send. One that
    is installed later takes this one's place. Where the signal is ignored, it stays so.

    Args:
        send: begins to send what waits, and returns at once.
        leave: sends it, and returns when that is done or its time is up.
    """
    if threading.current_thread() is not threading.main_thread():
        return  # handlers are the main thread's to install
    before = signal.getsignal(signal.SIGTERM)
    if before is None or before is signal.SIG_IGN:  # None: one of a C library's
        return

    def handler(number: int, frame: Any) -> None:
        if callable(before):
            send()
            before(number, frame)
            return
        try:
            leave()
        finally:  # the process ends as it would have, with the same status
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)

    signal.signal(signal.SIGTERM, handler)


def mention(sentence: str) -> None:
    """Tell the user what is no fault: in the log, or, if the log leaves it out, on a terminal.

    Workers of multiprocessing's, and all ranks but the first, say nothing.
    """
    if multiprocessing.parent_process() is not None or os.environ.get("RANK", "0") != "0":
        return
    logger.info("%s", sentence)
    if not logger.isEnabledFor(logging.INFO) and sys.stderr is not None and sys.stderr.isatty():
        # A signal may have interrupted a write to it.
        with suppress(OSError, RuntimeError, ValueError):
            print(f"otel_modtrack: {sentence}", file=sys.stderr)  # noqa: T201
