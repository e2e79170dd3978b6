"""The benchmark of the page runs, and its table is whole. Its figures are not looked at."""

from __future__ import annotations

import pathlib
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Browser

ROOT = pathlib.Path(__file__).parents[2]


def test_benchmark(browser: Browser) -> None:
    """A line for each size, with the six figures of its head."""
    command = [sys.executable, str(ROOT / "benchmarks" / "page.py"), "900", "1800"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)  # noqa: S603
    head, *lines = done.stdout.splitlines()
    assert head.split("  ")[-1] == "slow frame (p95) ms"
    rows = [[float(cell.replace(",", "")) for cell in line.split()] for line in lines]
    assert [row[0] for row in rows] == [878, 1756]
    assert [len(row) for row in rows] == [6, 6]
    assert all(cell > 0 for row in rows for cell in row)
