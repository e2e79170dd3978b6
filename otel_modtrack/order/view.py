"""What the trackers of this process have open, looked at from another thread."""

from __future__ import annotations

import collections
import itertools
import sys
import sysconfig
import threading
import time
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
from opentelemetry import trace

from otel_modtrack import semconv
from otel_modtrack.comm.ledger import Ledger
from otel_modtrack.core import CORE, THREADS
from otel_modtrack.order.positions import Launched, Moment, Position, Report, Work
from otel_modtrack.order.recorded import order_of
from otel_modtrack.regions import CALLS, Kind, Phase, Region

if TYPE_CHECKING:
    import types
    from collections.abc import Iterable, Iterator, Sequence

    from otel_modtrack.backward import Run
    from otel_modtrack.comm.records import Collective
    from otel_modtrack.core import ThreadState
    from otel_modtrack.regions import Unit

__all__ = ["View"]

_ATTEMPTS: Final = 3
_STEPS_KEPT: Final = 2  # that are over: another rank may still be in one of them
_CALLS_KEPT: Final = 8
_OURS: Final = str(Path(__file__).parents[1])
_TORCHS: Final = str(Path(torch.__file__).parent)
_PYTHONS: Final = sysconfig.get_path("stdlib")


class _Over(NamedTuple):
    """What is over: a step, or a call outside of steps."""

    moment: Moment
    unit: Unit
    regions: list[Region]


class _Seen(Ledger):
    """Told, as a tracker's ledger is, what is over and what is launched. Only puts it aside.

    It runs on the program's threads.
    """

    def __init__(self) -> None:
        super().__init__()
        self.steps: collections.deque[_Over] = collections.deque(maxlen=_STEPS_KEPT)
        self.calls: collections.deque[_Over] = collections.deque(maxlen=_CALLS_KEPT)
        self.calls_over = 0
        self.launched: tuple[Collective, int] | None = None
        self.threads: dict[int, int] = {}
        self._numbers: dict[str, Iterator[int]] = {}

    def add(self, record: Collective) -> None:
        """See `Ledger.add`."""
        name = record.launch.group.name
        numbers = self._numbers.get(name)
        if numbers is None:
            numbers = self._numbers.setdefault(name, itertools.count(1))
        self.launched = record, next(numbers)
        self.threads[THREADS.state.thread] = threading.get_ident()

    def take_modules(self, regions: Any) -> None:
        """See `Ledger.take_modules`."""
        if not regions:
            return
        unit = regions[0].unit
        self.threads[THREADS.state.thread] = threading.get_ident()
        if unit.opener is None:
            self.steps.append(_Over(Moment(_steps()), unit, list(regions)))
        elif unit.opener.subject.kind is not Kind.LOAD:
            self.calls_over += 1
            moment = Moment(_steps(), self.calls_over)
            self.calls.append(_Over(moment, unit, list(regions)))


class _Standing(NamedTuple):
    """What a thread was seen to be at, and since when (`time.monotonic`, in seconds)."""

    signature: tuple[Any, ...]
    since_s: float


