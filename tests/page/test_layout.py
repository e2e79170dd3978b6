"""Rows: children under parents, and nothing over anything else."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, strategies as st

from otel_modtrack.view.html.layout import lay_out


def rows(*spans: tuple[int, int, int]) -> list[int]:
    """Rows of (start, end, parent) spans."""
    starts, ends, parents = zip(*spans, strict=True)
    return lay_out(starts, ends, parents)


def test_one_after_the_other() -> None:
    """Spans that follow each other, also without a gap, share a row."""
    assert rows((0, 10, -1), (10, 20, -1), (30, 40, -1)) == [0, 0, 0]


def test_under_the_parent() -> None:
    """A child is in the row below its parent, a grandchild below that."""
    assert rows((0, 10, -1), (1, 5, 0), (2, 3, 1), (6, 9, 0)) == [0, 1, 2, 1]


def test_at_the_same_time() -> None:
    """Siblings that overlap, as of threads, are below each other; a later one is up again."""
    assert rows((0, 30, -1), (1, 10, 0), (5, 15, 0), (12, 20, 0)) == [0, 1, 2, 1]


def test_whole_subtrees_keep_clear() -> None:
    """A concurrent trace begins below all that is below the other, not between."""
    first = [(0, 20, -1), (1, 19, 0), (2, 18, 1)]
    second = [(5, 25, -1), (6, 24, 3)]
    assert rows(*first, *second) == [0, 1, 2, 3, 4]


def test_child_that_outlives_its_parent() -> None:
    """What ends after its parent keeps its place until then."""
    assert rows((0, 10, -1), (5, 30, 0), (15, 20, -1), (31, 32, -1)) == [0, 1, 2, 0]


def test_child_that_begins_before_its_parent() -> None:
    """As clocks of two machines may have it: its block begins with it."""
    assert rows((0, 8, -1), (10, 20, -1), (5, 15, 1)) == [0, 1, 2]


def test_no_duration() -> None:
    """Two spans of no duration at one moment are not drawn over each other."""
    assert rows((0, 9, -1), (4, 4, 0), (4, 4, 0), (5, 5, 0)) == [0, 1, 2, 1]


def test_deeper_than_python_recurses() -> None:
    """A tree of any depth is laid out."""
    depth = 5_000
    chain = [(0, depth, parent) for parent in range(-1, depth - 1)]
    assert rows(*chain) == list(range(depth))


spans_of_a_process = st.lists(
    st.tuples(st.integers(0, 50), st.integers(0, 20), st.integers(-1, 30)), min_size=1, max_size=30
)


@given(spans_of_a_process)
def test_never_over_each_other(drawn: list[tuple[int, int, int]]) -> None:
    """Whatever the spans: no two of a row overlap, and a child is below its parent."""
    spans = [
        (start, start + size, min(parent, index - 1))
        for index, (start, size, parent) in enumerate(drawn)
    ]
    placed = rows(*spans)
    for row in set(placed):
        inside = sorted(
            (start, max(end, start + 1))
            for (start, end, _), place in zip(spans, placed, strict=True)
            if place == row
        )
        assert all(one[1] <= other[0] for one, other in pairwise(inside))
    for (_, _, parent), place in zip(spans, placed, strict=True):
        assert parent < 0 or place > placed[parent]
