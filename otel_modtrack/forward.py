"""Writes down the forward: the only file that swaps ``nn.Module``'s call code.

While tracking is on, `torch.nn.Module._wrapped_call_impl` runs `_wrapped_call_impl` below: torch's
own work with `enter` and `leave` around it, in one frame, so that the user's nesting depth does not
change. Nothing is hooked: outputs, containers, keywords, views and in-place operations do not
matter, only the order in which calls begin and end, and how many autograd nodes there were by then.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import types
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
from otel_modtrack.core import CORE, THREADS
from otel_modtrack.engine import current_graph_task_id
from otel_modtrack.regions import Failure, Kind, Phase, Region, Subject
from otel_modtrack.swap import CodeSwap, moved, skip_by_dynamo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from otel_modtrack.core import ThreadState

__all__ = ["ForwardSwap", "begin", "enter", "fail", "leave"]

logger = logging.getLogger("otel_modtrack")

_FORWARD = Phase.FORWARD
_nn_module = nn.modules.module
_LOOKED_THROUGH = 200  # objects, when it is to be found out what a foreign __call__ leads to


def _wrapped_call_impl(self: Any, *args: Any, **kwargs: Any) -> Any:
    """torch's `_wrapped_call_impl` and ours. Lines and columns of the two calls are those of torch.

    It runs with the globals of torch.nn.modules.module: only names of that module may be used, and
    the strings are replaced by objects (`CodeSwap`). `before` repairs the thread's state whatever
    interrupts us, a KeyboardInterrupt inside `enter` included.
    """
    if torch.compiler.is_dynamo_compiling():
        if self._compiled_call_impl is not None:
            return self._compiled_call_impl(*args, **kwargs)
        return self._call_impl(*args, **kwargs)
    threads: Any = "modtrack:threads"
    enter: Any = "modtrack:enter"
    leave: Any = "modtrack:leave"
    fail: Any = "modtrack:fail"
    compiled: Any = "modtrack:compiled"
    profiler: Any = "modtrack:profiler"
    state = threads.state
    if state.skip:
        state = None
    else:
        before = state.running
    try:
        if state is not None:
            enter(state, self)
        if profiler._is_profiler_enabled:  # noqa: SLF001 - it knows calls by torch's code object
            original: Any = "modtrack:original"
            outs = original(self, *args, **kwargs)
        elif self._compiled_call_impl is not None and compiled(state):
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


# While an order is recorded, these are called in place of those above: recorders are told which
# region runs.


def enter_recorded(state: ThreadState, module: nn.Module) -> None:
    """See `enter`."""
    enter(state, module)
    CORE.tell_recorders(state)


def leave_recorded(state: ThreadState, before: Region | None, outs: Any) -> Any:
    """See `leave`."""
    outs = leave(state, before, outs)
    CORE.tell_recorders(state)
    return outs


def fail_recorded(state: ThreadState, before: Region | None, error: BaseException) -> None:
    """See `fail`."""
    fail(state, before, error)
    CORE.tell_recorders(state)


class ForwardSwap:
    """Puts our code into ``nn.Module._wrapped_call_impl`` and takes it out again.

    Where another library has put a function of its own there that does not come by torch's,
    ``nn.Module.__call__`` is wrapped instead, and what that costs is said.

    Raises:
        TypeError: if the function is not the one we know, and there is nothing to wrap.
    """

    def __init__(self) -> None:
        self._calls_before: Any = None
        self._calls_ours: Any = None
        constants: dict[str, object] = {
            "modtrack:threads": THREADS,
            "modtrack:enter": enter,
            "modtrack:leave": leave,
            "modtrack:fail": fail,
            "modtrack:compiled": compiled,
            "modtrack:profiler": torch.autograd.profiler,
        }
        recording: dict[str, object] = {
            "modtrack:enter": enter_recorded,
            "modtrack:leave": leave_recorded,
            "modtrack:fail": fail_recorded,
        }
        target = nn.Module.__dict__["_wrapped_call_impl"]
        self._swap: CodeSwap | None = None
        self._swap_recording: CodeSwap | None = None
        if _is_torchs(target):
            # A function with torch's own code, while ours is in the one that everybody holds.
            constants["modtrack:original"] = types.FunctionType(
                target.__code__, target.__globals__, target.__name__
            )
            code = moved(_wrapped_call_impl, target, "_call_impl")
            self._swap = CodeSwap(target, code, constants)
            self._swap_recording = CodeSwap(target, code, {**constants, **recording})
        skip_by_dynamo(enter, leave, fail, compiled)
        skip_by_dynamo(enter_recorded, leave_recorded, fail_recorded)

    def install(self) -> None:
        """From now on, calls are seen; and told to recorders, if there are any. Also again."""
        swap = self._swap_recording if CORE.recorders else self._swap
        if swap is not None:
            swap.install()
        if self._calls_ours is not None and nn.Module.__call__ is self._calls_ours:
            return
        if self._swap is None or not _comes_by():
            self.remove()
            before = self._calls_before = nn.Module.__call__
            self._calls_ours = _around(before)
            nn.Module.__call__ = self._calls_ours  # type: ignore[method-assign]
            logger.warning(
                "nn.Module.__call__ is %s.%s, not torch's own: it is wrapped, which costs a frame"
                " per call and lets compiled models be compiled anew",
                getattr(before, "__module__", "?"),
                getattr(before, "__qualname__", before),
            )

    def remove(self) -> None:
        """Everything is as it was."""
        for swap in (self._swap, self._swap_recording):
            if swap is not None:
                swap.remove()
        if self._calls_ours is not None and nn.Module.__call__ is self._calls_ours:
            nn.Module.__call__ = self._calls_before  # type: ignore[method-assign]
        self._calls_ours = None


def _is_torchs(function: Any) -> bool:
    code = getattr(function, "__code__", None)
    return code is not None and code.co_filename == nn.modules.module.__spec__.origin


def _comes_by() -> bool:
    """Whether ``nn.Module.__call__`` leads to torch's own function, whoever has wrapped it.

    Found out by looking at what it holds: a call to see would be seen by the one who wrapped it.
    """
    todo: list[Any] = [nn.Module.__call__]
    for one in itertools.islice(_growing(todo), _LOOKED_THROUGH):
        if _is_torchs(one):
            return True
        found = [getattr(one, name, None) for name in ("__wrapped__", "__func__", "func")]
        for cell in getattr(one, "__closure__", None) or ():
            with contextlib.suppress(ValueError):  # nothing in it yet
                found.append(cell.cell_contents)
        found.extend(getattr(one, "__defaults__", None) or ())
        names = getattr(getattr(one, "__code__", None), "co_names", ())
        space = getattr(one, "__globals__", {})
        found.extend(space[name] for name in names if name in space)
        todo.extend(f for f in found if callable(f) and all(f is not old for old in todo))
    return False


def _growing(items: list[Any]) -> Iterator[Any]:
    """The items of a list to which some are added meanwhile."""
    at = 0
    while at < len(items):
        yield items[at]
        at += 1


def _around(before: Callable[..., Any]) -> Callable[..., Any]:
    """A ``__call__`` with `enter` and `leave` around the one that was there."""

    def __call__(self: nn.Module, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
        if torch.compiler.is_compiling() or THREADS.state.skip:
            return before(self, *args, **kwargs)
        state = THREADS.state
        running = state.running
        try:
            enter_recorded(state, self)
            outs = leave_recorded(state, running, before(self, *args, **kwargs))
        except BaseException as error:
            fail_recorded(state, running, error)
            raise
        return outs

    return __call__
