"""A clock and ids that are the same in every run."""

from __future__ import annotations

import contextlib
import itertools
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.sdk import trace as sdk_trace

from otel_modtrack import backward, calls, forward, regions, spans
from otel_modtrack.ids import PrivateIds
from otel_modtrack.order import recorder

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["CLOCKS", "fixed"]

_START_NS: Final = 946_684_800_000_000_000  # 2000-01-01T00:00:00Z
_TICK_NS: Final = 1_000  # from one reading to the next

# Who holds a clock: modules of ours by name, and the SDK for the spans that users start.
CLOCKS: Final[tuple[tuple[Any, str], ...]] = (
    (backward, "_clock"),
    (calls, "clock"),
    (forward, "clock"),
    (recorder, "clock"),
    (regions, "clock"),
    (spans, "clock"),
    (sdk_trace, "time_ns"),
)


class _FixedIds(PrivateIds):
    """Counts: trace ids and span ids are 1, 2, 3, each in the order in which they are asked for."""

    def __init__(self) -> None:
        super().__init__()
        self._next_trace_id = itertools.count(1).__next__
        self._next_span_id = itertools.count(1).__next__

    def generate_span_id(self) -> int:
        """The next span id, unless it is settled already."""
        preset, self.preset.span_id = self.preset.span_id, 0
        return preset or self._next_span_id()

    def generate_trace_id(self) -> int:
        """The next trace id, unless it is settled already."""
        preset, self.preset.trace_id = self.preset.trace_id, 0
        return preset or self._next_trace_id()

    def is_trace_id_random(self) -> bool:
        """They are not."""
        return False


@contextlib.contextmanager
def fixed(providers: Iterable[sdk_trace.TracerProvider]) -> Iterator[None]:
    """Fix the clock of the process and the ids that some providers give out.

    Args:
        providers: whose ids are fixed. Tracers that were got from them before are too, where the
            SDK keeps them (1.45 does).
    """
    read = itertools.count(_START_NS, _TICK_NS).__next__  # in C: no frame, no lock needed
    with contextlib.ExitStack() as undo:
        for holder, name in CLOCKS:
            _put(undo, holder, name, read)
        _put(undo, regions, "_clock_offset", lambda: 0)  # wall time is the same reading
        ids = _FixedIds()
        for provider in providers:
            undo.callback(_give_back, provider, provider.id_generator, ids)
            for holder in (provider, *_tracers_of(provider)):
                _put(undo, holder, "id_generator", ids)
        yield


def _put(undo: contextlib.ExitStack, holder: Any, name: str, value: object) -> None:
    undo.callback(setattr, holder, name, getattr(holder, name))
    setattr(holder, name, value)


def _tracers_of(provider: sdk_trace.TracerProvider) -> list[Any]:
    return list(getattr(provider, "_tracers", {}).values())  # older SDKs do not keep them


def _give_back(provider: sdk_trace.TracerProvider, generator: object, ids: _FixedIds) -> None:
    """Tracers that were made meanwhile get the generator that the provider has otherwise."""
    for tracer in _tracers_of(provider):
        if tracer.id_generator is ids:
            tracer.id_generator = generator
