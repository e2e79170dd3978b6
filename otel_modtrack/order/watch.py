"""Finds out, while ranks hang, which of them went where: before the collective's own timeout.

A thread of each rank looks now and then whether something has begun or ended. Where nothing has,
it asks the other ranks' threads, through the store that the process group was made with, and on a
connection of its own: the group itself hangs, and so may the program's connection.

One round of asking: a rank that stands still opens it, each rank puts down where it is, and the one
that has opened it says what that means. It costs a few messages a rank, however many there are.
"""

from __future__ import annotations

import atexit
import collections
import datetime as dt
import itertools
import logging
import math
import os
import re
import select
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
from otel_modtrack.core import CORE, THREADS, real
from otel_modtrack.order.across import (
    Kinds,
    Launched,
    Moment,
    Position,
    Report,
    Work,
    cut_off,
    judge,
)
from otel_modtrack.order.recorded import order_of
from otel_modtrack.regions import CALLS, Kind, Phase, Region

if TYPE_CHECKING:
    import types
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from typing_extensions import Self

    from otel_modtrack.backward import Run
    from otel_modtrack.comm.records import Collective
    from otel_modtrack.core import ThreadState
    from otel_modtrack.regions import Unit

__all__ = ["OrderWatch"]

logger = logging.getLogger("otel_modtrack")

_uses = itertools.count()

_LOOKS: Final = 4  # how often it is looked in the time that is waited for something
_TOLD_KEPT: Final = 8
_ATTEMPTS: Final = 3
_STEPS_KEPT: Final = 2  # that are over: another rank may still be in one of them
_CALLS_KEPT: Final = 8
_ROUND_LOOK_S: Final = 0.1  # while a round is under way
_CONNECTION: Final = re.compile(r"\bSocketImpl\(fd=(\d+)")
_OURS: Final = str(Path(__file__).parents[1])
_TORCHS: Final = str(Path(torch.__file__).parent)
_PYTHONS: Final = sysconfig.get_path("stdlib")
_DISTRIBUTED: Final = torch.distributed.is_available()


class OrderWatch:
    """Says which rank went where, while ranks wait for each other.

    A context manager, for each rank to be in, while a `ModTracker` is on. Where nothing begins and
    nothing ends for `after` seconds in a step or call that is open, the ranks tell each other where
    they are, and each logs the same report, once:

    - as an error, if they went different ways and wait for each other, or if one has failed. Of
      those that went different ways, the step's span has an event ``modtrack.order_diverged``.
    - as a warning, if a rank is slow, or does not answer. On a rank that goes on it is only "info".

    It launches no collective, and never runs on the program's threads. Without a process group, or
    with one rank alone, it does nothing.

    Args:
        after: how long nothing begins and nothing ends before the others are asked, in seconds. The
            process group's own timeout should be at least twice as long.
        answer: how long the others have to answer, in seconds.
        on_difference: called with each `Report` of different ways, on a thread of ours.

    Attributes:
        reports: what was found so far, the oldest first.

    Raises:
        TypeError: if an argument is of the wrong type.
        ValueError: if a time is not a positive number.

    Example:
        >>> with ModTracker(model) as tracker, OrderWatch(after=30.0):
        ...     train()

    Limits:
        Off in forked children. What a policy leaves out is not seen. On a device the program runs
        ahead of what is computed: a rank may have gone on to a later module than the one whose
        collective waits. A process that is killed at the timeout exports no span: the log has it.
    """

    def __init__(
        self,
        after: float = 10.0,
        *,
        answer: float = 5.0,
        on_difference: Callable[[Report], object] | None = None,
    ) -> None:
        for name, value in (("after", after), ("answer", answer)):
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                msg = f"OrderWatch({name}=...): seconds are wanted, not {type(value).__name__}"
                raise TypeError(msg)
            if not (math.isfinite(value) and value > 0):
                msg = f"OrderWatch({name}={value}): a positive number of seconds is wanted"
                raise ValueError(msg)
        if on_difference is not None and not callable(on_difference):
            msg = (
                "OrderWatch(on_difference=...): a function is wanted, not"
                f" {type(on_difference).__name__}"
            )
            raise TypeError(msg)
        self.reports: list[Report] = []
        self._after_s = float(after)
        self._answer_s = float(answer)
        self._on_difference = on_difference
        self._watcher: _Watcher | None = None

    @property
    def is_on(self) -> bool:
        """Whether its block is entered, and not left."""
        return self._watcher is not None

    def __enter__(self) -> Self:
        """Begin to watch."""
        if self._watcher is None and _DISTRIBUTED:
            self._watcher = watcher = _Watcher(
                self._after_s, self._answer_s, self.reports, self._on_difference
            )
            try:
                watcher.start()
            except RuntimeError as error:  # there may be no more threads
                logger.warning("the order is not watched: %s", error)
                self._watcher = None
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace_: types.TracebackType | None,
    ) -> None:
        """End it: no thread is left, and nothing in the store once the last rank has left."""
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            watcher.stop(kind.__qualname__ if kind is not None else "")


