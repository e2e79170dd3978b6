"""Trees as they are written in a test: read, and compared line by line."""

from __future__ import annotations

import difflib
import textwrap
from typing import TYPE_CHECKING, Final

from otel_modtrack.testing.asked import check_text
from otel_modtrack.usage import UsageError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

__all__ = ["explain", "leave_out", "parse", "to_depth"]

_AROUND: Final = 2  # lines alike that are shown next to one that is not
_COMPARED: Final = 400  # lines, from the first that is not alike
_SHOWN: Final = 60

_Marked = tuple[str, str]  # " ", "-" or "+", and the line


def parse(text: str) -> list[str]:
    """The lines of a tree, without the indentation that they have in common and empty ones.

    Raises:
        UsageError: if it is no text, or a line is not indented by two spaces a level.
    """
    __tracebackhide__ = True
    check_text("a tree", text)
    lines = [line.rstrip() for line in textwrap.dedent(text).splitlines() if line.strip()]
    deepest = 0
    for number, line in enumerate(lines, 1):
        indent = _indent(line)
        if line[:indent].strip(" "):
            raise UsageError(
                f"the tree's line {number}, {line.strip()!r}, is indented by something else than"
                " spaces: two of them a level are wanted"
            )
        if indent % 2 or indent > deepest:
            raise UsageError(
                f"the tree's line {number}, {line.strip()!r}, is indented by {indent} spaces:"
                " two a level are wanted, and at most one level more than the line before"
            )
        deepest = indent + 2
    return lines


def leave_out(lines: Sequence[str], at: Collection[int]) -> list[str]:
    """The lines without some that others are indented under; these move to the left.

    Args:
        lines: of a tree.
        at: which ones. Such a line stays where nothing is indented under it.
    """
    kept = []
    around: list[int] = []  # indentation of the lines left out that a line is under
    for number, line in enumerate(lines):
        indent = _indent(line)
        while around and around[-1] >= indent:
            around.pop()
        following = lines[number + 1] if number + 1 < len(lines) else ""
        if number in at and _indent(following) > indent:
            around.append(indent)
        else:
            kept.append(line[2 * len(around) :])
    return kept


def to_depth(lines: Sequence[str], depth: int | None) -> list[str]:
    """The outermost levels; all if `depth` is None."""
    return [line for line in lines if depth is None or _indent(line) < 2 * depth]


def explain(wanted: Sequence[str], found: Sequence[str]) -> str:
    """What differs between two texts, in context; "" if nothing does.

    A line that differs is shown with the lines that it is indented under and its neighbours.

    Args:
        wanted: lines that should be there: "-" where they are not.
        found: lines that are there: "+" where they should not be.
    """
    if list(wanted) == list(found):
        return ""
    marked, is_whole = _compare(wanted, found)
    shown = sorted(_worth_showing(marked))
    lines = []
    last = -1
    for at in shown[:_SHOWN]:
        lines += _fold(marked, last + 1, at)
        mark, line = marked[at]
        lines.append(f"{mark} {line}")
        last = at
    if len(shown) > _SHOWN:
        rest = sum(marked[at][0] != " " for at in shown[_SHOWN:])
        lines.append(f"  … and {rest} more lines that differ")
    else:
        lines += _fold(marked, last + 1, len(marked))
    missing = sum(mark == "-" for mark, _ in marked)
    extra = sum(mark == "+" for mark, _ in marked)
    counts = [
        f"{count} line{'s' if count > 1 else ''} {what}"
        for count, what in ((missing, "missing (-)"), (extra, "too many (+)"))
        if count
    ]
    if not is_whole:
        counts.append(f"in the first {_COMPARED} lines that were compared")
    return "\n".join([", ".join(counts), *lines])


def _compare(wanted: Sequence[str], found: Sequence[str]) -> tuple[list[_Marked], bool]:
    """Both texts as one, in order, and whether that is all of them."""
    same = 0
    while same < min(len(wanted), len(found)) and wanted[same] == found[same]:
        same += 1
    marked = [(" ", line) for line in wanted[:same]]
    # The time grows faster than with the square of the length where lines repeat, as steps do.
    old, new = wanted[same : same + _COMPARED], found[same : same + _COMPARED]
    is_whole = max(len(wanted), len(found)) <= same + _COMPARED
    codes = difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    if not is_whole and len(codes) > 1 and codes[-1][0] != "equal":
        codes.pop()  # what is alike to it may come later
    for kind, i, j, k, m in codes:
        if kind == "equal":
            marked += [(" ", line) for line in old[i:j]]
        else:
            marked += [("-", line) for line in old[i:j]] + [("+", line) for line in new[k:m]]
    return marked, is_whole


def _worth_showing(marked: Sequence[_Marked]) -> set[int]:
    shown: set[int] = set()
    for at, (mark, _) in enumerate(marked):
        if mark != " ":
            shown.update(range(max(0, at - _AROUND), min(len(marked), at + _AROUND + 1)))
            shown.update(_above(marked, at))
    return shown


def _above(marked: Sequence[_Marked], at: int) -> list[int]:
    """The lines that a line is indented under."""
    above = []
    mark, indent = marked[at][0], _indent(marked[at][1])
    for before in range(at - 1, -1, -1):
        if indent == 0:
            break
        other, line = marked[before]
        if other in (" ", mark) and _indent(line) < indent:
            above.append(before)
            indent = _indent(line)
    return above


def _fold(marked: Sequence[_Marked], start: int, end: int) -> list[str]:
    """What stands for the lines from `start` to `end`, which are alike."""
    if start == end:
        return []
    if end - start == 1:
        return [f"  {marked[start][1]}"]
    indent = min(_indent(line) for _, line in marked[start:end])
    return [f"  {' ' * indent}… {end - start} lines alike"]


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
