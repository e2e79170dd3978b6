"""Processes that are started inside a region continue its trace; in place while a tracker is on.

A subprocess gets TRACEPARENT in its environment; a multiprocessing.Process carries it along,
however it is started; what is forked inherits the current span.
"""

from __future__ import annotations

import functools
import multiprocessing.process
import os
import subprocess
from typing import Any

from opentelemetry import context as context_api, trace

from otel_modtrack import carrier
from otel_modtrack.core import CORE
from otel_modtrack.swap import AttributeSwap

__all__ = ["ChildSwap"]

_ENV = 10  # the place of `env` among the arguments of Popen, where nobody gives it by place


class ChildSwap:
    """Puts wrappers around what starts processes, and takes them away."""

    def __init__(self) -> None:
        self._swap = AttributeSwap()
        # Where somebody else has wrapped ours, it stays, and does nothing while no tracker is on.
        self.remove = self._swap.remove

    def install(self) -> None:
        """Wrap."""
        popen, process = subprocess.Popen, multiprocessing.process.BaseProcess
        self._swap.put(popen, "__init__", _popen(popen.__init__))
        self._swap.put(process, "start", _start(process.start))


def _popen(original: Any) -> Any:
    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        if CORE.on and len(args) <= _ENV:
            try:
                env = _environment(kwargs.get("env"))
                if env is not None:
                    kwargs["env"] = env
            except Exception as error:  # noqa: BLE001 - nothing of ours may reach the user
                CORE.fault("the start of a child process", error)
        original(self, *args, **kwargs)

    return __init__


def _environment(env: Any) -> Any:
    """The environment to start with, or None to leave it as it is.

    One of the program's own is left alone, unless it is this process's with changes.
    """
    ours = carrier.environment()
    if not ours:
        return None
    if env is None:
        return {**os.environ, **ours}
    mine = os.environ
    is_copy = mine.keys() <= env.keys() and all(env.get(key) == mine.get(key) for key in ours)
    return {**env, **ours} if is_copy else None


def _start(original: Any) -> Any:
    @functools.wraps(original)
    def start(self: Any) -> Any:
        if CORE.on:
            try:
                carrier.mark(self)
            except Exception as error:  # noqa: BLE001 - nothing of ours may reach the user
                CORE.fault("the start of a child process", error)
        return original(self)

    return start


class _Fork:
    """`span`: the current one when the last fork began."""

    span: trace.Span = trace.INVALID_SPAN


def _before_fork() -> None:
    """A region's span is made when it is asked for: before there are two processes."""
    _Fork.span = trace.get_current_span() if CORE.on else trace.INVALID_SPAN


def _after_fork() -> None:
    """The span is the parent process's to end; here it is only a parent."""
    context = _Fork.span.get_span_context()
    if context.is_valid:
        context_api.attach(trace.set_span_in_context(trace.NonRecordingSpan(context)))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_child=_after_fork)
