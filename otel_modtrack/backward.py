"""Plans each run of the autograd engine, and turns what fired into backward regions.

A run is planned when its first node is about to run: torch is asked what will run, in which order;
the log of the forward is stepped down alongside; and only where the owning call differs from the
node before is a node armed. What fires is a number and a clock reading. Between two armed nodes
that ran, every node has the owner of the first by construction: no other node needs to be seen.
"""

from __future__ import annotations

import bisect
import gc
import logging
import threading
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd import Variable, graph

from otel_modtrack import engine, forward
from otel_modtrack.core import CORE, THREADS, Stretch, ThreadState, real
from otel_modtrack.engine import ACCUMULATE, current_graph_task_id, current_node
from otel_modtrack.regions import Kind, Phase, Region, Subject
from otel_modtrack.swap import CodeSwap, skip_by_dynamo

if TYPE_CHECKING:
    import types
    from collections.abc import Iterable, Sequence

    from otel_modtrack.regions import Unit

__all__ = ["BACKWARD", "EngineSwap", "Run"]

logger = logging.getLogger("otel_modtrack")

BACKWARD = Subject(Kind.BACKWARD, "", "", "")
_ENGINE = Subject(Kind.ENGINE, "", "", "")
_BACKWARD = Phase.BACKWARD
_CALLS = (Kind.MODULE, Kind.SCOPE)  # what has a backward

_clock = forward.clock


def _fired(grad: Any) -> None:
    """An armed node is about to run. Never raises."""
    del grad
    try:
        run = CORE.runs.get(current_graph_task_id())
        if run is not None:
            run.events.append((current_node()._sequence_nr(), _clock()))  # noqa: SLF001
    except Exception as error:  # noqa: BLE001 - nothing of ours may reach the user
        CORE.fault("a backward hook", error)


