"""Our command as it can be typed here."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path

__all__ = ["as_argument", "command_line"]


def command_line(*arguments: str) -> str:
    """Return ``otel-modtrack view run.jsonl``, also where the environment is not activated.

    Args:
        arguments: Quoted for a shell where they have to be.
    """
    script = Path(sys.executable).with_name("otel-modtrack")
    if shutil.which("otel-modtrack"):
        program = ["otel-modtrack"]
    elif script.exists():
        is_below = script.is_relative_to(Path.cwd())
        program = [str(script.relative_to(Path.cwd()) if is_below else script)]
    else:
        program = [sys.executable, "-m", "otel_modtrack"]
    return shlex.join([*program, *arguments])


def as_argument(path: str) -> str:
    """Return a file's name so that it is not taken for an option, or for stdin."""
    return f"./{path}" if path.startswith("-") else path
