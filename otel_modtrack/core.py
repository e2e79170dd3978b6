"""The state that all trackers of a process share: on or off, names, the log of each thread."""

from __future__ import annotations

import bisect
import collections
import contextlib
import itertools
import logging
import os
import threading
import weakref
from typing import TYPE_CHECKING, Any

from torch._C._autograd import _get_sequence_nr

from otel_modtrack.engine import current_graph_task_id
from otel_modtrack.interrupts import from_signal_handler
from otel_modtrack.names import Names
from otel_modtrack.regions import Kind, Sink
from otel_modtrack.training import Progress

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_modtrack.backward import Run
    from otel_modtrack.comm.ledger import Ledger
    from otel_modtrack.comm.records import Collective
    from otel_modtrack.order.recorder import Recorder
    from otel_modtrack.regions import Region, Subject, Unit
    from otel_modtrack.stepping import Stepper

__all__ = [
    "CORE",
    "METADATA_KEY",
    "THREADS",
    "Core",
    "Stretch",
    "ThreadState",
    "from_signal_handler",
    "real",
]

logger = logging.getLogger("otel_modtrack")

METADATA_KEY = "otel_modtrack"  # under which a node's metadata holds a stretch

# Stretches kept alive per thread though no graph was found to hang them on, so that the backward
# of what leaked out of a call (an activation kept by a hook) still finds its regions.
_RECENT = 64
_RECENT_ENTRIES = 50_000  # about 5 MB

_next_thread = itertools.count().__next__


class Stretch:
    """The log of one outermost call: which region was running from which autograd number on.

    ``calls[i]`` was running while the thread's sequence number went from ``numbers[i]`` to
    ``numbers[i + 1]``: a step function from any node's ``_sequence_nr()`` to the innermost call
    that made the node. Numbers are per thread, so a stretch says whose they are.
    """

    __slots__ = ("__weakref__", "armed", "calls", "hung", "numbers", "thread")

    def __init__(self, thread: int) -> None:
        self.thread = thread
        self.numbers: list[int] = []
        self.calls: list[Region | None] = []
        self.armed: set[int] = set()  # numbers of nodes that carry our hook already
        self.hung: set[int] = set()  # numbers of nodes whose metadata holds it

    def owner(self, number: int) -> Region | None:
        """The innermost call that made node `number`; None if it was made outside of any."""
        at = bisect.bisect_right(self.numbers, number) - 1
        return real(self.calls[at]) if at >= 0 else None


def real(region: Region | None) -> Region | None:
    """The region itself, or, for an engine run, the call that launched it."""
    while region is not None and region.subject.kind is Kind.ENGINE:
        region = region.parent
    return region


