"""Values as OTLP's JSON has them -> Python's.

Source: OpenTelemetry Protocol, *JSON Protobuf Encoding*; Protocol Buffers, *ProtoJSON Format*: null
stands for a field that is not there, integers of 64 bits are texts, enumerations numbers or names.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["read_attributes", "read_id", "read_kind", "read_time"]

_KINDS: Final = {
    f"SPAN_KIND_{name}": number
    for number, name in enumerate(
        ("UNSPECIFIED", "INTERNAL", "SERVER", "CLIENT", "PRODUCER", "CONSUMER")
    )
}
# Of 16 and of 8 bytes. In hexadecimal they have 32 and 16 characters.
_BASE64_LENGTHS: Final = (24, 12)
_TIMES: Final = range(2**64)


def read_time(value: object) -> int:
    """Return nanoseconds since 1970; 0 for what is not there.

    Raises:
        ValueError: If it is no time, or more than 64 bits hold.
    """
    time_ns = _whole(value or 0)
    if time_ns not in _TIMES:
        raise ValueError("no time in nanoseconds since 1970")
    return time_ns


def read_id(text: str) -> str:
    """Return an id in small hexadecimal digits. Tempo writes base64, which everybody else does not.

    Raises:
        ValueError: If it has the length of base64, and is none.
    """
    if len(text) in _BASE64_LENGTHS:
        return base64.b64decode(text, validate=True).hex()
    return text.lower()


def read_kind(value: object) -> int:
    """Return a span's kind as its number; 0 for a name that is unknown, 1 for none at all."""
    if value is None:
        return 1
    return _KINDS.get(value, 0) if isinstance(value, str) else _whole(value)


def read_attributes(pairs: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return values by name."""
    return {pair["key"]: _read_value(pair.get("value") or {}) for pair in pairs}


def _read_value(value: dict[str, Any]) -> object:
    """Return the Python value of an OTLP AnyValue; None for one without a value."""
    for kind, content in value.items():
        if content is None:
            continue
        if kind == "intValue":
            return _whole(content)
        if kind == "doubleValue":
            return float(content)  # also "NaN" and "Infinity"
        if kind == "arrayValue":
            return tuple([_read_value(item or {}) for item in content.get("values") or ()])
        if kind == "kvlistValue":
            return read_attributes(content.get("values") or ())
        return content
    return None


def _whole(value: Any) -> int:
    """Return a whole number.

    Raises:
        ValueError: If it is none; also for infinity, which JSON has no word for but Python reads.
    """
    try:
        return int(value)
    except OverflowError as error:
        raise ValueError(str(error)) from None
