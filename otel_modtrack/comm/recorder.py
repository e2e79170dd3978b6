"""Takes down each collective: what, how large, where; in mode "each" also why and how long.

Called by `hooks` and `kernels`, on whatever thread launches; the hot path of collectives.
"""

from __future__ import annotations

import functools
import threading
from typing import TYPE_CHECKING, Any

import torch

from otel_modtrack import where
from otel_modtrack.calls import clock
from otel_modtrack.comm.groups import Groups
from otel_modtrack.comm.kernels import FUNCTIONAL
from otel_modtrack.comm.operators import NOTHING, UNPAID, measure, shapes_of
from otel_modtrack.comm.records import Collective, Operator, Phases
from otel_modtrack.comm.why import Reasons, is_called_from
from otel_modtrack.core import CORE, THREADS
from otel_modtrack.regions import Kind, Phase

if TYPE_CHECKING:
    from otel_modtrack.comm.records import Group

__all__ = ["Recorder"]

_C: Any = torch._C  # noqa: SLF001
_POINT_TO_POINT = ("send", "recv")
# Backends whose futures are done when the data has arrived. On a device a future is done when the
# operation is queued, which says nothing.
_TELL_THEIR_END = ("gloo", "mpi", "fake")


class _Last(threading.local):
    """`record`: the collective that this thread is launching, or None."""

    record: Collective | None = None


class Recorder:
    """Makes records, and hands them to their unit and to the ledgers of all trackers.

    Attributes:
        each: whether each collective is told by itself.
        groups: what is said of process groups.
    """

    def __init__(self) -> None:
        self.each = False
        self.groups = Groups()
        self._reasons = Reasons()
        self._last = _Last()
        self._named: dict[tuple[str, Operator], Operator] = {}

    def seen(
        self, operator: Operator, group: Group, inputs: Any, outputs: Any, asynchronous: bool
    ) -> Collective:
        """A collective is about to be launched on this thread."""
        size, dtype, device = NOTHING if operator in UNPAID else measure(inputs, outputs)
        backend = group.backends.get(device) or self.groups.backend(group, device)
        if operator.operation in _POINT_TO_POINT:
            asynchronous = not is_called_from("send", "recv")
        name = FUNCTIONAL.name
        if name:
            operator = self._functional(name, operator)
        record = Collective(operator, group, size, dtype, backend, asynchronous)
        self._place(record)
        record.at_ns = clock()  # not before its region, which may have been opened just now
        if self.each and record.unit is not None:
            if operator not in UNPAID:
                record.shapes = shapes_of(inputs or outputs)
            self._reasons.explain(record, inputs)
            self._last.record = record
        for ledger in CORE.ledgers:
            ledger.add(record)
        return record

    def launched(self, work: Any) -> None:
        """The collective that was seen last on this thread is under way."""
        record, self._last.record = self._last.record, None
        if record is None or work is None or record.backend not in _TELL_THEIR_END:
            return
        try:
            work.get_future().add_done_callback(functools.partial(_done, record))
        except RuntimeError:  # a work without a future
            return

    def _functional(self, name: str, operator: Operator) -> Operator:
        found = self._named.get((name, operator))
        if found is None:
            found = Operator(name, operator.operation)
            self._named[name, operator] = found
        return found

    def _place(self, record: Collective) -> None:
        """Find out where it was launched."""
        state = THREADS.state
        region = where.region(state)
        if region is None and state.running is None and _is_foreign():
            region = _of_the_only_run()
        if region is not None:
            kind = region.subject.kind
            record.region = region
            record.phase = region.phase
            if kind is Kind.OPTIMIZER:
                record.phase = Phases.OPTIMIZER
            unit = region.unit
        else:
            unit = state.unit  # type: ignore[assignment]
            if unit is not None and unit.opener is not None:
                unit = None
            if state.skip:
                _place_by_stack(record)
        if unit is not None and not unit.flushed:
            record.unit = unit
            unit.collectives.append(record)


def _place_by_stack(record: Collective) -> None:
    """Nothing is recorded on this thread: the Python stack still tells the modules of a forward."""
    record.fqns = tuple(where.fqns_on_stack())
    backward = _C._current_graph_task_id() != -1  # noqa: SLF001
    if record.fqns:
        record.phase = Phase.RECOMPUTE if backward else Phase.FORWARD
    elif backward:
        record.phase = Phase.BACKWARD


def _is_foreign() -> bool:
    """Whether this is a thread of the backend's own: it continues what a collective began."""
    active: dict[int, Any] = threading._active  # type: ignore[attr-defined]  # noqa: SLF001
    known = active.get(threading.get_ident())
    # Whoever asks for its current thread (logging does) gives it a stand-in.
    return known is None or isinstance(known, threading._DummyThread)  # noqa: SLF001


def _of_the_only_run() -> Any:
    """Where what a comm hook of DDP's goes on to launch belongs: to the backward under way."""
    runs = list(CORE.runs.values())
    return (runs[0].root or runs[0].place) if len(runs) == 1 else None


def _done(record: Collective, future: Any) -> None:
    """Called on a thread of the backend's."""
    del future
    record.end_ns = clock()
