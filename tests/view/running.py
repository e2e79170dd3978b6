"""The command, run as it is typed."""

from __future__ import annotations

import pytest

from otel_modtrack.cli import main

__all__ = ["Shown", "refusal", "view"]

Shown = pytest.CaptureFixture[str]


def view(capsys: Shown, *arguments: str) -> str:
    """Run the command, which has nothing to complain about, and return what it prints."""
    assert main(["view", *arguments]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    return shown.out


def refusal(capsys: Shown, *arguments: str) -> str:
    """Run the command, which refuses in one line, and return that line."""
    assert main(["view", *arguments]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("otel-modtrack view: ")
    assert shown.err.count("\n") == 1
    return shown.err.removeprefix("otel-modtrack view: ").rstrip()
