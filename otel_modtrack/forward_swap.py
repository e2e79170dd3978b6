"""Puts what `forward` does around each module call: the only file that swaps its code.

While tracking is on, `torch.nn.Module._wrapped_call_impl` runs `_wrapped_call_impl` below: torch's
own work with `enter` and `leave` around it, in one frame, so that the user's nesting depth does not
change.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import types
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from otel_modtrack.core import CORE, THREADS
from otel_modtrack.forward import compiled, enter, fail, leave
from otel_modtrack.swap import CodeSwap, moved, skip_by_dynamo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from otel_modtrack.core import ThreadState
    from otel_modtrack.regions import Region

__all__ = ["ForwardSwap"]

logger = logging.getLogger("otel_modtrack")

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


# While an order is recorded, these are called in place of those of `forward`: recorders are told
# which region runs.


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
