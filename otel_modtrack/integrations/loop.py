"""What a framework's training loop has open: a step, an evaluation, and perhaps the tracker."""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import context as context_api, trace
from opentelemetry.trace import Status, StatusCode
from typing_extensions import ParamSpec

from otel_modtrack import semconv
from otel_modtrack.core import CORE, THREADS
from otel_modtrack.tracker import ModTracker

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from opentelemetry.util.types import AttributeValue
    from torch import nn

    from otel_modtrack.regions import Unit
    from otel_modtrack.steps import Evaluation, Step

__all__ = ["Loop", "guarded"]

logger = logging.getLogger("otel_modtrack")

P = ParamSpec("P")

_LEFT: Final = "the training loop was left in here"


def guarded(hook: Callable[P, None]) -> Callable[P, None]:
    """Keep what goes wrong in `hook` from the framework: it is said once, and tracking goes off.

    Args:
        hook: what the framework calls.
    """

    @functools.wraps(hook)
    def guard(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            hook(*args, **kwargs)
        except Exception as error:
            was_on = CORE.on
            CORE.fault(hook.__qualname__, error)
            if not was_on:
                logger.exception(
                    "otel_modtrack: internal error in %s; your program is not affected. Please"
                    " report this.",
                    hook.__qualname__,
                )

    return guard


class Loop:
    """The steps and evaluations of one training loop, told by its hooks.

    Args:
        tracker: of the user's; one of ours for each loop if None. One that is not on is entered
            when the loop begins, and left when it ends.
        options: of `ModTracker`, for one of ours.

    Attributes:
        tracker: that is used, or was used last.

    Raises:
        TypeError: if there is a tracker and options, a model among the options, or either is of the
            wrong type.
        ValueError: if an option cannot be used.
    """

    def __init__(self, tracker: ModTracker | None, options: Mapping[str, Any]) -> None:
        if tracker is None:
            if "model" in options:
                raise TypeError("model=: the model is the framework's; leave it out")
            ModTracker(**options)  # what is wrong raises now, and not in the training
        elif not isinstance(tracker, ModTracker):
            raise TypeError(f"a ModTracker is wanted, not {type(tracker).__name__}")
        elif options:
            raise TypeError(
                f"{', '.join(options)}: options are for a tracker that is made here, and one is"
                " given"
            )
        self.tracker = tracker
        self._is_given = tracker is not None
        self._options = {"steps": "explicit", **options}
        self._entered = False
        self._open: Step | None = None
        self._stopped: Step | None = None
        self._evaluation: Evaluation | None = None
        self._evaluation_span: trace.Span | None = None
        self._unit: Unit | None = None  # of the thread, after the last of them began

    def __getstate__(self) -> dict[str, Any]:
        """For a process that is spawned, or a copy: what was asked for, and nothing that runs."""
        fresh = Loop(None, {})
        fresh._is_given, fresh._options = self._is_given, self._options
        fresh.tracker = self.tracker if self._is_given else None
        return vars(fresh)

    @property
    def is_on(self) -> bool:
        """Whether the tracker is."""
        return self.tracker is not None and self.tracker.is_on

    @property
    def has_step(self) -> bool:
        """Whether a step is under way."""
        return self._open is not None

    def enter(self, model: nn.Module | None) -> None:
        """The loop begins. What an earlier one left open is ended first.

        Args:
            model: that is trained.
        """
        self.leave()
        if self.tracker is None or not self._is_given:
            self.tracker = ModTracker(model, **self._options)
        if not self.tracker.is_on:
            self.tracker.__enter__()
            self._entered = True

    def leave(self, error: BaseException | None = None) -> None:
        """The loop is over: end what is open, and leave the tracker if it was entered here.

        Args:
            error: that ended it, if any.
        """
        here = context_api.get_current()
        is_inside = any(trace.get_current_span(here) is span for span in self._spans())
        try:
            self.evaluated(error)
            self.stop(error)
            self.finish()
        finally:
            if not is_inside and context_api.get_current() is not here:
                # A span that was current around the loop has ended before the step, which has
                # brought it back.
                context_api.attach(here)
            if self._entered and self.tracker is not None:
                self._entered = False
                self.tracker.__exit__(None, None, None)

    @guarded
    def left(self, error: BaseException | None) -> None:
        """The loop ended some way that its framework did not tell of: what is open has failed.

        If something else runs on this thread by now, it is not disturbed: what is open ends when
        the next loop begins.

        Args:
            error: that ended it, if that is known.
        """
        state = THREADS.state
        if state.running is not None or state.unit not in (None, self._unit):
            return
        if error is None:
            for span in self._spans():
                span.set_status(Status(StatusCode.ERROR, _LEFT))
        self.leave(error)

    def _spans(self) -> list[trace.Span]:
        """Of what is open, innermost first."""
        found = [self._evaluation_span, self._open.span if self._open is not None else None]
        return [span for span in found if span is not None]

    # -- steps -----------------------------------------------------------------------------------

    def open(self, number: int, attributes: Mapping[str, AttributeValue] | None = None) -> None:
        """A step begins; one that is under way ends.

        Args:
            number: of the step.
            attributes: that its span has besides.
        """
        self.evaluated()
        self.stop()
        self.finish()
        if self.tracker is not None and self.tracker.is_on:
            step = self.tracker.step(number, attributes=attributes)
            step.__enter__()
            self._open = step
            self._unit = THREADS.state.unit

    def stop(self, error: BaseException | None = None) -> None:
        """The step ends; its span is open for attributes until `finish`. Again: does nothing.

        Args:
            error: that ended it, if any.
        """
        step, self._open = self._open, None
        if step is not None:
            self.finish()
            self._stopped = step
            step.stop(error)

    def tell(self, attribute: str, value: float) -> None:
        """Set an attribute of the step that is under way, or of the one that has just stopped.

        Args:
            attribute: its name.
            value: of it.
        """
        step = self._open or self._stopped
        if step is not None and step.span.is_recording():
            step.span.set_attribute(attribute, value)

    def finish(self) -> None:
        """Export the span of the step that has stopped. Again: does nothing."""
        step, self._stopped = self._stopped, None
        if step is not None:
            step.__exit__(None, None, None)

    def forget(self) -> None:
        """What had begun was no step: its span is never ended, and so not exported."""
        self.stop()
        self._stopped = None

    # -- evaluations -----------------------------------------------------------------------------

    def evaluate(self, kind: str) -> None:
        """An evaluation begins; where one is under way already, this does nothing.

        Args:
            kind: ``validation``, ``test``, ...
        """
        if self._evaluation is None and self.tracker is not None and self.tracker.is_on:
            evaluation = self.tracker.evaluation(attributes={semconv.EVALUATION_KIND: kind})
            self._evaluation_span = evaluation.__enter__()
            self._evaluation = evaluation
            self._unit = THREADS.state.unit

    def evaluated(self, error: BaseException | None = None) -> None:
        """The evaluation ends. Again: does nothing.

        Args:
            error: that ended it, if any.
        """
        evaluation, self._evaluation = self._evaluation, None
        self._evaluation_span = None
        if evaluation is not None:
            if error is None:
                evaluation.__exit__(None, None, None)
            else:
                evaluation.__exit__(type(error), error, error.__traceback__)
            self._unit = THREADS.state.unit  # the step's, where it was in one