class Run:
    """One run of the autograd engine.

    Attributes:
        events: (number of the node about to run, clock in ns), as they fired.
        unit: what its regions are exported with; None if nothing tracked is in its graph.
        root: the ``backward`` region, or None where its regions hang directly under `place`.
        place: the region in which the run was launched, if any.
        here: the number of the node that `locate` found running last.
        recomputes: (number of the node that was running, call) of the forwards that ran inside.
        context: the user's tracing context when the run was launched; owned by `current`.
    """

    def __init__(self, state: ThreadState, roots: Iterable[Any], inputs: Iterable[Any]) -> None:
        self.state = state
        self.begun_ns = _clock()
        self.roots = tuple(node for one in roots if (node := engine.node_of(one)) is not None)
        self.inputs = tuple(node for one in inputs if (node := engine.node_of(one)) is not None)
        self.events: list[tuple[int, int]] = []
        self.unit: Unit | None = None
        self.root: Region | None = None
        self.here = -1
        self.recomputes: list[tuple[int, Region]] = []
        self.task_id = -1
        self.outer = CORE.runs.get(current_graph_task_id())
        running = state.running
        if running is not None and running.subject.kind is not Kind.ENGINE:
            self.place: Region | None = running
        elif self.outer is not None:
            self.place = self.outer.locate()
        else:
            self.place = real(running) or state.optimizer
        self._before = (state.running, state.context)
        self._handles: list[Any] = []
        self._planned = False
        self._stretches: list[Stretch] = []
        self._owners: dict[int, Region | None] = {}  # of the armed nodes
        self._owner: Region | None = None
        self._open: list[Region] = []
        self._depths: dict[Region, int] = {}  # how deep the open region of a call lies
        self._regions: dict[Region, Region] = {}
        self._folded = 0
        self._lock = threading.RLock()

    def begin(self) -> None:
        """The engine is about to start: forwards on this thread belong into it from here on."""
        state = self.state
        base = Region(_ENGINE, state.running, Phase.FORWARD, self.begun_ns, None)  # type: ignore[arg-type]
        if state.running is not None:
            base.phase = state.running.phase
        base.span = self
        var = CORE.sink.var
        if var is not None:
            state.var, state.context = var, var.get()
        self.context = state.context
        if CORE.sink.wants_backward:  # else it is planned when someone asks where it is
            self._handles = [node.register_prehook(self.first) for node in self.roots]
        state.note(base)
        state.running = base

    # -- before: what will run ------------------------------------------------------------------

    def first(self, grads: Any) -> None:
        """The first node is about to run. Never raises."""
        del grads
        try:
            self.plan()
            if self.unit is not None:
                self.events.append((current_node()._sequence_nr(), _clock()))  # noqa: SLF001
        except Exception as error:  # noqa: BLE001 - nothing of ours may reach the user
            CORE.fault("planning a backward", error)

    def plan(self) -> None:
        """Find out whose nodes will run, and arm those where the owner changes."""
        if self._planned:
            return
        self._planned = True
        self.task_id = current_graph_task_id()
        CORE.runs[self.task_id] = self
        self._remove_handles()
        running = current_node()
        collecting = gc.isenabled()  # node wrappers made here must not be walked by a collection
        gc.disable()
        try:
            order = engine.execution_order(self.roots, self.inputs)
            self._stretches = _stretches_of(order, self.state)
            if self._stretches:
                self._arm(order, running)
        finally:
            if collecting:
                gc.enable()

    def _arm(self, order: Sequence[Any], running: Any) -> None:
        # A retained graph is planned again and again: what is armed already stays so. Numbers
        # tell nodes apart within one thread only.
        one_thread = len({stretch.thread for stretch in self._stretches}) == 1
        dummy, owners, floor, ceiling = _HOOK.dummy, self._owners, 1, 0
        for node in order:
            number = node._sequence_nr()  # noqa: SLF001
            if floor <= number < ceiling or number >= ACCUMULATE:
                continue
            owner, floor, ceiling, stretch = self._interval(number)
            owners[number] = owner
            if node is running or (one_thread and number in stretch.armed):
                continue
            node._register_hook_dict(dummy)  # noqa: SLF001
            stretch.armed.add(number)
        found = next((owner for owner in owners.values() if owner is not None), None)
        if found is not None:
            self._open_unit(found)

    def _interval(self, number: int) -> tuple[Region | None, int, int, Stretch]:
        """Who made node `number`, and from which to below which number the answer is the same."""
        below, above = 0, ACCUMULATE
        for stretch in self._stretches:  # newest first
            numbers = stretch.numbers
            if number < numbers[0]:
                above = min(above, numbers[0])
            elif number >= numbers[-1] and stretch is not self.state.stretch:
                below = max(below, numbers[-1])  # made after it, maybe inside one that began before
            else:
                at = bisect.bisect_right(numbers, number)
                end = numbers[at] if at < len(numbers) else above
                owner = real(stretch.calls[at - 1])
                return owner, max(below, numbers[at - 1]), min(above, end), stretch
        return None, below, above, self._stretches[-1]

    def owner(self, number: int) -> Region | None:
        """The innermost call that made node `number`."""
        return self._interval(number)[0] if number < ACCUMULATE else self._owner

    def _open_unit(self, found: Region) -> None:
        """Something tracked is about to run: decide where its regions go."""
        state, outer, top = self.state, self.outer, _outermost(found)
        if self.place is not None:
            self.unit = self.place.unit
        else:
            self.unit = state.unit or CORE.sink.begin_backward(top)
        if self.unit is None:
            return
        again = outer is not None and any(
            call is top and number == outer.here for number, call in outer.recomputes
        )
        if not again:  # a checkpoint's own backward is part of the block's, not a run of its own
            self.root = Region(BACKWARD, self.place, Phase.BACKWARD, self.begun_ns, self.unit)
            if self.place is None and state.unit is None:
                state.unit, self.unit.opener = self.unit, self.root
            self.unit.regions.append(self.root)
        _HOOK.hold()

    # -- meanwhile: where are we ----------------------------------------------------------------

    def locate(self) -> Region | None:
        """The backward region that is open now; None if nothing tracked runs.

        Right even in a tensor hook of the user's that runs before ours on the same node: the
        look-up of the running node counts as an event.
        """
        with self._lock:
            self.plan()
            if self.unit is None:
                return self.place
            node = current_node()
            if node is not None and current_graph_task_id() == self.task_id:
                number = node._sequence_nr()  # noqa: SLF001
                if number < ACCUMULATE:
                    self.here = number
                    self.events.append((number, _clock()))
            self.fold()
            return self._open[-1] if self._open else self.root or self.place

    def calls_here(self) -> list[Region]:
        """The forward calls whose backward runs now, innermost first."""
        place = self.locate()
        return [region for region in place.chain() if region.forward is not None] if place else []

    # -- after: what ran ------------------------------------------------------------------------

    def fold(self) -> None:
        """Turn the events so far into regions: each is one step through the tree of calls."""
        events, owners = self.events, self._owners
        for at in range(self._folded, len(events)):
            number, at_ns = events[at]
            owner = owners[number] if number in owners else self.owner(number)
            if owner is not self._owner:
                self._move(owner, at_ns)
            self._folded = at + 1

    def _move(self, owner: Region | None, at_ns: int) -> None:
        """Close what is not an ancestor of `owner`, open its missing ancestors and itself."""
        self._owner = owner
        depths, still_open = self._depths, self._open
        missing: list[Region] = []
        call = owner
        keep = 0
        while call is not None and call.subject.kind in _CALLS and call.phase != _BACKWARD:
            if call in depths:
                keep = depths[call]
                break
            missing.append(call)
            call = real(call.parent)
        while len(still_open) > keep:
            region = still_open.pop()
            region.end_ns = at_ns
            del depths[region.forward]  # type: ignore[arg-type]
        while missing:
            call = missing.pop()
            still_open.append(self._region(call, at_ns))
            depths[call] = len(still_open)

    def _region(self, call: Region, at_ns: int) -> Region:
        known = self._regions.get(call)
        if known is not None:  # only a generator's call, whose nodes are not one interval
            return known
        assert self.unit is not None  # noqa: S101 - set before anything is armed
        parent = self._open[-1] if self._open else self.root or self.place
        region = Region(call.subject, parent, Phase.BACKWARD, at_ns, self.unit)
        region.forward = call
        self._regions[call] = region
        if self.outer is not None and self.root is None:
            self._take_in_recompute(call, region)
        self.unit.regions.append(region)
        return region

    def _take_in_recompute(self, call: Region, region: Region) -> None:
        """Reentrant checkpointing: the block's backward began with its recomputation."""
        assert self.outer is not None  # noqa: S101
        here = [again for number, again in self.outer.recomputes if number == self.outer.here]
        if here == [call]:
            region.start_ns = call.start_ns
            call.parent = region

    def end(self, error: BaseException | None) -> None:
        """The engine is done, by whatever road: close every region."""
        state = self.state
        state.running, state.context = self._before
        state.note(state.running)
        self._remove_handles()
        if self._planned:
            CORE.runs.pop(self.task_id, None)
        if self.unit is None:
            return
        _HOOK.release()
        self.fold()
        now_ns = _clock()
        for region in [*self._open, *([self.root] if self.root is not None else [])]:
            region.end_ns = now_ns
            if error is not None:
                forward.failed(state, region, error)
        self._open.clear()
        if state.running is None:
            state.raising = None
        if self.root is not None:
            forward.done(state, self.root)

    def _remove_handles(self) -> None:
        while self._handles:
            self._handles.pop().remove()


