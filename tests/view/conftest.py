"""Fixtures of the tests of the view."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.view.making import make_run, write

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def run(tmp_path: Path) -> str:
    """A file of the steps 1, 2 and 3, of which the first takes three times as long."""
    return write(tmp_path / "run.jsonl", make_run(1, 2, 3, stretch=3))
