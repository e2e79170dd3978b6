"""Why a model cannot be traced: in one sentence, with the line of the program."""

from __future__ import annotations

import inspect
import linecache
import os
import sysconfig
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch

from otel_modtrack.usage import UsageError

if TYPE_CHECKING:
    from torch import nn

    from otel_modtrack.order.fx_log import Fqns, Log

__all__ = ["OrderError", "sentence"]

_MENDS: Final = (
    "give concrete_args for what this depends on, or another tracer, or record a real forward with"
    " ModTracker.record_order()"
)
_MESSAGE_LENGTH: Final = 200  # of another's message in ours, at most
_NOT_CALLABLE: Final = "varnames is too small"  # fx has put the inner function's count on the outer
_STDLIB: Final = sysconfig.get_path("stdlib")
_TORCH: Final = str(Path(torch.__file__).parent)
_FX: Final = str(Path(_TORCH, "fx"))
_DYNAMO: Final = str(Path(_TORCH, "_dynamo"))
_OURS: Final = str(Path(__file__).parents[1])


class OrderError(UsageError):
    """A model cannot be traced.

    The message is one sentence that names the module, the line at which tracing stopped, and the
    mend.
    """


def sentence(error: Exception, log: Log, fqns: Fqns, tracer: Any) -> str:
    """What an exception that has stopped a tracer means.

    Args:
        error: it.
        log: what the tracer had met by then.
        fqns: of the modules.
        tracer: that was stopped.
    """
    module = log.module_of(error)
    what = f"{fqns.of(module)} ({type(module).__name__}) cannot be traced"
    if type(tracer) is not torch.fx.Tracer:
        what += f" by {type(tracer).__name__}"
    reason = type(error).__name__
    said = (str(error).strip().splitlines() or [""])[0].rstrip(". ")
    if _NOT_CALLABLE in said:
        reason = "its forward is decorated and takes *args or **kwargs, which torch.fx cannot call"
    elif said:
        reason += f": {said[:_MESSAGE_LENGTH]}"
    return f"{what}{_place(error, log.root, tracer)}: {reason}; {_MENDS}"


def _place(error: Exception, root: nn.Module, tracer: Any) -> str:
    """The innermost line of the program's own, and what is there.

    Of the forward if none was reached, or "".
    """
    homes = {type(module).__module__ for module in root.modules()}
    tracers = {base.__module__ for base in type(tracer).__mro__} - homes
    packages = {home.partition(".")[0] for home in homes} - {"torch"}
    found = torchs = None
    for frame, number in traceback.walk_tb(error.__traceback__):
        file = frame.f_code.co_filename
        home = str(frame.f_globals.get("__name__"))
        if home in tracers or frame.f_locals.get("self") is tracer:
            continue
        if _is_in(file, _OURS) and home not in homes:
            continue
        if _is_in(file, _TORCH):
            if not _is_in(file, _FX) and not _is_in(file, _DYNAMO):
                torchs = (file, number)
        elif home.partition(".")[0] in packages or not _is_installed(file):
            found = (file, number)
    found = found or torchs  # a module of torch.nn is the root, or is looked into
    if found is None:
        forward = getattr(type(root), "forward", None)
        code = getattr(inspect.unwrap(forward), "__code__", None) if callable(forward) else None
        if code is None:
            return ""
        found = (code.co_filename, code.co_firstlineno)
    text = linecache.getline(*found).strip()
    return f" at {found[0]}:{found[1]}" + (f" (`{text}`)" if text else "")


def _is_installed(file: str) -> bool:
    """Whether a file is of Python's or of an installed package."""
    parts = Path(file).parts
    return "site-packages" in parts or "dist-packages" in parts or _is_in(file, _STDLIB)


def _is_in(file: str, folder: str) -> bool:
    return file.startswith(folder + os.sep)
