"""Sizes in bytes, for people."""

from __future__ import annotations

from typing import Final

__all__ = ["render_size"]

_KIB: Final = 1024


def render_size(size_bytes: int) -> str:
    """Write a size for people: ``64 B``, ``1.2 MiB``."""
    if size_bytes < _KIB:
        return f"{size_bytes} B"
    size: float = size_bytes
    for unit in ("KiB", "MiB", "GiB"):
        size /= _KIB
        if size < _KIB - 0.05:  # or it would be written 1024.0
            return f"{size:.1f} {unit}"
    return f"{size / _KIB:,.1f} TiB"
