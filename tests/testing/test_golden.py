"""Golden files outside of pytest; with it, see `test_plugin`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from torch import nn

from otel_modtrack.testing import Tree, capture
from otel_modtrack.usage import UsageError
from tests.testing.models import X

if TYPE_CHECKING:
    from pathlib import Path


def check(folder: Path | None, *, update: bool = False, name: str = "tree") -> list[Path]:
    """The tree of one call, and which files were written."""
    with capture(golden=folder, update=update) as modtrack:
        with modtrack.track():
            nn.Linear(2, 2)(X)
        modtrack.tree.assert_golden(name)
        return modtrack.written


def test_written_then_compared(tmp_path: Path) -> None:
    """It is written where it differs, and otherwise left alone."""
    folder = tmp_path / "deep" / "golden"
    assert check(folder, update=True) == [folder / "tree.txt"]
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
    assert check(folder, update=True) == [folder / "tree.txt"]


def test_there_is_none_yet(tmp_path: Path) -> None:
    """It says how it is written."""
    with pytest.raises(AssertionError) as raised:
        check(tmp_path)
    assert str(raised.value) == (
        f"there is no golden file {tmp_path / 'tree.txt'} yet:"
        " pytest --modtrack-update, or capture(update=True), writes it"
    )


@pytest.mark.parametrize("name", ["../tree", "", ".tree", "a/b"])
def test_a_name_that_cannot_be(tmp_path: Path, name: str) -> None:
    """It stays in its folder."""
    with pytest.raises(
        UsageError, match=r"a name of letters, digits, '_', '-' and '\.' is wanted$"
    ):
        check(tmp_path, update=True, name=name)
    assert not list(tmp_path.iterdir())


def test_no_folder() -> None:
    """Nobody has said where."""
    with pytest.raises(UsageError, match=r"say it with capture\(golden='tests/golden'\)$"):
        check(None)
    with pytest.raises(UsageError, match=r"^assert_golden\(\) is for trees of a capture"):
        Tree([]).assert_golden("tree")
