"""A sink that finds out where spans go when the first one is to be made."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from otel_modtrack.regions import Sink

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_modtrack.control import Control
    from otel_modtrack.regions import Subject, Unit

__all__ = ["LateSink"]


class LateSink(Sink):
    """Stands in until there is a provider: a program may set its own after it has imported torch.

    Args:
        control: what is recorded.
        find: makes the right sink, puts it in this one's place and returns it; returns None while
            there is no provider.
    """

    def __init__(self, control: Control, find: Callable[[], Sink | None]) -> None:
        self.control = control
        self._find = find
        self._lock = threading.Lock()

    def ready(self) -> Sink:
        """See `Sink.ready`."""
        if not self._lock.acquire(blocking=False):
            return self  # another thread looks, or this one does
        try:
            return self._find() or self
        finally:
            self._lock.release()

    def begin(self, subject: Subject) -> Unit | None:
        """See `Sink.begin`: nothing is recorded yet."""
        del subject
        return None

    def begin_backward(self, forward: object) -> Unit | None:
        """See `Sink.begin_backward`: likewise."""
        del forward
        return None
