"""Methods of modules that are regions, too: ``generate``, ``training_step``.

A class gets a wrapper in place of its method when one of its objects is made, or met by a tracker.
"""

from __future__ import annotations

import functools
import inspect
import logging
import types
from typing import TYPE_CHECKING, Any

from torch import nn

from otel_modtrack import scopes
from otel_modtrack.core import CORE
from otel_modtrack.swap import AroundSwap, AttributeSwap, original_body

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["MethodSwap"]

logger = logging.getLogger("otel_modtrack")

# What the frameworks' own base classes define is there to be overridden, and they look whether it
# was.
_BASES = ("torch.", "lightning.", "pytorch_lightning.")


class MethodSwap:
    """Puts wrappers around the methods of the classes that it is shown, and takes them away.

    Args:
        names: of the methods: ``generate``, or ``GPT.generate`` for that class alone.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._classes: set[type] = set()
        self._wrapped = AttributeSwap()
        self._modules: AroundSwap | None = None

    def install(self) -> None:
        """See modules being made from now on; where torch does not let us, say what is lost."""
        try:
            swap = AroundSwap(nn.Module.__init__, _around_init, self.seen)
        except TypeError as error:
            logger.warning("%s: methods are regions only of modules that were called before", error)
            return
        swap.install()
        self._modules = swap

    def remove(self) -> None:
        """Everything is as it was, where nobody else has put something there since."""
        if self._modules is not None:
            self._modules.remove()
        self._wrapped.remove()
        self._classes.clear()

    def seen(self, module: nn.Module) -> None:
        """A module is being made, or was met. Never raises."""
        try:
            kind = type(module)
            if kind not in self._classes:
                self._classes.add(kind)
                self._wrap(kind)
        except Exception as error:  # noqa: BLE001 - nothing of ours may reach the user
            CORE.fault("a method that is to be a region", error)

    def _wrap(self, kind: type) -> None:
        for name in self._names:
            owner_name, _, method = name.rpartition(".")
            if owner_name and owner_name not in (base.__name__ for base in kind.__mro__):
                continue
            owner = next((base for base in kind.__mro__ if method in vars(base)), None)
            original = vars(owner)[method] if owner is not None else None
            if (
                owner is None
                or not isinstance(original, types.FunctionType)
                or inspect.isasyncgenfunction(original)  # no wrapper is one, and passes all through
                or owner.__module__.startswith(_BASES)
                or self._wrapped.has(original)
            ):
                continue
            self._wrapped.put(owner, method, _as_region(original, method))


def _as_region(original: Callable[..., Any], method: str) -> Callable[..., Any]:
    """A function of the same kind, whose calls are regions."""

    def named(self: Any, *_: Any) -> str:
        return f"{CORE.names.name(self).fqn}.{method}" if isinstance(self, nn.Module) else ""

    call = scopes.as_region(original, named)

    async def coroutine(self: Any, *args: Any, **kwargs: Any) -> Any:
        return await call(self, *args, **kwargs)

    def generator(self: Any, *args: Any, **kwargs: Any) -> Any:
        return (yield from call(self, *args, **kwargs))

    if inspect.iscoroutinefunction(original):
        return functools.wraps(original)(coroutine)
    if inspect.isgeneratorfunction(original):
        return functools.wraps(original)(generator)
    return call


def _around_init(self: Any) -> Any:
    """What is put around the body of ``nn.Module.__init__``, in its own frame."""
    seen: Any = "modtrack:seen"
    original_body()
    seen(self)
