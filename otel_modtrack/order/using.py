"""Sees which parameters a module's own code hands to torch, while an order is recorded.

By a function mode of torch's, on one thread. Two kinds of code must not run under one, for they
would do something else: modules of torch.nn, some of which have a faster way without one, and
whatever was compiled, which would be compiled anew. The mode is off while they run.
"""

from __future__ import annotations

import logging
import sys
import threading
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from otel_modtrack.auto.importing import ImportWatch
from otel_modtrack.core import CORE, real
from otel_modtrack.order.asking import ASKED
from otel_modtrack.regions import Kind, Phase
from otel_modtrack.swap import AttributeSwap

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_modtrack.regions import Region, Subject

__all__ = ["Sight", "is_leaf", "is_whole", "module_of"]

logger = logging.getLogger("otel_modtrack")

overrides: Any = torch.overrides  # its stack of modes is private
_STACK = (
    "_get_current_function_mode_stack",
    "_len_torch_function_stack",
    "_pop_mode",
    "_push_mode",
)
_said: list[str] = []
_DYNAMO = "torch._dynamo.eval_frame"
_SETTERS = ("set_eval_frame", "_maybe_set_eval_frame")
# They look whether a mode is on, and so may classes made of them.
_FASTER = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerEncoder)


def is_whole(subject: Subject) -> bool:
    """Whether calls inside a module cannot be seen: it was compiled, or scripted."""
    return subject.compiled or type(subject.ref()).__module__.startswith("torch.jit.")


def is_leaf(subject: Subject) -> bool:
    """Whether it is known without looking which parameters a module uses: its own."""
    return (
        (subject.plain and not subject.wrapper)
        or is_whole(subject)
        or isinstance(subject.ref(), _FASTER)
    )


def module_of(region: Region | None) -> Region | None:
    """The innermost forward call of a module that a region is in, itself included; or None."""
    region = real(region)
    while region is not None and region.subject.kind is not Kind.MODULE:
        region = region.parent
    return region if region is not None and region.phase == Phase.FORWARD else None


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
        self._on = False
        self._blind = not all(hasattr(overrides, name) for name in _STACK)

    def open(self) -> None:
        """Find out, from now on, when compiled code runs."""
        if not self._blind:
            _COMPILED.add(self._thread, self)
        elif not _said:
            _said.append(
                "this torch has no stack of function modes that is known: an order tells the"
                " parameters of modules of torch.nn alone"
            )
            logger.warning(_said[0])

    def close(self) -> None:
        """See nothing any more; nothing is left. Again: does nothing."""
        _COMPILED.discard(self._thread, self)
        self._region = None
        if threading.get_ident() == self._thread and not self._blind:
            self._take()  # another thread's modes are out of reach

    def look(self, region: Region | None) -> None:
        """Another region runs on the thread: look at what it does, if that is of interest."""
        self._region = module_of(region)
        self._settle()

    def meet_compiled(self, *, runs: bool) -> None:
        """Compiled code is about to run on the thread, or has run."""
        try:
            self._compiled = runs
            self._settle()
        except Exception as error:  # noqa: BLE001 - nothing of ours may reach the user
            CORE.fault("recording an order", error)

    def _settle(self) -> None:
        if self._blind or self._mode.busy:  # torch has set the mode aside meanwhile
            return
        region = self._region
        if region is None or self._compiled or is_leaf(region.subject):
            if self._on:
                self._take()
        elif not self._on:
            self._put()

    # Modes are a stack. Ours is the lowest, so that the program may enter and leave its own as it
    # likes; only the one of torch.set_default_device has to be below all.

    def _put(self) -> None:
        self._on = True  # first: a signal handler's exception may come anywhere
        modes = overrides._get_current_function_mode_stack()  # noqa: SLF001
        device = getattr(getattr(torch, "_GLOBAL_DEVICE_CONTEXT", None), "device_context", None)
        lowest = 1 if modes and modes[0] is device else 0
        _make_stack([*modes[:lowest], self._mode, *modes[lowest:]], lowest)

    def _take(self) -> None:
        modes = overrides._get_current_function_mode_stack()  # noqa: SLF001
        at = next((at for at, mode in enumerate(modes) if mode is self._mode), None)
        if at is not None:
            _make_stack([one for one in modes if one is not self._mode], at)
        self._on = False


