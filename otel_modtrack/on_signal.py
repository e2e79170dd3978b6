"""A signal at which the next steps are recorded."""

from __future__ import annotations

import logging
import signal
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["SignalSwap"]

logger = logging.getLogger("otel_modtrack")


class SignalSwap:
    """Puts a handler in place, which calls the one that was there, and takes it away.

    Args:
        number: of the signal.
        ask: what it is to do.
    """

    def __init__(self, number: int, ask: Callable[[], None]) -> None:
        self._number = number
        self._ask = ask
        self._before: Any = None
        self._on = False

    def install(self) -> None:
        """Handle the signal, if this is the main thread, whose handlers are."""
        if threading.current_thread() is not threading.main_thread():
            logger.warning(
                "the tracker was entered outside of the main thread, so that it hears no signal;"
                " use record_next()"
            )
            return
        self._before = signal.getsignal(self._number)
        signal.signal(self._number, self._handle)
        self._on = True

    def remove(self) -> None:
        """Give it back, unless someone else has taken it since."""
        if not self._on or threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(self._number) == self._handle:
            # None: a handler of a C library's, which Python cannot put back.
            signal.signal(self._number, self._before or signal.SIG_DFL)
        self._on = False

    def _handle(self, number: int, frame: Any) -> None:
        self._ask()
        if callable(self._before):
            self._before(number, frame)
