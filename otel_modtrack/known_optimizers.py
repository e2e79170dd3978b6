"""Which optimizers live in the process, and whose parameters they have."""

from __future__ import annotations

import functools
import gc
import sys
import weakref
from typing import TYPE_CHECKING, Any

from torch.optim import Optimizer

from otel_modtrack.names import children

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

__all__ = ["KnownOptimizers"]


class KnownOptimizers:
    """Optimizers, held weakly: seen being made or stepping, or searched for."""

    def __init__(self) -> None:
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()
        self._references = -1
        self._met: dict[int, tuple[weakref.ref[Any], list[weakref.ref[Any]]]] = {}

    def add(self, optimizer: Any) -> None:
        """One more is known."""
        self._known.add(optimizer)
        self._met.clear()

    def __contains__(self, optimizer: object) -> bool:
        return optimizer in self._known

    def of(self, module: nn.Module) -> list[Any]:
        """Those that have a parameter of a module."""
        met, key = self._met, id(module)
        known = met.get(key)
        if known is None or known[0]() is not module:
            self._find()
            own = {id(one) for one in _parameters_of(module)}
            found = [
                weakref.ref(optimizer)
                for optimizer in list(self._known)
                if any(id(one) in own for one in _held_by(optimizer))
            ]
            # No Python in the callback, see `Names`.
            known = met[key] = (weakref.ref(module, functools.partial(met.pop, key)), found)
        return [one for ref in known[1] if (one := ref()) is not None]

    def _find(self) -> None:
        """Learn of the optimizers that were made before anybody looked.

        An object holds a reference to its class: where there are as many references as before,
        beside those of the optimizers that are known, there are no others. A search takes 50 ms.
        Where it finds several, some may be garbage that is not collected yet: schedulers and their
        optimizers refer to each other.
        """
        kinds = [kind for kind in _with_subclasses(Optimizer) if _is_in_use(kind)]
        if self._others(kinds) == self._references:
            return
        for one in gc.get_referrers(*kinds) if kinds else ():
            if type(one) in kinds and hasattr(one, "param_groups"):
                self._known.add(one)
        if len(self._known) > 1:
            gc.collect()
        self._references = self._others(kinds)

    def _others(self, kinds: list[type]) -> int:
        """How many references to these classes are not those of the optimizers that are known."""
        return sum(sys.getrefcount(kind) for kind in kinds) - len(self._known)


def _with_subclasses(kind: type[Any]) -> Iterator[type[Any]]:
    yield kind
    for below in type.__subclasses__(kind):
        yield from _with_subclasses(below)


def _is_in_use(kind: type) -> bool:
    """Whether torch has prepared this class, when its first object was made.

    Source: torch/optim/optimizer.py, `Optimizer._patch_step_function`.
    """
    return bool(getattr(getattr(kind, "step", None), "hooked", False))


def _held_by(optimizer: Any) -> Iterator[Any]:
    for group in optimizer.param_groups:
        yield from group["params"]


def _parameters_of(module: nn.Module) -> Iterator[Any]:
    """The parameters below a module; read where torch keeps them, past what a class overrides."""
    seen = {id(module)}
    stack = [module]
    while stack:
        here = stack.pop()
        yield from (here.__dict__.get("_parameters") or {}).values()
        for _, child in children(here):
            if id(child) not in seen:
                seen.add(id(child))
                stack.append(child)
