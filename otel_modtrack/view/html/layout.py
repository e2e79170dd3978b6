"""Rows for spans: children under their parents, and nothing over anything else."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["lay_out"]


def lay_out(starts: Sequence[int], ends: Sequence[int], parents: Sequence[int]) -> list[int]:
    """Give every span of one process a row, from 0.

    A span with all that is below it is a block: as long as from its earliest start to its latest
    end, as high as it needs. In order of start, each block takes the lowest rows under its parent
    in which nothing is at that time. So what runs one after the other shares rows, and what runs
    at the same time (threads, requests) never does.

    Args:
        starts: In any unit.
        ends: The same clock; never before the start.
        parents: Index of each span's parent, or -1. No rings.

    Returns:
        The row of each span. A span of no duration has its moment for itself.
    """
    children: list[list[int]] = [[] for _ in starts]
    roots: list[int] = []
    for index, parent in enumerate(parents):
        (roots if parent < 0 else children[parent]).append(index)
    blocks = _Blocks(starts, ends)
    in_order = _parents_first(roots, children)
    for index in reversed(in_order):
        blocks.enclose(index, children[index])
    blocks.pack(roots)
    rows = blocks.offsets
    for index in in_order:
        if parents[index] >= 0:
            rows[index] += rows[parents[index]] + 1
    return rows


def _parents_first(roots: Sequence[int], children: Sequence[Sequence[int]]) -> list[int]:
    in_order = []
    waiting = list(roots)
    while waiting:
        index = waiting.pop()
        in_order.append(index)
        waiting.extend(children[index])
    return in_order


class _Blocks:
    """Extent of each span with what is below it, and its row among its siblings.

    Args:
        starts: Of the spans.
        ends: Of the spans.
    """

    def __init__(self, starts: Sequence[int], ends: Sequence[int]) -> None:
        self.offsets = [0] * len(starts)
        self._heights = [1] * len(starts)
        self._firsts = list(starts)
        self._lasts = [max(end, start + 1) for start, end in zip(starts, ends, strict=True)]

    def enclose(self, index: int, children: list[int]) -> None:
        """Place the children's blocks below a span, whose block then holds them."""
        if children:
            self._heights[index] = 1 + self.pack(children)
            self._firsts[index] = min(self._firsts[index], *(self._firsts[c] for c in children))
            self._lasts[index] = max(self._lasts[index], *(self._lasts[c] for c in children))

    def pack(self, blocks: list[int]) -> int:
        """Place blocks beside each other. Returns how many rows they take together."""
        if len(blocks) == 1:  # nothing to keep clear of, however high it is
            return self._heights[blocks[0]]
        blocks.sort(key=self._firsts.__getitem__)
        busy_until: list[int] = []
        for block in blocks:
            first, height = self._firsts[block], self._heights[block]
            offset = row = 0
            while row < min(offset + height, len(busy_until)):
                if busy_until[row] > first:
                    offset = row + 1
                row += 1
            self.offsets[block] = offset
            missing = offset + height - len(busy_until)
            busy_until.extend([0] * missing)
            busy_until[offset : offset + height] = [self._lasts[block]] * height
        return len(busy_until)