def _outermost(call: Region) -> Region:
    """The call that began the tree which `call` is in, a recomputed one included."""
    while (
        (parent := real(call.parent)) is not None
        and parent.phase == call.phase
        and parent.subject.kind in _CALLS
    ):
        call = parent
    return call


def _stretches_of(order: Sequence[Any], state: ThreadState) -> list[Stretch]:
    """The logs of the calls that made these nodes, newest first.

    Numbers are per thread. Where logs of several threads have numbers in the range, a log counts
    if it hangs on a node that will run, or else if it is this thread's own.
    """
    living = CORE.living()
    if state.stretch is not None:
        living.append(state.stretch)
    if all(stretch.thread == state.thread for stretch in living):
        living.sort(key=lambda s: -s.numbers[0])
        return living
    numbers = [n for node in order if (n := node._sequence_nr()) < ACCUMULATE]  # noqa: SLF001
    if not numbers:
        return []
    low, high = min(numbers), max(numbers)
    found = [s for s in living if s.numbers[0] <= high and s.numbers[-1] >= low]
    threads = {s.thread for s in found}
    if len(threads) > 1 or (threads and threads != {state.thread}):
        hung = {
            id(node.metadata.get(forward.METADATA_KEY))
            for node in order
            if node._sequence_nr() < ACCUMULATE  # noqa: SLF001
        }
        sure = [s for s in found if id(s) in hung]
        theirs = {s.thread for s in sure} or {state.thread}
        found = [s for s in found if s.thread in theirs]
    found.sort(key=lambda s: -s.numbers[0])
    return found


