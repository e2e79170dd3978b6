"""Columns of numbers and texts -> the bytes that the page reads.

The first 4 bytes are the length of a JSON object, little endian; then the object; then the
columns. In the object, ``columns`` has for each its kind, its first byte after the object, and its
length. Numbers are split: first the lowest byte of all of them, then the next. That gzip likes.
``frontend/src/binary.ts`` is the other side.
"""

from __future__ import annotations

import base64
import gzip
import json
import sys
from array import array
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["Writer", "encode"]

_CODES: Final = {"f64": "d", "u32": "I", "i32": "i", "u8": "B"}


def encode(text: str) -> bytes:
    """The text in UTF-8, which has no bytes for half of a surrogate pair: that becomes "?"."""
    return text.encode(errors="replace")


class Writer:
    """Collects columns, and packs them."""

    def __init__(self) -> None:
        self._columns: dict[str, tuple[str, int, int]] = {}
        self._parts: list[bytes] = []
        self._size_bytes = 0

    def add_numbers(self, name: str, kind: str, values: Iterable[float]) -> None:
        """Add a column of ``f64``, ``u32``, ``i32`` or ``u8``."""
        numbers = array(_CODES[kind], values)
        if sys.byteorder == "big":
            numbers.byteswap()
        raw = numbers.tobytes()
        width = numbers.itemsize
        self._add(name, kind, b"".join(raw[byte::width] for byte in range(width)))

    def add_texts(self, name: str, texts: Iterable[str]) -> None:
        """Add texts that the page takes out one by one when it shows them."""
        encoded = [encode(text) for text in texts]
        ends = []
        end = 0
        for text in encoded:
            end += len(text)
            ends.append(end)
        self.add_numbers(f"{name}_ends", "u32", ends)
        self._add(name, "text", b"".join(encoded))

    def _add(self, name: str, kind: str, content: bytes) -> None:
        self._columns[name] = kind, self._size_bytes, len(content)
        self._parts.append(content)
        self._size_bytes += len(content)

    def pack(self, meta: Mapping[str, Any]) -> str:
        """Return everything as one line of base64 of gzip.

        Args:
            meta: What the page needs at once; goes into the JSON object.
        """
        content = {**meta, "columns": self._columns}
        header = encode(json.dumps(content, ensure_ascii=False, separators=(",", ":")))
        packed = b"".join((len(header).to_bytes(4, "little"), header, *self._parts))
        return base64.b64encode(gzip.compress(packed, 6, mtime=0)).decode()
