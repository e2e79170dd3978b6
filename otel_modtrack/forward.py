"""Writes down the forward: the only file that swaps ``nn.Module``'s call code.

While tracking is on, `torch.nn.Module._wrapped_call_impl` runs `_wrapped_call_impl` below: torch's
own work with `enter` and `leave` around it, in one frame, so that the user's nesting depth does not
change. Nothing is hooked: outputs, containers, keywords, views and in-place operations do not
matter, only the order in which calls begin and end, and how many autograd nodes there were by then.
"""

from __future__ import annotations

import contextlib
import logging
import time
import traceback
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils import checkpoint

from otel_modtrack import bodies, optimizers
from otel_modtrack.core import (
    CORE,
    METADATA_KEY,
    THREADS,
    Stretch,
    ThreadState,
    from_signal_handler,
)
from otel_modtrack.regions import Failure, Kind, Phase, Region, Subject
from otel_modtrack.swap import CodeSwap, moved, skip_by_dynamo

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "ForwardSwap",
    "clock",
    "close",
    "describe",
    "done",
    "enter",
    "fail",
    "failed",
    "hang",
    "leave",
    "opened",
    "restore",
]

logger = logging.getLogger("otel_modtrack")

# How much of a call's output is looked through. What lies beyond is still among the recent.
_MAX_OUTPUTS = 1000

clock = time.perf_counter_ns
_sequence_nr = torch._C._autograd._get_sequence_nr  # noqa: SLF001 - probed in `ForwardSwap`
_current_graph_task_id = torch._C._current_graph_task_id  # noqa: SLF001
_FORWARD = Phase.FORWARD
_NOT_LOOKED_INTO = (type, nn.Module, str, bytes, int, float, complex, type(None))
# Raised by non-reentrant checkpointing when it has recomputed enough: not an error.
_EARLY_STOP: Any = getattr(checkpoint, "_StopRecomputationError", ())


def _wrapped_call_impl(self: Any, *args: Any, **kwargs: Any) -> Any:
    """torch's `_wrapped_call_impl` and ours. Lines and columns of the two calls are those of torch.

    It runs with the globals of torch.nn.modules.module: only names of that module may be used, and
    the strings are replaced by objects (`CodeSwap`). `before` repairs the thread's state whatever
    interrupts us, a KeyboardInterrupt inside `enter` included.
    """
    if torch.compiler.is_compiling():
        if self._compiled_call_impl is not None:
            return self._compiled_call_impl(*args, **kwargs)
        return self._call_impl(*args, **kwargs)
    threads: Any = "modtrack:threads"
    enter: Any = "modtrack:enter"
    leave: Any = "modtrack:leave"
    fail: Any = "modtrack:fail"
    compiled: Any = "modtrack:compiled"
    state = threads.state
    if state.skip:
        state = None
    else:
        before = state.running
    try:
        if state is not None:
            enter(state, self)
        if self._compiled_call_impl is not None and compiled(state):
            outs = self._compiled_call_impl(*args, **kwargs)
        else:
            outs = self._call_impl(*args, **kwargs)
        if state is not None:
            outs = leave(state, before, outs)
    except BaseException as error:
        if state is not None:
            fail(state, before, error)
        raise
    return outs


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
        opened(state, call, plain=subject.plain and not _hooked(module))
    except Exception as error:  # noqa: BLE001 - nothing of ours may reach the user
        CORE.fault("a module's entry", error)


def opened(state: ThreadState, call: Region, *, plain: bool) -> None:
    """Make `call` the running region: the last thing that entering does."""
    var = state.var
    if var is not None:
        current = var.get()
        if current is not state.context:
            call.context = current  # the user has opened a span of their own since
            plain = False
        if not plain:
            context = call.unit.sink.open_context(call, current)
            call.token = (var, var.set(context), state.context)
            state.context = context
    call.unit.regions.append(call)
    state.numbers.append(_sequence_nr())
    state.calls.append(call)
    state.running = call


