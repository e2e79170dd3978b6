"""Golden files outside of pytest; with it, see `test_plugin`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from torch import nn

from otel_modtrack.testing import Tree, capture
from otel_modtrack.usage import UsageError
from tests.testing.models import X

if TYPE_CHECKING:
    from pathlib import Path


def check(folder: Path | None, *, update: bool = False, name: Any = "tree") -> list[str]:
    """The tree of one call, and which files were written."""
    with capture(golden=folder, update=update) as modtrack:
        with modtrack.track():
            nn.Linear(2, 2)(X)
        modtrack.tree.assert_golden(name)
        return [one.path for one in modtrack.updates if one.is_written]


def test_written_then_compared(tmp_path: Path) -> None:
    """It is written where it differs, and otherwise left alone."""
    folder = tmp_path / "deep" / "golden"
    assert check(folder, update=True) == [str(folder / "tree.txt")]
    assert (folder / "tree.txt").read_text() == "forward Linear\n"
    assert check(folder, update=True) == []
    assert check(folder) == []
    (folder / "tree.txt").write_text("forward Linear\nbackward\n")
    with pytest.raises(AssertionError) as raised:
        check(folder)
    assert str(raised.value) == (
        f"the tree is not that of {folder / 'tree.txt'} (pytest --modtrack-update, or"
        " capture(update=True), writes it): 1 line missing (-)\n  forward Linear\n- backward"
    )
    assert check(folder, update=True) == [str(folder / "tree.txt")]


def test_there_is_none_yet(tmp_path: Path) -> None:
    """It says how it is written."""
    with pytest.raises(AssertionError) as raised:
        check(tmp_path)
    assert str(raised.value) == (
        f"there is no golden file {tmp_path / 'tree.txt'} yet:"
        " pytest --modtrack-update, or capture(update=True), writes it"
    )


@pytest.mark.parametrize("name", ["../tree", "", "a/b.c", "test[1]", None])
def test_a_name_that_cannot_be(tmp_path: Path, name: object) -> None:
    """It stays in its folder; the whole name is quoted."""
    with pytest.raises(UsageError) as raised:
        check(tmp_path, update=True, name=name)
    assert str(raised.value) == (
        "the name that assert_golden() wants is a text, not NoneType"
        if name is None
        else f"assert_golden({name!r}): a name of letters, digits, '_', '-' and '.' is wanted"
    )
    assert not list(tmp_path.iterdir())


def test_two_trees_under_one_name(tmp_path: Path) -> None:
    """Writing both would pass, and comparing would then fail; the same tree twice is fine."""
    layer = nn.Linear(2, 2)
    path = tmp_path / "tree.txt"
    with capture(golden=tmp_path, update=True) as modtrack:
        with modtrack.track(layer):
            layer(X)
            modtrack.tree.assert_golden("tree")
            modtrack.tree.assert_golden("tree")
            layer(X)
        with pytest.raises(AssertionError) as raised:
            modtrack.tree.assert_golden("tree")
    assert str(raised.value) == (
        f"this test has written another tree to {path} just now: give each a name of its own"
    )
    assert path.read_text() == "forward Linear\n"


def test_line_ends_of_another_system(tmp_path: Path) -> None:
    """They make no difference, and are not written anew."""
    path = tmp_path / "tree.txt"
    path.write_bytes(b"forward Linear\r\n")
    assert check(tmp_path) == []
    assert check(tmp_path, update=True) == []
    path.write_bytes(b"")
    assert check(tmp_path, update=True) == [str(path)]
    assert path.read_bytes() == b"forward Linear\n"


def test_no_folder() -> None:
    """Nobody has said where."""
    with pytest.raises(UsageError, match=r"say it with capture\(golden='tests/golden'\)$"):
        check(None)
    with pytest.raises(UsageError, match=r"^assert_golden\(\) is for trees of a capture"):
        Tree([]).assert_golden("tree")
