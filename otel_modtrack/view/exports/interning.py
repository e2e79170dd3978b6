"""Texts of a Perfetto trace that are written once, and known by their number from then on."""

from __future__ import annotations

from typing import Final

from otel_modtrack.view.exports.protobuf import message, text, varint

__all__ = ["Interned"]

# InternedData: which of its fields holds which texts. In each entry 1 is its number, 2 its text.
_CATEGORIES: Final = 1
_EVENT_NAMES: Final = 2
_ANNOTATION_NAMES: Final = 3
_ANNOTATION_VALUES: Final = 29
_NUMBER: Final = 1
_TEXT: Final = 2


class _Table:
    """The texts of one kind.

    Args:
        field: Of InternedData.
        fresh: Where what is new is appended, encoded.
    """

    def __init__(self, field: int, fresh: bytearray) -> None:
        self._field = field
        self._fresh = fresh
        self._numbers: dict[str, int] = {}

    def __call__(self, content: str) -> int:
        """Return the text's number. They begin at 1."""
        number = self._numbers.get(content)
        if number is None:
            number = self._numbers[content] = len(self._numbers) + 1
            entry = varint(_NUMBER, number) + text(_TEXT, content)
            self._fresh += message(self._field, entry)
        return number


class Interned:
    """The texts of a trace, each with a number among those of its kind."""

    def __init__(self) -> None:
        self._fresh = bytearray()
        self.category = _Table(_CATEGORIES, self._fresh)
        self.event_name = _Table(_EVENT_NAMES, self._fresh)
        self.annotation_name = _Table(_ANNOTATION_NAMES, self._fresh)
        self.annotation_value = _Table(_ANNOTATION_VALUES, self._fresh)

    def take_fresh(self) -> bytes:
        """Return what was new since last time, as the content of an InternedData."""
        fresh = bytes(self._fresh)
        self._fresh.clear()
        return fresh
