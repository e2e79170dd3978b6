"""Talks to torch's autograd engine: what will run, in which order, and how to see it run.

Everything private of the engine that is used stands in this file.
"""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Any

import torch

from otel_modtrack.interrupts import from_signal_handler

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = [
    "ACCUMULATE",
    "SharedHook",
    "compiled_autograd",
    "compiling",
    "current_graph_task_id",
    "current_node",
    "execution_order",
    "node_of",
    "only_captured",
]

_C: Any = torch._C  # noqa: SLF001

# AccumulateGrad nodes have the largest number there is (2**64 - 1). They run between others, as
# soon as they can, and never begin a region.
ACCUMULATE = 2**63

current_node: Callable[[], Any] = _C._current_autograd_node  # noqa: SLF001
current_graph_task_id: Callable[[], int] = _C._current_graph_task_id  # noqa: SLF001


class SharedHook:
    """The one hook that all armed nodes share: `fired`, with the gradient.

    A node is armed by showing it a tensor whose ``_backward_hooks`` is our dict
    (`Node._register_hook_dict`, 70 ns): it then calls what is in the dict, at that time. So the
    dict is filled while runs are under way and emptied after: that disarms every node at once.
    """

    def __init__(self, fired: Callable[[Any], None]) -> None:
        self._fired = fired
        self.hooks: dict[int, Callable[[Any], None]] = {}
        with _C.DisableTorchFunction():  # whatever mode the import happens under
            self.dummy = torch.zeros((), device="cpu")
        self.dummy._backward_hooks = self.hooks  # type: ignore[assignment]  # noqa: SLF001
        self._holders: set[object] = set()
        self._lock = threading.Lock()

    def hold(self, run: object) -> None:
        """A run is under way: what is armed fires."""
        with self._lock:
            self._holders.add(run)
            self.hooks[0] = self._fired

    def release(self, run: object) -> None:
        """A run is over; with the last one nothing fires any more."""
        with self._lock:
            self._holders.discard(run)
            if not self._holders:
                self.hooks.clear()


def execution_order(roots: Sequence[Any], inputs: Sequence[Any]) -> Sequence[Any]:
    """The nodes that the running graph task will run, in order."""
    with _C.DisableTorchFunction():  # a mode of the user's would see the flag being set
        threaded = _C._is_multithreading_enabled()  # noqa: SLF001
        _C._set_multithreading_enabled(False)  # noqa: SLF001 - it wants to be asked so
        try:
            return _C._current_graph_task_execution_order()  # type: ignore[no-any-return]  # noqa: SLF001
        except RuntimeError as error:  # a root that lies below another root
            if from_signal_handler(error):
                raise
            return _walk(roots, inputs)
        finally:
            _C._set_multithreading_enabled(threaded)  # noqa: SLF001


def _walk(roots: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
    """`execution_order` in Python: what is reachable, and leads to `inputs`, newest first."""
    wanted = {id(node) for node in inputs}
    seen: dict[int, Any] = {}
    parents: dict[int, list[int]] = {}
    stack = list(roots)
    while stack:
        node = stack.pop()
        if id(node) in seen:
            continue
        seen[id(node)] = node
        for below, _ in node.next_functions:
            if below is not None:
                parents.setdefault(id(below), []).append(id(node))
                stack.append(below)
    if wanted:
        useful: set[int] = set()
        todo = [key for key in wanted if key in seen]
        while todo:
            for above in parents.get(todo.pop(), ()):
                if above not in useful:
                    useful.add(above)
                    todo.append(above)
        seen = {key: node for key, node in seen.items() if key in useful}
    return sorted(seen.values(), key=lambda node: -node._sequence_nr())  # noqa: SLF001


def only_captured(order: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
    """Those of `inputs` that do not run themselves: only the gradient that reaches them is taken.

    Source: torch/csrc/autograd/engine.cpp, `GraphTask::init_to_execute`: a node is needed if
    anything below it is to be executed. Their tensor hooks are called all the same.
    """
    inner = [node for node in inputs if node._sequence_nr() < ACCUMULATE]  # noqa: SLF001
    if not inner:
        return []
    running = set(order)
    return [n for n in inner if not any(below in running for below, _ in n.next_functions)]


def node_of(out: Any) -> Any:
    """The node of a root or input of a backward: a tensor or a `GradientEdge`; or None."""
    if isinstance(out, torch.Tensor):
        with _C.DisableTorchFunction():  # not for the user's subclasses and modes to notice
            return out.grad_fn
    return getattr(out, "node", None)


def compiling() -> bool:
    """Whether this is the backward that AOTAutograd runs, on fake tensors, to see its graph."""
    context = getattr(getattr(torch, "_guards", None), "TracingContext", None)
    return context is not None and context.try_get() is not None


def compiled_autograd() -> bool:
    """Whether the next backward is compiled rather than run node by node."""
    module = sys.modules.get("torch._dynamo.compiled_autograd")
    return bool(getattr(module, "compiled_autograd_enabled", False))
