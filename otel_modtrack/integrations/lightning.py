"""Steps, epochs and evaluations of Lightning's `Trainer`, of either of its two packages.

>>> from otel_modtrack.integrations.lightning import ModTrackCallback
"""

# ruff: noqa: ARG002 - Lightning says what a hook is called with
from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import torch

from otel_modtrack import semconv
from otel_modtrack.integrations import MissingFrameworkError
from otel_modtrack.integrations.loop import Loop, guarded

if TYPE_CHECKING:
    from lightning.pytorch import Callback, LightningModule, Trainer

    from otel_modtrack.tracker import ModTracker

__all__ = ["ModTrackCallback"]

# Batches that a step spans at most where no optimizer steps that Lightning counts: what is recorded
# must not grow for ever.
_LONGEST: Final = 64


def _find_callback() -> type:
    """The base class, of the package that is imported already, or can be."""
    names = ["lightning.pytorch", "pytorch_lightning"]
    names.sort(key=lambda name: name not in sys.modules)
    for name in names:
        try:
            found: type = importlib.import_module(name).Callback
        except ModuleNotFoundError as error:
            if error.name not in {"lightning", *names}:
                raise
        else:
            return found
    raise MissingFrameworkError(__name__, "lightning")


if not TYPE_CHECKING:
    Callback = _find_callback()


class ModTrackCallback(Callback):
    """Tracks what a `Trainer` runs: its training steps, its epochs and its evaluations.

    A step is Lightning's: the batches that are accumulated, up to a step of an optimizer. Its
    number is ``trainer.global_step`` at its beginning, also after a resume. In manual optimization
    ``global_step`` counts each optimizer: with two that step for each batch, the numbers are 0, 2,
    4.

    Args:
        tracker: one of yours, which stays on for as long as you want. One that is not on is entered
            when the Trainer begins and left when it ends. If None, there is one of the callback's
            own for each ``fit``, ``validate``, ``test`` and ``predict``.
        loss: whether a step tells its loss: what Lightning gives to ``on_train_batch_end``, summed
            over the step's batches. Lightning has divided it by ``accumulate_grad_batches``. To
            read it waits for the device.
        learning_rate: whether a step tells the learning rate of the first optimizer's first
            parameter group at its beginning.
        options: of `ModTracker`, for one of the callback's own.

    Raises:
        TypeError: if there is a tracker and options, or either is of the wrong type.
        ValueError: if an option cannot be used.

    Example:
        >>> Trainer(callbacks=[ModTrackCallback(loss=True)]).fit(module, loader)

    Limits:
        Lightning does not count an optimizer that was asked for with ``use_pl_optimizer=False``: a
        step then spans up to 64 batches.

    Source:
        lightning/pytorch 2.6: loops/training_epoch_loop.py, loops/evaluation_loop.py,
        trainer/call.py, callbacks/callback.py (`on_train_batch_end` for the loss).
    """

    def __init__(
        self,
        tracker: ModTracker | None = None,
        *,
        loss: bool = False,
        learning_rate: bool = False,
        **options: Any,
    ) -> None:
        super().__init__()
        self._loop = Loop(tracker, options)
        self._loss = loss
        self._learning_rate = learning_rate
        self._begun_at = 0  # global_step at the step's beginning
        self._batches = 0  # of the step, that have ended
        self._total: torch.Tensor | float | None = None  # loss of the step so far

    @property
    def tracker(self) -> ModTracker | None:
        """The tracker of what runs, or ran last; for its ``collectives``."""
        return self._loop.tracker

    # -- the run ---------------------------------------------------------------------------------

    @guarded
    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Switch tracking on."""
        self._loop.enter(pl_module)

    @guarded
    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """End what is open with the exception, and switch tracking off."""
        self._loop.leave(exception)

    @guarded
    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Switch tracking off."""
        self._loop.leave()

    # -- steps -----------------------------------------------------------------------------------

    @guarded
    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Begin a step, unless this batch belongs to one that is under way."""
        if self._loop.has_step:
            return
        self._begun_at = number = trainer.global_step
        self._batches, self._total = 0, None
        attributes: dict[str, Any] = {semconv.EPOCH: trainer.current_epoch}
        if self._learning_rate and trainer.optimizers:
            attributes[semconv.LEARNING_RATE] = float(trainer.optimizers[0].param_groups[0]["lr"])
        self._loop.open(number, attributes)

    @guarded
    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """End the step, if an optimizer has stepped."""
        self._batches += 1
        if self._loss:
            self._add(outputs)
        longest = max(trainer.accumulate_grad_batches, _LONGEST)
        if trainer.global_step != self._begun_at or self._batches >= longest:
            self._end()

    @guarded
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Forget a step whose first batch the module's ``on_train_batch_start`` has refused."""
        if not self._batches:
            self._loop.forget()

    @guarded
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """End a step that no optimizer has ended."""
        self._end()

    # -- evaluations -----------------------------------------------------------------------------

    @guarded
    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin a validation, or the one before the training that shows whether it runs."""
        self._evaluate(pl_module, "sanity_check" if trainer.sanity_checking else "validation")

    @guarded
    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """End it."""
        self._loop.evaluated()

    @guarded
    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin a test."""
        self._evaluate(pl_module, "test")

    @guarded
    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """End it."""
        self._loop.evaluated()

    @guarded
    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin a prediction."""
        self._evaluate(pl_module, "predict")

    @guarded
    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """End it."""
        self._loop.evaluated()

    # -- inside ----------------------------------------------------------------------------------

    def _evaluate(self, module: LightningModule, kind: str) -> None:
        if not self._loop.is_on:  # not in a fit
            self._loop.enter(module)
        self._loop.evaluate(kind)

    def _add(self, outputs: Any) -> None:
        """Add a batch's loss to the step's. It is detached, and read when the step is over."""
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if isinstance(loss, torch.Tensor):
            if loss.numel() != 1:
                return
            loss = loss.detach()
        elif not isinstance(loss, float):
            return
        self._total = loss if self._total is None else self._total + loss

    def _end(self) -> None:
        self._loop.stop()
        if self._total is not None:
            self._loop.tell(semconv.LOSS, float(self._total))
            self._total = None
        self._loop.finish()
