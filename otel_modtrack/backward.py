"""Plans each run of the autograd engine, and turns what fired into backward regions.

A run is planned when its first node is about to run: torch is asked what will run, in which order;
the log of the forward is stepped down alongside; and only where the owning call differs from the
node before is a node armed. What fires is a number and a clock reading. Between two armed nodes
that ran, every node has the owner of the first by construction: no other node needs to be seen.
"""

from __future__ import annotations

import gc
import threading
from typing import TYPE_CHECKING, Any

from otel_modtrack import calls, engine
from otel_modtrack.core import CORE, ThreadState, real
from otel_modtrack.engine import ACCUMULATE, current_graph_task_id, current_node
from otel_modtrack.plan import Plan
from otel_modtrack.regions import CALLS, Kind, Phase, Region, Subject

if TYPE_CHECKING:
    from collections.abc import Iterable

    from otel_modtrack.regions import Unit

__all__ = ["BACKWARD", "Run", "fired"]

BACKWARD = Subject(Kind.BACKWARD, "", "", "")
_ENGINE = Subject(Kind.ENGINE, "", "", "")
_BACKWARD = Phase.BACKWARD
_UNKNOWN: Any = object()

_clock = calls.clock


def fired(grad: Any) -> None:
    """An armed node is about to run. Never raises."""
    del grad
    try:
        run = CORE.runs.get(current_graph_task_id())
        if run is not None:
            node = current_node()
            key = node if run.plan.by_node else node._sequence_nr()  # noqa: SLF001
            run.events.append((key, _clock()))
    except Exception as error:  # noqa: BLE001 - nothing of ours may reach the user
        CORE.fault("a backward hook", error)


