"""How a file is written: in large pieces, and telling how far it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, BinaryIO, Final

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Output"]

_PIECE_BYTES: Final = 1 << 20
_REPORT_EVERY: Final = 5_000


class Output:
    """Collects small writes.

    Args:
        out: Written from start to end.
        report: Told now and then how many spans are written so far.
    """

    def __init__(self, out: BinaryIO, report: Callable[[int], None]) -> None:
        self._out = out
        self._report = report
        self._waiting = bytearray()
        self._spans = 0

    def write(self, data: bytes) -> None:
        """Append bytes."""
        self._waiting += data
        if len(self._waiting) >= _PIECE_BYTES:
            self._flush()

    def count_span(self) -> None:
        """Note that one more span is written."""
        self._spans += 1
        if self._spans % _REPORT_EVERY == 0:
            self._report(self._spans)

    def finish(self) -> None:
        """Write what is left, and report the last number."""
        self._flush()
        self._report(self._spans)

    def _flush(self) -> None:
        self._out.write(self._waiting)
        self._waiting = bytearray()
