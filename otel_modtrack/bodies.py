"""Forwards whose body runs later: coroutines, generators, async generators.

The call returns at once; its region lasts until the body ends, and is the running one only while
the body itself runs, not while it is suspended. The user gets a coroutine or generator of the same
type that passes everything through.
"""

from __future__ import annotations

import inspect
import types
import weakref
from typing import TYPE_CHECKING, Any

from otel_modtrack import calls
from otel_modtrack.core import CORE, THREADS
from otel_modtrack.outputs import hang

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator

    from otel_modtrack.core import ThreadState
    from otel_modtrack.regions import Region

__all__ = ["TYPES", "follow"]

TYPES = frozenset({types.CoroutineType, types.GeneratorType, types.AsyncGeneratorType})


def follow(state: ThreadState, call: Region, before: Region | None, body: Any) -> Any:
    """Let `call` go on for as long as `body`, which it returned.

    Returns:
        What the user gets in place of `body`; None if it has begun already, and so is not the
        call's own.
    """
    if not _is_fresh(body):
        return None
    steps = _Steps(call, body)
    wrapped: Any
    if isinstance(body, types.CoroutineType):
        wrapped = _coroutine(body, steps)
    elif isinstance(body, types.GeneratorType):
        wrapped = steps.drive(body, last=True)
    else:
        wrapped = _async_generator(body, steps)
    wrapped.__name__, wrapped.__qualname__ = body.__name__, body.__qualname__
    call.unit.held += 1
    call.unit.bodies.append(call)
    weakref.finalize(wrapped, steps.end).atexit = False
    token, call.token = call.token, None
    steps.suspend(state, before, token)
    return wrapped


def _is_fresh(body: Any) -> bool:
    if isinstance(body, types.CoroutineType):
        return inspect.getcoroutinestate(body) == inspect.CORO_CREATED
    if isinstance(body, types.GeneratorType):
        return inspect.getgeneratorstate(body) == inspect.GEN_CREATED
    return body.ag_frame is not None and body.ag_frame.f_lasti <= 0 and not body.ag_running


class _Steps:
    """Makes `call` the running region for each step of its body."""

    def __init__(self, call: Region, body: Any) -> None:
        self._call = call
        self._body = body

    def drive(self, body: Any, *, last: bool) -> Generator[Any, Any, Any]:
        """Run `body` to its end, as ``yield from`` would; `last` if the call ends with it."""
        step: Callable[[Any], Any] = body.send
        value: Any = None
        try:
            while True:
                item = self._step(step, value)
                try:
                    value = yield item
                    step = body.send
                except GeneratorExit:
                    self._step(lambda _: body.close(), None)
                    raise
                except BaseException as error:  # noqa: BLE001 - thrown in by the caller
                    step, value = body.throw, error
        except StopIteration as stop:
            return stop.value
        except BaseException as error:
            if last or not isinstance(error, StopAsyncIteration):  # an async generator's end
                self._failed(error)
            raise
        finally:
            if last:
                self.end()

    def _step(self, step: Callable[[Any], Any], value: Any) -> Any:
        if not CORE.on:
            return step(value)
        state = THREADS.state
        if self._call.end_ns:
            # Dropped: collected wherever this thread is now, and not a part of that.
            saved, state.skip = state.suspend(), True
            try:
                return step(value)
            finally:
                state.resume(saved)
        before, token = state.running, self.resume(state)
        item = None
        try:
            item = step(value)
        finally:
            self.suspend(state, before, token, item)
        return item

    def resume(self, state: ThreadState) -> Any:
        """The body runs on, on this thread. Returns what `suspend` wants back."""
        call = self._call
        token = None
        try:
            if state.stretch is None:
                state.open_stretch(call)
            state.note(call)
            state.running = call
            if CORE.recorders:
                CORE.tell_recorders(state)
            var = call.unit.sink.var
            if var is not None:
                current, known = var.get(), state.context
                state.var = var
                state.context = call.unit.sink.open_context(call, current)
                token = (var, var.set(state.context), known)
        except Exception as error:  # noqa: BLE001 - nothing of ours may reach the user
            CORE.fault("a body's step", error)
        return token

    def suspend(
        self, state: ThreadState, before: Region | None, token: Any, item: Any = None
    ) -> None:
        """The body stops for now (or the call that made it returns); `before` runs on."""
        call = self._call
        try:
            state.running = before
            if CORE.recorders:
                CORE.tell_recorders(state)
            if token is not None:
                calls.restore(state, token)
            state.note(before)
            if state.opener is call:
                stretch = state.close_stretch()
                if stretch is not None:
                    hang(stretch, item)
                if state.unit is call.unit and call.unit.opener is call:
                    state.unit = None
        except Exception as error:  # noqa: BLE001 - nothing of ours may reach the user
            CORE.fault("a body's suspension", error)

    def _failed(self, error: BaseException) -> None:
        calls.failed(THREADS.state, self._call, error)

    def end(self) -> None:
        """The body is over, or will never run: so is the call. Again: does nothing."""
        call = self._call
        if call.end_ns:
            return
        try:
            if isinstance(self._body, types.CoroutineType) and _is_fresh(self._body):
                self._body.close()  # never awaited: Python has said so already, of ours
            call.end_ns = calls.clock()
            call.unit.held -= 1
            if call.unit.opener is not None and call.unit.opener.end_ns and not call.unit.held:
                CORE.flush(call.unit)
        except Exception as error:  # noqa: BLE001 - nothing of ours may reach the user
            CORE.fault("a body's end", error)


class _Awaitable:
    def __init__(self, body: Any, steps: _Steps, *, last: bool) -> None:
        self._body, self._steps, self._last = body, steps, last

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._steps.drive(self._body, last=self._last)


async def _coroutine(body: Any, steps: _Steps) -> Any:
    return await _Awaitable(body, steps, last=True)


async def _async_generator(body: Any, steps: _Steps) -> AsyncGenerator[Any, Any]:
    step = body.asend(None)
    try:
        while True:
            try:
                item = await _Awaitable(step, steps, last=False)
            except StopAsyncIteration:
                return
            try:
                sent = yield item
            except GeneratorExit:
                await _Awaitable(body.aclose(), steps, last=False)
                raise
            except BaseException as error:  # noqa: BLE001 - thrown in by the caller
                step = body.athrow(error)
            else:
                step = body.asend(sent)
    finally:
        steps.end()
