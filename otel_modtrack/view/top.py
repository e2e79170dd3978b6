"""Spans -> how long each kind of module took, in each phase."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from otel_modtrack.view.paint import colour_phase, ms, percent, printable, render_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from otel_modtrack.view.model import Node, Span
    from otel_modtrack.view.narrow import Kept


__all__ = [
    "FQN",
    "SELF",
    "TEMPLATE",
    "TOTAL",
    "Row",
    "name_row",
    "paint_row",
    "render_slowest",
    "render_top",
    "sort_rows",
    "sum_rows",
]

# What a row is, and what rows are sorted by.
TEMPLATE: Final = "template"
FQN: Final = "fqn"
SELF: Final = "self"
TOTAL: Final = "total"

_SLOWEST: Final = ("  self ms", " share", " total ms", "calls", "span")
_TOP: Final = (
    "  self ms",
    " share",
    " total ms",
    " share",
    "calls",
    "  mean ms",
    "longest ms",
    "span",
)


@dataclass(slots=True)
class Row:
    """What all spans of one name took together.

    Attributes:
        name: ``forward GPT.layers.*``.
        category: ``forward``; see `Span.category`.
        module: ``GPT.layers.*``, or "" for what is no module's or region's.
        calls: How many spans.
        self_ns: Their time that no span in them covers.
        total_ns: Their time; of what runs within itself the outermost only.
        sum_ns: The durations of all of them.
        longest_ns: The longest of them.
    """

    name: str
    category: str
    module: str
    calls: int = 0
    self_ns: int = 0
    total_ns: int = 0
    sum_ns: int = 0
    longest_ns: int = 0

    def add(self, node: Node, *, is_outermost: bool) -> None:
        """Count one more span.

        Args:
            node: The span.
            is_outermost: Whether no span of the row is around it.
        """
        duration_ns = node.span.duration_ns
        self.calls += 1
        self.self_ns += node.self_ns
        self.sum_ns += duration_ns
        self.longest_ns = max(self.longest_ns, duration_ns)
        if is_outermost:
            self.total_ns += duration_ns

    @property
    def mean_ns(self) -> float:
        """Duration of a call."""
        return self.sum_ns / self.calls


def name_row(span: Span, by: str) -> tuple[str, str]:
    """Return the name of the row that a span is in, and the module in it.

    Args:
        span: The span.
        by: `TEMPLATE` or `FQN`.
    """
    phase, fqn = span.phase, span.fqn
    if phase is None or fqn is None:
        return span.name, ""
    module = fqn if by == FQN else span.template or fqn
    return f"{phase} {module}", module


def sum_rows(roots: Iterable[Node], *, by: str, kept: Kept | None = None) -> list[Row]:
    """Sum up spans by phase and module, and what is no module's by its name.

    Own times of all rows add up to the time of the roots, if no two spans in one overlap.

    Args:
        roots: The trees.
        by: `TEMPLATE`, in which the layers of a stack are one, or `FQN`.
        kept: What counts; all if None.
    """
    rows: dict[tuple[str, str], Row] = {}
    for root in roots:
        path: list[Row | None] = []  # None for what does not count
        is_open: Counter[str] = Counter()
        for depth, node in root.walk():
            while len(path) > depth:
                if (around := path.pop()) is not None:
                    is_open[around.name] -= 1
            if kept is not None and node not in kept.matching:
                path.append(None)
                continue
            name, module = name_row(node.span, by)
            key = node.span.category, name
            row = rows.get(key)
            if row is None:
                row = rows[key] = Row(name, key[0], module)
            row.add(node, is_outermost=not is_open[name])
            path.append(row)
            is_open[name] += 1
    return list(rows.values())


def sort_rows(rows: Iterable[Row], sort: str) -> list[Row]:
    """Return the rows, the one with the most first.

    Args:
        rows: In any order.
        sort: `SELF` or `TOTAL`.
    """
    if sort == TOTAL:
        return sorted(rows, key=lambda row: (-row.total_ns, row.name))
    return sorted(rows, key=lambda row: (-row.self_ns, row.name))


def render_slowest(rows: Sequence[Row], whole_ns: int, *, colour: bool = False) -> str:
    """Tabulate rows briefly, as they stand below a tree.

    Args:
        rows: In order.
        whole_ns: What shares are of.
        colour: Whether to use a terminal's colours.
    """
    cells = [
        (
            ms(row.self_ns),
            percent(row.self_ns, whole_ns),
            ms(row.total_ns),
            str(row.calls),
            paint_row(row.name, colour=colour),
        )
        for row in rows
    ]
    return render_table(_SLOWEST, cells, colour=colour)


def render_top(rows: Sequence[Row], whole_ns: int, *, colour: bool = False) -> str:
    """Tabulate rows with all that is known of them.

    Args:
        rows: In order.
        whole_ns: What shares are of.
        colour: Whether to use a terminal's colours.
    """
    cells = [
        (
            ms(row.self_ns),
            percent(row.self_ns, whole_ns),
            ms(row.total_ns),
            percent(row.total_ns, whole_ns),
            str(row.calls),
            ms(row.mean_ns),
            ms(row.longest_ns),
            paint_row(row.name, colour=colour),
        )
        for row in rows
    ]
    return render_table(_TOP, cells, colour=colour)


def paint_row(name: str, *, colour: bool) -> str:
    """A row's name, safe to print, its phase in colour."""
    text = printable(name)
    return colour_phase(text, colour=colour) or text
