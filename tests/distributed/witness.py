"""The oracle: says which module launched each collective, and shares nothing with the tracker.

*That* one is launched: a hook of its own on every process group, or, where torch has none (before
2.14), kernels of its own in the dispatcher, under a key that the tracker does not use.
*Where* it is launched: in a forward, by a stack of calls, kept by replacing
``nn.Module.__call__``; in a backward, by the autograd node that is running. An AccumulateGrad node
belongs to the module that owns its parameter; any other one to the module call that made it, which
anomaly mode lets us write down: torch calls ``torch.fx.traceback.format_stack`` whenever it makes a
node, and keeps what that returns. A graph task in which no node is running is at its end. The
program itself says where its optimizer's step is (`Witness.optimizer`).

Source: torch/csrc/autograd/python_anomaly_mode.cpp, `PyAnomalyMetadata::store_stack` (2.8 to 2.15).
"""

from __future__ import annotations

import contextlib
import functools
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed._functional_collectives as functional_collectives
import torch.fx.traceback as torch_traceback
from torch import nn
from torch._C._distributed_c10d import ProcessGroup
from torch.distributed import distributed_c10d as c10d

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["WRAPPED", "Launch", "Witness", "fqns_of"]

_ID = 4711  # of our hooks
_LABEL = "traceback_"  # torch's key for what `format_stack` returned
_CLASSES = "FSDP"  # what fully_shard puts before a class's name

