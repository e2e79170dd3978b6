"""How a file is written: in large pieces, and telling how far it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, BinaryIO, Final, Protocol

from otel_modtrack.view.exports.content import start_of
from otel_modtrack.view.lanes import lay_out

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from otel_modtrack.view.lanes import ProcessLanes
    from otel_modtrack.view.model import Node

__all__ = ["Output", "write_lanes"]

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


class _Writer(Protocol):
    """Writes in one format."""

    def write(self, processes: Sequence[ProcessLanes]) -> None:
        """Write the whole file."""


def write_lanes(
    out: BinaryIO,
    roots: Sequence[Node],
    report: Callable[[int], None],
    make: Callable[[Output, int], _Writer],
) -> None:
    """Write the spans of trees, in the lanes that they are laid out in.

    Args:
        out: Written from start to end; nothing seeks.
        roots: The trees, of any number of processes and files.
        report: Told now and then how many spans are written so far, and once at the end.
        make: Makes the writer, of what it writes to and the time, in ns since 1970, that the file
            counts from.
    """
    processes = lay_out(roots)
    output = Output(out, report)
    make(output, start_of(processes)).write(processes)
    output.finish()
