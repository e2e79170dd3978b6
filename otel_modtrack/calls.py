"""Opening and closing a region on a thread: what module calls, named regions, bodies share."""

from __future__ import annotations

import contextlib
import time
import traceback
from typing import TYPE_CHECKING, Any

from torch._C._autograd import _get_sequence_nr
from torch.utils import checkpoint

from otel_modtrack.core import CORE
from otel_modtrack.interrupts import from_signal_handler
from otel_modtrack.outputs import hang
from otel_modtrack.regions import Failure

if TYPE_CHECKING:
    from otel_modtrack.core import ThreadState
    from otel_modtrack.regions import Region

__all__ = [
    "abandon",
    "clock",
    "close",
    "describe",
    "done",
    "failed",
    "finish",
    "make_current",
    "opened",
    "restore",
    "tidy",
]

clock = time.perf_counter_ns
# Raised by non-reentrant checkpointing when it has recomputed enough: not an error.
_EARLY_STOP: Any = getattr(checkpoint, "_StopRecomputationError", ())


def opened(state: ThreadState, call: Region, *, plain: bool) -> None:
    """Make `call` the running region: the last thing that entering does."""
    var = state.var
    if var is not None:
        current = var.get()
        if current is not state.context or not plain:
            make_current(state, call, current)
    call.unit.regions.append(call)
    state.numbers.append(_get_sequence_nr())
    state.calls.append(call)
    state.running = call


def make_current(state: ThreadState, call: Region, current: Any) -> None:
    """Let the user's tracing context, which is `current`, lead to `call` until it ends."""
    if current is not state.context:
        call.context = current  # the user has opened a span of their own since
    var = state.var
    context = call.unit.sink.open_context(call, current)
    call.token = (var, var.set(context), state.context)
    state.context = context


def close(state: ThreadState, call: Region, before: Region | None) -> None:
    """End `call` and go back to `before`."""
    call.end_ns = clock()
    state.numbers.append(_get_sequence_nr())
    state.calls.append(before)
    state.running = before
    token = call.token
    if token is not None:
        call.token = None
        restore(state, token)


def restore(state: ThreadState, token: tuple[Any, Any, Any]) -> None:
    """Undo what `opened` did to the user's tracing context."""
    var, undo, context = token
    # A ValueError: left in another contextvars.Context than it was entered in (greenlets).
    try:  # noqa: SIM105 - contextlib.suppress takes three times as long as the reset
        var.reset(undo)
    except ValueError:
        pass
    state.context = context


def finish(state: ThreadState, call: Region, outs: Any) -> None:
    """The outermost call is over: hang its log on the graph and hand the records on."""
    stretch = state.close_stretch()
    if stretch is not None:
        hang(stretch, outs)
    if CORE.recorders:  # one that began in the call: who ends the call may not know of it
        CORE.tell_recorders(state)
    done(state, call)


def done(state: ThreadState, region: Region) -> None:
    """Export the unit that `region` opened, unless it runs in a step or another region's unit."""
    unit = region.unit
    if unit.opener is region:
        if state.unit is unit:
            state.unit = None
        if not unit.held:
            CORE.flush(unit)


def tidy(state: ThreadState) -> None:
    """Nothing runs on this thread: finish what an interruption of ours left half done.

    A signal handler's exception may come between any two operations, here as elsewhere. Again,
    or where all is in order: does nothing.
    """
    if state.stretch is not None:
        state.close_stretch()
    unit = state.unit
    opener = unit.opener if unit is not None else None
    if opener is not None and opener is not state.optimizer:
        opener.end_ns = opener.end_ns or clock()
        done(state, opener)
        state.unit = None
    var = state.var
    if var is not None:
        users = getattr(var.get(), "modtrack_base", None)
        if users is not None:
            var.set(users)


def abandon(state: ThreadState, before: Region | None) -> None:
    """After a fault of ours: the user's context is the user's again, and `before` runs."""
    call, state.running = state.running, before
    while call is not None and call is not before:
        token, call.token = call.token, None
        if isinstance(token, tuple):
            with contextlib.suppress(Exception):
                restore(state, token)
        call = call.parent


def failed(state: ThreadState, call: Region, error: BaseException) -> None:
    """Note on `call` that `error` left it; the exception is described once for all its regions."""
    if isinstance(error, (_EARLY_STOP, GeneratorExit)):
        return
    if state.raising is None or state.raising[0] is not error:
        state.raising = (error, describe(error))
    call.failure = state.raising[1]


def describe(error: BaseException) -> Failure:
    """What telemetry says of an exception; the traceback is rendered when it is written."""
    kind = type(error)
    name = kind.__qualname__
    if kind.__module__ not in ("builtins", "__main__"):
        name = f"{kind.__module__}.{name}"
    try:
        told = traceback.TracebackException(kind, error, error.__traceback__, lookup_lines=False)
        message = str(error)
    except Exception as fault:
        if from_signal_handler(fault):
            raise
        return Failure(name, "", lambda: "", clock())
    return Failure(name, message, lambda: "".join(told.format()), clock())
