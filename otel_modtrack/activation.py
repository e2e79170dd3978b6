"""What is put in place while any tracker is on, and taken away with the last one."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import torch

from otel_modtrack.children import ChildSwap
from otel_modtrack.comm.telling import EACH, OFF
from otel_modtrack.core import CORE
from otel_modtrack.current import ContextReader
from otel_modtrack.forward_swap import ForwardSwap
from otel_modtrack.interrupts import from_signal_handler
from otel_modtrack.launches import EngineSwap
from otel_modtrack.loading import LoadSwap
from otel_modtrack.optimizers import OptimizerHooks
from otel_modtrack.regions import Sink
from otel_modtrack.spans import SpanSink
from otel_modtrack.swap import undo_all
from otel_modtrack.training import Progress
from otel_modtrack.watching import OptimizerSwap, ScalerSwap

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_modtrack.comm.intercept import Interception
    from otel_modtrack.names import Names
    from otel_modtrack.order.recorder import Recorder
    from otel_modtrack.regions import Failure
    from otel_modtrack.stepping import Stepper

__all__ = ["ACTIVATION", "Activation", "Entry"]

logger = logging.getLogger("otel_modtrack")


class Entry:
    """One tracker, entered once.

    Attributes:
        sink: where it wants its spans to go, or None.
        collectives: `OFF`, `SUMMED` or `EACH`.
        steps: recognises training steps; None where only explicit ones are wanted.
        sees_all: tells whether every module call has to be seen, whatever is recorded.
        automatic: whether the program does not know of it, so that its own trackers come first.
    """

    __slots__ = ("automatic", "collectives", "sees_all", "sink", "steps")

    def __init__(
        self, collectives: str, steps: Stepper | None, sees_all: Callable[[], bool]
    ) -> None:
        self.sink: Sink | None = None
        self.collectives = collectives
        self.steps = steps
        self.sees_all = sees_all
        self.automatic = False


class Activation:
    """The trackers that are on, and what they share: swaps, hooks, the sight of collectives."""

    def __init__(self) -> None:
        self._trackers: list[Entry] = []
        self._undo: list[Callable[[], None]] = []
        self._undo_calls: list[Callable[[], None]] = []  # of what sees module calls
        self._swaps: dict[type, Any] = {}
        self._said: set[str] = set()
        self._interception: Interception | None = None

    def add(self, entry: Entry, names: Names) -> Names:
        """A tracker was entered.

        Returns:
            The names in use: those of the first tracker that is on.
        """
        with CORE.lock:
            if not self._trackers:
                CORE.use(names)
            self._trackers.append(entry)
            self._choose()
            self.wake()
            if not CORE.on:
                self._on()
            self._see_collectives()
            # Not in the first step: which optimizers make up a step is learned from its calls.
            if CORE.steps is None or (CORE.steps.number and not CORE.steps.wants_next()):
                self.rest()
            return CORE.names

    def discard(self, entry: Entry, failure: Failure | None = None) -> None:
        """A tracker was left; in any order. Again: does nothing.

        Args:
            entry: the tracker.
            failure: what left it, if anything.
        """
        with CORE.lock:
            try:
                if CORE.steps is not None and CORE.steps is entry.steps:
                    for state in list(CORE.states):
                        CORE.steps.close(state, failure)
            except Exception as error:  # noqa: BLE001 - nothing of ours may reach the user
                CORE.fault("the end of the last step", error)
            finally:
                self._trackers = [one for one in self._trackers if one is not entry]
                self._choose()
                if not self._trackers:
                    self.off()
                elif CORE.on or CORE.resting:
                    self._see_collectives()

    def replace(self, entry: Entry, sink: Sink) -> Sink:
        """A tracker has found out where its spans go.

        Returns:
            The sink in use.
        """
        with CORE.lock:
            entry.sink = sink
            self._choose()
            self._see_collectives()
            return CORE.sink

    def _choose(self) -> None:
        """The spans go to the first tracker that has a provider, and as that one wants."""
        found = [one for one in self._trackers if one.sink is not None]
        found.sort(key=lambda one: one.automatic)
        CORE.sink = (found[0].sink if found else None) or Sink()
        CORE.steps = found[0].steps if found else None
        keys = {
            one.sink.provider_key
            for one in found
            if isinstance(one.sink, SpanSink) and not one.automatic
        }
        if len(keys) > 1 and "providers" not in self._said:
            self._said.add("providers")
            logger.warning(
                "several trackers with different tracer providers are on:"
                " the spans go to the provider of the first one"
            )

    def _on(self) -> None:
        CORE.switch_off, CORE.rest, CORE.wake = self.off, self.rest, self.wake
        self._see_calls()
        undo = self._undo
        self._install(OptimizerHooks, "there are no optimizer spans", undo)
        self._install(OptimizerSwap, "optimizers are found when they step", undo)
        self._install(ScalerSwap, "steps that a gradient scaler skips are not recognised", undo)
        self._install(LoadSwap, "there are no data_load spans", undo)
        self._install(ChildSwap, "processes that are started do not continue the trace", undo)

    def _see_calls(self) -> None:
        CORE.on = True
        for state in list(CORE.states):
            if state.running is None:
                state.reset()
        undo = self._undo_calls
        self._install(ForwardSwap, "nothing is tracked", undo)
        self._install(EngineSwap, "there are no backward regions", undo)
        reader = ContextReader(_span_of)
        undo.append(reader.remove)
        reader.install()

    def record(self, recorder: Recorder) -> None:
        """Let a recorder see what runs.

        Raises:
            RuntimeError: if one does already on its thread.
        """
        with CORE.lock:
            if any(one.state is recorder.state for one in CORE.recorders):
                msg = "record_order() is under way on this thread already: leave it first"
                raise RuntimeError(msg)
            self.wake()
            CORE.recorders = (*CORE.recorders, recorder)
            self._see_calls_as_wanted()
            recorder.open()

    def stop_recording(self, recorder: Recorder) -> None:
        """Take it away again. A second time: does nothing."""
        with CORE.lock:
            recorder.close()
            CORE.recorders = tuple(one for one in CORE.recorders if one is not recorder)
            self._see_calls_as_wanted()

    def _see_calls_as_wanted(self) -> None:
        swap = self._swaps.get(ForwardSwap)
        if CORE.on and swap is not None:
            swap.install()

    def rest(self) -> None:
        """Take away what sees module calls, until a step comes that is to be recorded.

        Not where someone wants to see what is not recorded, or something is under way.
        """
        with CORE.lock:
            if not CORE.on or len(self._trackers) != 1:
                return
            entry, sink = self._trackers[0], CORE.sink
            control = sink.control
            if control is None or control.records_outside():
                return
            if sink.meter is not None or CORE.sees_all or entry.sees_all():
                return
            for state in list(CORE.states):
                progress = state.progress
                if state.unit is not None or state.running is not None:
                    return
                if progress.open is not None or progress.suspended:
                    return
            CORE.on, CORE.resting = False, True
            self._see_no_calls()

    def wake(self) -> None:
        """End a rest."""
        with CORE.lock:
            if not CORE.resting:
                return
            try:
                self._see_calls()
            except BaseException:  # a signal handler's, or a fault: it rests as before
                CORE.on = False
                self._see_no_calls()
                raise
            CORE.resting = False

    def _see_no_calls(self) -> None:
        undo_all(self._undo_calls)
        CORE.forget()
        for state in list(CORE.states):
            if state.running is None:
                state.reset()

    def _install(self, kind: type, lost: str, undo: list[Callable[[], None]]) -> None:
        """Put one thing in place; where torch does not let us, say once what is lost."""
        try:
            thing = self._swaps.get(kind) or kind()
            self._swaps[kind] = thing
            undo.append(thing.remove)
            thing.install()
        except (TypeError, AttributeError, KeyError) as error:
            self._say(error, lost)

    def _say(self, error: Exception, lost: str) -> None:
        if lost not in self._said:
            self._said.add(lost)
            logger.warning("%s: %s", error, lost)

    def _see_collectives(self) -> None:
        """See them if any tracker wants to, as closely as one of them wants to."""
        wanted = {one.collectives for one in self._trackers} - {OFF}
        known = self._interception
        if getattr(torch.__spec__, "_initializing", False):
            return  # the import waits for us, and a thread of ours would wait for it: see `replace`
        if not wanted or not torch.distributed.is_available():
            if known is not None:
                known.remove()
            return
        try:
            # Where torch has no distributed package, it cannot be imported.
            from otel_modtrack.comm.intercept import Interception  # noqa: PLC0415

            if known is None:
                known = self._interception = Interception()
            if known.remove not in self._undo:
                self._undo.append(known.remove)
            known.install(each=EACH in wanted)
        except Exception as error:
            if from_signal_handler(error):
                raise
            if known is not None:
                known.remove()
            self._say(error, "collectives are not counted")

    def off(self) -> None:
        """Take everything away: the originals are back and no hook is left."""
        with CORE.lock:
            CORE.on = CORE.resting = False
            CORE.steps = None
            for recorder in CORE.recorders:
                self.stop_recording(recorder)
            try:
                self._see_no_calls()
                undo_all(self._undo)
            finally:
                if self._undo or self._undo_calls:  # interrupted: take the rest away all the same
                    self.off()
            if self._interception is not None:  # what could not be taken away before
                self._interception.remove()
            for state in list(CORE.states):
                state.progress = Progress()


def _span_of(region: Any) -> Any:
    return region.unit.sink.span(region)


ACTIVATION = Activation()
