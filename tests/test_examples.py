"""The examples run, and show what they promise."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


def run(name: str) -> str:
    """What an example prints; it must not warn."""
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-W", "error", str(EXAMPLES / name)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_train() -> None:
    """The training example shows three steps, each with its whole tree."""
    names = [line.split("ms  ", 1)[1] for line in run("train.py").splitlines()]
    assert (
        names
        == [
            "train_step",
            "  forward Sequential",
            *["    forward Sequential.*"] * 3,
            "  forward loss",
            "  backward",
            "    backward loss",
            "    backward Sequential",
            *["      backward Sequential.*"] * 3,
            "  optimizer_step AdamW",
        ]
        * 3
    )


def test_service() -> None:
    """The service example has one trace per request, with the model's spans in it."""
    lines = [line.split(" ", 1) for line in run("service.py").splitlines()]
    wanted = ["forward Classifier", "forward Classifier.body", "forward Classifier.head"]
    assert [name for _, name in lines] == [*wanted, "POST /classify"] * 2
    assert len({trace for trace, _ in lines[:4]}) == 1
    assert len({trace for trace, _ in lines}) == 2


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_each_example_is_short(path: Path) -> None:
    """One idea, under 60 lines."""
    assert len(path.read_text().splitlines()) < 60
