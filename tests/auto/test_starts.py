"""`otel-modtrack run` starts a program as Python would, and refuses what it cannot start."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from otel_modtrack import options
from otel_modtrack.auto.kinds import is_helper, is_launcher
from otel_modtrack.cli import main
from otel_modtrack.running import FOLDER, split
from tests.auto.conftest import PLAIN, PROGRAMS, RUN

if TYPE_CHECKING:
    from pathlib import Path

SCRIPT = str(PROGRAMS / "no_torch.py")
MODULE = (sys.executable, "-m", "otel_modtrack", "run")


def ran(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A command that has ended."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    kept.pop("PYTHONPATH", None)
    return subprocess.run(  # noqa: S603 - our own command
        command, env={**kept, **environment}, capture_output=True, text=True, check=False
    )


def told(*command: str, **environment: str) -> dict[str, Any]:
    """What `no_torch.py` says of itself; it says it on stdout, and there is nothing on stderr."""
    found = ran(*command, **environment)
    assert (found.returncode, found.stderr) == (0, "")
    line: dict[str, Any] = json.loads(found.stdout)
    return line


def test_a_program_without_torch() -> None:
    """It is as it would be, down to sys.path, and nothing is imported that costs."""
    arguments = ["a", "--version", "--", "-m", "b"]
    expected = told(*PLAIN, SCRIPT, *arguments)
    assert expected["argv"] == [SCRIPT, *arguments]
    for command in (RUN, MODULE, (*RUN, "--"), (*RUN, sys.executable)):
        assert told(*command, SCRIPT, *arguments) == expected


def test_options_reach_the_program() -> None:
    """Flags are variables for it; Python's own options are kept; variables stay what they are."""
    found = told(*RUN, "--budget=7", "--metrics", SCRIPT)
    assert found["budget"] == "7"
    found = told(sys.executable, "-O", "-X", "utf8", *MODULE[1:], SCRIPT)
    assert found["flags"] == [1, 1]
    found = told(*RUN, "-m", "no_torch", "--help", PYTHONPATH=str(PROGRAMS))
    assert found["argv"] == [SCRIPT, "--help"]
    assert found["environment"] == str(PROGRAMS)


def test_its_traceback() -> None:
    """Is the same."""
    expected, found = ran(*PLAIN, SCRIPT, "fail"), ran(*RUN, SCRIPT, "fail")
    assert (found.returncode, found.stderr) == (expected.returncode, expected.stderr)
    assert "KeyError: 'missing'" in found.stderr


@pytest.mark.parametrize("content", ["print('mine')", "raise ValueError('broken')"])
def test_its_own_sitecustomize(tmp_path: Path, content: str) -> None:
    """Runs as it would, also where it is broken."""
    (tmp_path / "sitecustomize.py").write_text(content)
    expected = ran(*PLAIN, SCRIPT, PYTHONPATH=str(tmp_path))
    found = ran(*PLAIN, SCRIPT, PYTHONPATH=f"{FOLDER}{os.pathsep}{tmp_path}")
    assert (found.stdout, found.stderr) == (expected.stdout, expected.stderr)
    assert ("mine" in found.stdout) != ("broken" in found.stderr)


def test_without_us(tmp_path: Path) -> None:
    """A Python that does not have this package says so, and runs the program."""
    script = tmp_path / "script.py"  # without site-packages nobody else imports it
    script.write_text("try: import sitecustomize\nexcept ImportError: print('runs')")
    found = ran(sys.executable, "-S", str(script), PYTHONPATH=FOLDER)
    assert found.stdout == "runs\n"
    assert found.stderr == f"otel_modtrack is not installed for {sys.executable}: no spans\n"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "name what is to run: a script, -m and a module, or a command"),
        (["-m"], "name what is to run: a script, -m and a module, or a command"),
        (["nowhere"], "there is no script and no command nowhere"),
        (["--budget", "x", SCRIPT], "argument --budget: a whole number of 0 or more is wanted"),
        (["--budget", "-1", SCRIPT], "argument --budget: a whole number of 0 or more is wanted"),
        (["--ranks", "some", SCRIPT], "argument --ranks: all, first, every N, or ranks such as"),
        (["--bud", SCRIPT], "unrecognized arguments: --bud"),
        (["--every"], "argument --every: expected one argument"),
    ],
)
def test_what_cannot_be_started(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One sentence and exit code 2, before the program has begun."""
    before = dict(os.environ)
    try:
        code = main(["run", *arguments])
    except SystemExit as error:
        code = error.code
    finally:
        assert os.environ == before
    assert code == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert sentence in output.err
    assert output.err.count("\n") == 1


def test_a_wrong_variable(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Is told before the program has begun, too."""
    monkeypatch.setenv("OTEL_PYTHON_MODTRACK_FORKED", "perhaps")
    assert main(["run", SCRIPT]) == 2
    assert capsys.readouterr().err == (
        "otel-modtrack run: OTEL_PYTHON_MODTRACK_FORKED=perhaps cannot be used;"
        " set it to true or false, or unset it\n"
    )


def test_where_the_program_begins() -> None:
    """What is for us ends where the program begins, whatever looks alike behind it."""
    assert split(["--every", "3", "a.py", "--every", "4"]) == (
        ["--every", "3"],
        ["a.py", "--every", "4"],
    )
    assert split(["--metrics", "a.py"]) == (["--metrics"], ["a.py"])
    assert split(["--file=x", "-m", "a", "--", "b"]) == (["--file=x"], ["-m", "a", "--", "b"])
    assert split(["--", "--odd"]) == ([], ["--odd"])


def test_every_option_has_a_flag(capsys: pytest.CaptureFixture[str]) -> None:
    """--help names them all."""
    with pytest.raises(SystemExit):
        main(["run", "--help"])
    output = capsys.readouterr().out
    for option in options.OPTIONS:
        assert f"{option.flag} " in output


def test_kinds_of_processes() -> None:
    """Launchers and helpers are told from programs by their command line."""
    launchers = [
        "python /venv/bin/torchrun --nproc-per-node 2 train.py",
        "python -u -m torch.distributed.run train.py",
        "python -Wignore -mtorch.distributed.launch train.py",
        "python -X dev /venv/bin/accelerate launch train.py",
        "python /venv/lib/torch/distributed/run.py train.py",
        "python -u /venv/bin/deepspeed train.py",
    ]
    helpers = [
        "python -c 'from multiprocessing.spawn import spawn_main' --multiprocessing-fork",
        "python /venv/lib/torch/_inductor/compile_worker/__main__.py --workers=2",
        "python -m torch._inductor.compile_worker",
    ]
    programs = [
        "python train.py torchrun",
        "python -m train -m torch.distributed.run",
        "python",
        "python -",
        "python -c print(1)",
        "python --check-hash-based-pycs always run.py",
    ]
    for line in launchers:
        assert is_launcher(shlex.split(line))
    for line in helpers:
        assert is_helper(shlex.split(line))
    for line in programs:
        assert not is_launcher(shlex.split(line))
        assert not is_helper(shlex.split(line))
