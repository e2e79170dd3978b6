"""Notices that a training loop is gone, where its framework does not tell of exceptions."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from typing import TYPE_CHECKING

from otel_modtrack.leaving import ended_by

if TYPE_CHECKING:
    import types
    from collections.abc import Callable

__all__ = ["Watch", "find_frame"]

_KEY = "otel_modtrack.watch"


def find_frame(name: str) -> types.FrameType | None:
    """The innermost frame on this thread's stack whose function has that name."""
    frame: types.FrameType | None = sys._getframe(1)  # noqa: SLF001
    while frame is not None and frame.f_code.co_name != name:
        frame = frame.f_back
    return frame


class _Sentinel:
    """Lives as long as a frame does, and says when it goes."""

    def __init__(self, gone: Callable[[], None]) -> None:
        self._gone = gone

    def __del__(self) -> None:
        self._gone()


class Watch:
    """Tells when a loop was left without a word: its frame is gone, or the process ends.

    An object of ours is put beside the locals of the loop's frame. A frame that an exception has
    left lives as long as the traceback does: until the ``except`` block that handles it ends.

    Args:
        frame: of the loop; if None, the end of the process alone is told.
        left: is called once, in the thread of the loop, with what ended the process, or None. It
            must not raise, nor lead to the frame.

    Limits:
        A traceback that is kept (``sys.last_traceback`` in a notebook) keeps the frame: then it is
        told at the end of the process. What another thread finds is not told.

    Source:
        PEP 667 for the locals of a frame; before Python 3.13 they are a dict of the frame's.
    """

    def __init__(
        self, frame: types.FrameType | None, left: Callable[[BaseException | None], None]
    ) -> None:
        self._left = left
        self._where = _here()
        self._is_over = False
        if frame is not None:
            frame.f_locals[_KEY] = _Sentinel(self._frame_gone)
        atexit.register(self._exiting)

    def end(self) -> None:
        """The loop has ended, and that was told. Again: does nothing."""
        self._is_over = True
        atexit.unregister(self._exiting)

    def _frame_gone(self) -> None:
        self._tell(None)

    def _exiting(self) -> None:
        # Where an exception ends the main thread, its traceback was printed before this.
        self._tell(ended_by())

    def _tell(self, error: BaseException | None) -> None:
        if not self._is_over and self._where == _here():
            self.end()
            self._left(error)


def _here() -> tuple[int, int]:
    """This process and thread."""
    return os.getpid(), threading.get_ident()
