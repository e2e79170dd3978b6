"""What could not be read in trace files, and how it is said."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from otel_modtrack.view.paint import join_some

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "BAD_SPAN",
    "INCOMPLETE",
    "NO_OTLP",
    "SPREAD",
    "Fault",
    "name_file",
    "tell_why_nothing",
]

# Reasons.
NO_OTLP: Final = "no OTLP JSON"
BAD_SPAN: Final = "a span without an id or a time, or with something malformed"
SPREAD: Final = "a document over several lines"
INCOMPLETE: Final = "incomplete: still being written, or its program was killed"


@dataclass(slots=True)
class Fault:
    """Lines of a file that were skipped, in whole or in part, for one reason.

    Attributes:
        path: Of the file.
        reason: In a few words.
        lines: Their numbers, from 1.
    """

    path: str
    reason: str
    lines: list[int] = field(default_factory=list)

    @property
    def where(self) -> str:
        """Which lines: ``line 3``, ``lines 3, 7, 8, 9, 12 and 2 more``."""
        return f"line{'s' if len(self.lines) > 1 else ''} {join_some(self.lines)}"


def tell_why_nothing(paths: Sequence[str], faults: Sequence[Fault], *, passed_over: bool) -> str:
    """Say in one sentence why files have no spans, and what to do.

    Args:
        paths: Of the files.
        faults: What was skipped in them.
        passed_over: Whether there were metrics or logs.
    """
    shown = ", ".join(map(name_file, paths))
    if faults and faults[0].reason == NO_OTLP:
        first = faults[0]
        return (
            f"{name_file(first.path)} is not a file of OTLP JSON lines: line {first.lines[0]} is "
            "no object with resourceSpans; give a file that the OTLP JSON file exporter or the "
            "Collector's file exporter wrote"
        )
    if faults and faults[0].reason == SPREAD:
        return (
            f"{name_file(faults[0].path)} has a document over several lines; put each in a line of "
            "its own, as jq -c . does"
        )
    has = "have" if len(paths) > 1 else "has"
    nothing = f"{shown} {has} no spans"
    for fault in faults:
        if fault.reason != INCOMPLETE:
            where = f"{name_file(fault.path)}, line {fault.lines[0]}"
            return f"{nothing} that can be read ({where}: {fault.reason}); write it again"
    if passed_over:
        return f"{nothing}, but metrics or logs; give the file of the traces"
    return f"{nothing}; let the program that writes it finish, or flush it"


def name_file(path: str) -> str:
    """Return what a file is called in a message."""
    return "stdin" if path == "-" else path