class View:
    """What the trackers of this process have open, looked at from another thread.

    What is looked at is written by the program's threads meanwhile; it is only read here.

    Attributes:
        seen: what those threads put aside.
    """

    def __init__(self) -> None:
        self.seen = _Seen()
        self._begun_s = time.monotonic()
        self._standing: weakref.WeakKeyDictionary[ThreadState, _Standing] = (
            weakref.WeakKeyDictionary()
        )
        self._moved_s = self._begun_s

    def look(self) -> None:
        """Note on which threads something has begun or ended since."""
        now_s = time.monotonic()
        for state in _states():
            signature = _signature(state)
            before = self._standing.get(state)
            if before is None or before.signature != signature:
                self._standing[state] = _Standing(signature, now_s)
                self._moved_s = now_s

    def still_s(self) -> float:
        """How long nothing has begun or ended in something that is open, in seconds; 0 if none."""
        state = self._chosen()
        return time.monotonic() - self._standing[state].since_s if state is not None else 0.0

    def _chosen(self) -> ThreadState | None:
        """The thread of those with something open that has stood still longest; a step's first."""
        found = [
            (unit.opener is None, -self._standing[state].since_s, state)
            for state in _states()
            if state in self._standing and (unit := _unit_of(state)) is not None
        ]
        return max(found, key=lambda one: one[:2])[2] if found else None

    def position(self, rank: int) -> Position:
        """Where this rank is.

        Args:
            rank: which one it is.
        """
        for _ in range(_ATTEMPTS):
            state = self._chosen()
            before = _signature(state) if state is not None else None
            here = self._position(rank, state)
            if state is None or _signature(state) == before == self._standing[state].signature:
                return here
        here.still_s = 0.0  # something has begun or ended while it was looked at
        return here

    def _position(self, rank: int, state: ThreadState | None) -> Position:
        unit = _unit_of(state) if state is not None else None
        since_s = self._moved_s if state is None else self._standing[state].since_s
        episode = int((since_s - self._begun_s) * 1e3) + 1
        here = Position(rank, time.monotonic() - since_s, episode)
        over = [*self.seen.steps, *self.seen.calls]
        over.sort(key=lambda one: one.regions[-1].start_ns, reverse=True)
        here.past = [_work(one.moment, one.unit, one.regions, ended=True) for one in over]
        failed = [one for one in over[0].regions if one.failure is not None] if over else []
        here.inside = [_name(one) for one in failed[-1:]]
        latest_ns = max((_latest_ns(one.regions) for one in over), default=0)
        line = _Line("", in_torch=True)
        if state is not None and unit is not None:
            regions, opened = _began(unit)
            moment = Moment(_steps(), -1 if unit.opener is None else self.seen.calls_over + 1)
            here.now = _work(moment, unit, regions, ended=False)
            here.inside = _inside(state, opened)
            here.latest = _latest(regions)
            fired_ns = [at_ns for run in list(CORE.runs.values()) for _, at_ns in run.events[-1:]]
            latest_ns = max(latest_ns, _latest_ns(regions), *fired_ns)
            line = _line_of(self.seen.threads.get(state.thread))
            here.line = line.text
        here.launched = _launched(self.seen, latest_ns, in_torch=line.in_torch)
        return here

    def tell_span(self, report: Report, here: Position) -> None:
        """Say on the span of the step that is open where the ranks went.

        Args:
            report: that says so.
            here: where this rank was when it was asked.
        """
        state = self._chosen()
        unit = _unit_of(state) if state is not None else None
        span = _span_of(unit) if unit is not None else None
        if unit is None or span is None or not span.is_recording():
            return
        sequence, position, fqn = here.latest or (Phase.FORWARD, 0, None)
        if report.difference is not None:
            sequence, position = report.difference.sequence, report.difference.position
            side = report.side_of(here.rank)
            fqn = side.fqn if side is not None else None
            position = side.position if side is not None else position
        attributes: dict[str, Any] = {
            semconv.ORDER_SEQUENCE: sequence,
            semconv.ORDER_POSITION: position,
            semconv.ORDER_REPORT: report.text,
        }
        if fqn is not None:
            attributes[semconv.ORDER_FQN] = fqn
        span.add_event(semconv.ORDER_DIVERGED_EVENT, attributes, unit.now_wall_ns())


def _states() -> list[ThreadState]:
    """The threads that run torch's code, or have done so."""
    while True:
        try:
            return list(CORE.states)
        except RuntimeError:  # one has just begun or ended
            continue


def _unit_of(state: ThreadState) -> Unit | None:
    """What is open on a thread."""
    step = state.progress.open
    for unit in (state.unit, step.unit if step is not None else None):
        if unit is not None and not unit.flushed:
            return unit
    return None


def _signature(state: ThreadState) -> tuple[Any, ...]:
    """Another one whenever something has begun or ended in what is open on a thread."""
    unit = _unit_of(state)
    return (
        unit,
        state.running,
        state.optimizer,
        len(state.numbers),
        len(unit.regions) if unit is not None else 0,
        len(unit.collectives) if unit is not None else 0,
        sum(len(run.events) for run in list(CORE.runs.values()) if run.unit is unit),
    )


def _steps() -> int:
    """How many steps have begun in this process."""
    control = CORE.sink.control
    return control.count if control is not None else 0


