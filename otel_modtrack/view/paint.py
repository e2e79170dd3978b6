"""What all texts for a terminal have in common: numbers, colours, tables."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = [
    "BOLD",
    "CYAN",
    "DIM",
    "GREEN",
    "RED",
    "colour_phase",
    "join_some",
    "ms",
    "paint",
    "percent",
    "printable",
    "render_table",
]

BOLD: Final = "1"
DIM: Final = "2"
RED: Final = "31"
GREEN: Final = "32"
CYAN: Final = "36"
# As near to those of the page as a terminal has them.
_PHASE_COLOURS: Final = {"forward": "34", "backward": "33", "recompute": "35"}
_ESCAPE: Final = re.compile("\033\\[[0-9]*m")


def printable(text: str) -> str:
    """Make a text from a file safe to print: it must not command the terminal."""
    return "".join(character if character.isprintable() else "?" for character in text)


def paint(text: str, code: str, *, colour: bool) -> str:
    """The text in a colour, where there are any."""
    return f"\033[{code}m{text}\033[0m" if colour and text else text


def colour_phase(text: str, *, colour: bool) -> str | None:
    """The text with its phase in the phase's colour; None where it begins with no phase."""
    phase, space, rest = text.partition(" ")
    if phase not in _PHASE_COLOURS:
        return None
    return paint(phase, _PHASE_COLOURS[phase], colour=colour) + space + rest


def ms(duration_ns: float) -> str:
    """A duration in milliseconds, without the unit."""
    return f"{duration_ns / 1e6:.3f}"


def percent(part_ns: float, whole_ns: float) -> str:
    """The share that a part has, six characters wide below 1000%."""
    share = 100 * part_ns / whole_ns if whole_ns else 0.0
    return f"{share:5.1f}%"


def join_some(items: Sequence[object], *, shown: int = 5) -> str:
    """``1, 2, 3, 4, 5 and 2 more``."""
    more = f" and {len(items) - shown:,} more" if len(items) > shown else ""
    return ", ".join(printable(str(item)) for item in items[:shown]) + more


def render_table(
    header: Sequence[str], rows: Iterable[Sequence[str]], *, colour: bool = False
) -> str:
    """Set texts in columns: all right-aligned but the last, which is left-aligned.

    Args:
        header: Of each column; as wide as the column is at least.
        rows: Texts, which may have colours.
        colour: Whether to use a terminal's colours.
    """
    cells = [list(row) for row in rows]
    widths = [
        max([len(title), *(_width(row[column]) for row in cells)])
        for column, title in enumerate(header[:-1])
    ]
    lines = [paint(_line(header, widths), DIM, colour=colour)]
    lines += [_line(row, widths) for row in cells]
    return "\n".join(lines)


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    *cells, last = row
    padded = [
        " " * (width - _width(cell)) + cell for cell, width in zip(cells, widths, strict=True)
    ]
    return "  ".join([*padded, last])


def _width(text: str) -> int:
    return len(_ESCAPE.sub("", text)) if "\033" in text else len(text)
