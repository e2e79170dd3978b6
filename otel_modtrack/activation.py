"""What is put in place while any tracker is on, and taken away with the last one."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import torch

from otel_modtrack.children import ChildSwap
from otel_modtrack.comm.telling import EACH, OFF
from otel_modtrack.core import CORE
from otel_modtrack.current import ContextReader
from otel_modtrack.forward import ForwardSwap
from otel_modtrack.interrupts import from_signal_handler
from otel_modtrack.launches import EngineSwap
from otel_modtrack.optimizers import OptimizerHooks
from otel_modtrack.regions import Sink

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_modtrack.comm.intercept import Interception
    from otel_modtrack.names import Names
    from otel_modtrack.spans import SpanSink

__all__ = ["ACTIVATION", "Activation", "Entry"]

logger = logging.getLogger("otel_modtrack")


class Entry:
    """One tracker, entered once.

    Attributes:
        sink: where it wants its spans to go, or None.
        collectives: `OFF`, `SUMMED` or `EACH`.
    """

    __slots__ = ("collectives", "sink")

    def __init__(self, collectives: str) -> None:
        self.sink: SpanSink | None = None
        self.collectives = collectives


class Activation:
    """The trackers that are on, and what they share: swaps, hooks, the sight of collectives."""

    def __init__(self) -> None:
        self._trackers: list[Entry] = []
        self._undo: list[Callable[[], None]] = []
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
            if not CORE.on:
                self._on()
            self._see_collectives()
            return CORE.names

    def discard(self, entry: Entry) -> None:
        """A tracker was left; in any order. Again: does nothing."""
        with CORE.lock:
            self._trackers = [one for one in self._trackers if one is not entry]
            self._choose()
            if not self._trackers:
                self.off()
            elif CORE.on:
                self._see_collectives()

    def _choose(self) -> None:
        """The spans go to the first tracker that has a provider."""
        sinks = [one.sink for one in self._trackers if one.sink is not None]
        CORE.sink = sinks[0] if sinks else Sink()
        if len({sink.provider_key for sink in sinks}) > 1 and "providers" not in self._said:
            self._said.add("providers")
            logger.warning(
                "several trackers with different tracer providers are on:"
                " the spans go to the provider of the first one"
            )

    def _on(self) -> None:
        CORE.switch_off = self.off
        CORE.on = True
        for state in list(CORE.states):
            if state.running is None:
                state.reset()
        self._install(ForwardSwap, "nothing is tracked")
        self._install(EngineSwap, "there are no backward regions")
        self._install(OptimizerHooks, "there are no optimizer spans")
        self._install(ChildSwap, "processes that are started do not continue the trace")
        reader = ContextReader(_span_of)
        self._undo.append(reader.remove)
        reader.install()

    def _install(self, kind: type, lost: str) -> None:
        """Put one thing in place; where torch does not let us, say once what is lost."""
        try:
            thing = self._swaps.get(kind) or kind()
            self._swaps[kind] = thing
            self._undo.append(thing.remove)
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
            CORE.on = False
            try:
                while self._undo:
                    self._undo[-1]()
                    self._undo.pop()
            finally:
                if self._undo:  # interrupted: take the rest away all the same
                    self.off()
            if self._interception is not None:  # what could not be taken away before
                self._interception.remove()
            CORE.forget()
            for state in list(CORE.states):
                if state.running is None:
                    state.reset()


def _span_of(region: Any) -> Any:
    return region.unit.sink.span(region)


ACTIVATION = Activation()