def _hooked(module: nn.Module) -> bool:
    """Whether forward hooks run inside this call, and so user code that may ask where it is."""
    own = module.__dict__
    return bool(
        own.get("_forward_hooks")
        or own.get("_forward_pre_hooks")
        or nn.modules.module._global_forward_hooks  # noqa: SLF001
        or nn.modules.module._global_forward_pre_hooks  # noqa: SLF001
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
    run = CORE.runs.get(_current_graph_task_id()) if CORE.runs else None
    if run is None and parent is not None:
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
    unit = state.unit
    if unit is None:
        unit = CORE.sink.begin(subject)
        if unit is None:
            state.skip = True  # until this call's `leave` or `fail`
            return None
    state.var = unit.sink.var
    if state.var is not None:
        state.context = state.var.get()
    optimizer = state.optimizer
    phase = _FORWARD if _current_graph_task_id() == -1 else Phase.RECOMPUTE
    call = Region(subject, optimizer, phase, clock(), unit)
    if state.unit is None:
        state.unit, unit.opener = unit, call
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
            if state.skip and before is None:
                state.skip = not CORE.on
            return outs
        if type(outs) in bodies.TYPES:
            body = bodies.follow(state, call, before, outs)
            if body is not None:
                return body
        close(state, call, before)
        if call is state.opener:
            finish(state, call, outs)
    except Exception as error:  # noqa: BLE001 - nothing of ours may reach the user
        CORE.fault("a module's exit", error)
    return outs


def close(state: ThreadState, call: Region, before: Region | None) -> None:
    """End `call` and go back to `before`."""
    call.end_ns = clock()
    state.numbers.append(_sequence_nr())
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
    with contextlib.suppress(ValueError):
        var.reset(undo)
    state.context = context


def finish(state: ThreadState, call: Region, outs: Any) -> None:
    """The outermost call is over: hang its log on the graph and hand the records on."""
    stretch = state.close_stretch()
    if stretch is not None:
        hang(stretch, outs)
    done(state, call)


def done(state: ThreadState, region: Region) -> None:
    """Export the unit that `region` opened, unless it runs in a step or another region's unit."""
    unit = region.unit
    if unit.opener is region:
        if state.unit is unit:
            state.unit = None
        if not unit.held:
            unit.sink.flush(unit)


def hang(stretch: Stretch, outs: Any) -> None:
    """Let the graph of `outs` keep `stretch` alive: the log dies with the last node it is on.

    A view's own node is made anew when it is asked for after an in-place operation, which would
    change the order of the graph: its base's node serves as well, and lives as long.
    """
    try:
        with torch._C.DisableTorchFunction():  # noqa: SLF001 - not the user's to notice
            for tensor in _tensors(outs):
                holder = tensor._base if tensor._is_view() else tensor  # noqa: SLF001
                node = holder.grad_fn if holder is not None else None
                if node is not None:
                    node.metadata[METADATA_KEY] = stretch  # type: ignore[index]
                    stretch.hung.add(node._sequence_nr())  # noqa: SLF001
    except Exception as error:
        if from_signal_handler(error):
            raise
        logger.debug("the outputs could not be looked through", exc_info=True)


def _tensors(outs: Any) -> Iterator[torch.Tensor]:
    """Tensors in the usual containers, and one level deep in objects of the user's classes.

    Runs no code of the user's: methods of the built-in classes, on their instances.
    """
    todo = [outs]
    for _ in range(_MAX_OUTPUTS):
        if not todo:
            return
        value = todo.pop()
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list):
            todo.extend(list.__iter__(value))
        elif isinstance(value, tuple):
            todo.extend(tuple.__iter__(value))
        elif isinstance(value, dict):
            todo.extend(dict.values(value))
        elif value is outs or not isinstance(value, _NOT_LOOKED_INTO):
            with contextlib.suppress(AttributeError):
                todo.extend(
                    part
                    for part in object.__getattribute__(value, "__dict__").values()
                    if isinstance(part, (torch.Tensor, list, tuple, dict))
                )


def fail(state: ThreadState, before: Region | None, error: BaseException) -> None:
    """`error` left the call that began when `before` was running. Never raises.

    Closes whatever an interruption left open below it, too.
    """
    try:
        del state.calls[len(state.numbers) :], state.numbers[len(state.calls) :]
        while (call := state.running) is not before and call is not None:
            failed(state, call, error)
            last = call is state.opener
            close(state, call, before if last else _previous(call, before))
            if last:
                finish(state, call, None)
        state.running = before
        if before is None:
            _repair(state)
    except Exception as fault:  # noqa: BLE001 - nothing of ours may reach the user
        CORE.fault("a module's failing", fault)


def _repair(state: ThreadState) -> None:
    """Nothing runs on this thread any more: finish what an interruption of ours left half done.

    A signal handler's exception may come between any two operations, here as elsewhere.
    """
    state.raising = None
    if state.skip:
        state.skip = not CORE.on
    opener = state.opener
    if opener is not None and opener.end_ns:
        finish(state, opener, None)
    unit = state.unit
    if unit is not None and unit.opener is not None and unit.opener.end_ns:
        done(state, unit.opener)
    var = state.var
    if var is not None:
        users = getattr(var.get(), "modtrack_base", None)
        if users is not None:
            var.set(users)


def _previous(call: Region, before: Region | None) -> Region | None:
    """What was running when `call` began, for a call below `before`."""
    parent = call.parent
    if parent is None or parent.phase != call.phase or parent.subject.kind is Kind.OPTIMIZER:
        return before
    return parent


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


class ForwardSwap:
    """Puts our code into ``nn.Module._wrapped_call_impl`` and takes it out again.

    Raises:
        TypeError: if the function is not the one we know (another library put its own there).
    """

    def __init__(self) -> None:
        target = nn.Module.__dict__["_wrapped_call_impl"]
        code = getattr(target, "__code__", None)
        if code is None or code.co_filename != nn.modules.module.__spec__.origin:
            msg = "nn.Module._wrapped_call_impl is not torch's own"
            raise TypeError(msg)
        self._swap = CodeSwap(
            target,
            moved(_wrapped_call_impl, target, "_call_impl"),
            {
                "modtrack:threads": THREADS,
                "modtrack:enter": enter,
                "modtrack:leave": leave,
                "modtrack:fail": fail,
                "modtrack:compiled": compiled,
            },
        )
        skip_by_dynamo(enter, leave, fail, compiled)
        self.install, self.remove = self._swap.install, self._swap.remove