class Run:
    """One run of the autograd engine.

    Attributes:
        plan: who owns which node.
        events: (key of the node about to run, clock in ns), as they fired.
        unit: what its regions are exported with; None if nothing tracked is in its graph.
        root: the ``backward`` region, or None where its regions hang directly under `place`.
        place: the region in which the run was launched, if any.
        here: the number of the node that `locate` found running last.
        recomputes: (number of the node that was running, call) of the forwards that ran inside.
        context: the user's tracing context when the run was launched; owned by `current`.
    """

    def __init__(self, state: ThreadState, roots: Iterable[Any], inputs: Iterable[Any]) -> None:
        self.state = state
        self._roots = tuple(node for one in roots if (node := engine.node_of(one)) is not None)
        self._inputs = tuple(node for one in inputs if (node := engine.node_of(one)) is not None)
        self.plan: Plan
        self.events: list[tuple[Any, int]] = []
        self.unit: Unit | None = None
        self.root: Region | None = None
        self.here = -1
        self.recomputes: list[tuple[int, Region]] = []
        self.task_id = -1
        self.outer = CORE.runs.get(current_graph_task_id())
        running = state.running
        self._within_call = running is not None and running.subject.kind is not Kind.ENGINE
        if self._within_call:
            self.place: Region | None = running
        elif self.outer is not None:
            self.place = self.outer.locate()
        else:
            self.place = real(running) or state.optimizer
        self.begun_ns = _clock()  # not before the place, which may have been opened just now
        self._before = (state.running, state.context)
        self._stretch = state.stretch
        self._base: Region | None = None
        self._handles: list[Any] = []
        self._planned = False
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
        self._base = base
        var = CORE.sink.var
        if var is not None:
            state.var, state.context = var, var.get()
        self.context = state.context
        # Else it is planned when someone asks where it is.
        if CORE.sink.wants_backward or CORE.groups_seen or CORE.recorders:
            self._handles = [node.register_prehook(self.first) for node in self._roots]
        state.note(base)
        state.running = base

    # -- before: what will run ------------------------------------------------------------------

    def first(self, grads: Any) -> None:
        """The first node is about to run. Never raises."""
        del grads
        try:
            self.make_plan()
            if self.unit is not None:
                self.events.append((self.plan.key(current_node()), _clock()))
        except Exception as error:  # noqa: BLE001 - nothing of ours may reach the user
            CORE.fault("planning a backward", error)

    def make_plan(self) -> None:
        """Find out whose nodes will run, and arm those where the owner changes."""
        if self._planned:
            return
        self._planned = True
        self.task_id = current_graph_task_id()
        CORE.runs[self.task_id] = self
        self._remove_handles()
        running = current_node()
        collecting = gc.isenabled()  # node wrappers made here must not be walked by a collection
        try:
            gc.disable()
            order = engine.execution_order(self._roots, self._inputs)
            self.plan = Plan(order, self._inputs, self.state)
            self.plan.arm(running, _HOOK.dummy)
            for recorder in CORE.recorders:
                if recorder.state is self.state:
                    recorder.plan(order)
        finally:
            if collecting:
                gc.enable()
        found = self.plan.newest()
        if found is not None:
            self._open_unit(found)

    def _open_unit(self, found: Region) -> None:
        """Something tracked is about to run: decide where its regions go."""
        state, outer, top = self.state, self.outer, _outermost(found)
        if self.place is not None:
            self.unit = self.place.unit
        else:
            self.unit = state.unit or CORE.sink.begin_backward(top)
        if self.unit is None:
            return
        again = (
            outer is not None
            and not self._within_call
            and any(call is top and number == outer.here for number, call in outer.recomputes)
        )
        if not again:  # a checkpoint's own backward is part of the block's, not a run of its own
            self.root = Region(BACKWARD, self.place, Phase.BACKWARD, self.begun_ns, self.unit)
            if self.place is None and state.unit is None:
                state.unit, self.unit.opener = self.unit, self.root
            elif self.context is not None:
                self.root.context = self.unit.sink.below_step(self.root, self.context)
            self.unit.regions.append(self.root)
        _HOOK.hold(self)

    # -- meanwhile: where are we ----------------------------------------------------------------

    def locate(self) -> Region | None:
        """The backward region that is open now; None if nothing tracked runs.

        Right even in a tensor hook of the user's that runs before ours on the same node: the
        look-up of the running node counts as an event.
        """
        with self._lock:
            self.make_plan()
            if self.unit is None:
                return self.place
            here = current_graph_task_id() == self.task_id
            node = current_node() if here else None
            if node is not None:
                number = node._sequence_nr()  # noqa: SLF001
                key = self.plan.key(node)
                if number < ACCUMULATE and key not in self.plan.captured:
                    self.here = number
                    self.events.append((key, _clock()))
            self.fold()
            if here and node is None:  # a callback for the end of the run: all nodes are done
                self._move(None, _clock())
            return self._open[-1] if self._open else self.root or self.place

    # -- after: what ran ------------------------------------------------------------------------

    def fold(self) -> None:
        """Turn the events so far into regions: each is one step through the tree of calls."""
        events, owners, captured = self.events, self.plan.owners, self.plan.captured
        for at in range(self._folded, len(events)):
            key, at_ns = events[at]
            if key in captured:
                continue
            owner = owners.get(key, _UNKNOWN)
            if owner is _UNKNOWN:
                owner = self.plan.owner(key)
            if owner is not self._owner:
                self._move(owner, at_ns)
            self._folded = at + 1

    def _move(self, owner: Region | None, at_ns: int) -> None:
        """Close what is not an ancestor of `owner`, open its missing ancestors and itself."""
        self._owner = owner
        depths, still_open = self._depths, self._open
        if len(depths) != len(still_open):  # an interruption came between the two
            depths.clear()
            depths.update({region.forward: at for at, region in enumerate(still_open, 1)})  # type: ignore[misc]
        missing: list[Region] = []
        call = owner
        keep = 0
        while call is not None and not (keep := depths.get(call, 0)):
            if call.subject.kind not in CALLS or call.phase == _BACKWARD:
                break
            missing.append(call)
            call = call.parent
            if call is not None and call.subject.special:
                call = real(call)
        while len(still_open) > keep:
            region = still_open.pop()
            region.end_ns = at_ns
            depths.pop(region.forward, None)  # type: ignore[arg-type]
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

    def peek(self) -> tuple[list[Region], list[Region]]:
        """As `fold`, without any change, so that any thread may ask.

        Returns:
            The regions that are not made yet, which nobody else sees, and those that are open.
        """
        plan, owner = self.plan, self._owner
        known, still_open = dict(self._regions), list(self._open)
        new: list[Region] = []
        for key, at_ns in self.events[self._folded :]:
            if key in plan.captured or (call := plan.owner(key)) is owner:
                continue
            owner, keep = call, 0
            missing: list[Region] = []
            while call is not None and call.subject.kind in CALLS and call.phase != _BACKWARD:
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
                    parent = still_open[-1] if still_open else self.root or self.place
                    region = Region(call.subject, parent, _BACKWARD, at_ns, self.unit)  # type: ignore[arg-type]
                    region.forward = call
                    known[call] = region
                    new.append(region)
                still_open.append(region)
        return new, still_open

    def _take_in_recompute(self, call: Region, region: Region) -> None:
        """Reentrant checkpointing: the block's backward began with its recomputation.

        If its first node is the first of all, that is, and nothing else was recomputed for it.
        """
        assert self.outer is not None  # noqa: S101
        if self._folded or len(self._regions) > 1:
            return
        here = [again for number, again in self.outer.recomputes if number == self.outer.here]
        if here == [call]:
            region.start_ns = call.start_ns
            call.parent = region

    def end(self, error: BaseException | None) -> None:
        """The engine is done, by whatever road: close every region, let go of every node.

        Where it is interrupted, it is done again from the start.
        """
        state = self.state
        state.running, state.context = self._before
        state.trim()
        if self._stretch is None and state.stretch is not None:  # a recomputation's
            state.close_stretch()
        state.note(state.running)
        self._remove_handles()
        if self._base is not None:
            self._base.span = None  # the log goes on holding the base
        self._roots = self._inputs = ()
        CORE.runs.pop(self.task_id, None)
        CORE.explain()
        _HOOK.release(self)
        if self.unit is None:
            return
        self.fold()
        closing = [*self._open, *(one for one in self._regions.values() if not one.end_ns)]
        if self.root is not None:
            closing.append(self.root)
        if error is not None:
            for region in closing:
                calls.failed(state, region, error)
        now_ns = _clock()
        for region in closing:
            region.end_ns = now_ns
        if state.running is None:
            state.raising = None
        if self.root is not None:
            calls.done(state, self.root)
        CORE.settle(state)

    def _remove_handles(self) -> None:
        while self._handles:
            self._handles[-1].remove()
            self._handles.pop()


def _outermost(call: Region) -> Region:
    """The call that began the tree which `call` is in, a recomputed one included."""
    while (
        (parent := real(call.parent)) is not None
        and parent.phase == call.phase
        and parent.subject.kind in CALLS
    ):
        call = parent
    return call


_HOOK = engine.SharedHook(fired)
