"""Just as much of protobuf's wire format as a trace needs: fields in, bytes out.

Source: Protocol Buffers, *Encoding*. A field is a tag, which holds its number and its wire type,
and its value. A message is its fields one after the other.
"""

from __future__ import annotations

import struct
from typing import Final

__all__ = ["double", "fixed64", "message", "text", "varint"]

_VARINT: Final = 0
_FIXED64: Final = 1
_LENGTH_DELIMITED: Final = 2
_64_BITS: Final = 2**64 - 1
_MORE: Final = 0x80  # the bit that says that another byte follows


def varint(number: int, value: int) -> bytes:
    """Encode a field of type bool, enum, int32, int64, uint32 or uint64."""
    return _encode(number << 3 | _VARINT) + _encode(value & _64_BITS)


def fixed64(number: int, value: int) -> bytes:
    """Encode a field of type fixed64."""
    return _encode(number << 3 | _FIXED64) + struct.pack("<Q", value)


def double(number: int, value: float) -> bytes:
    """Encode a field of type double."""
    return _encode(number << 3 | _FIXED64) + struct.pack("<d", value)


def message(number: int, content: bytes) -> bytes:
    """Encode a field that is a message, or of type bytes."""
    return _encode(number << 3 | _LENGTH_DELIMITED) + _encode(len(content)) + content


def text(number: int, content: str) -> bytes:
    """Encode a field of type string. What UTF-8 has no bytes for becomes "?"."""
    return message(number, content.encode(errors="replace"))


def _encode(value: int) -> bytes:
    """Encode an unsigned integer, 7 bits a byte, the lowest first."""
    if value < len(_SMALL):
        return _SMALL[value]
    found = bytearray()
    while value >= _MORE:
        found.append(value & 0x7F | _MORE)
        value >>= 7
    found.append(value)
    return bytes(found)


# Most numbers are tags, lengths and small ids.
_SMALL: Final = [bytes((value,)) for value in range(_MORE)] + [
    bytes((value & 0x7F | _MORE, value >> 7)) for value in range(_MORE, _MORE * _MORE)
]
