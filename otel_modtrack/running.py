"""`otel-modtrack run`: starts a program that is tracked without knowing of it.

The program takes the place of this process, so that its exit, its signals and its parent are what
they would have been. Our folder on PYTHONPATH has Python import us before the program's first line.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from otel_modtrack import options
from otel_modtrack.usage import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["FOLDER", "add_arguments", "run", "split", "variables_of"]

FOLDER = str(Path(__file__).resolve().parent / "auto" / "path")
_SCRIPTS = (".py", ".pyc", ".pyw", ".pyz")
_FILE = "OTEL_PYTHON_MODTRACK_FILE"


def split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """What is for us, and what follows: the program with all that is for it.

    Args:
        arguments: what stands after ``run``.
    """
    rest = list(arguments)
    with_value = {"--file"} | {one.flag for one in options.OPTIONS if not one.is_flag}
    ours: list[str] = []
    while rest and rest[0].startswith("-") and rest[0] not in ("-", "--", "-m"):
        word = rest.pop(0)
        ours.append(word)
        if word in with_value and rest:
            ours.append(rest.pop(0))
    return ours, rest[1:] if rest[:1] == ["--"] else rest


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add a flag for each option, and what is read of the program for ``--help``."""
    parser.add_argument(
        "--file",
        metavar="FILE",
        help="append the spans to FILE as OTLP JSON lines, and send nothing",
    )
    for option in options.OPTIONS:
        help_ = option.help.replace("%", "%%")
        if option.default and not option.is_flag:
            help_ += f" (default: {option.default})"
        if option.is_flag:
            parser.add_argument(
                option.flag, dest=option.name, action="store_const", const="true", help=help_
            )
            parser.add_argument(
                _no(option), dest=option.name, action="store_const", const="false", help="not so"
            )
        else:
            parser.add_argument(
                option.flag,
                dest=option.name,
                type=_usable(option),
                metavar=option.metavar,
                help=help_,
            )


def variables_of(chosen: argparse.Namespace) -> dict[str, str]:
    """The variables that say what the flags say."""
    found = {
        option.variable: value
        for option in options.OPTIONS
        if (value := getattr(chosen, option.name)) is not None
    }
    if chosen.file is not None:
        found["OTEL_TRACES_EXPORTER"] = "otlp_json_file"
        found["OTEL_METRICS_EXPORTER"] = "none"
        found[_FILE] = chosen.file
    return found


def run(program: Sequence[str], variables: dict[str, str]) -> NoReturn:
    """Become the program. Returns never.

    Args:
        program: a script, ``-m`` and a module, or a command, with its arguments.
        variables: that its environment gets.

    Raises:
        UsageError: if it cannot be started.
        ConfigurationError: if a variable of ours cannot be used.
    """
    if not program or list(program) == ["-m"]:
        raise UsageError("name what is to run: a script, -m and a module, or a command")
    if sys.flags.ignore_environment:
        raise UsageError("Python's options -E and -I ignore PYTHONPATH, which `run` needs")
    options.check()
    try:
        importlib.util.find_spec("opentelemetry.sdk.trace")
    except ImportError:
        raise UsageError(
            "opentelemetry-sdk is not installed; install it with pip install 'otel_modtrack[otlp]'"
        ) from None
    path, words = _command(program)
    before = os.environ.get("PYTHONPATH")
    environment = {
        **os.environ,
        **variables,
        "PYTHONPATH": os.pathsep.join([FOLDER, before] if before else [FOLDER]),
    }
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execve(path, words, environment)  # noqa: S606 - what the user has named
    except OSError as error:
        raise UsageError(f"cannot start {program[0]}: {error.strerror}") from None


def _command(program: Sequence[str]) -> tuple[str, list[str]]:
    """The file that is executed, and its arguments, the first of which is its name."""
    first = program[0]
    python = [sys.executable, *_python_options()]
    if first == "-m" or first.endswith(_SCRIPTS):
        return sys.executable, [*python, *program]
    found = shutil.which(first)
    if found is not None:
        return found, list(program)
    if Path(first).exists():  # a script without an ending, or a folder with a __main__.py
        return sys.executable, [*python, *program]
    raise UsageError(f"there is no script and no command {first}")


def _python_options() -> list[str]:
    """Python's own options that this process was started with, such as ``-u``."""
    command = sys.orig_argv[: len(sys.orig_argv) - len(sys.argv) + 1]
    if command[-2:] == ["-m", "otel_modtrack"]:
        return command[1:-2]
    if len(command) > 1 and not command[-1].startswith("-"):
        return command[1:-1]
    return subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined,no-any-return]  # noqa: SLF001


def _usable(option: options.Option) -> Callable[[str], str]:
    def text(value: str) -> str:
        if not options.is_usable(option, value):
            raise argparse.ArgumentTypeError(f"{option.wanted} is wanted, not {value!r}")
        return value

    return text


def _no(option: options.Option) -> str:
    return "--no-" + option.flag.removeprefix("--")
