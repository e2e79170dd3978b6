"""User hooks around each module's forward and backward, as torch's ModTracker has them.

Only when some are registered, torch's global module hooks are installed: what the hooks
are given (inputs, outputs, gradients) is seen nowhere else.

Source of the behaviour: torch/distributed/_tools/mod_tracker.py, `ModTracker.register_user_hooks`.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.graph import register_multi_grad_hook
from torch.nn.modules import module as torch_module
from torch.utils._pytree import tree_leaves

from otel_modtrack.core import CORE, THREADS, real

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import nn
    from torch.utils.hooks import RemovableHandle

    from otel_modtrack.regions import Region

__all__ = ["INSIDE", "UserHooks"]

_NAMES = ("pre_fw_hook", "post_fw_hook", "pre_bw_hook", "post_bw_hook")


class _Inside(threading.local):
    """`fqns`: the modules whose hook is being called on this thread, with their parents."""

    fqns: frozenset[str] = frozenset()


INSIDE = _Inside()


class _Call:
    """One module call whose backward the user wants to be told of."""

    __slots__ = ("begun", "fqns", "module", "waits")

    def __init__(self, module: nn.Module, fqns: frozenset[str]) -> None:
        self.module = weakref.ref(module)
        self.fqns = fqns
        self.begun = False
        self.waits = True  # for the gradients of its inputs; else for the end of the backward


class UserHooks:
    """At most one hook of each kind.

    Args:
        fqns: the names of the modules that run now, innermost included.
    """

    def __init__(self) -> None:
        self._hooks: dict[str, Callable[..., Any] | None] = dict.fromkeys(_NAMES)
        self._handles: list[RemovableHandle] = []
        self._calls: dict[int, list[_Call]] = {}
        self._at_end: list[_Call] = []
        self._queued = False

    def register(self, **hooks: Callable[..., Any] | None) -> None:
        """Take hooks, by kind; None leaves that kind as it is.

        Raises:
            AssertionError: if a hook of that kind is there already.
        """
        for name, hook in hooks.items():
            if hook is not None and self._hooks[name] is not None:
                msg = (
                    f"there is a {name} already: call clear_user_hooks() before registering another"
                )
                raise AssertionError(msg)
        for name, hook in hooks.items():
            self._hooks[name] = hook if hook is not None else self._hooks[name]

    def clear(self) -> None:
        """Forget all hooks."""
        self._hooks = dict.fromkeys(_NAMES)

    @property
    def any(self) -> bool:
        """Whether there is a hook to call."""
        return any(hook is not None for hook in self._hooks.values())

    def install(self) -> None:
        """Begin to call them, if there are any."""
        if self.any and not self._handles:
            self._handles = [
                torch_module.register_module_forward_pre_hook(self._before),
                torch_module.register_module_forward_hook(self._after, always_call=True),
            ]

    def remove(self) -> None:
        """Stop calling them."""
        while self._handles:
            self._handles[-1].remove()
            self._handles.pop()
        self._calls.clear()
        self._at_end.clear()

    # The user's hooks run outside of any guard of ours: what they raise is theirs.

    def _before(self, module: nn.Module, args: Any) -> None:
        running = real(THREADS.state.running)
        if running is None or running.subject.ref() is not module:
            return  # one region with its wrapper, which has been told already
        call = _Call(module, _fqns(running))
        self._calls.setdefault(id(module), []).append(call)
        self._tell("pre_fw_hook", call, module, args)
        if not _in_backward():
            tensors = [t for t in tree_leaves(args) if _wants_grad(t)]
            if tensors:
                register_multi_grad_hook(tensors, lambda *grads: self._ended(call, grads))
            else:
                call.waits = False

    def _after(self, module: nn.Module, args: Any, outs: Any) -> None:
        calls = self._calls.get(id(module))
        if not calls:
            return
        call = calls.pop()
        if not calls:
            del self._calls[id(module)]
        self._tell("post_fw_hook", call, module, args, outs)
        if not _in_backward():
            tensors = [t for t in tree_leaves(outs) if _wants_grad(t)]
            if tensors:
                if not call.waits:
                    self._at_end.append(call)
                register_multi_grad_hook(
                    tensors, lambda *grads: self._began(call, grads), mode="any"
                )

    def _began(self, call: _Call, grads: Any) -> None:
        if not self._handles:
            return
        if not self._queued:
            self._queued = True
            torch.autograd.Variable._execution_engine.queue_callback(self._engine_ends)  # noqa: SLF001
        call.begun = True
        self._tell("pre_bw_hook", call, call.module(), grads)

    def _ended(self, call: _Call, grads: Any) -> None:
        if self._handles:
            self._tell("post_bw_hook", call, call.module(), grads)

    def _engine_ends(self) -> None:
        """What had no gradient to wait for ends with the backward, inner modules first."""
        self._queued = False
        calls = [call for call in self._at_end if call.begun]
        self._at_end = [call for call in self._at_end if not call.begun]
        for call in calls:  # in the order in which they returned
            self._ended(call, ())

    def _tell(self, name: str, call: _Call, *args: Any) -> None:
        hook = self._hooks[name]
        if hook is not None:
            with _inside(call.fqns):
                hook(*args)


@contextlib.contextmanager
def _inside(fqns: frozenset[str]) -> Iterator[None]:
    before, INSIDE.fqns = INSIDE.fqns, INSIDE.fqns | fqns
    try:
        yield
    finally:
        INSIDE.fqns = before


def _fqns(region: Region) -> frozenset[str]:
    return frozenset(one.subject.fqn for one in region.chain() if one.subject.fqn)


def _wants_grad(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def _in_backward() -> bool:
    return CORE.on and torch._C._current_graph_task_id() != -1  # noqa: SLF001
