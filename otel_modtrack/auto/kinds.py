"""What kind of process this is, as the command line tells before anything is imported."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["is_helper", "is_launcher", "is_loader"]

# They start the processes that train, and train nothing themselves.
_LAUNCHERS = {
    "accelerate",
    "accelerate-launch",
    "composer",
    "deepspeed",
    "ds",
    "fabric",
    "horovodrun",
    "torchrun",
}
_LAUNCHER_MODULES = {
    "accelerate.commands.accelerate_cli",
    "accelerate.commands.launch",
    "composer.cli",
    "composer.cli.launcher",
    "deepspeed.launcher.launch",
    "deepspeed.launcher.runner",
    "lightning.fabric.cli",
    "lightning_fabric.cli",
    "torch.distributed.launch",
    "torch.distributed.run",
}
_WITH_VALUE = "WX"  # options of Python's that a value follows
_LONG_WITH_VALUE = "--check-hash-based-pycs"
_LOADER = "torch.utils.data._utils.worker"
_INDUCTOR = "torch._inductor"


def is_launcher(command: Sequence[str] | None = None) -> bool:
    """Whether this process starts those that train, as torchrun does.

    Args:
        command: its command line, the interpreter first; that of this process if None.
    """
    kind, what = _parse(sys.orig_argv if command is None else command)
    if kind == "m":
        return what in _LAUNCHER_MODULES
    if kind != "script":
        return False
    name = os.path.basename(what)  # noqa: PTH119 - pathlib is not imported at the start of programs
    for ending in (".exe", "-script.py", "-script.pyw"):
        name = name.removesuffix(ending)
    if name in _LAUNCHERS:
        return True
    path = what.replace(os.sep, "/").removesuffix(".py").replace("/", ".")
    return any(path.endswith("." + module) for module in _LAUNCHER_MODULES)


def is_helper(command: Sequence[str] | None = None) -> bool:
    """Whether this is a process of multiprocessing's or of the compiler's, not a program's own.

    A worker of multiprocessing's is one as well: what it is for is known when it gets its work.

    Args:
        command: its command line, the interpreter first; that of this process if None.
    """
    kind, what = _parse(sys.orig_argv if command is None else command)
    if kind == "c":
        return what.startswith("from multiprocessing.")
    if kind == "m":
        return what.startswith(_INDUCTOR)
    return "/torch/_inductor/" in what.replace(os.sep, "/")


def is_loader(process: object) -> bool:
    """Whether a multiprocessing.Process only loads data, or compiles: nothing to see in it."""
    target = getattr(process, "_target", None)
    if getattr(target, "__module__", None) == _LOADER:
        return True
    arguments = getattr(process, "_args", None) or ()
    return any(
        str(getattr(one, "__module__", "")).startswith(_INDUCTOR)
        for one in arguments
        if callable(one)
    )


def _parse(command: Sequence[str]) -> tuple[str, str]:
    """What Python is to run: ("c", code), ("m", module) or ("script", path)."""
    rest = list(command[1:])
    while rest:
        word = rest.pop(0)
        if not word.startswith("-") or word == "-":
            return "script", word
        if word.startswith("--"):
            del rest[: word == _LONG_WITH_VALUE]
            continue
        for at, letter in enumerate(word[1:], 2):
            if letter in "cm":
                return letter, word[at:] or (rest[0] if rest else "")
            if letter in _WITH_VALUE:
                del rest[: not word[at:]]
                break
    return "script", ""
