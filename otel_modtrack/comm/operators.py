"""Which operators are collectives, what they are called, and how large they are."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from otel_modtrack.comm.records import Operator
from otel_modtrack.interrupts import from_signal_handler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

__all__ = [
    "C10D",
    "HOOKED",
    "NOTHING",
    "Measured",
    "functional_operators",
    "known_operators",
    "look",
    "measure",
    "shapes_of",
    "torch_function_modes",
]

_C: Any = torch._C  # noqa: SLF001

# The dispatcher's operators in the namespace c10d, and what they do.
# Source: torch/csrc/distributed/c10d/Ops.cpp (torch 2.8 to 2.15).
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
    "gather_into_tensor_": "gather",
    "scatter_": "scatter",
    "barrier": "barrier",
    "monitored_barrier_": "monitored_barrier",
    "send": "send",
    "recv_": "recv",
    "recv_any_source_": "recv",
}
C10D = {name: Operator(f"c10d.{name}", what) for name, what in _OPERATIONS.items()}

# What a process group's hooks call them. Source: torch/csrc/distributed/c10d/Hooks.hpp. What is
# missing here (SPLIT, NEW_WINDOW) moves no data.
HOOKED = {
    "SEND": C10D["send"],
    "RECV": C10D["recv_"],
    "BROADCAST": C10D["broadcast_"],
    "ALLREDUCE": C10D["allreduce_"],
    "REDUCE": C10D["reduce_"],
    "ALLGATHER": C10D["allgather_"],
    "REDUCE_SCATTER": C10D["reduce_scatter_"],
    "ALLTOALL": C10D["alltoall_"],
    "BARRIER": C10D["barrier"],
    "SCATTER": C10D["scatter_"],
    "GATHER": C10D["gather_"],
    "ALLREDUCE_COALESCED": C10D["allreduce_coalesced_"],
    "ALLGATHER_BASE": C10D["_allgather_base_"],
    "ALLGATHER_COALESCED": C10D["allgather_coalesced_"],
    "ALLGATHER_INTO_TENSOR_COALESCED": C10D["allgather_into_tensor_coalesced_"],
    "REDUCE_SCATTER_BASE": C10D["_reduce_scatter_base_"],
    "REDUCE_SCATTER_TENSOR_COALESCED": C10D["reduce_scatter_tensor_coalesced_"],
    "ALLTOALL_BASE": C10D["alltoall_base_"],
    "UNKNOWN": Operator("c10d.unknown", "other"),
}

_WAITS = ("wait_tensor", "wait_tensors")  # they launch nothing

torch_function_modes: Callable[[], int] = _C._len_torch_function_stack  # noqa: SLF001
_PLAIN = (torch.Tensor, torch.nn.Parameter)

_dtype_names: dict[torch.dtype, str] = {}


@functools.cache
def known_operators() -> frozenset[str]:
    """All that are in the dispatcher, with their namespace: ``c10d::allreduce_``."""
    return frozenset(_C._dispatch_get_all_op_names())  # noqa: SLF001


@functools.cache
def functional_operators() -> tuple[tuple[str, str, str], ...]:
    """(namespace, name, what CommDebugMode calls it) of each functional collective."""
    found = []
    for full in sorted(known_operators()):
        namespace, _, name = full.partition("::")
        if "." in name:  # an overload that is not the default one
            continue
        if namespace == "_c10d_functional" and name not in _WAITS:
            found.append((namespace, name, f"c10d_functional.{name}"))
        elif full == "_dtensor::shard_dim_alltoall":
            found.append((namespace, name, f"{namespace}.{name}"))
    return tuple(found)


class Measured(NamedTuple):
    """What is said of the tensors of a collective.

    Attributes:
        size: bytes of this rank's payload: the larger of what it puts in and what it gets out.
            That is what the field calls the size of a collective (as in NCCL's tests): the tensor
            of an all-reduce, the whole output of an all-gather, the whole input of a
            reduce-scatter.
        dtype: names of their dtypes: ``float32``, or ``bfloat16,float32``; "" without tensors.
        device: type of the first one's device, or "".
    """

    size: int
    dtype: str
    device: str


NOTHING = Measured(0, "", "")


def look(  # noqa: C901, PLR0911 - it gives up wherever it meets something unusual
    inputs: Sequence[Any], outputs: Sequence[Any]
) -> Any:
    """What tells the tensors of a collective from others, as far as `Measured` goes.

    Seven readings of a tensor and no text, for this runs with every launch.
    """
    # Reading a tensor is not for the user's modes and subclasses to notice. To switch that off
    # costs as much as all the rest, so it is done only where there are any.
    if torch_function_modes():
        return measure(inputs, outputs)
    put = got = 0
    dtype = None
    try:
        if len(inputs) == 1 and not outputs:  # the usual case
            tensor = inputs[0]
            if type(tensor) in _PLAIN:
                return tensor.nbytes, 0, tensor.dtype, tensor.is_cpu or tensor.device
        for tensor in inputs:
            if type(tensor) not in _PLAIN:
                return measure(inputs, outputs)
            put += tensor.nbytes
            if dtype is None:
                dtype = tensor.dtype
            elif tensor.dtype is not dtype:
                return measure(inputs, outputs)
        for tensor in outputs:
            if type(tensor) not in _PLAIN:
                return measure(inputs, outputs)
            got += tensor.nbytes
    except RuntimeError as error:  # sparse ones have no such number
        if from_signal_handler(error):
            raise
        return measure(inputs, outputs)
    if dtype is None:
        return measure(inputs, outputs)
    return put, got, dtype, inputs[0].is_cpu or inputs[0].device


def measure(inputs: Sequence[Any], outputs: Sequence[Any]) -> Measured:
    """Measure the tensors that go into a collective and come out of it."""
    with _C.DisableTorchFunction():
        tensors = inputs or outputs
        if not tensors:
            return NOTHING
        size = max(sum(map(_bytes, inputs)), sum(map(_bytes, outputs)))
        dtype = ",".join(sorted({_name_of(tensor.dtype) for tensor in tensors}))
        return Measured(size, dtype, tensors[0].device.type)


def _bytes(tensor: Any) -> int:
    if tensor.layout is torch.strided:
        return tensor.numel() * tensor.element_size()  # type: ignore[no-any-return]
    if tensor.layout is torch.sparse_coo:
        return _bytes(tensor._indices()) + _bytes(tensor._values())  # noqa: SLF001
    return 0


def _name_of(dtype: torch.dtype) -> str:
    name = _dtype_names.get(dtype)
    if name is None:
        name = _dtype_names[dtype] = str(dtype).rpartition(".")[2]
    return name


def shapes_of(tensors: Iterable[Any]) -> tuple[str, ...]:
    """Shapes as text: ``[4, 8]``."""
    with _C.DisableTorchFunction():
        return tuple(str(list(tensor.shape)) for tensor in tensors)
