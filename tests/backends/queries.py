"""What the documentation and the dashboards ask backends, and how a command is run on it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from tests.backends.programs import ROOT

if TYPE_CHECKING:
    from pathlib import Path

# The sections of docs/backends.md that ask.
SLOWER = "Which layer got slower since yesterday?"
STRAGGLER = "Which rank is the straggler?"
RAISED = "Which module raised?"
BACKWARD = "Where does the backward spend its time?"
BYTES = "How many bytes did the collectives move?"
RECOMPUTED = "How much of the backward is recomputation?"
DECODE = "Which decode step of a request was the slowest?"

_DOCS = (ROOT / "docs" / "backends.md").read_text()
_DASHBOARDS = ROOT / "collector" / "grafana" / "dashboards"
_TIMEOUT_S = 120


def blocks(language: str, section: str = "") -> list[str]:
    """The fenced blocks of a language in docs/backends.md, or in a section of it."""
    text = _DOCS
    if section:
        heading = rf"^##+ {re.escape(section)}\n(.*?)(?=^##|\Z)"
        [text] = re.findall(heading, _DOCS, re.MULTILINE | re.DOTALL)
    return re.findall(rf"^```{language}\n(.*?)\n```$", text, re.MULTILINE | re.DOTALL)


def panels(key: str) -> list[str]:
    """The queries of all panels of all dashboards: `query` for TraceQL, `expr` for PromQL."""
    return [
        query[key]
        for file in _DASHBOARDS.glob("*.json")
        for panel in json.loads(file.read_text())["panels"]
        for query in panel["targets"]
        if key in query
    ]


def run(*command: str | Path, given: str = "", **kwargs: Any) -> subprocess.CompletedProcess[str]:
    """A program that was run to its end."""
    return subprocess.run(  # noqa: S603 - our own commands
        command,
        input=given,
        capture_output=True,
        text=True,
        check=False,
        timeout=_TIMEOUT_S,
        **kwargs,
    )


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """What promtool says; the test is skipped where it is not installed."""
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("promtool is not installed: it comes with Prometheus")
    return run(program, *arguments)
