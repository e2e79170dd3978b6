"""Named regions: for losses, functional blocks, and entry points that are not ``__call__``."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch

from otel_modtrack import calls, forward
from otel_modtrack.core import CORE, THREADS, ThreadState
from otel_modtrack.names import template
from otel_modtrack.regions import Kind, Region, Subject

if TYPE_CHECKING:
    import types
    from collections.abc import Callable

__all__ = ["as_region", "region"]

_F = TypeVar("_F", bound="Callable[..., Any]")

_subjects: dict[str, Subject] = {}


class region:  # noqa: N801 - used as a function: `with region("loss"):`
    """A region of your own, with its backward and its recomputation, like a module's.

    Use it around a block or as a decorator, also of a coroutine function or generator. Without an
    active `ModTracker` it does nothing.

    Args:
        name: what its spans are called. Indices between dots are replaced in the span's name
            (``block.3`` is ``block.*``); keep what else varies out of it.

    Raises:
        TypeError: if `name` is not a string.
        ValueError: if `name` is empty.

    Example:
        >>> with region("loss"):
        ...     pass
    """

    def __init__(self, name: str) -> None:
        if not isinstance(name, str):
            msg = f"region() takes a name, a string such as 'loss', not {type(name).__name__}"
            raise TypeError(msg)
        if not name:
            msg = "region() takes a name that is not empty, such as 'loss'"
            raise ValueError(msg)
        self._name = name
        # One object may be used by several threads, and again inside itself.
        self._entered: list[_Entered] = []

    def __enter__(self) -> None:
        if torch.compiler.is_compiling():
            return
        state, before = _enter(lambda: self._name)
        here = THREADS.state
        call = here.running if state is not None and here.running is not before else None
        self._entered.append(_Entered(here, state is not None, before, call))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: types.TracebackType | None,
    ) -> None:
        if torch.compiler.is_compiling():
            return
        state = THREADS.state
        for at in reversed(range(len(self._entered))):
            if self._entered[at].state is state:
                entered = self._entered.pop(at)
                break
        else:
            if not self._entered:
                return
            entered = self._entered.pop()  # held across a yield, and left by another thread
        if not entered.live:
            return
        if entered.state is state and _is_open(entered, state.running):
            if error is None:
                forward.leave(state, entered.before, None)
            else:
                forward.fail(state, entered.before, error)
        else:
            _leave_elsewhere(entered, error)

    def __call__(self, function: _F) -> _F:
        """Decorate `function`: each call is a region of this name."""
        name = self._name
        return as_region(function, lambda *_: name)  # type: ignore[return-value]


def as_region(function: Callable[..., Any], named: Callable[..., str]) -> Callable[..., Any]:
    """A function each of whose calls is a region.

    Args:
        function: that is called.
        named: tells a call's name by its positional arguments; "" where it is to be none.
    """

    @functools.wraps(function)
    def inner(*args: Any, **kwargs: Any) -> Any:
        state, before = _enter(named, *args)
        try:
            outs = function(*args, **kwargs)
            if state is not None:
                outs = forward.leave(state, before, outs)
        except BaseException as error:
            if state is not None:
                forward.fail(state, before, error)
            raise
        return outs

    return inner


class _Entered(NamedTuple):
    """One entry.

    Attributes:
        state: of the thread that entered.
        live: whether a tracker was on, and the thread recorded.
        before: what was running.
        call: the region itself; None if it was not to be recorded.
    """

    state: ThreadState
    live: bool
    before: Region | None
    call: Region | None


def _is_open(entered: _Entered, running: Region | None) -> bool:
    """Whether the region runs on this thread still; what was begun in it and not ended, ends.

    Generators that hold regions across their yields may be left in any order.
    """
    call = entered.call
    if call is None or running is call:
        return True
    if call.end_ns or running is None or all(one is not call for one in running.chain()):
        return False
    while (inner := entered.state.running) is not call and inner is not None:
        calls.close(entered.state, inner, inner.parent)
    return True


def _leave_elsewhere(entered: _Entered, error: BaseException | None) -> None:
    """The region does not run on this thread any more, or never did: it ends, nothing else does."""
    state, call = entered.state, entered.call
    try:
        if call is None:
            state.skip = not CORE.on
        elif not call.end_ns:
            if error is not None:
                calls.failed(THREADS.state, call, error)
            call.end_ns = calls.clock()
            if state.running is call:
                # The thread itself tidies up the rest, when it calls something next.
                state.running = None
            calls.done(state, call)
    except Exception as fault:  # noqa: BLE001 - nothing of ours may reach the user
        CORE.fault("a region's exit", fault)


def _enter(named: Callable[..., str], *args: Any) -> tuple[Any, Region | None]:
    """Begin a named region on this thread.

    Args:
        named: tells its name, where one is recorded; "" for none.
        args: that it is called with.

    Returns:
        What its end needs, the thread's state and what was running; (None, None) if off.
    """
    if torch.compiler.is_compiling() or not CORE.on:  # a constant to dynamo
        return None, None
    state = THREADS.state
    if state.skip:
        return None, None
    before = state.running
    try:
        name = named(*args)
        if not name:
            return None, None
        subject = _subjects.get(name)
        if subject is None:
            subject = _subjects[name] = Subject(Kind.SCOPE, name, template(name), "region")
        if before is None or before.subject.special:
            call = forward.begin(state, subject)
        else:
            call = Region(subject, before, before.phase, calls.clock(), before.unit)
        if call is not None:
            calls.opened(state, call, plain=False)
    except Exception as error:  # noqa: BLE001 - nothing of ours may reach the user
        CORE.fault("a region's entry", error)
    return state, before
