"""What is put in place while any tracker is on, and taken away with the last one."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from torch import nn

from otel_modtrack.backward import EngineSwap
from otel_modtrack.core import CORE
from otel_modtrack.current import ContextReader
from otel_modtrack.forward import ForwardSwap
from otel_modtrack.optimizers import OptimizerHooks
from otel_modtrack.regions import Sink

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_modtrack.names import Names
    from otel_modtrack.spans import SpanSink

__all__ = ["ACTIVATION", "Activation"]

logger = logging.getLogger("otel_modtrack")


class Activation:
    """The trackers that are on, and the four things they share: two swaps, two sets of hooks."""

    def __init__(self) -> None:
        self._trackers: list[tuple[object, SpanSink | None]] = []
        self._undo: list[Callable[[], None]] = []
        self._swaps: dict[type, Any] = {}
        self._said: set[str] = set()

    @property
    def call_code(self) -> object:
        """The code that module calls run while tracking is on."""
        return nn.Module._wrapped_call_impl.__code__  # noqa: SLF001

    def add(self, entry: object, names: Names, sink: SpanSink | None) -> Names:
        """A tracker was entered.

        Returns:
            The names in use: those of the first tracker that is on.
        """
        with CORE.lock:
            if not self._trackers:
                CORE.use(names)
            self._trackers.append((entry, sink))
            self._choose()
            if not CORE.on:
                self._on()
            return CORE.names

    def discard(self, entry: object) -> None:
        """A tracker was left; in any order. Again: does nothing."""
        with CORE.lock:
            self._trackers = [one for one in self._trackers if one[0] is not entry]
            self._choose()
            if not self._trackers:
                self.off()

    def _choose(self) -> None:
        """The spans go to the first tracker that has a provider."""
        sinks = [sink for _, sink in self._trackers if sink is not None]
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
            if kind.__name__ not in self._said:
                self._said.add(kind.__name__)
                logger.warning("%s: %s", error, lost)

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
            CORE.forget()
            for state in list(CORE.states):
                if state.running is None:
                    state.reset()


def _span_of(region: Any) -> Any:
    return region.unit.sink.span(region)


ACTIVATION = Activation()
