"""Steps, epochs and evaluations of `transformers.Trainer`.

>>> from otel_modtrack.integrations.transformers import ModTrackCallback
"""

# ruff: noqa: ARG002 - Trainer says what a hook is called with
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_modtrack import semconv
from otel_modtrack.integrations import MissingFrameworkError
from otel_modtrack.integrations.loop import Loop, guarded
from otel_modtrack.integrations.watch import Watch, find_frame

try:
    from transformers.trainer_callback import TrainerCallback
except ModuleNotFoundError as error:
    if error.name != "transformers":
        raise
    raise MissingFrameworkError(__name__, "transformers") from None

if TYPE_CHECKING:
    import types

    from torch import nn
    from torch.optim import Optimizer
    from transformers.trainer_callback import TrainerControl, TrainerState
    from transformers.training_args import TrainingArguments
    from typing_extensions import Self

    from otel_modtrack.tracker import ModTracker

__all__ = ["ModTrackCallback"]

_VALIDATION = "validation"


class ModTrackCallback(TrainerCallback):
    """Tracks what a `Trainer` trains: its update steps, its epochs and its evaluations.

    A step is Trainer's: the forward and backward of all batches that are accumulated, and one
    update. Its number is ``state.global_step`` at its beginning, also after a resume.

    Args:
        tracker: one of yours, which stays on for as long as you want. One that is not on is entered
            when the training begins and left when it ends. If None, there is one of the callback's
            own for each training.
        loss: whether a step tells the loss that Trainer logs after it. Trainer logs the mean since
            the last time, each ``logging_steps``.
        learning_rate: whether a step tells the learning rate of the optimizer's first parameter
            group in it.
        options: of `ModTracker`, for one of the callback's own.

    Raises:
        TypeError: if there is a tracker and options, or either is of the wrong type.
        ValueError: if an option cannot be used.

    Example:
        >>> callback = ModTrackCallback(loss=True)
        >>> with callback:  # an exception that leaves it is told on the step
        ...     Trainer(model, args, train_dataset=data, callbacks=[callback]).train()

    Limits:
        `evaluate()` and `predict()` by themselves have no beginning that Trainer tells of: use
        `ModTracker.evaluation`. Trainer does not tell of exceptions, either: without the ``with``,
        a step that one has left ends when its traceback goes, and does not name it.

    Source:
        transformers/trainer.py (5.24 and 4.57): `_inner_training_loop`, `_run_epoch`,
        `_maybe_log_save_evaluate`, `evaluate`; trainer_callback.py: `DefaultFlowCallback`.
    """

    def __init__(
        self,
        tracker: ModTracker | None = None,
        *,
        loss: bool = False,
        learning_rate: bool = False,
        **options: Any,
    ) -> None:
        self._loop = Loop(tracker, options)
        self._loss = loss
        self._learning_rate = learning_rate
        self._watch: Watch | None = None
        self._datasets = 1  # that an evaluation takes one after the other
        self._to_come = 0

    @property
    def tracker(self) -> ModTracker | None:
        """The tracker of the training that runs, or of the last; for its ``collectives``."""
        return self._loop.tracker

    def __enter__(self) -> Self:
        """For ``with callback:``; nothing begins yet."""
        return self

    @guarded
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: types.TracebackType | None,
    ) -> None:
        """End what is open, with the error that left the block, if any."""
        self._leave(error)

    # -- the training ----------------------------------------------------------------------------

    @guarded
    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: nn.Module | None = None,
        **kwargs: Any,
    ) -> None:
        """Switch tracking on."""
        self._end_watch()
        self._loop.enter(model)
        frame = find_frame("_inner_training_loop")
        trainer = frame.f_locals.get("self") if frame is not None else None
        datasets = getattr(trainer, "eval_dataset", None)
        self._datasets = len(datasets) if isinstance(datasets, dict) else 1
        self._watch = Watch(frame, self._loop.left)
        if args.eval_on_start:
            self._evaluate()

    @guarded
    def on_train_end(self, *args: Any, **kwargs: Any) -> None:
        """Switch it off."""
        self._leave(None)

    # -- steps -----------------------------------------------------------------------------------

    @guarded
    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Begin a step."""
        self._loop.open(state.global_step, {semconv.EPOCH: int(state.epoch or 0)})

    @guarded
    def on_pre_optimizer_step(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        optimizer: Optimizer | None = None,
        **kwargs: Any,
    ) -> None:
        """Note the learning rate, before the scheduler changes it."""
        if self._learning_rate and optimizer is not None:
            self._loop.tell(semconv.LEARNING_RATE, float(optimizer.param_groups[0]["lr"]))

    @guarded
    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """End the step. If its loss is wanted, it may come with the log that follows."""
        self._loop.stop()
        if not self._loss:
            self._loop.finish()
        if control.should_evaluate:
            self._evaluate()

    @guarded
    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        """Tell the loss of the steps since the last log, on the last of them."""
        if self._loss and logs is not None and "loss" in logs:
            self._loop.tell(semconv.LOSS, float(logs["loss"]))

    @guarded
    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """End a step that was left before its update."""
        self._loop.stop()
        if control.should_evaluate:
            self._evaluate()

    # -- evaluations -----------------------------------------------------------------------------

    @guarded
    def on_prediction_step(self, *args: Any, **kwargs: Any) -> None:
        """An evaluation runs: what was to be logged of the step before it is logged."""
        self._loop.finish()

    @guarded
    def on_evaluate(self, *args: Any, **kwargs: Any) -> None:
        """End the evaluation of a dataset; the next one begins, if there are several."""
        self._loop.evaluated()
        self._to_come -= 1
        if self._to_come > 0:
            self._loop.evaluate(_VALIDATION)

    # -- inside ----------------------------------------------------------------------------------

    def _evaluate(self) -> None:
        """Trainer evaluates next: nothing tells so later."""
        self._to_come = self._datasets
        self._loop.evaluate(_VALIDATION)

    def _end_watch(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.end()

    def _leave(self, error: BaseException | None) -> None:
        self._end_watch()
        self._loop.leave(error)