class _Watcher:
    """The thread of one `with` block, and what it knows."""

    def __init__(
        self,
        after_s: float,
        answer_s: float,
        reports: list[Report],
        on_difference: Callable[[Report], object] | None,
    ) -> None:
        self._after_s = after_s
        self._answer_s = answer_s
        self._reports = reports
        self._on_difference = on_difference
        self._use = next(_uses)
        self._groups = itertools.count()
        self._pid = os.getpid()
        self._stop = threading.Event()
        self._error = ""
        self._view = _View()
        self._talk: _Talk | None = None
        self._lost: _Lost | None = None
        self._next_ask_s = 0.0
        self._told: list[tuple[int, set[tuple[int, int]]]] = []
        self._thread = threading.Thread(target=self._run, name="otel_modtrack watch", daemon=True)

    def start(self) -> None:
        """Begin.

        Raises:
            RuntimeError: if no thread can be started.
        """
        self._thread.start()
        CORE.ledgers = (*CORE.ledgers, self._view.seen)
        # A daemon thread that comes back from torch while the interpreter ends aborts the process.
        atexit.register(self.stop)

    def stop(self, error: str = "") -> None:
        """End; waits for the thread no longer than others have to answer. Never raises.

        Args:
            error: class of the exception that has ended it.
        """
        atexit.unregister(self.stop)
        CORE.ledgers = tuple(one for one in CORE.ledgers if one is not self._view.seen)
        if os.getpid() == self._pid:
            self._error = error
            self._stop.set()
            if threading.current_thread() is not self._thread:
                self._thread.join(self._answer_s)

    def _run(self) -> None:
        wait_s = min(self._after_s, self._answer_s) / _LOOKS
        try:
            while True:
                self._look()
                if self._stop.wait(wait_s):
                    break
            if self._talk is not None:
                self._part(self._talk)
        except Exception:  # nothing of ours may reach the user
            logger.warning("the order is not watched any more", exc_info=True)
        finally:
            self._talk = None

    def _look(self) -> None:
        """What is done now and then."""
        self._view.look()
        talk = self._find_talk()
        waits = self._view.still_s() >= self._after_s and time.monotonic() >= self._next_ask_s
        if talk is None:
            if waits and self._lost is not None and self._lost.group() is _default_group():
                here = self._view.position(self._lost.rank)
                self._hear(cut_off(here, self._after_s, self._lost.why), here)
            return
        try:
            current = talk.round()
            if current != talk.answered:
                self._answer(talk, current)
            elif waits and (opened := talk.open_round()) is not None:
                self._ask(talk, opened)
        except RuntimeError as error:
            self._lost = _Lost(talk.group, talk.rank, _first_line(error))
            self._talk = None

    # -- the others ------------------------------------------------------------------------------

    def _find_talk(self) -> _Talk | None:
        """A connection for the default process group there is now; None if there is none."""
        group = _default_group()
        talk = self._talk
        if talk is not None and talk.group() is not group:
            self._talk = None
            self._part(talk)
            talk = None
        if group is None or (self._lost is not None and self._lost.group() is group):
            return None
        if talk is None:
            try:
                self._talk = talk = _Talk(group, self._name(), self._answer_s)
            except (RuntimeError, ValueError, KeyError, NotImplementedError) as error:
                if _default_group() is group:  # else it has just gone
                    why = _first_line(error)
                    self._lost = _Lost(weakref.ref(group), torch.distributed.get_rank(), why)
                return None
        return talk if talk.world > 1 else None

    def _name(self) -> str:
        """What the watches of all ranks call this one, while there is one process group."""
        return f"{self._use}.{next(self._groups)}"

    def _ask(self, talk: _Talk, current: int) -> None:
        """Open a round: wait for the others, and say what it means."""
        here = self._view.position(talk.rank)
        talk.answered = current
        found = {talk.rank: here}
        until_s = time.monotonic() + self._answer_s
        while True:
            for rank in range(talk.world):
                if rank not in found and (position := talk.position(current, rank)) is not None:
                    found[rank] = position
            if len(found) == talk.world or time.monotonic() >= until_s:
                break
            if self._stop.wait(_ROUND_LOOK_S):
                return
        silent = [rank for rank in range(talk.world) if rank not in found]
        unwatched = [rank for rank in silent if not talk.has_come(rank)]
        report = judge(found, talk.world, self._after_s, unwatched)
        talk.tell(current, report)
        self._hear(report, here)

    def _answer(self, talk: _Talk, current: int) -> None:
        """Someone has opened a round: tell where this rank is, and hear what it means."""
        here = self._view.position(talk.rank)
        talk.answered = current
        talk.put(current, here)
        until_s = time.monotonic() + 2 * self._answer_s
        while not talk.is_told(current):
            if self._stop.wait(_ROUND_LOOK_S) or time.monotonic() >= until_s:
                return  # whoever has opened it has ended
        self._hear(talk.told(current), here)

    def _hear(self, report: Report | None, here: Position) -> None:
        """What a round has come to: log it, unless it was told of the same standstill before."""
        wait_s = self._after_s if report is not None else self._after_s / _LOOKS
        self._next_ask_s = time.monotonic() + wait_s
        if report is None:
            return
        weight, stuck = Kinds.ALL.index(report.kind), set(report.stuck)
        if any(weight <= before and stuck & of for before, of in self._told):
            return
        self._told = [*self._told[-_TOLD_KEPT:], (weight, stuck)]
        self._reports.append(report)
        goes_on = here.now is None or here.still_s < self._after_s
        slow = goes_on and report.level < logging.ERROR  # the others wait, maybe for this one
        logger.log(logging.INFO if slow else report.level, "%s", report.text)
        if report.kind == Kinds.DIVERGED:
            self._view.tell_span(report, here)
            if self._on_difference is not None:
                try:
                    self._on_difference(report)
                except Exception:
                    logger.exception("on_difference has raised")

    def _part(self, talk: _Talk) -> None:
        """Tell the others that this rank is watched no more."""
        here = self._view.position(talk.rank)
        here.now, here.left, here.error = None, True, self._error
        try:
            talk.leave(here)
        except RuntimeError:
            return


