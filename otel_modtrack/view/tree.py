"""Trees -> text. Pure functions: nothing here prints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from otel_modtrack import semconv
from otel_modtrack.numerals import plural
from otel_modtrack.sizes import render_size
from otel_modtrack.view.model import sum_collectives
from otel_modtrack.view.paint import (
    BOLD,
    CYAN,
    DIM,
    RED,
    colour_phase,
    ms,
    paint,
    percent,
    printable,
    render_table,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from otel_modtrack.view.model import Collectives, Node, Span
    from otel_modtrack.view.narrow import Kept


__all__ = ["Line", "describe_part", "lay_out", "render_headline", "render_tree"]

_HEADER: Final = (" total ms", "  self ms", " share", "span")
# Deeper spans stand below one another, and have the number of their level.
_DEEPEST: Final = 40


@dataclass(frozen=True, slots=True)
class Line:
    """A span of a tree that is drawn.

    Attributes:
        node: The span.
        depth: Level in the tree, from 0.
        ancestry: For each level below the root, whether the span's ancestor there, or at last the
            span itself, is the last of its siblings. Ends at the deepest level that is drawn.
        below: The span, and those in it that the depth cuts off.
        is_context: Whether the span is shown only because of what is in it.
    """

    node: Node
    depth: int
    ancestry: tuple[bool, ...]
    below: Sequence[Node]
    is_context: bool

    @property
    def hidden(self) -> int:
        """How many spans in it are cut off."""
        return len(self.below) - 1

    @property
    def collectives(self) -> list[Collectives]:
        """What it launched, and what is cut off."""
        return sum_collectives(node.span for node in self.below)


def lay_out(
    roots: Sequence[Node], *, depth: int | None = None, kept: Kept | None = None
) -> Iterator[Line]:
    """Yield what is drawn, from top to bottom.

    Args:
        roots: Drawn one after the other.
        depth: How many levels are drawn; all if None.
        kept: What is shown of the trees; all if None.
    """
    for root in roots:
        waiting: list[tuple[Node, int, tuple[bool, ...]]] = [(root, 0, ())]
        while waiting:
            node, level, ancestry = waiting.pop()
            if kept is not None and node not in kept.shown:
                continue
            is_context = kept is not None and node not in kept.matching
            children = _shown(node, kept)
            is_cut = depth is not None and level >= depth - 1 and bool(children)
            below = [node, *_all_below(node, kept)] if is_cut else [node]
            yield Line(node, level, ancestry, below, is_context)
            if is_cut:
                continue
            for child in reversed(children):
                drawn = (*ancestry, child is children[-1]) if level < _DEEPEST else ancestry
                waiting.append((child, level + 1, drawn))


def _shown(node: Node, kept: Kept | None) -> list[Node]:
    if kept is None:
        return node.children
    return [child for child in node.children if child in kept.shown]


def _all_below(node: Node, kept: Kept | None) -> list[Node]:
    nodes = [below for _, below in node.walk()][1:]
    return nodes if kept is None else [below for below in nodes if below in kept.shown]


def render_tree(
    roots: Sequence[Node],
    *,
    depth: int | None = None,
    kept: Kept | None = None,
    colour: bool = False,
) -> str:
    """Draw spans under their parents: one line each, with duration, own time and share.

    A line ends with how many regions were folded into its span, and the collectives that it
    launched directly.

    Args:
        roots: Drawn one after the other. Shares are of the time of all of them together.
        depth: How many levels are drawn; all of them if None. A line says how many spans below it
            are left out, and has their collectives too.
        kept: What is shown of the trees; all if None.
        colour: Whether to use a terminal's colours.
    """
    whole_ns = sum(root.span.duration_ns for root in roots)
    rows = [
        (
            ms(line.node.span.duration_ns),
            ms(line.node.self_ns),
            percent(line.node.span.duration_ns, whole_ns),
            _branch(line, colour=colour),
        )
        for line in lay_out(roots, depth=depth, kept=kept)
    ]
    return render_table(_HEADER, rows, colour=colour)


def _branch(line: Line, *, colour: bool) -> str:
    indent = "".join("   " if is_last else "│  " for is_last in line.ancestry[:-1])
    if line.ancestry:
        indent += "└─ " if line.ancestry[-1] else "├─ "
    collectives = ", ".join(printable(one.label) for one in line.collectives)
    if line.depth > _DEEPEST:
        indent += f"(level {line.depth + 1:,}) "
    return (
        paint(indent, DIM, colour=colour)
        + _label(line.node.span, is_context=line.is_context, colour=colour)
        + (f" (+{line.hidden} below)" if line.hidden else "")
        + (f" (+{line.node.span.folded:,} folded)" if line.node.span.folded else "")
        + (f"  {paint(collectives, CYAN, colour=colour)}" if collectives else "")
    )


def _label(span: Span, *, is_context: bool, colour: bool) -> str:
    label = printable(span.label)
    if span.failed:
        error = printable(str(span.attributes.get(semconv.ERROR_TYPE, "error")))
        return paint(f"{label} ! {error}", RED, colour=colour)
    if is_context:
        return paint(label, DIM, colour=colour)
    return colour_phase(label, colour=colour) or paint(label, BOLD, colour=colour)


def describe_part(roots: Sequence[Node]) -> tuple[str, str, tuple[int, int] | None]:
    """Return what is drawn, its service or "", and (rank, world size) if told."""
    # What was loaded for a step may stand beside it.
    own = [root for root in roots if root.span.name != semconv.DATA_LOAD_SPAN] or roots
    first = own[0].span
    what = f"Step {first.step}"
    if first.step is None or len(own) > 1:
        what = f"Trace {printable(first.trace_id)}"
    return what, printable(first.process.own_service), first.rank


def render_headline(roots: Sequence[Node], *, kept: Kept | None = None, text: str = "") -> str:
    """Tell what is drawn, how long it took and what it launched.

    Args:
        roots: Of one rank.
        kept: What is shown of them; all if None.
        text: What was asked for, where not all is shown.
    """
    what, service, ranks = describe_part(roots)
    spans = [node.span for root in roots for _, node in root.walk()]
    duration_ns = sum(root.span.duration_ns for root in roots)
    headline = (
        what
        + (f" of {service}" if service else "")
        + ("" if ranks is None else ", rank {} of {}".format(*ranks))
        + f": {plural(len(spans), 'span')}, {duration_ns / 1e6:.1f} ms"
    )
    found = sum_collectives(spans)
    if found:
        count = sum(one.count for one in found)
        size = render_size(sum(one.size_bytes for one in found))
        headline += f", {plural(count, 'collective')} of {size}"
    if kept is not None:
        matching = sum(1 for root in roots for _, node in root.walk() if node in kept.matching)
        fit = "fits" if matching == 1 else "fit"
        headline += f"\n{plural(matching, 'span')} {fit} {text}, and what they are in is shown"
    return headline
