"""Takes down each collective: what, how large, where; in mode "each" also why and how long.

Called by `hooks` and `kernels`, on whatever thread launches; the hot path of collectives.
"""

from __future__ import annotations

import functools
import itertools
import threading
from typing import TYPE_CHECKING, Any

from otel_modtrack import calls, where
from otel_modtrack.comm.faults import FIRING
from otel_modtrack.comm.groups import Groups
from otel_modtrack.comm.kernels import FUNCTIONAL
from otel_modtrack.comm.operators import NOTHING, look, measure, shapes_of
from otel_modtrack.comm.records import (
    Collective,
    Detailed,
    Details,
    Launch,
    Operator,
    Phases,
    Unrecorded,
)
from otel_modtrack.comm.why import Reasons, is_called_from
from otel_modtrack.core import CORE, THREADS
from otel_modtrack.engine import current_graph_task_id
from otel_modtrack.interrupts import from_signal_handler
from otel_modtrack.regions import Phase

if TYPE_CHECKING:
    from otel_modtrack.comm.operators import Measured
    from otel_modtrack.comm.records import Group
    from otel_modtrack.regions import Region

__all__ = ["Recorder"]

# Backends whose futures are done when the data has arrived. On a device a future is done when the
# operation is queued, which says nothing.
_TELL_THEIR_END = ("gloo", "mpi", "fake")
_KINDS_KEPT = 512  # of launches in a group; sizes may differ from step to step


class _Last(threading.local):
    """`record`: the collective that this thread is launching, or None."""

    record: Detailed | None = None


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
    ) -> None:
        """A collective is about to be launched on this thread."""
        if FIRING.unseen:
            return
        seen = look(inputs, outputs) if operator.paid else None
        if operator.paired:
            asynchronous = not is_called_from("send", "recv")
        key = (operator, seen, asynchronous, FUNCTIONAL.name)
        launch = group.launches.get(key)
        if launch is None:
            measured = measure(inputs, outputs) if operator.paid else NOTHING
            launch = self._launch(operator, group, measured, asynchronous)
            if len(group.launches) >= _KINDS_KEPT:
                group.launches.clear()
            group.launches[key] = launch
        state = THREADS.state
        region = where.region(state)
        if region is None and state.running is None and _is_foreign():
            region = _of_the_only_run()
        unit = region.unit if region is not None else state.unit
        # What is launched outside of its opener is not the unit's; nor if it was told already.
        if unit is not None and (unit.flushed or (region is None and unit.opener is not None)):
            unit = None
        # The clock is not read before its region's, which may have been opened just now.
        if unit is not None:
            if self.each:
                record: Collective = self._detailed(launch, region, inputs, outputs)
            else:
                record = Collective(launch, region, calls.clock())
            unit.collectives.append(record)
        elif state.skip:
            record = _unrecorded(launch)
        else:
            record = Collective(launch, region, calls.clock())
        CORE.count(record, unit)

    def launched(self, work: Any) -> None:
        """The collective that was seen last on this thread is under way."""
        record, self._last.record = self._last.record, None
        if record is None or work is None or record.launch.backend not in _TELL_THEIR_END:
            return
        details: Any = record.details
        try:
            future = work.get_future()
            # Where it is done by now torch calls us here, and would swallow what a signal handler
            # raises meanwhile. So no Python runs in it: asked for its next item, a chain of C's
            # iterators reads the clock and appends the time.
            readings = itertools.starmap(calls.clock, itertools.repeat((), 1))
            future.add_done_callback(functools.partial(next, map(details.ends.append, readings)))
        except RuntimeError as error:  # a work without a future
            if from_signal_handler(error):
                raise

    def _launch(
        self, operator: Operator, group: Group, measured: Measured, asynchronous: bool
    ) -> Launch:
        """A kind of launch that is new in this group."""
        name = FUNCTIONAL.name
        shown = operator
        if name:
            shown = self._named.setdefault((name, operator), Operator(name, operator.operation))
        return Launch(
            operator=shown,
            group=group,
            size=measured.size,
            dtype=measured.dtype,
            backend=self.groups.backend(group, measured.device),
            asynchronous=asynchronous,
        )

    def _detailed(
        self, launch: Launch, region: Region | None, inputs: Any, outputs: Any
    ) -> Detailed:
        record = Detailed(launch, region, calls.clock())
        record.details = Details(shapes_of(inputs or outputs) if launch.operator.paid else ())
        self._reasons.explain(record.details, inputs)
        self._last.record = record
        return record


def _unrecorded(launch: Launch) -> Unrecorded:
    """Nothing is recorded on this thread: the Python stack still tells the modules of a forward."""
    record = Unrecorded(launch, None, calls.clock())
    fqns = tuple(where.fqns_on_stack())
    phase = Phase.FORWARD if fqns else Phases.OUTSIDE
    if current_graph_task_id() != -1:
        phase = Phase.RECOMPUTE if fqns else Phase.BACKWARD
    record.elsewhere = (fqns, phase)
    return record


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
