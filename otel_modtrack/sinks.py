"""Sinks that make no spans: what is only measured, and what does not know yet where spans go."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from otel_modtrack.regions import Sink, close_all

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_modtrack.control import Control
    from otel_modtrack.regions import Subject, Unit

__all__ = ["LateSink", "Unrecorded"]


class Unrecorded(Sink):
    """What gets no spans, and is measured.

    Args:
        sink: whose meter it goes to.
    """

    wants_backward = True

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def flush(self, unit: Unit) -> None:
        """See `Sink.flush`."""
        close_all(unit.regions)
        if self._sink.meter is not None:
            self._sink.meter.take(unit, unit.regions, None)
        super().flush(unit)


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
