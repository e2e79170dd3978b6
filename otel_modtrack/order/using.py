"""Sees which parameters a module's own code hands to torch, while an order is recorded.

By a function mode of torch's, on one thread. Two kinds of code must not run under one, for they
would do something else: modules of torch.nn, some of which have a faster way without one, and
whatever was compiled, which would be compiled anew. The mode is off while they run.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from otel_modtrack.auto.importing import ImportWatch
from otel_modtrack.core import CORE, real
from otel_modtrack.regions import Kind, Phase
from otel_modtrack.swap import AttributeSwap

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from otel_modtrack.regions import Region, Subject

__all__ = ["Sight", "is_leaf", "module_of"]

overrides: Any = torch.overrides  # its stack of modes is private
_DYNAMO = "torch._dynamo.eval_frame"
_SETTERS = ("set_eval_frame", "_maybe_set_eval_frame")
_tensor: Any = torch.Tensor
_GRAD = _tensor.grad.__get__
# They look whether a mode is on, and so may classes made of them.
_FASTER = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerEncoder)


def is_leaf(subject: Subject) -> bool:
    """Whether it is known without looking which parameters a module uses: its own."""
    return (
        (subject.plain and not subject.wrapper)
        or subject.compiled
        or isinstance(subject.ref(), _FASTER)
    )


class Sight:
    """Tells of the parameters that are handed to torch on the thread that it is made on.

    Args:
        used: called with those that are handed to one operation together.
    """

    def __init__(self, used: Callable[[list[nn.Parameter]], None]) -> None:
        self._mode = _Mode(used)
        self._thread = threading.get_ident()
        self._region: Region | None = None
        self._compiled = False
        self._at: int | None = None  # where the mode is among all; None if it is off
        self._depths: dict[Region, int] = {}  # of the mode among all modes, while a region runs
        self._dynamo = AttributeSwap()
        self._imports = ImportWatch()

    def open(self) -> None:
        """Find out, from now on, when compiled code runs."""
        self._imports.on(_DYNAMO, self._see_compiled)

    def close(self) -> None:
        """See nothing any more; nothing is left."""
        self._imports.remove()
        self._dynamo.remove()
        self.look(None)
        self._depths.clear()

    def look(self, region: Region | None) -> None:
        """Another region runs on the thread: look at what it does, if that is of interest."""
        self._region = module_of(region)
        self._settle()

    def _settle(self) -> None:
        region = self._region
        if region is None or self._compiled or is_leaf(region.subject):
            if self._at is not None:
                self._take()
        elif region in self._depths:
            if self._at is None:
                self._put(self._depths[region])
        else:
            if self._at is None:
                self._put(overrides._len_torch_function_stack())  # noqa: SLF001
            self._depths[region] = self._at or 0

    # Modes are a stack, and the program's own may be above ours: they must stay where they are.

    def _put(self, depth: int) -> None:
        with _above(depth):
            overrides._push_mode(self._mode)  # noqa: SLF001
        self._at = depth

    def _take(self) -> None:
        modes = overrides._get_current_function_mode_stack()  # noqa: SLF001
        depth = next((at for at, mode in enumerate(modes) if mode is self._mode), None)
        if depth is not None:
            with _above(depth + 1):
                overrides._pop_mode()  # noqa: SLF001
        self._at = None

    # -- compiled code ---------------------------------------------------------------------------

    def _see_compiled(self) -> None:
        module = sys.modules[_DYNAMO]
        for name in _SETTERS:
            if name in vars(module):
                self._dynamo.put(module, name, self._around(vars(module)[name]))

    def _around(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Of the function that tells dynamo what to do with frames on this thread: None, nothing.

        Once it is told, each frame of Python that begins is dynamo's: ours must not begin then.
        """

        def set_eval_frame(callback: Any) -> Any:
            if threading.get_ident() != self._thread:
                return original(callback)
            if callback is None:
                before = original(callback)
                self._meet_compiled(runs=False)
                return before
            self._meet_compiled(runs=True)
            return original(callback)

        return set_eval_frame

    def _meet_compiled(self, *, runs: bool) -> None:
        try:
            self._compiled = runs
            self._settle()
        except Exception as error:  # noqa: BLE001 - nothing of ours may reach the user
            CORE.fault("recording an order", error)


def module_of(region: Region | None) -> Region | None:
    """The innermost forward call of a module that a region is in, itself included; or None."""
    region = real(region)
    while region is not None and region.subject.kind is not Kind.MODULE:
        region = region.parent
    return region if region is not None and region.phase == Phase.FORWARD else None


@contextlib.contextmanager
def _above(depth: int) -> Iterator[None]:
    """With the modes above a depth set aside."""
    aside = []
    while overrides._len_torch_function_stack() > depth:  # noqa: SLF001
        aside.append(overrides._pop_mode())  # noqa: SLF001
    try:
        yield
    finally:
        while aside:
            overrides._push_mode(aside.pop())  # noqa: SLF001


class _Mode(TorchFunctionMode):
    """Calls what it is to call, and tells which parameters were among the arguments."""

    def __init__(self, used: Callable[[list[nn.Parameter]], None]) -> None:
        super().__init__()
        self._used = used

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """See `torch.overrides.TorchFunctionMode`; while it runs, the mode is off."""
        del types
        out = func(*args, **(kwargs or {}))
        try:
            if func != _GRAD and _has_tensor(out):  # else it is only asked about, as its dtype
                found: list[nn.Parameter] = []
                _collect((args, kwargs), found)
                if found:
                    self._used(found)
        except Exception as error:  # noqa: BLE001 - nothing of ours may reach the user
            CORE.fault("recording an order", error)
        return out


def _collect(value: Any, found: list[nn.Parameter]) -> None:
    if isinstance(value, torch.Tensor):
        if isinstance(value, nn.Parameter):
            found.append(value)
    elif isinstance(value, (tuple, list)):
        for one in value:
            _collect(one, found)
    elif isinstance(value, dict):
        for one in value.values():
            _collect(one, found)


def _has_tensor(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return any(_has_tensor(one) for one in value)
    return isinstance(value, torch.Tensor)
