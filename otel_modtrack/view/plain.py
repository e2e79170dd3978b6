"""Attributes as JSON can say them, for a browser."""

from __future__ import annotations

import math
from typing import Final

__all__ = ["plain"]

# Larger integers are not exact in a browser.
_EXACT: Final = 2**53
# Values nest as deep as OTLP's may; what is deeper is written as one text.
_DEEPEST: Final = 16


def plain(value: object, depth: int = 0) -> object:
    """Return what a browser reads as it was: large integers, NaN and infinity become texts.

    Args:
        value: Of an attribute, or all attributes.
        depth: How many values are around it.
    """
    if depth < _DEEPEST and isinstance(value, dict):
        return {str(key): plain(content, depth + 1) for key, content in value.items()}
    if depth < _DEEPEST and isinstance(value, list | tuple):
        return [plain(item, depth + 1) for item in value]
    if isinstance(value, bool | str) or value is None:
        return value
    if isinstance(value, int) and abs(value) < _EXACT:
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    return str(value)
