"""Recognises training steps from what happens: forward with gradients, backward, optimizer.

A step begins with the batch that is loaded for it, or else with a forward that trains: gradients
are on, the module is in training mode, and an optimizer that lives has a parameter of it. It ends
when each optimizer has stepped that is concerned, and steps once a step. Optimizers alone tell its
end, so that steps which are not looked at are counted as those that are.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import torch
from opentelemetry import context as context_api
from torch import nn

from otel_modtrack import calls
from otel_modtrack.control import Want
from otel_modtrack.core import CORE
from otel_modtrack.engine import current_graph_task_id
from otel_modtrack.known_optimizers import KnownOptimizers
from otel_modtrack.loading import loaded
from otel_modtrack.optimizers import is_on_stack
from otel_modtrack.spans import SpanSink
from otel_modtrack.steps import OpenStep

if TYPE_CHECKING:
    from otel_modtrack.comm.records import Collective
    from otel_modtrack.core import ThreadState
    from otel_modtrack.regions import Failure, Region, Subject, Unit
    from otel_modtrack.training import Progress

__all__ = ["Stepper"]

logger = logging.getLogger("otel_modtrack")

# Regions of a step in which no optimizer has stepped, before it is taken for none: about 15 MB.
_MOST_REGIONS = 50_000


class Stepper:
    """The steps of one tracker. One at a time per thread; numbered from 0 in the process.

    Attributes:
        number: of the step that is next, or under way.
        optimizers: that are known.
        begun: how many steps of optimizers were seen to begin.
        retired: whether there are explicit steps, and none is recognised any more.
    """

    def __init__(self) -> None:
        self.number = 0
        self.retired = False
        self._doubtful = False  # forwards train, as it seems, but no optimizer is seen to step
        self.optimizers = KnownOptimizers()
        self.begun = 0

    # -- what begins a step ----------------------------------------------------------------------

    def includes(self, state: ThreadState, subject: Subject) -> bool:
        """Whether an outermost region of `subject` that begins on a thread belongs to a step."""
        progress = state.progress
        if self.retired or progress.evaluating:
            return False
        self.settle(state)
        module = subject.ref()
        trains = isinstance(module, nn.Module) and self._trains(module, progress)
        if progress.open is not None:
            unit = progress.open.unit
            if unit is None or progress.stepped or len(unit.regions) < _MOST_REGIONS:
                state.unit = unit
                return True
            self.close(state)
            self._doubtful = True
            logger.warning(
                "no optimizer has stepped in what looked like a training step (a compiled"
                " optimizer is not seen): steps are recognised again when one does; use"
                " tracker.step()"
            )
        if not self._may_begin(state) or current_graph_task_id() != -1:
            return False
        if not torch.is_grad_enabled():
            if trains:
                progress.loads.clear()  # for an evaluation
            return False
        if not trains or not module.training:  # type: ignore[attr-defined]
            return False
        self._begin(state)
        return progress.open is not None

    def _may_begin(self, state: ThreadState) -> bool:
        progress = state.progress
        return (
            not self.retired
            and not self._doubtful
            and progress.open is None
            and state.unit is None
            and not state.skip
        )

    def _trains(self, module: nn.Module, progress: Progress) -> bool:
        """Whether an optimizer has a parameter of the module; it is concerned, then."""
        found = self.optimizers.of(module)
        for one in found:
            if one not in progress.concerned:
                progress.concerned.add(one)
        return bool(found)

    def _begin(self, state: ThreadState, begun_ns: int = 0) -> None:
        sink = CORE.sink.ready()
        context = context_api.get_current()
        if not isinstance(sink, SpanSink) or context.get(sink.suppress_key):
            return
        progress = state.progress
        loads = progress.take_loads()
        step = OpenStep(sink, self.number, progress)
        step.begin(context, loads[0][0] if loads else begun_ns, current=False)
        progress.open = step
        state.unit = step.unit
        if step.unit is not None:
            for load in loads:
                loaded(step.unit, *load)

    # -- what ends it ----------------------------------------------------------------------------

    def optimizer_begins(self, state: ThreadState, optimizer: Any, frame: Any) -> None:
        """An optimizer is about to step on a thread.

        Args:
            state: of the thread.
            optimizer: it.
            frame: that runs the step.
        """
        progress = state.progress
        while progress.nested and not is_on_stack(progress.nested[-1][1]):
            progress.nested.pop()  # it has raised
        progress.nested.append((id(optimizer), frame))
        self.begun += 1
        if optimizer not in self.optimizers:
            self.optimizers.add(optimizer)
        self._doubtful = False
        if progress.evaluating:
            return
        progress.concerned.add(optimizer)
        if not CORE.on:
            return
        self.settle(state)
        regular = optimizer not in progress.irregular
        if state.running is None and regular and self._may_begin(state):
            self._begin(state)

    def optimizer_stepped(
        self, state: ThreadState, optimizer: Any, *, skipped: bool = False
    ) -> None:
        """An optimizer has stepped; or a gradient scaler has kept it from doing so."""
        progress, key = state.progress, id(optimizer)
        for at in reversed(range(len(progress.nested))):
            if progress.nested[at][0] == key:
                del progress.nested[at:]
                break
        if progress.nested or progress.evaluating or self.retired:
            return  # a part of another one's step, or of an evaluation
        if CORE.on and progress.open is None:
            return  # of one that is in no step
        if key in progress.stepped and progress.split is None:
            self._learn(state, optimizer)
        step = progress.open
        if step is not None and skipped:
            step.skipped = True
        unit = step.unit if step is not None else None
        place = (len(unit.regions) if unit is not None else 0, calls.clock())
        progress.stepped.pop(key, None)
        progress.stepped[key] = place
        concerned = list(progress.concerned)
        expected = {id(one) for one in concerned if one not in progress.irregular}
        progress.due = expected <= progress.stepped.keys()
        self.settle(state)

    def _learn(self, state: ThreadState, optimizer: Any) -> None:
        """An optimizer has stepped twice in a step: those that have not are not waited for.

        The step was over, then, when the last of the others had stepped.
        """
        progress = state.progress
        progress.irregular.discard(optimizer)
        for one in list(progress.concerned):
            if id(one) not in progress.stepped:
                progress.irregular.add(one)
        split = _last(progress)
        step = progress.open
        if step is None:
            self._count(state)
            return
        progress.start_anew()
        if split[1] >= step.begun_ns:  # else that was not seen, and the step begins after it
            progress.split = split

    def _split(self, state: ThreadState) -> None:
        """Make two of a step that turned out to be two."""
        progress = state.progress
        at, ended_ns = progress.split or (0, 0)
        stepped, due = dict(progress.stepped), progress.due
        unit = progress.open.unit
        later, launched = _taken_out(unit, at, ended_ns) if unit is not None else ([], [])
        self._finish(state, None, ended_ns)
        self._begin(state, later[0].start_ns if later else 0)
        progress.stepped = {
            key: (max(count - at, 0), at_ns) for key, (count, at_ns) in stepped.items()
        }
        progress.due = due
        step = progress.open
        if step is not None and step.unit is not None:
            for region in later:
                region.unit = step.unit
            step.unit.regions[:0] = later
            step.unit.collectives[:0] = launched

    def settle(self, state: ThreadState) -> None:
        """End the step that is over, unless a backward or a call is still under way in it."""
        progress = state.progress
        if not progress.due and progress.split is None:
            return
        if progress.open is not None and (
            current_graph_task_id() != -1 or state.running is not None or state.optimizer
        ):
            return
        if progress.split is not None:
            self._split(state)
        if not progress.due:
            return
        if progress.open is None:
            self._count(state)
        else:
            ended_ns = _last(progress)[1]
            unit = progress.open.unit
            if unit is not None and unit.regions:
                ended_ns = max(ended_ns, *(one.end_ns for one in unit.regions))
            self._finish(state, None, ended_ns)
        if CORE.resting:
            if self.wants_next():
                CORE.wake()
        elif not self.wants_next():
            CORE.rest()

    def wants_next(self) -> bool:
        """Whether the next step is to be recorded, if none is asked for meanwhile."""
        control = CORE.sink.control
        return control is None or control.next(self.number) is not Want.LEAVE

    def _count(self, state: ThreadState) -> None:
        """A step is over that was not seen."""
        state.progress.start_anew()
        self.number += 1
        if CORE.sink.control is not None:
            CORE.sink.control.passed()

    def _finish(self, state: ThreadState, failure: Failure | None, ended_ns: int) -> None:
        progress = state.progress
        step = progress.open
        if state.unit is step.unit:
            state.unit = None
        progress.start_anew()
        progress.open = None
        self.number += 1
        try:
            step.stop(failure, ended_ns)
            step.end()
        except BaseException:  # a signal handler's: what is below the step is exported already
            step.end()
            raise

    def close(self, state: ThreadState, failure: Failure | None = None) -> None:
        """End the step that is open on a thread, as it is; without one, do nothing."""
        step = state.progress.open
        if step is None:
            return
        ends = [one.end_ns for one in step.unit.regions] if step.unit is not None else []
        self._finish(state, failure, 0 if 0 in ends else max(ends, default=0))

    def give_way(self, state: ThreadState) -> None:
        """An explicit step begins on a thread: from now on there are only these."""
        self.close(state)
        self.retired = True


def _last(progress: Progress) -> tuple[int, int]:
    """Where the last optimizer was done."""
    return next(reversed(progress.stepped.values()), (0, 0))


def _taken_out(unit: Unit, at: int, since_ns: int) -> tuple[list[Region], list[Collective]]:
    """Take what came later out of a unit, unless the program has seen one of the regions.

    Args:
        unit: that was taken for one step.
        at: how many regions are left in it.
        since_ns: the time from which on collectives are taken out.
    """
    later = unit.regions[at:]
    if any(region.span is not None or region.context is not None for region in later):
        return [], []
    launched = [one for one in unit.collectives if one.at_ns >= since_ns]
    unit.collectives[:] = [one for one in unit.collectives if one.at_ns < since_ns]
    del unit.regions[at:]
    return later, launched