class ThreadState:
    """What one thread is doing.

    Attributes:
        running: the innermost open region, or None.
        skip: nothing is recorded on this thread for now (the parent is not sampled).
        stretch: the log being written, its two lists beside it; None between outermost calls.
        opener: the region whose end ends the stretch.
        unit: what outermost calls are exported with, while a step or an outermost call is open.
        var, context: where the user's tracing context lives, and the one that we know to be there.
        optimizer: the optimizer step that is running, if any.
        recent, entries: the last stretches with a graph, and how long their logs are together.
        raising: (exception, failure) while an exception travels outward.
        progress: of its training; not forgotten between steps.
    """

    __slots__ = (
        "__weakref__",
        "calls",
        "context",
        "entries",
        "numbers",
        "opener",
        "optimizer",
        "progress",
        "raising",
        "recent",
        "running",
        "skip",
        "stretch",
        "thread",
        "unit",
        "var",
    )

    def __init__(self) -> None:
        self.thread = _next_thread()
        self.progress = Progress()
        self.reset()
        CORE.states.add(self)

    def reset(self) -> None:
        """Forget everything, as if the thread had just begun."""
        self.running: Region | None = None
        self.skip = not CORE.on
        self.stretch: Stretch | None = None
        self.numbers: list[int] = []
        self.calls: list[Region | None] = []
        self.opener: Region | None = None
        self.unit: Unit | None = None
        self.var: Any = None
        self.context: Any = None
        self.optimizer: Region | None = None
        self.recent: collections.deque[Stretch] = collections.deque()
        self.entries = 0
        self.raising: tuple[Any, Any] | None = None

    def open_stretch(self, opener: Region) -> None:
        """Begin a log that ends with `opener`."""
        self.stretch = stretch = Stretch(self.thread)
        self.numbers, self.calls = stretch.numbers, stretch.calls
        self.opener = opener

    def trim(self) -> None:
        """Make the log's two lists equally long again, if an interruption came between them."""
        del self.calls[len(self.numbers) :], self.numbers[len(self.calls) :]

    def close_stretch(self) -> Stretch | None:
        """End the log; returned only if nodes were made meanwhile."""
        self.trim()
        stretch, self.stretch, self.opener = self.stretch, None, None
        self.numbers, self.calls = [], []
        if stretch is None or not stretch.numbers or stretch.numbers[0] == stretch.numbers[-1]:
            return None
        recent = self.recent
        recent.append(stretch)
        self.entries += len(stretch.numbers)
        while len(recent) > _RECENT or (self.entries > _RECENT_ENTRIES and len(recent) > 1):
            self.entries -= len(recent.popleft().numbers)
        CORE.remember(stretch)
        return stretch

    def suspend(self) -> tuple[Any, ...]:
        """Set what is open aside, for a step that begins inside it. `resume` brings it back."""
        saved = (
            self.running,
            self.skip,
            self.stretch,
            self.numbers,
            self.calls,
            self.opener,
            self.unit,
            self.optimizer,
            self.context,
        )
        self.running = self.stretch = self.opener = self.unit = self.optimizer = None
        self.numbers, self.calls = [], []
        self.progress.suspended += 1
        return saved

    def resume(self, saved: tuple[Any, ...]) -> None:
        """What `suspend` set aside goes on."""
        (
            self.running,
            skip,
            self.stretch,
            self.numbers,
            self.calls,
            self.opener,
            self.unit,
            self.optimizer,
            self.context,
        ) = saved
        self.skip = skip or not CORE.on
        self.progress.suspended = max(self.progress.suspended - 1, 0)
        if self.unit is not None and self.unit.flushed:  # it ended before what began in it
            self.unit = None

    def note(self, region: Region | None) -> None:
        """Write down that `region` is running from here on."""
        if self.stretch is not None:
            self.numbers.append(_get_sequence_nr())
            self.calls.append(region)


class _Threads(threading.local):
    """`state` is the calling thread's."""

    def __init__(self) -> None:
        self.state = ThreadState()


