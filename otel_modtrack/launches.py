"""Sees every run of the autograd engine that begins in Python, and makes a `Run` of it."""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch.autograd import Variable, graph

from otel_modtrack import engine
from otel_modtrack.backward import Run, fired
from otel_modtrack.core import CORE, THREADS
from otel_modtrack.interrupts import from_signal_handler
from otel_modtrack.swap import AroundSwap, original_body, skip_by_dynamo

__all__ = ["EngineSwap"]

logger = logging.getLogger("otel_modtrack")

_said: list[str] = []
_INPUTS = 3  # position of `inputs` (`run_backward`: grads, keep_graph, create_graph, inputs)


def begin_run(cell: list[Run], t_outputs: Any, args: tuple[Any, ...], kwargs: Any) -> None:
    """A run of the engine is about to start on this thread. Never raises.

    Args:
        cell: gets the run, before anything is changed; stays empty where no tracked call can be in
            the graph.
        t_outputs: the roots.
        args: the other arguments of `_engine_run_backward`.
        kwargs: likewise.
    """
    try:
        state = THREADS.state
        if state.skip or not CORE.on or (not CORE.stretches and state.stretch is None):
            return
        if engine.compiling():
            return
        if engine.compiled_autograd():
            if not _said:
                _said.append("compiled autograd is on: there are no backward regions")
                logger.warning(_said[0])
            return
        inputs = kwargs.get("inputs") or (args[3] if len(args) > _INPUTS else ())
        run = Run(state, t_outputs, inputs)
        cell.append(run)
        run.begin()
    except Exception as error:  # noqa: BLE001 - nothing of ours may reach the user
        CORE.fault("the start of a backward", error)


def end_run(cell: list[Run], error: BaseException | None) -> None:
    """The engine has returned or raised. Never raises; a second time it does nothing."""
    try:
        while cell:
            cell[-1].end(error)
            cell.pop()
    except Exception as fault:  # noqa: BLE001 - nothing of ours may reach the user
        if not from_signal_handler(fault):
            cell.clear()
        CORE.fault("the end of a backward", fault)


def _around(cell: list[Run], t_outputs: Any, args: Any, kwargs: Any) -> Any:
    """What is put around the body of torch's `_engine_run_backward`, in its own frame.

    `wrapped` puts it where `original_body` is called; strings are replaced by objects.
    """
    if torch.compiler.is_compiling():
        return Variable._execution_engine.run_backward(t_outputs, *args, **kwargs)  # noqa: SLF001
    begin_run: Any = "modtrack:begin_run"
    end_run: Any = "modtrack:end_run"
    cell = []
    try:
        try:
            begin_run(cell, t_outputs, args, kwargs)
            original_body()
        except BaseException as error:
            end_run(cell, error)
            raise
        finally:
            end_run(cell, None)
    finally:
        end_run(cell, None)  # again, if a signal interrupted it
    return None


class EngineSwap(AroundSwap):
    """Puts our code into ``torch.autograd.graph._engine_run_backward`` and takes it out again.

    Raises:
        TypeError: if the function is not a plain one whose source is there.
    """

    def __init__(self) -> None:
        super().__init__(graph._engine_run_backward, _around, begin_run, end_run)  # noqa: SLF001
        skip_by_dynamo(Run.first, fired)