# Wrappers are one with what they wrap.
WRAPPED = ("module", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_orig_mod")

# c10d's operators, as torch's schemas have them, and what they do.
_OPERATIONS = {
    "allreduce_": "all_reduce",
    "allreduce_coalesced_": "all_reduce",
    "allgather_": "all_gather",
    "_allgather_base_": "all_gather",
    "allgather_coalesced_": "all_gather",
    "allgather_into_tensor_coalesced_": "all_gather",
    "reduce_scatter_": "reduce_scatter",
    "_reduce_scatter_base_": "reduce_scatter",
    "reduce_scatter_tensor_coalesced_": "reduce_scatter",
    "alltoall_": "all_to_all",
    "alltoall_base_": "all_to_all",
    "broadcast_": "broadcast",
    "reduce_": "reduce",
    "gather_": "gather",
    "scatter_": "scatter",
    "barrier": "barrier",
    "send": "send",
    "recv_": "recv",
    "recv_any_source_": "recv",
}
_HOOKED = {name.strip("_"): operation for name, operation in _OPERATIONS.items()}


class Launch(NamedTuple):
    """One collective.

    Attributes:
        phase: forward, backward, recompute, optimizer or outside.
        module: that launched it, or "".
        operation: all_reduce, ...
        group: name of the process group.
        size: the larger of what goes in and what comes out, in bytes.
    """

    phase: str
    module: str
    operation: str
    group: str
    size: int


def fqns_of(root: nn.Module) -> dict[int, str]:
    """The name of each module below `root` by ``id``, without wrappers: ``Net.layers.0``."""
    inner = root
    while (child := next((c for n, c in inner.named_children() if n in WRAPPED), None)) is not None:
        inner = child
    first = type(inner).__name__
    if first.startswith(_CLASSES) and type(inner).__bases__[0].__name__ == "FSDPModule":
        first = first.removeprefix(_CLASSES)
    names: dict[int, str] = {}
    for path, module in root.named_modules():
        parts = [part for part in path.split(".") if part and part not in WRAPPED]
        names[id(module)] = ".".join([first, *parts])
    return names


class _Thread(threading.local):
    def __init__(self) -> None:
        self.stack: list[str] = []


class Witness:
    """Watches launches while it is entered.

    Args:
        root: the model, wrapped as it will be called.
        compiled: whether it is called compiled: the program says when, and all is the root's.

    Attributes:
        launches: in the order in which this process launched them.
        called: the modules that were called.
    """

    def __init__(self, root: nn.Module, *, compiled: bool = False) -> None:
        names = self._names = fqns_of(root)
        self._root = names[id(root)]
        self._compiled = compiled
        self._owners: dict[int, str] = {}
        for module in root.modules():
            for parameter in module.parameters(recurse=False):
                self._owners[id(parameter)] = names[id(module)]
            handle = getattr(module, "_handle", None)  # FSDP1 keeps the real parameter hidden
            if handle is not None:
                self._owners[id(handle.flat_param)] = names[id(module)]
        self.launches: list[Launch] = []
        self.called: set[str] = set()
        self._thread = _Thread()
        self._main = threading.get_ident()
        self._undo = contextlib.ExitStack()
        self._in_optimizer = False

    def __enter__(self) -> Witness:  # noqa: PYI034 - no typing.Self in Python 3.10
        """Begin to watch."""
        if not self._compiled:
            self._undo.enter_context(torch.autograd.set_detect_anomaly(True, check_nan=False))
            self._replace(torch_traceback, "format_stack", self._format_stack)
            self._replace(nn.Module, "__call__", self._wrap_call(nn.Module.__call__))
        if hasattr(ProcessGroup, "register_pre_hook"):
            for group in list(c10d._world.pg_map):
                hook = torch._dynamo.disable(functools.partial(self._hooked, group.group_name))
                group.register_pre_hook(_ID, hook)
                self._undo.callback(group.unregister_pre_hook, _ID)
        else:
            self._put_kernels()
        return self

    def __exit__(self, *_: object) -> None:
        """Everything is as it was."""
        self._undo.close()

    @contextlib.contextmanager
    def optimizer(self) -> Iterator[None]:
        """What is launched here, in no module, is an optimizer's."""
        self._in_optimizer = True
        try:
            yield
        finally:
            self._in_optimizer = False

    @contextlib.contextmanager
    def compiled(self) -> Iterator[None]:
        """The root is called here, compiled."""
        self.called.add(self._root)
        self._thread.stack.append(self._root)
        try:
            yield
        finally:
            self._thread.stack.pop()

    def _replace(self, owner: Any, name: str, new: object) -> None:
        self._undo.callback(setattr, owner, name, getattr(owner, name))
        setattr(owner, name, new)

    def _wrap_call(self, original: Callable[..., Any]) -> Callable[..., Any]:
        thread, names, called = self._thread, self._names, self.called

        @functools.wraps(original)
        def __call__(module: nn.Module, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
            name = names.get(id(module))
            if name is None:  # a graph of the compiler's, a loss
                return original(module, *args, **kwargs)
            called.add(name)
            thread.stack.append(name)
            try:
                return original(module, *args, **kwargs)
            finally:
                thread.stack.pop()

        return __call__

    def _format_stack(self) -> list[str]:
        """A node is being made on this thread: by whom?"""
        stack = self._thread.stack
        return [stack[-1] if stack else ""]

    # -- where ---------------------------------------------------------------------------------

    def _place(self) -> tuple[str, str]:
        if threading.get_ident() != self._main:
            return "backward", ""  # the backend's, which goes on with a hook of DDP's
        stack = self._thread.stack
        backward = torch._C._current_graph_task_id() != -1
        if stack:
            return ("recompute" if backward else "forward"), stack[-1]
        if backward:
            return "backward", self._maker(torch._C._current_autograd_node())
        return ("optimizer" if self._in_optimizer else "outside"), ""

    def _maker(self, node: Any) -> str:
        if node is None:
            return ""
        if self._compiled:
            return self._root
        if node.name().endswith("AccumulateGrad"):
            return self._owners[id(node.variable)]
        return node.metadata[_LABEL][0]

    # -- that ------------------------------------------------------------------------------------

    def _hooked(self, group: str, args: Any) -> None:
        operation = _HOOKED[args.name.name.lower()]
        size = max(_bytes(args.input_tensors), _bytes(args.output_tensors))
        self._saw(operation, group, size)

    def _put_kernels(self) -> None:
        library = torch.library.Library("c10d", "IMPL")
        self._undo.callback(library._destroy)
        key = "ADInplaceOrView"
        after = torch._C._dispatch_keyset_full_after(getattr(torch._C.DispatchKey, key))
        for name, operation in _OPERATIONS.items():
            operator = getattr(torch.ops.c10d, name).default
            schema = [argument.name for argument in operator._schema.arguments]
            at = schema.index("process_group")

            def kernel(
                keys: Any,
                *args: Any,
                operator: Any = operator,
                operation: str = operation,
                at: int = at,
            ) -> Any:
                tensors = args[:at]
                if not any(_is_fake(one) for one in _flat(tensors)):
                    group = ProcessGroup.unbox(args[at]).group_name
                    self._saw(operation, group, max(_bytes(_flat(one)) for one in tensors))
                return operator.redispatch(keys & after, *args)

            library.impl(name, torch._dynamo.disable(kernel), key, with_keyset=True)
        # What a DTensor launches inside an in-place operation, torch keeps from that key.
        for name in ("all_reduce", "all_gather_tensor", "reduce_scatter_tensor"):
            original = getattr(functional_collectives, name)

            @functools.wraps(original)
            def launch(*args: Any, original: Any = original, **kwargs: Any) -> Any:
                with torch._C._SetExcludeDispatchKeyGuard(
                    getattr(torch._C.DispatchKey, key), False
                ):
                    return original(*args, **kwargs)

            self._replace(functional_collectives, name, launch)

    def _saw(self, operation: str, group: str, size: int) -> None:
        phase, module = self._place()
        if operation == "barrier":
            size = 0
        self.launches.append(Launch(phase, module, operation, group, size))


def _flat(tensors: Any) -> list[torch.Tensor]:
    if isinstance(tensors, torch.Tensor):
        return [tensors]
    return [tensor for one in tensors for tensor in _flat(one)]


def _bytes(tensors: list[torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _is_fake(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "meta" or "Fake" in type(tensor).__name__