class _Talk:
    """Speaks with the watches of the other ranks, through the store of a process group.

    Args:
        group: the default process group.
        name: that the watches have in common, and no other has in this store.
        timeout_s: for each message, in seconds.

    Attributes:
        group: weakly.
        rank, world: of this process in the group.
        answered: the round that this rank has taken part in last.
    """

    def __init__(self, group: Any, name: str, timeout_s: float) -> None:
        dist: Any = torch.distributed
        self.group = weakref.ref(group)
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.answered = 0
        if self.world == 1:
            return
        own = dist.distributed_c10d._get_default_store().clone()  # noqa: SLF001
        own.set_timeout(dt.timedelta(seconds=timeout_s))
        self._store: Any = dist.PrefixStore(f"otel_modtrack/watch/{name}", own)
        self._round = self._store.compare_set("round", "", "0:").decode()
        self.answered = self.round()
        self._store.set(f"here/{self.rank}", "")

    def has_come(self, rank: int) -> bool:
        """Whether a rank has begun to watch."""
        return bool(self._store.check([f"here/{rank}"]))

    def round(self) -> int:
        """The number of the last round that was opened."""
        if not self._is_served():
            msg = "the connection was closed"
            raise RuntimeError(msg)
        self._round = self._store.get("round").decode()
        return int(self._round.partition(":")[0])

    def open_round(self) -> int | None:
        """Open the next round; None if another rank was faster."""
        ours = f"{self.answered + 1}:{self.rank}"
        found = self._store.compare_set("round", self._round, ours).decode()
        if found != ours:
            return None
        if self.answered:  # nobody asks for that any more
            self._forget(self.answered)
        return self.answered + 1

    def put(self, current: int, position: Position) -> None:
        """Say where this rank is."""
        self._store.set(f"{current}/{self.rank}", position.to_bytes())

    def position(self, current: int, rank: int) -> Position | None:
        """Where a rank is, if it has said so or has left."""
        for key in (f"{current}/{rank}", f"left/{rank}"):
            if self._store.check([key]):
                return Position.from_bytes(self._store.get(key))
        return None

    def tell(self, current: int, report: Report | None) -> None:
        """Say what a round has come to."""
        self._store.set(f"{current}/told", report.to_bytes() if report is not None else b"-")

    def is_told(self, current: int) -> bool:
        """Whether that was said."""
        return bool(self._store.check([f"{current}/told"]))

    def told(self, current: int) -> Report | None:
        """What was said."""
        found = self._store.get(f"{current}/told")
        return Report.from_bytes(found) if found != b"-" else None

    def leave(self, position: Position) -> None:
        """Say that this rank is watched no more; the last one clears up."""
        if self.world == 1 or not self._is_served():
            return
        self._store.set(f"left/{self.rank}", position.to_bytes())
        if self._store.add("gone", 1) == self.world:
            self._forget(self.round())
            for rank in range(self.world):
                self._store.delete_key(f"here/{rank}")
                self._store.delete_key(f"left/{rank}")
            self._store.delete_key("round")
            self._store.delete_key("gone")

    def _forget(self, current: int) -> None:
        for what in ("told", *range(self.world)):
            self._store.delete_key(f"{current}/{what}")

    def _is_served(self) -> bool:
        """Whether the store is there still: torch prints a stack if one is written to in vain.

        Nothing comes by the connection of a TCPStore that was not asked for, but its end.
        """
        told = _CONNECTION.search(repr(self._store._underlying_non_prefix_store))  # noqa: SLF001
        if told is None or not hasattr(select, "poll"):
            return True
        poll = select.poll()
        poll.register(int(told[1]), select.POLLIN)
        return not poll.poll(0)


