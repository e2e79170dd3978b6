"""Trace and span ids that leave the user's random numbers alone.

The SDK draws ids from the global `random` module: one traced span would change the user's next
``random.random()``, and two ranks with the same seed would give out the same span ids.
"""

from __future__ import annotations

import os
import random
import threading

from opentelemetry.sdk.trace import id_generator

__all__ = ["PrivateIds", "draw", "draw_span_ids", "is_stock_generator"]

_random = random.Random(os.urandom(16))  # noqa: S311 - ids, not secrets
_getrandbits = _random.getrandbits
os.register_at_fork(after_in_child=lambda: _random.seed(os.urandom(16)))


class PrivateIds(id_generator.IdGenerator):
    """Random ids from a generator of its own, seeded by the system, anew after a fork.

    Attributes:
        preset: this thread's next ids, where they are settled already: ``preset.trace_id`` and
            ``preset.span_id``; 0 means draw.
    """

    def __init__(self) -> None:
        self.preset = _Preset()

    def generate_span_id(self) -> int:
        """A span id, not 0."""
        preset, self.preset.span_id = self.preset.span_id, 0
        return preset or draw(64)

    def generate_trace_id(self) -> int:
        """A trace id, not 0."""
        preset, self.preset.trace_id = self.preset.trace_id, 0
        return preset or draw(128)

    def is_trace_id_random(self) -> bool:
        """All bits are random (W3C Trace Context, random-trace-id flag)."""
        return True


class _Preset(threading.local):
    trace_id = 0
    span_id = 0


def draw(bits: int) -> int:
    """An id of that many bits, not 0."""
    found = 0
    while not found:
        found = _getrandbits(bits)
    return found


def draw_span_ids(count: int) -> list[bytes]:
    """Span ids as they go on the wire, 8 bytes each, none of them 0."""
    size = 8 * count
    zero = found = bytes(8)
    while zero in found and size:
        found = _getrandbits(8 * size).to_bytes(size, "little")
    return [found[at : at + 8] for at in range(0, size, 8)]


def is_stock_generator(generator: object) -> bool:
    """Whether it is the SDK's own generator, which ours may stand in for."""
    return type(generator) is id_generator.RandomIdGenerator
