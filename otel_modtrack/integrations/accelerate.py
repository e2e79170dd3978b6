"""Steps of a loop that is written with Accelerate.

>>> from otel_modtrack.integrations.accelerate import steps
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeVar

from otel_modtrack import semconv
from otel_modtrack.integrations import MissingFrameworkError
from otel_modtrack.integrations.loop import Loop, guarded
from otel_modtrack.tracker import ModTracker

try:
    from accelerate import Accelerator
except ModuleNotFoundError as error:
    if error.name != "accelerate":
        raise
    raise MissingFrameworkError(__name__, "accelerate") from None

if TYPE_CHECKING:
    import types
    from collections.abc import Iterable

    from typing_extensions import Self

__all__ = ["Steps", "steps"]

Batch = TypeVar("Batch")


def steps(
    accelerator: Accelerator,
    tracker: ModTracker,
    batches: Iterable[Batch],
    *,
    first: int = 0,
    epoch: int | None = None,
) -> Steps[Batch]:
    """Go over batches, in training steps as Accelerate's gradient accumulation makes them.

    A step begins with a batch, and ends when the batch is done after which the optimizer has
    stepped: the one whose ``accelerator.accumulate(model)`` has set ``sync_gradients``.

    Args:
        accelerator: whose accumulation it is.
        tracker: that is on.
        batches: what the loop goes over: the loader that `Accelerator.prepare` gave.
        first: number of the first step: 0, where the last epoch ended (`Steps.number`), or where
            a checkpoint was written.
        epoch: that the steps tell, if any.

    Returns:
        An iterator over the same batches, which is a context manager as well.

    Raises:
        TypeError: if an argument is of the wrong type.
        RuntimeError: if the tracker is not on.

    Example:
        >>> with steps(accelerator, tracker, loader, first=first) as batches:
        ...     for batch in batches:
        ...         with accelerator.accumulate(model):
        ...             accelerator.backward(model(batch).loss)
        ...             optimizer.step()
        ...             optimizer.zero_grad()
        >>> first = batches.number
    """
    if not isinstance(accelerator, Accelerator):
        raise TypeError(
            f"steps(accelerator, ...): an Accelerator is wanted, not {type(accelerator).__name__}"
        )
    if not isinstance(tracker, ModTracker):
        raise TypeError(
            f"steps(..., tracker, ...): a ModTracker is wanted, not {type(tracker).__name__}"
        )
    tracker.step(first)  # raises for what is wrong; no step begins
    return Steps(accelerator, Loop(tracker, {}), batches, first, epoch)


class Steps(Iterator[Batch]):
    """The batches of `steps`.

    Attributes:
        number: of the step that is under way, or else of the next.

    Limits:
        An exception that leaves a ``for`` loop without the ``with`` ends the step, but is not known
        here, and is not told on the step; the modules that it left tell it.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        loop: Loop,
        batches: Iterable[Batch],
        first: int,
        epoch: int | None,
    ) -> None:
        self.number = first
        self._accelerator = accelerator
        self._loop = loop
        self._batches = batches
        self._iterator: Iterator[Batch] | None = None
        self._attributes = {semconv.EPOCH: epoch} if epoch is not None else None
        self._thread = threading.get_ident()

    def __iter__(self) -> Self:
        """Begin to go over the batches."""
        self._iterator = iter(self._batches)
        return self

    def __next__(self) -> Batch:
        """End the step, if it was the last batch of one; begin one, if there is none."""
        self._settle()
        if self._iterator is None:
            self._iterator = iter(self._batches)
        try:
            batch = next(self._iterator)
        except StopIteration:
            self.close()
            raise
        except BaseException as error:
            self.close(error)
            raise
        self._begin()
        return batch

    def __enter__(self) -> Self:
        """For ``with steps(...) as batches:``; nothing begins yet."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: types.TracebackType | None,
    ) -> None:
        """End the step that is under way, with the error that left the block, if any."""
        self.close(error)

    def __del__(self) -> None:
        """End the step of a loop that was left."""
        if self._thread == threading.get_ident():
            self.close()

    @guarded
    def tell(self, *, loss: float | None = None, learning_rate: float | None = None) -> None:
        """Set attributes of the step that is under way. Never raises.

        Args:
            loss: of the step.
            learning_rate: that the optimizer has in it.
        """
        if loss is not None:
            self._loop.tell(semconv.LOSS, float(loss))
        if learning_rate is not None:
            self._loop.tell(semconv.LEARNING_RATE, float(learning_rate))

    @guarded
    def close(self, error: BaseException | None = None) -> None:
        """End the step that is under way. Again: does nothing. Never raises.

        Args:
            error: that has ended it, if any.
        """
        if error is None:
            self._settle()
        self._loop.leave(error)

    @guarded
    def _begin(self) -> None:
        if not self._loop.has_step:
            self._loop.open(self.number, self._attributes)

    @guarded
    def _settle(self) -> None:
        """The last batch is done: the step is over if the gradients were synchronised in it."""
        if self._loop.has_step and self._accelerator.sync_gradients:
            self._loop.stop()
            self._loop.finish()
            self.number += 1