_said: list[str] = []
_INPUTS = 3  # position of `inputs` (`run_backward`: grads, keep_graph, create_graph, inputs)


def begin_run(cell: list[Run], t_outputs: Any, args: tuple[Any, ...], kwargs: Any) -> None:
    """A run of the engine is about to start on this thread. Never raises.

    Args:
        cell: gets the run, before anything is changed; stays empty where no tracked call can be in
            the graph.
        t_outputs: the roots.
        args: the other arguments of `_engine_run_backward`.
        kwargs: likewise.
    """
    try:
        state = THREADS.state
        if state.skip or not CORE.on or (not CORE.stretches and state.stretch is None):
            return
        if engine.compiled_autograd():
            if not _said:
                _said.append("compiled autograd is on: there are no backward regions")
                logger.warning(_said[0])
            return
        inputs = kwargs.get("inputs") or (args[3] if len(args) > _INPUTS else ())
        run = Run(state, t_outputs, inputs)
        cell.append(run)
        run.begin()
    except Exception as error:  # noqa: BLE001 - nothing of ours may reach the user
        CORE.fault("the start of a backward", error)


def end_run(cell: list[Run], error: BaseException | None) -> None:
    """The engine has returned or raised. Never raises; a second time it does nothing."""
    try:
        while cell:
            cell[-1].end(error)
            cell.pop()
    except Exception as fault:  # noqa: BLE001 - nothing of ours may reach the user
        CORE.fault("the end of a backward", fault)


def _engine_run_backward(t_outputs: Any, *args: Any, **kwargs: Any) -> Any:
    """torch's own, with a `Run` around it. It runs with the globals of torch.autograd.graph."""
    if torch.compiler.is_compiling():
        return Variable._execution_engine.run_backward(t_outputs, *args, **kwargs)  # noqa: SLF001
    original: Any = "modtrack:original"
    begin_run: Any = "modtrack:begin_run"
    end_run: Any = "modtrack:end_run"
    cell: list[Run] = []
    try:
        begin_run(cell, t_outputs, args, kwargs)
        done = original(t_outputs, *args, **kwargs)
        end_run(cell, None)
    except BaseException as error:
        end_run(cell, error)
        raise
    return done


class EngineSwap:
    """Puts our code into ``torch.autograd.graph._engine_run_backward`` and takes it out again.

    Raises:
        TypeError: if the function is not a plain Python function.
    """

    def __init__(self) -> None:
        target: Any = graph._engine_run_backward  # noqa: SLF001
        code: types.CodeType = target.__code__
        original = type(target)(code, target.__globals__, target.__name__, target.__defaults__)
        self._swap = CodeSwap(
            target,
            _engine_run_backward,
            {
                "modtrack:original": original,
                "modtrack:begin_run": begin_run,
                "modtrack:end_run": end_run,
            },
            shift=code.co_firstlineno - _engine_run_backward.__code__.co_firstlineno,
        )
        skip_by_dynamo(begin_run, end_run, Run.first, _fired)
        self.install, self.remove = self._swap.install, self._swap.remove


_HOOK = engine.SharedHook(_fired)
