"""A program ends as without us, and its spans are delivered."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from tests.auto.conftest import EXPLICIT, INSTRUMENT, PLAIN, RUN, outcome, paths

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.processes.running import Program

    Start = Callable[..., Program]

STEP = [
    "backward",
    "backward Sequential",
    *["backward Sequential.*"] * 2,
    "forward Sequential",
    *["forward Sequential.*"] * 2,
    "optimizer_step SGD",
    "train_step",
]
OPEN = [name for name in STEP if not name.startswith("optimizer_step")]
FAILED = ["forward Sequential", "forward Sequential.*", "train_step"]


def test_an_exception(start: Start) -> None:
    """The traceback and the rest are the same, and the step that it ended says so."""
    expected = outcome(start(PLAIN, "ends", "raise"))
    assert expected[0] == 1
    assert "Traceback" in expected[2]
    for launcher in (INSTRUMENT, RUN):
        program = start(launcher, "ends", "raise")
        found = outcome(program)
        if launcher is INSTRUMENT:  # it leaves its PYTHONPATH, and the program prints that
            assert (found[0], found[2]) == (expected[0], expected[2])
        else:
            assert found == expected
        assert program.names == sorted(STEP * 2 + FAILED)
        errors = [span["attributes"].get("error.type") for span in program.spans]
        assert errors.count("RuntimeError") == 2
        assert errors.count("ValueError") == 1


def test_exit_codes(start: Start) -> None:
    """sys.exit delivers the step that is open, too; os._exit leaves no time."""
    for launcher, end, code in ((RUN, "exit", 3), (RUN, "_exit", 7), (INSTRUMENT, "_exit", 7)):
        program = start(launcher, "ends", end)
        found = outcome(program)
        assert (found[0], found[2]) == (code, "")
        assert program.names == (sorted(STEP * 2 + OPEN) if end == "exit" else [])


def test_a_handler_that_calls_the_one_before(start: Start) -> None:
    """A framework that ends gracefully on SIGTERM does, though there is one to call with us."""
    program = start(RUN, "ends", "chain")
    code, output, errors = outcome(program)
    assert (code, errors) == (0, "")
    assert output.endswith("\ngoes on\n")
    assert program.names == sorted(STEP * 2)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_signals(start: Start, name: str) -> None:
    """The wait status is the same, and what has ended is delivered."""
    program = start(RUN, "ends", name)
    found = outcome(program)
    assert found[0] == -signal.Signals[name]
    assert set(program.names) == set(STEP)
    if name == "SIGINT":
        assert found == outcome(start(PLAIN, "ends", name))
        assert program.names == sorted(STEP * 2)
    else:
        assert found[2] == ""


def test_as_a_module(start: Start) -> None:
    """With -m, the traceback and the rest are Python's as well."""
    expected = outcome(start((*PLAIN, "-m"), "ends", "raise"))
    program = start((*RUN, "-m"), "ends", "raise")
    assert outcome(program) == expected
    assert "runpy" in expected[2]
    assert program.names == sorted(STEP * 2 + FAILED)


def test_everything(start: Start) -> None:
    """The spans are those of the explicit tracker: models, compiled ones, late classes, threads."""
    plain = outcome(start(PLAIN, "everything"))
    assert plain[0] == 0, plain[2]
    explicit = start(EXPLICIT, "everything")
    assert outcome(explicit) == plain
    expected = paths(explicit)
    assert sum(expected.values()) > 30
    for launcher in (INSTRUMENT, RUN):
        program = start(launcher, "everything")
        assert outcome(program) == plain
        assert paths(program) == expected