def _work(moment: Moment, unit: Unit, regions: Sequence[Region], *, ended: bool) -> Work:
    if moment.calls < 0:
        moment = moment._replace(number=unit.step)
    failed = any(region.failure is not None for region in regions)
    return Work(moment, order_of(regions, "order"), ended and not failed)


def _span_of(unit: Unit) -> trace.Span | None:
    """The span of a step, or of a call that has one already."""
    if unit.opener is not None:
        span = unit.opener.span
        return span if isinstance(span, trace.Span) else None
    context = getattr(unit.scope, "context", None)
    return trace.get_current_span(context) if context is not None else None


def _began(unit: Unit) -> tuple[list[Region], dict[Run, list[Region]]]:
    """What has begun in a unit, in order, and what is open in each backward that is under way.

    A backward's regions are made at its end, or when someone asks where it is: what has fired until
    now is turned into such regions here, which nobody else sees.
    """
    regions = list(unit.regions)
    opened = {}
    for run in list(CORE.runs.values()):
        if run.unit is unit and not run.plan.by_node:  # else nodes would have to be asked
            new, opened[run] = run.peek()
            regions += new
    return sorted(regions, key=lambda region: region.start_ns), opened


def _inside(state: ThreadState, opened: dict[Run, list[Region]]) -> list[str]:
    """What runs on a thread, the outermost first."""
    region = state.running
    if region is not None and region.subject.kind is Kind.ENGINE:
        run = region.span
        if run is not None:
            still_open = opened.get(run)
            region = still_open[-1] if still_open else run.root or run.place
    region = region if region is not None else state.optimizer
    return [_name(one) for one in reversed(region.chain())] if region is not None else []


def _name(region: Region) -> str:
    subject = region.subject
    if subject.kind in CALLS:
        return f"{region.phase} {subject.fqn}"
    if subject.kind is Kind.OPTIMIZER:
        return f"{semconv.OPTIMIZER_STEP_SPAN} {subject.fqn}"
    return str(subject.kind.value)


def _latest(regions: Sequence[Region]) -> tuple[str, int, str] | None:
    """The module call that has begun last: phase, position in that, fqn."""
    calls = [region for region in regions if region.subject.kind is Kind.MODULE]
    if not calls:
        return None
    last = calls[-1]
    return last.phase, sum(one.phase == last.phase for one in calls) - 1, last.subject.fqn


def _latest_ns(regions: Iterable[Region]) -> int:
    """When something has begun or ended last; 0 if nothing has."""
    return max((max(one.start_ns, one.end_ns) for one in regions), default=0)


class _Line(NamedTuple):
    """Where a thread is in the program, and whether it is in torch from there."""

    text: str
    in_torch: bool


def _line_of(thread: int | None) -> _Line:
    """The innermost line of a thread that is neither torch's nor ours nor Python's own."""
    if thread is None:
        thread = threading.main_thread().ident
    frame: types.FrameType | None = sys._current_frames().get(thread or 0)  # noqa: SLF001
    in_torch = False
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith((_TORCHS, _OURS)):
            in_torch = True
        elif not name.startswith((_PYTHONS, "<frozen")) or "-packages" in name:
            return _Line(f"{Path(name).name}:{frame.f_lineno}", in_torch)
        frame = frame.f_back
    return _Line("", in_torch=True)


def _launched(seen: _Seen, latest_ns: int, *, in_torch: bool) -> Launched | None:
    """The last collective.

    Args:
        seen: what was launched.
        latest_ns: when something has begun or ended last (`time.perf_counter_ns`).
        in_torch: whether the program is in torch's code.
    """
    found = seen.launched
    if found is None:
        return None
    record, number = found
    launch, region = record.launch, record.region
    # One that is over is known by what came after it, or by the program being in lines of its own.
    over = record.details is not None and record.details.end_ns
    waits = not over and record.at_ns >= latest_ns and (in_torch or launch.asynchronous)
    if region is not None:
        place = _name(region)
    else:
        fqns, phase = record.elsewhere
        place = f"{phase} {fqns[0]}" if fqns else ""
    group = launch.group
    name = f"{group.name} ({group.description})" if group.description else group.name
    return Launched(launch.operator.operation, name, group.size, number, place, waits)
