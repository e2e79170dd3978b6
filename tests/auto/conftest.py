"""Fixtures of the tests of programs that do not know of us."""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.processes.running import Program, Receiver

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PROGRAMS = Path(__file__).parent / "programs"
BIN = Path(sys.executable).parent
PLAIN = (sys.executable,)
RUN = (str(BIN / "otel-modtrack"), "run")
INSTRUMENT = (str(BIN / "opentelemetry-instrument"), sys.executable)
EXPLICIT = (sys.executable, str(PROGRAMS / "explicit.py"))
# So that the SDK's own queue holds a trace, and nothing is said about it.
ENVIRONMENT = {
    "OTEL_BSP_MAX_QUEUE_SIZE": "8192",
    "OTEL_LOGS_EXPORTER": "none",
    "PYTHONFAULTHANDLER": "1",  # a program that hangs tells where
    "PYTHONPATH": str(PROGRAMS),
}


@pytest.fixture(scope="session")
def receiver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Receiver]:
    """A receiver for the whole run; programs are told apart by their service's name."""
    with contextlib.closing(Receiver(tmp_path_factory.mktemp("received"))) as receiver:
        yield receiver


@pytest.fixture
def start(receiver: Receiver) -> Iterator[Callable[..., Program]]:
    """Start one of the programs: `start(launcher, "ends", "exit")`."""
    with contextlib.ExitStack() as running:

        def start(
            launcher: tuple[str, ...], name: str, *arguments: str, **environment: str
        ) -> Program:
            path = PROGRAMS / f"{name}.py"
            return running.enter_context(
                Program(
                    receiver,
                    path if launcher[-1] != "-m" and path.exists() else Path(name),
                    {**ENVIRONMENT, **environment},
                    arguments=arguments,
                    launcher=launcher,
                )
            )

        yield start


def paths(program: Program) -> Counter[tuple[str, ...]]:
    """Each span of a program, as the names and fqns from its root down to it."""
    spans = {span["span_id"]: span for span in program.spans}

    def path(span: dict[str, Any]) -> tuple[str, ...]:
        above = spans.get(span["parent_id"])
        fqn = span["attributes"].get("modtrack.module.fqn", "")
        phase = span["attributes"].get("modtrack.phase", "")
        return (*(path(above) if above else ()), f"{span['name']} {fqn} {phase}".strip())

    return Counter(map(path, spans.values()))


def outcome(program: Program) -> tuple[int, str, str]:
    """Exit status, stdout and stderr."""
    return program.wait(), program.output, program.errors
