"""docs/configuration.md says what the code does."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from otel_modtrack import ModTracker, Policy, options

ROOT = Path(__file__).parent.parent.parent
TEXT = (ROOT / "docs" / "configuration.md").read_text()


def rows() -> list[str]:
    """The table of options, as the code has it. Pasted into the file where they differ."""
    found = []
    for option in options.OPTIONS:
        value = f" {option.metavar}" if not option.is_flag else ""
        default = f"`{option.default}`" if option.default else ""
        meaning = option.help.replace("*", "\\*")
        found.append(
            f"| `{option.name}` | `{option.variable}` | `{option.flag}{value}` | {default} |"
            f" {meaning} |"
        )
    return found


def test_every_option_is_documented() -> None:
    """The table has each option with its names, its default and its meaning, and no others."""
    documented = [line for line in TEXT.splitlines() if re.match(r"\| `\w+` \| `OTEL_PYTHON", line)]
    assert documented == rows()


def test_every_variable_is_documented() -> None:
    """Each variable of ours that the code reads is in the file, and no other."""
    used = {option.variable for option in options.OPTIONS}
    for path in (ROOT / "otel_modtrack").rglob("*.py"):
        used |= set(re.findall(r"OTEL_PYTHON_MODTRACK_[A-Z_]*[A-Z]", path.read_text()))
    assert set(re.findall(r"OTEL_PYTHON_MODTRACK_[A-Z_]*[A-Z]", TEXT)) == used


def test_every_argument_is_an_option() -> None:
    """What a policy or a tracker can be told, a variable can be told."""
    names = {option.name for option in options.OPTIONS}
    arguments = {*inspect.signature(Policy).parameters, *inspect.signature(ModTracker).parameters}
    assert arguments - names == {"model", "tracer_provider", "meter_provider", "policy"}
    assert names - arguments == {"forked"}