class Core:
    """Process-wide state. Trackers switch it on and off; it is off in forked children.

    Attributes:
        on: whether any tracker is active.
        sink: where records go.
        names, known: of the modules, and the subjects among them by ``id(module)``.
        runs: engine runs that are under way, by graph task id.
        stretches: all that still live, oldest first.
        ledgers: of the trackers that count collectives.
        recorders: of execution orders, under way.
        watches: how many blocks of `watch_order` are entered.
        unexplained: what finds out, once a backward is over, why collectives were launched in it.
        inherited_task: in a process that was forked in a backward, the graph task that its parent
            was in and that it seems to be in for ever; else -1.
        steps: recognises training steps; None where only explicit ones are wanted.
        resting: everything is taken away until a step comes that is to be recorded.
        groups_seen: whether there is any process group, so that collectives are to be expected.
    """

    def __init__(self) -> None:
        self.on = False
        self.use(Names())
        self.sink: Sink = Sink()
        self.states: weakref.WeakSet[ThreadState] = weakref.WeakSet()
        self.runs: dict[int, Run] = {}
        self.stretches: list[weakref.ref[Stretch]] = []
        self.ledgers: tuple[Ledger, ...] = ()
        self.recorders: tuple[Recorder, ...] = ()
        self.watches = 0
        self.inherited_task = -1
        self.groups_seen = False
        self.unexplained: list[Callable[[], None]] = []
        self.lock = threading.RLock()
        self.steps: Stepper | None = None
        self.resting = False
        # Set by whoever switched it on. `rest` and `wake` do nothing where that cannot be.
        self.switch_off: Callable[[], None] = lambda: None
        self.rest: Callable[[], None] = lambda: None
        self.wake: Callable[[], None] = lambda: None
        self._prune_at = 64

    def use(self, names: Names) -> None:
        """Name modules by `names` from now on: the first tracker's that is on."""
        self.names = names
        self.known = names.known  # one look-up less on the hot path

    def remember(self, stretch: Stretch) -> None:
        """Keep a stretch findable for as long as its graph (or `recent`) keeps it alive."""
        with self.lock:
            self.stretches.append(weakref.ref(stretch))
            if len(self.stretches) > self._prune_at:
                self.stretches = [ref for ref in self.stretches if ref() is not None]
                self._prune_at = 64 + 2 * len(self.stretches)

    def living(self) -> list[Stretch]:
        """The stretches whose graphs may still be run backward."""
        return [stretch for ref in tuple(self.stretches) if (stretch := ref()) is not None]

    def forget(self) -> None:
        """Drop every log: what was recorded before has no backward regions any more."""
        self.stretches = []
        self.runs.clear()
        for state in list(self.states):
            state.recent.clear()
            state.entries = 0

    def begin(self, state: ThreadState, subject: Subject) -> Unit | None:
        """The unit of an outermost region of `subject` that begins on a thread; None: not recorded.

        That of the step that begins with it, where it is recognised as one.
        """
        sink = self.sink.ready()
        if self.steps is not None and self.steps.includes(state, subject):
            return state.unit
        return sink.begin(subject)

    def flush(self, unit: Unit) -> None:
        """A unit is over: ledgers and recorders note what ran, and the sink gets it."""
        for ledger in self.ledgers:
            ledger.take_modules(unit.regions)
        for recorder in self.recorders:
            if recorder.state is THREADS.state:
                recorder.take(unit)
        unit.sink.flush(unit)

    def count(self, record: Collective, unit: Unit | None) -> None:
        """A collective was launched, in a unit or in none."""
        if unit is None and self.sink.meter is not None:
            self.sink.meter.outside(record)
        for ledger in self.ledgers:
            ledger.add(record)

    def owner(self, state: ThreadState) -> ThreadState:
        """The state of the thread that this one works for: an engine's runs a backward for it."""
        run = self.runs.get(current_graph_task_id()) if self.runs else None
        while run is not None and run.outer is not None:
            run = run.outer
        return state if run is None else run.state

    def settle(self, state: ThreadState) -> None:
        """Something new begins on a thread, or a backward is over: so may be its step."""
        if self.steps is not None:
            self.steps.settle(state)

    @property
    def sees_all(self) -> bool:
        """Whether someone wants every module call to be seen, whatever is recorded."""
        return bool(self.recorders or self.watches)

    def tell_recorders(self, state: ThreadState) -> None:
        """A call has begun or ended on a thread, or goes on. Never raises."""
        try:
            for recorder in self.recorders:
                if recorder.state is state:
                    recorder.look()
        except Exception as error:  # noqa: BLE001 - nothing of ours may reach the user
            self.fault("recording an order", error)

    def explain(self) -> None:
        """A backward is over: what could not be asked meanwhile is found out."""
        while self.unexplained:
            self.unexplained.pop()()

    def fault(self, where: str, error: Exception) -> None:
        """A fault of ours: say so once, switch tracking off, and let the user's program go on.

        Raises:
            Exception: `error` itself, if a signal handler of the user's raised it in our code.
        """
        if from_signal_handler(error):
            raise error
        if isinstance(error, RecursionError):
            return  # the user's own call is about to meet the same limit, and will say so
        if not (self.on or self.resting):
            return
        try:
            self.switch_off()
            logger.error(
                "otel_modtrack: internal error in %s; tracking is now off, your program is not"
                " affected. Please report this.",
                where,
                exc_info=error,
            )
        except Exception:  # noqa: BLE001, S110 - nothing of ours may reach the user
            pass

    def after_fork(self) -> None:
        """In a forked child: off, and nothing is exported that the parent will export."""
        self.inherited_task = current_graph_task_id()
        self.lock = threading.RLock()
        for state in list(self.states):
            if state.unit is not None:
                state.unit.sink = Sink()
            state.progress = Progress()
        if self.on or self.resting:
            self.sink = Sink()
            self.steps = None
            self.switch_off()
        for recorder in self.recorders:
            with contextlib.suppress(Exception):
                recorder.close()
        self.recorders, self.watches = (), 0
        self.forget()
        for state in list(self.states):
            state.reset()


CORE = Core()
THREADS = _Threads()
os.register_at_fork(after_in_child=CORE.after_fork)
