"""What a failure shows: the lines that differ, in context, and not a wall of text."""

from __future__ import annotations

import time
from inspect import cleandoc

import pytest

from otel_modtrack.testing import Tree, assert_tree_equals
from otel_modtrack.testing.text import explain


def explained(wanted: str, found: str) -> list[str]:
    """The message's lines."""
    with pytest.raises(AssertionError) as raised:
        assert_tree_equals(cleandoc(found), wanted)
    return str(raised.value).splitlines()


def test_missing_and_too_many() -> None:
    """Both are counted, and shown where they belong."""
    assert explained(
        """
        forward A
          forward A.b
          forward A.c
        backward A
        """,
        """
        forward A
          forward A.b
            forward A.b.0
          forward A.d
        backward A
        """,
    ) == [
        "the tree is not the expected one: 1 line missing (-), 2 lines too many (+)",
        "  forward A",
        "    forward A.b",
        "-   forward A.c",
        "+     forward A.b.0",
        "+   forward A.d",
        "  backward A",
    ]


def test_what_a_line_is_in_is_shown() -> None:
    """However far above it stands, while what is alike in between is folded."""
    layers = "\n".join(f"            forward A.layers.{i}" for i in range(9))
    found = f"""
        forward A
          forward A.layers
{layers}
            forward A.layers.9!
        backward A
          backward A.b
          backward A.c
          backward A.d
    """
    assert explained(found.replace("!", ""), found) == [
        "the tree is not the expected one: 1 line missing (-), 1 line too many (+)",
        "  forward A",
        "    forward A.layers",
        "      … 7 lines alike",
        "      forward A.layers.7",
        "      forward A.layers.8",
        "-     forward A.layers.9",
        "+     forward A.layers.9!",
        "  backward A",
        "    backward A.b",
        "    … 2 lines alike",
    ]


def test_one_line_alone_is_not_folded() -> None:
    """It takes no more room than what would stand for it."""
    lines = [f"forward {name}" for name in "ABCD"]
    assert explain([*lines, "x"], lines).splitlines() == [
        "1 line missing (-)",
        "  … 2 lines alike",
        "  forward C",
        "  forward D",
        "- x",
    ]
    assert explain([*lines[:3], "x"], lines[:3]).splitlines()[1:] == [
        "  forward A",
        "  forward B",
        "  forward C",
        "- x",
    ]


def test_nothing_recorded() -> None:
    """All that was expected is missing."""
    with pytest.raises(AssertionError, match=r": 1 line missing \(-\)\n- forward A$"):
        Tree([]).assert_equals("forward A")


def test_everything_differs() -> None:
    """Sixty lines are shown, and the rest is counted, of as many as are compared."""
    wanted = [f"forward A.{i}" for i in range(20_000)]
    found = [f"forward B.{i}" for i in range(20_000)]
    lines = explain(wanted, found).splitlines()
    assert lines[0] == (
        "400 lines missing (-), 400 lines too many (+), in the first 400 lines that were compared"
    )
    assert lines[1] == "- forward A.0"
    assert len(lines) == 62
    assert lines[-1] == "  … and 740 more lines that differ"


def test_many_steps_that_are_alike_and_differ_from_the_expected() -> None:
    """They take little time, and the end of what is compared counts for nothing."""
    step = ["train_step", *(f"  forward A.{i}" for i in range(5))]
    begun = time.process_time()
    lines = explain((step[:3] + step[4:]) * 4_000, step * 4_000).splitlines()
    assert time.process_time() - begun < 5
    # 400 lines have 66 steps and 4 lines of the next, of which the third was not expected.
    assert lines[0] == "67 lines too many (+), in the first 400 lines that were compared"
    assert lines[1:6] == [
        "  train_step",
        "    forward A.0",
        "    forward A.1",
        "+   forward A.2",
        "    forward A.3",
    ]


def test_alike() -> None:
    """There is nothing to say."""
    assert explain(["forward A"], ["forward A"]) == ""
