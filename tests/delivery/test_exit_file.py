"""Where spans went into a file, the end of the program names the command that shows them."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from otel_modtrack.cli import main
from tests.delivery.programs import run

if TYPE_CHECKING:
    from pathlib import Path

LOGGED = "import logging; logging.basicConfig(level=logging.INFO, format='%(message)s'); produce(1)"


def variables(**others: object) -> dict[str, str]:
    """Spans go into a file, and metrics nowhere."""
    chosen = {"OTEL_TRACES_EXPORTER": "otlp_json_file", "OTEL_METRICS_EXPORTER": "none", **others}
    return {name: str(value) for name, value in chosen.items()}


def test_log_names_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line of the log at the level INFO; the command in it shows the spans."""
    path = tmp_path / "my spans.jsonl"
    said = run(LOGGED, variables(OTEL_PYTHON_MODTRACK_FILE=path)).said
    label, _, command = said.strip().partition(": ")
    assert label == "to see the spans"
    program, *arguments = shlex.split(command)
    assert program.endswith("otel-modtrack")
    assert arguments == ["view", str(path)]
    assert main(arguments) == 0
    assert ": 1 span, " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("body", "others"),
    [
        ("produce(1)", {}),  # the log has no INFO, and stderr is no terminal
        (LOGGED.replace("produce(1)", ""), {}),
        (LOGGED, {"RANK": 1}),
    ],
    ids=["quiet log", "no spans", "another rank"],
)
def test_nothing_is_said(tmp_path: Path, body: str, others: dict[str, object]) -> None:
    """Nobody is told who does not want to know, or has nothing to see."""
    path = tmp_path / "spans.jsonl"
    assert run(body, variables(OTEL_PYTHON_MODTRACK_FILE=path, **others)).said == ""


PROGRAM = """
from opentelemetry import trace
from otel_modtrack import configure

telemetry = configure()
with trace.get_tracer("tests").start_as_current_span("span"):
    pass
telemetry.shutdown()
"""


def test_terminal_is_told_once_for_all_ranks(tmp_path: Path) -> None:
    """Where the log leaves it out, the first rank's terminal gets it, with the files of all."""
    pty = pytest.importorskip("pty")
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "rb", buffering=0) as screen:
        try:
            subprocess.run(  # noqa: S603 - our own program
                [sys.executable, "-c", PROGRAM],
                cwd=tmp_path,
                env=os.environ | variables(RANK=0, WORLD_SIZE=2),
                stderr=theirs,
                check=True,
            )
        finally:
            os.close(theirs)
        said = screen.read(4096).decode().splitlines()
    assert len(said) == 1
    assert said[0].startswith("otel_modtrack: to see the spans: ")
    assert said[0].endswith("otel-modtrack view modtrack-spans.rank*.jsonl")
    assert (tmp_path / "modtrack-spans.rank0.jsonl").exists()