def _make_stack(modes: list[Any], same: int) -> None:
    """Make the stack of modes this one, whose lowest are there already. Interrupted: all the same.

    Args:
        modes: the lowest first.
        same: how many are as they are.
    """
    try:
        _arrange(modes, same)
    except BaseException:  # a signal handler's
        _arrange(modes, same)
        raise


def _arrange(modes: list[Any], same: int) -> None:
    while overrides._len_torch_function_stack() > same:  # noqa: SLF001
        overrides._pop_mode()  # noqa: SLF001
    while (length := overrides._len_torch_function_stack()) < len(modes):  # noqa: SLF001
        overrides._push_mode(modes[length])  # noqa: SLF001


class _Compiled:
    """Finds out when compiled code runs on the threads that orders are recorded on.

    Dynamo is told, by one of two functions, what to do with frames on a thread: None for nothing.
    Once it is told anything else, each frame of Python that begins is dynamo's: ours must not.
    """

    def __init__(self) -> None:
        self._sights: dict[int, Sight] = {}
        self._dynamo = AttributeSwap()
        self._imports = ImportWatch()
        self._lock = threading.RLock()

    def add(self, thread: int, sight: Sight) -> None:
        """Tell a sight of its thread's compiled code."""
        with self._lock:
            first = not self._sights
            self._sights[thread] = sight
            if first:
                self._imports.on(_DYNAMO, self._install)

    def discard(self, thread: int, sight: Sight) -> None:
        """Tell it no more; with the last one, dynamo has its functions back."""
        with self._lock:
            if self._sights.get(thread) is sight:
                del self._sights[thread]
            if not self._sights:
                self._imports.remove()
                self._dynamo.remove()

    def _install(self) -> None:
        module = sys.modules[_DYNAMO]
        for name in _SETTERS:
            if name in vars(module):
                self._dynamo.put(module, name, self._around(vars(module)[name]))

    def _around(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        sights = self._sights

        def set_eval_frame(callback: Any) -> Any:
            sight = sights.get(threading.get_ident())
            if sight is None:
                return original(callback)
            if callback is None:
                before = original(callback)
                if before is not None:  # else nothing was compiled: dynamo looks at a frame
                    sight.meet_compiled(runs=False)
                return before
            sight.meet_compiled(runs=True)
            return original(callback)

        return set_eval_frame


_COMPILED = _Compiled()


class _Mode(TorchFunctionMode):
    """Calls what it is to call, and tells which parameters were among the arguments.

    Attributes:
        busy: how many calls are under way; torch has set the mode aside meanwhile.
    """

    def __init__(self, used: Callable[[list[nn.Parameter]], None]) -> None:
        super().__init__()
        self.busy = 0
        self._used = used

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """See `torch.overrides.TorchFunctionMode`."""
        del types
        self.busy += 1
        try:
            out = func(*args, **(kwargs or {}))
        finally:
            self.busy -= 1
        try:
            if not _only_asks(func):
                found: list[nn.Parameter] = []
                _collect((args, kwargs), found)
                if found:
                    self._used(found)
        except Exception as error:  # noqa: BLE001 - nothing of ours may reach the user
            CORE.fault("recording an order", error)
        return out


def _only_asks(func: Any) -> bool:
    """Whether a function of torch computes nothing with what it is given."""
    name = str(getattr(func, "__name__", ""))
    if name == "__get__":  # of an attribute
        name = str(getattr(getattr(func, "__self__", None), "__name__", ""))
        return name in ASKED or name.startswith("_")
    return name in ASKED or name in _ABOUT or name.startswith("register_")


_ABOUT = frozenset(("__set__", "__delete__", "__repr__", "__format__", "__len__", "__hash__"))


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
