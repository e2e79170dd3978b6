"""Sees optimizers being made, and gradient scalers that keep one from stepping.

Both are torch's own functions with other code, in which ours stands beside torch's, so that no
traceback changes.
"""

from __future__ import annotations

from typing import Any

from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from otel_modtrack.core import CORE, THREADS
from otel_modtrack.swap import AroundSwap, original_body

__all__ = ["OptimizerSwap", "ScalerSwap"]


def made(optimizer: Any) -> None:
    """An optimizer was made. Never raises."""
    try:
        if CORE.steps is not None:
            CORE.steps.optimizers.add(optimizer)
    except Exception as error:  # noqa: BLE001 - nothing of ours may reach the user
        CORE.fault("the making of an optimizer", error)


def begin_scaled() -> int:
    """A gradient scaler is about to step an optimizer, or not. Never raises."""
    return CORE.steps.begun if CORE.steps is not None else -1


def end_scaled(begun: int, optimizer: Any) -> None:
    """It has, or not. Never raises."""
    try:
        steps = CORE.steps
        if steps is not None and steps.begun == begun:
            steps.optimizer_stepped(CORE.owner(THREADS.state), optimizer, skipped=True)
    except Exception as error:  # noqa: BLE001 - nothing of ours may reach the user
        CORE.fault("the step of a gradient scaler", error)


def _around_init(self: Any) -> Any:
    """What is put around the body of `Optimizer.__init__`, in its own frame."""
    made: Any = "modtrack:made"
    original_body()
    made(self)


def _around_step(optimizer: Any) -> Any:
    """What is put around the body of `GradScaler.step`, in its own frame."""
    begin_scaled: Any = "modtrack:begin_scaled"
    end_scaled: Any = "modtrack:end_scaled"
    begun = begin_scaled()
    try:
        original_body()
    except BaseException:
        begun = -2
        raise
    finally:
        end_scaled(begun, optimizer)


class OptimizerSwap(AroundSwap):
    """Puts our code into ``Optimizer.__init__`` and takes it out again.

    Raises:
        TypeError: if the function is not a plain one whose source is there.
    """

    def __init__(self) -> None:
        super().__init__(Optimizer.__init__, _around_init, made)


class ScalerSwap(AroundSwap):
    """Puts our code into ``GradScaler.step`` and takes it out again.

    Raises:
        TypeError: if the function is not a plain one whose source is there.
    """

    def __init__(self) -> None:
        super().__init__(GradScaler.step, _around_step, begin_scaled, end_scaled)