class _Lost(NamedTuple):
    """A process group, weakly, whose store does not answer; the rank in it; why."""

    group: weakref.ref[Any]
    rank: int
    why: str


def _default_group() -> Any:
    dist = torch.distributed
    return dist.group.WORLD if dist.is_initialized() else None


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


# -- this rank ------------------------------------------------------------------------------------


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


class _View:
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
            here.now = _work(moment, unit, regions, ended=False, state=state)
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
    return control._count if control is not None else 0  # noqa: SLF001


def _work(
    moment: Moment,
    unit: Unit,
    regions: Sequence[Region],
    *,
    ended: bool,
    state: ThreadState | None = None,
) -> Work:
    if moment.calls < 0:
        moment = moment._replace(number=_number_of(unit, state))
    failed = any(region.failure is not None for region in regions)
    return Work(moment, order_of(regions, "order"), ended and not failed)


def _number_of(unit: Unit, state: ThreadState | None) -> int | None:
    """The number of a step, as the program counts."""
    step = state.progress.open if state is not None else None
    if step is not None and step.unit is unit:
        return step._number  # type: ignore[no-any-return]  # noqa: SLF001
    attributes = getattr(_span_of(unit), "attributes", None)
    number = attributes.get(semconv.STEP_NUMBER) if attributes is not None else None
    return number if isinstance(number, int) else None


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
            new, opened[run] = _unfolded(run)
            regions += new
    return sorted(regions, key=lambda region: region.start_ns), opened


def _unfolded(run: Run) -> tuple[list[Region], list[Region]]:
    """As `Run.fold`, without any change: the regions that are not made yet, and those now open."""
    plan = run.plan
    known = dict(run._regions)  # noqa: SLF001
    still_open = list(run._open)  # noqa: SLF001
    owner = run._owner  # noqa: SLF001
    new: list[Region] = []
    for key, at_ns in run.events[run._folded :]:  # noqa: SLF001
        if key in plan.captured or (call := plan.owner(key)) is owner:
            continue
        owner, keep = call, 0
        missing: list[Region] = []
        while call is not None and call.subject.kind in CALLS and call.phase != Phase.BACKWARD:
            depths = (at for at, one in enumerate(still_open, 1) if one.forward is call)
            keep = next(depths, 0)
            if keep:
                break
            missing.append(call)
            call = real(call.parent)
        del still_open[keep:]
        for call in reversed(missing):
            region = known.get(call)
            if region is None:
                parent = still_open[-1] if still_open else run.root or run.place
                region = Region(call.subject, parent, Phase.BACKWARD, at_ns, run.unit)  # type: ignore[arg-type]
                region.forward = call
                known[call] = region
                new.append(region)
            still_open.append(region)
    return new, still_open


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
