"""The block in which an order is recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_modtrack import where
from otel_modtrack.activation import ACTIVATION
from otel_modtrack.core import CORE, THREADS
from otel_modtrack.order.recorder import Recorder

if TYPE_CHECKING:
    import types
    from collections.abc import Callable

    from otel_modtrack.order.execution import ExecutionOrder

__all__ = ["OrderRecording"]


class OrderRecording:
    """See `ModTracker.record_order`.

    Args:
        is_on: tells whether the tracker is.
        keep: takes the order.
        name: of the order; None for the usual one.
    """

    def __init__(
        self,
        is_on: Callable[[], bool],
        keep: Callable[[ExecutionOrder], None],
        name: str | None = None,
    ) -> None:
        self._is_on = is_on
        self._keep = keep
        self._name = name
        self._recorder: Recorder | None = None

    def __enter__(self) -> None:
        """Begin to record."""
        if not self._is_on():
            msg = "record_order() works inside `with ModTracker(...) as tracker:` only"
            raise RuntimeError(msg)
        recorder = Recorder(CORE.names, THREADS.state)
        try:
            ACTIVATION.record(recorder)
            self._recorder = recorder
        except BaseException:  # a signal handler's, or a refusal: the block is not entered
            if recorder in CORE.recorders:
                ACTIVATION.stop_recording(recorder)
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace_: types.TracebackType | None,
    ) -> None:
        """End it, and make the order."""
        recorder = self._recorder
        if recorder is None:
            return
        try:
            ACTIVATION.stop_recording(recorder)
        except BaseException:  # a signal handler's
            ACTIVATION.stop_recording(recorder)
            raise
        self._recorder = None
        try:
            rank, world_size = where.process()
            order = recorder.result(self._name or (f"rank {rank}" if world_size else "recorded"))
            order.rank = rank if world_size else None
            if self._name is None and order.step is not None:
                order.name = f"step {order.step}" + (f" of rank {rank}" if world_size else "")
            self._keep(order)
            recorder.forget()
        except Exception as fault:  # noqa: BLE001 - nothing of ours may reach the user
            CORE.fault("making an order", fault)
