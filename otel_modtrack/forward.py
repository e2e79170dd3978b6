"""Writes down the forward: what is done where a call begins, and where it ends.

Nothing is hooked: outputs, containers, keywords, views and in-place operations do not matter, only
the order in which calls begin and end, and how many autograd nodes there were by then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch._C._autograd import _get_sequence_nr

from otel_modtrack import bodies, optimizers
from otel_modtrack.calls import (
    abandon,
    clock,
    close,
    failed,
    finish,
    make_current,
    restore,
    tidy,
)
from otel_modtrack.core import CORE
from otel_modtrack.engine import current_graph_task_id
from otel_modtrack.regions import Failure, Kind, Phase, Region, Subject

if TYPE_CHECKING:
    from otel_modtrack.core import ThreadState

__all__ = ["begin", "compiled", "enter", "fail", "leave"]

_FORWARD = Phase.FORWARD
_nn_module = nn.modules.module


def enter(state: ThreadState, module: nn.Module) -> None:
    """A call of `module` begins on this thread. Never raises."""
    try:
        parent = state.running
        subject = CORE.known.get(id(module))
        if subject is None:
            subject = CORE.names.name(module, parent)
        if subject.hidden:
            return
        if parent is None or parent.subject.special:
            call = begin(state, subject)
            if call is None:
                return
        else:
            call = Region(subject, parent, parent.phase, clock(), parent.unit)
        # As in `opened`, written out, for this runs once a call.
        var = state.var
        if var is not None:
            current = var.get()
            if current is not state.context or not subject.plain or _hooked(module):
                make_current(state, call, current)
        call.unit.regions.append(call)
        state.numbers.append(_get_sequence_nr())
        state.calls.append(call)
        state.running = call
    except Exception as error:  # noqa: BLE001 - nothing of ours may reach the user
        CORE.fault("a module's entry", error)


def _hooked(module: nn.Module) -> bool:
    """Whether forward hooks run inside this call, and so user code that may ask where it is.

    Asked of classes of torch.nn only, so that reading attributes runs no code of the user's.
    """
    return bool(
        module._forward_hooks  # noqa: SLF001
        or module._forward_pre_hooks  # noqa: SLF001
        or _nn_module._global_forward_hooks  # noqa: SLF001
        or _nn_module._global_forward_pre_hooks  # noqa: SLF001
    )


def begin(state: ThreadState, subject: Subject) -> Region | None:
    """The region for a call that is outermost, or below a wrapper or an engine run.

    Returns:
        None where the call is one with its wrapper, or is not recorded.
    """
    parent = state.running
    if parent is not None and parent.subject.kind is not Kind.ENGINE:
        above = parent.subject
        if above.target is subject.target and above is not subject:
            return None
        return Region(subject, parent, parent.phase, clock(), parent.unit)
    run = CORE.runs.get(current_graph_task_id()) if CORE.runs else None
    if run is None and parent is not None:
        if current_graph_task_id() == -1:  # its end was interrupted: it is over
            state.running = parent.parent
            return begin(state, subject)
        run = parent.span  # the engine run that this thread began, not yet planned
    if run is not None:
        place = run.locate()
        if place is None or run.unit is None:
            return _outermost(state, subject)
        call = Region(subject, place, Phase.RECOMPUTE, clock(), run.unit)
        run.recomputes.append((run.here, call))
        if state.stretch is None:
            state.open_stretch(call)
        if parent is None:  # a thread of the engine's own
            state.var = run.unit.sink.var
            state.context = state.var.get() if state.var is not None else None
        return call
    return _outermost(state, subject)


def _outermost(state: ThreadState, subject: Subject) -> Region | None:
    if state.optimizer is not None:
        optimizers.check(state)
    if state.running is None and (state.stretch is not None or state.unit is not None):
        tidy(state)
    unit = state.unit
    if unit is None or state.progress.open is not None:
        # Export without dynamo calls the modules, with tensors that hold nothing.
        unit = None if torch.compiler.is_compiling() else CORE.begin(state, subject)
        if unit is None:
            state.skip = True  # until this call's `leave` or `fail`
            return None
    state.var = unit.sink.var
    if state.var is not None:
        state.context = state.var.get()
    optimizer = state.optimizer
    in_backward = current_graph_task_id() not in (-1, CORE.inherited_task)
    phase = Phase.RECOMPUTE if in_backward else _FORWARD
    call = Region(subject, optimizer, phase, clock(), unit)
    if state.unit is None:
        state.unit, unit.opener = unit, call
    elif state.var is not None:
        call.context = unit.sink.below_step(call, state.context)
    if state.stretch is None:
        state.open_stretch(call)
    return call


def compiled(state: ThreadState | None) -> bool:
    """The running call is one compiled callable. Never raises."""
    if state is not None and state.running is not None:
        subject = state.running.subject
        if not subject.compiled:
            subject.compiled = True
            subject.cache.clear()
    return True


def leave(state: ThreadState, before: Region | None, outs: Any) -> Any:
    """The call that began when `before` was running has returned `outs`. Never raises."""
    try:
        call = state.running
        if call is before or call is None:
            if state.skip:  # set by this very call: inner ones do not come here
                state.skip = not CORE.on
            return outs
        if type(outs) in bodies.TYPES:
            body = bodies.follow(state, call, before, outs)
            if body is not None:
                return body
        if state.raising is not None:  # the user's code has caught it: hold it no longer
            state.raising = None
        # As in `close`, written out, for this runs once a call.
        call.end_ns = clock()
        state.numbers.append(_get_sequence_nr())
        state.calls.append(before)
        state.running = before
        token = call.token
        if token is not None:
            call.token = None
            restore(state, token)
        if call is state.opener:
            finish(state, call, outs)
    except Exception as error:  # noqa: BLE001 - nothing of ours may reach the user
        abandon(state, before)
        CORE.fault("a module's exit", error)
    return outs


def fail(state: ThreadState, before: Region | None, error: BaseException) -> None:
    """`error` left the call that began when `before` was running. Never raises.

    Closes whatever an interruption left open below it, too.
    """
    try:
        state.trim()
        while (call := state.running) is not before and call is not None:
            failed(state, call, error)
            last = call is state.opener
            close(state, call, before if last else _previous(call, before))
            if last:
                finish(state, call, None)
        state.running = before
        if state.skip:
            state.skip = not CORE.on
        if before is None:
            state.raising = None
            tidy(state)
    except Exception as fault:  # noqa: BLE001 - nothing of ours may reach the user
        call = state.running
        if isinstance(fault, RecursionError) and call is not None and call is not before:
            # At the user's recursion limit nothing can be called: what is known is its type.
            call.failure = call.failure or Failure(type(error).__qualname__, "", str, clock())
        abandon(state, before)
        CORE.fault("a module's failing", fault)


def _previous(call: Region, before: Region | None) -> Region | None:
    """What was running when `call` began, for a call below `before`."""
    parent = call.parent
    if parent is None or parent.phase != call.phase or parent.subject.kind is Kind.OPTIMIZER:
        return before
    return parent
