"""Trees -> text for a terminal. Pure functions: nothing here prints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from otel_modtrack import semconv
from otel_modtrack.sizes import render_size
from otel_modtrack.view.model import sum_collectives

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from otel_modtrack.view.model import Collectives, Node, Span


__all__ = ["render_slowest", "render_tree"]

_BOLD: Final = "1"
_DIM: Final = "2"
_RED: Final = "31"
_CYAN: Final = "36"
_PHASE_COLOURS: Final = {"forward": "32", "backward": "34", "recompute": "35"}
_TREE_HEADER: Final = " total ms    self ms   share  span"
_TABLE_HEADER: Final = "  self ms   share   total ms  calls  span"


@dataclass(slots=True)
class _Row:
    """What all spans of one name took together."""

    self_ns: int = 0
    total_ns: int = 0
    calls: int = 0


def render_tree(roots: Sequence[Node], *, depth: int | None = None, colour: bool = False) -> str:
    """Draw spans under their parents: one line each, with duration, own time and share.

    A line ends with the collectives that its span launched directly.

    Args:
        roots: Drawn one after the other. Shares are of the time of all of them together.
        depth: How many levels are drawn; all of them if None. A line says how many spans below it
            are left out, and has their collectives too.
        colour: Whether to use a terminal's colours.
    """
    whole_ns = _whole_ns(roots)
    lines = [_paint(_TREE_HEADER, _DIM, colour=colour)]
    for root in roots:
        waiting = [(root, "", "")]
        while waiting:
            node, branch, indent = waiting.pop()
            # Three columns a level.
            is_cut = depth is not None and len(indent) // 3 >= depth - 1 and bool(node.children)
            hidden = sum(1 for _ in node.walk()) - 1 if is_cut else 0
            told = (below.span for _, below in node.walk()) if is_cut else (node.span,)
            collectives = ", ".join(_collectives(one) for one in sum_collectives(told))
            lines.append(
                f"{_ms(node.span.duration_ns):>9}  {_ms(node.self_ns):>9}  "
                f"{_percent(node.span.duration_ns, whole_ns)}  "
                f"{_paint(branch, _DIM, colour=colour)}{_label(node.span, colour=colour)}"
                + (f" (+{hidden} below)" if hidden else "")
                + (f"  {_paint(collectives, _CYAN, colour=colour)}" if collectives else "")
            )
            if hidden:
                continue
            for child in reversed(node.children):
                is_last = child is node.children[-1]
                waiting.append(
                    (
                        child,
                        indent + ("└─ " if is_last else "├─ "),
                        indent + ("   " if is_last else "│  "),
                    )
                )
    return "\n".join(lines)


def render_slowest(roots: Sequence[Node], *, top: int, colour: bool = False) -> str:
    """Tabulate the span names with the most time of their own.

    The layers of a stack share a name, so a row is a kind of module in one phase. Own times add up
    to the whole. The total of a module that runs within itself counts the outermost call only.

    Args:
        roots: What is summed up.
        top: How many rows are shown.
        colour: Whether to use a terminal's colours.
    """
    whole_ns = _whole_ns(roots)
    rows = _sum_by_name(roots)
    slowest = sorted(rows.items(), key=lambda item: (-item[1].self_ns, item[0]))
    lines = [_paint(_TABLE_HEADER, _DIM, colour=colour)]
    lines += [
        f"{_ms(row.self_ns):>9}  {_percent(row.self_ns, whole_ns)}  {_ms(row.total_ns):>9}  "
        f"{row.calls:>5}  {_printable(name)}"
        for name, row in slowest[:top]
    ]
    return "\n".join(lines)


def _sum_by_name(roots: Iterable[Node]) -> dict[str, _Row]:
    rows: dict[str, _Row] = {}
    for root in roots:
        path: list[str] = []
        for depth, node in root.walk():
            name = node.span.name
            del path[depth:]
            row = rows.setdefault(name, _Row())
            row.self_ns += node.self_ns
            row.calls += 1
            if name not in path:
                row.total_ns += node.span.duration_ns
            path.append(name)
    return rows


def _whole_ns(roots: Iterable[Node]) -> int:
    return sum(root.span.duration_ns for root in roots)


def _label(span: Span, *, colour: bool) -> str:
    label = _printable(span.label)
    phase, _, rest = label.partition(" ")
    if span.failed:
        error = _printable(str(span.attributes.get(semconv.ERROR_TYPE, "error")))
        return _paint(f"{label} ! {error}", _RED, colour=colour)
    if phase in _PHASE_COLOURS:
        return f"{_paint(phase, _PHASE_COLOURS[phase], colour=colour)} {rest}".rstrip()
    return _paint(label, _BOLD, colour=colour)


def _collectives(one: Collectives) -> str:
    """Tell what was launched: ``all_reduce x2 1.2 MiB (tp)``."""
    parts = [
        one.operation,
        f"x{one.count}" if one.count != 1 else "",
        render_size(one.size_bytes) if one.size_bytes else "",
        f"({one.group})" if one.group else "",
    ]
    return _printable(" ".join(filter(None, parts)))


def _printable(text: str) -> str:
    """Make a name from a file safe to print: it must not command the terminal."""
    return "".join(character if character.isprintable() else "?" for character in text)


def _paint(text: str, code: str, *, colour: bool) -> str:
    return f"\033[{code}m{text}\033[0m" if colour and text else text


def _ms(duration_ns: int) -> str:
    return f"{duration_ns / 1e6:.3f}"


def _percent(part_ns: int, whole_ns: int) -> str:
    share = 100 * part_ns / whole_ns if whole_ns else 0.0
    return f"{share:5.1f}%"
