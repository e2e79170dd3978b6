"""Optimizer steps as regions, through torch's global optimizer hooks.

The hook after a step does not run when the step raises; `check` notices that, by looking for the
step's frame on the stack, before anything is put under it.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch
from torch.optim import optimizer as torch_optimizer

from otel_modtrack import calls
from otel_modtrack.core import CORE, THREADS, ThreadState, real
from otel_modtrack.engine import current_graph_task_id
from otel_modtrack.regions import Failure, Kind, Phase, Region, Subject
from otel_modtrack.swap import skip_by_dynamo

if TYPE_CHECKING:
    import types

    from torch.utils.hooks import RemovableHandle

__all__ = ["OptimizerHooks", "check", "is_on_stack"]

_subjects: dict[type, Subject] = {}


class OptimizerHooks:
    """Installs and removes the two global hooks."""

    def __init__(self) -> None:
        self._handles: list[RemovableHandle] = []

    def install(self) -> None:
        """See every optimizer's step from now on."""
        skip_by_dynamo(_before, _after)
        self._handles = [
            torch_optimizer.register_optimizer_step_pre_hook(_before),
            torch_optimizer.register_optimizer_step_post_hook(_after),
        ]

    def remove(self) -> None:
        """Take the hooks away."""
        while self._handles:
            self._handles[-1].remove()
            self._handles.pop()


def _before(optimizer: Any, args: Any, kwargs: Any) -> None:
    if torch.compiler.is_compiling():  # a constant to dynamo
        return
    del args, kwargs
    try:
        state = THREADS.state
        if CORE.steps is not None:
            frame = sys._getframe(1)  # noqa: SLF001 - the frame that runs the step
            CORE.steps.optimizer_begins(CORE.owner(state), optimizer, frame)
        if state.skip:
            return
        check(state)
        kind = type(optimizer)
        subject = _subjects.get(kind)
        if subject is None:
            name = kind.__name__
            subject = _subjects[kind] = Subject(Kind.OPTIMIZER, name, name, name)
        _open(state, subject)
    except Exception as error:  # noqa: BLE001 - nothing of ours may reach the user
        CORE.fault("an optimizer's step", error)


def _open(state: ThreadState, subject: Subject) -> None:
    running = state.running
    if running is not None and running.subject.kind is not Kind.ENGINE:
        region = Region(subject, running, running.phase, calls.clock(), running.unit)
        calls.opened(state, region, plain=True)
        return
    run = running.span if running is not None else CORE.runs.get(current_graph_task_id())
    parent = state.optimizer or (run.locate() if run is not None else None)
    unit = parent.unit if parent is not None else state.unit
    opened_here = unit is None
    if unit is None:
        unit = CORE.begin(state, subject)
        if unit is None:
            return
    region = Region(subject, parent, Phase.FORWARD, calls.clock(), unit)
    region.token = sys._getframe(2)  # noqa: SLF001 - the frame that runs the step
    unit.regions.append(region)
    var = unit.sink.var
    if opened_here:
        state.unit, unit.opener = unit, region
    elif var is not None:
        region.context = unit.sink.below_step(region, var.get())
    state.optimizer = region


def _after(optimizer: Any, args: Any, kwargs: Any) -> None:
    if torch.compiler.is_compiling():
        return
    del args, kwargs
    try:
        state = THREADS.state
        name = type(optimizer).__name__
        running = state.running
        if running is not None and _is_step(running, name):
            calls.close(state, running, running.parent)
        elif state.optimizer is not None and _is_step(state.optimizer, name):
            _close(state, state.optimizer)
        if CORE.steps is not None:
            CORE.steps.optimizer_stepped(CORE.owner(state), optimizer)
    except Exception as error:  # noqa: BLE001
        CORE.fault("an optimizer's step", error)


def _is_step(region: Region, name: str) -> bool:
    return region.subject.kind is Kind.OPTIMIZER and region.subject.fqn == name


def _close(state: ThreadState, region: Region) -> None:
    region.end_ns = calls.clock()
    region.token = None
    above = real(region.parent)
    state.optimizer = above if above is not None and above.subject.kind is Kind.OPTIMIZER else None
    try:
        calls.done(state, region)
    except BaseException:  # a signal handler's
        calls.done(state, region)
        raise


def is_on_stack(wanted: types.FrameType) -> bool:
    """Whether a frame is running still, on this thread."""
    frame: types.FrameType | None = sys._getframe()  # noqa: SLF001
    while frame is not None and frame is not wanted:
        frame = frame.f_back
    return frame is not None


def check(state: ThreadState, error: Failure | None = None) -> None:
    """Close the optimizer step that has raised, if the running one has: its frame is gone."""
    while state.optimizer is not None:
        if is_on_stack(state.optimizer.token):
            return
        region = state.optimizer
        region.failure = error or Failure("_OTHER", "", lambda: "", calls.clock())
        _close(state, region)
