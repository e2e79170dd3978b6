"""Attributes -> the debug annotations of a Perfetto event."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from otel_modtrack.view.exports.protobuf import double, message, text, varint

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_modtrack.view.exports.interning import Interned

__all__ = ["Annotations"]

# TrackEvent.debug_annotations
_DEBUG_ANNOTATIONS: Final = 4
# DebugAnnotation
_NAME_IID: Final = 1
_BOOL_VALUE: Final = 2
_INT_VALUE: Final = 4
_DOUBLE_VALUE: Final = 5
_STRING_VALUE: Final = 6
_DICT_ENTRIES: Final = 11
_ARRAY_VALUES: Final = 12
_STRING_VALUE_IID: Final = 17

_INT64: Final = range(-(2**63), 2**63)
# So that a file whose spans share nothing does not fill the memory.
_KEPT: Final = 10_000
# Values nest as deep as OTLP's may; what is deeper is written as one text.
_DEEPEST: Final = 16


class Annotations:
    """Encodes attributes, those that many spans share only once.

    Args:
        interned: Knows the names and values.
    """

    def __init__(self, interned: Interned) -> None:
        self._interned = interned
        # By identity. The attributes are kept too, so that no other ones come to have it.
        self._known: dict[int, tuple[Mapping[str, Any], bytes]] = {}

    def shared(self, attributes: Mapping[str, Any]) -> bytes:
        """Encode attributes of a span or an event; their texts are interned."""
        known = self._known.get(id(attributes))
        if known is not None:
            return known[1]
        if len(self._known) >= _KEPT:
            self._known.clear()
        encoded = b"".join(
            message(_DEBUG_ANNOTATIONS, self._named(name) + self._value(value, interns=True))
            for name, value in attributes.items()
        )
        self._known[id(attributes)] = attributes, encoded
        return encoded

    def own(self, attributes: Mapping[str, Any]) -> bytes:
        """Encode what hardly any other span has: its texts are written where they stand."""
        return b"".join(
            message(_DEBUG_ANNOTATIONS, self._named(name) + self._value(value, interns=False))
            for name, value in attributes.items()
        )

    def _named(self, name: str) -> bytes:
        return varint(_NAME_IID, self._interned.annotation_name(name))

    def _value(self, value: object, *, interns: bool, depth: int = 0) -> bytes:
        if depth < _DEEPEST and isinstance(value, dict | list | tuple):
            return self._nested(value, interns=interns, depth=depth + 1)
        if isinstance(value, bool):
            return varint(_BOOL_VALUE, value)
        if isinstance(value, int) and value in _INT64:
            return varint(_INT_VALUE, value)
        if isinstance(value, float):
            return double(_DOUBLE_VALUE, value)
        if interns and isinstance(value, str):
            return varint(_STRING_VALUE_IID, self._interned.annotation_value(value))
        return text(_STRING_VALUE, str(value))

    def _nested(
        self, value: dict[Any, Any] | list[Any] | tuple[Any, ...], *, interns: bool, depth: int
    ) -> bytes:
        if isinstance(value, dict):
            return b"".join(
                message(
                    _DICT_ENTRIES,
                    self._named(str(name)) + self._value(item, interns=interns, depth=depth),
                )
                for name, item in value.items()
            )
        return b"".join(
            message(_ARRAY_VALUES, self._value(item, interns=interns, depth=depth))
            for item in value
        )
