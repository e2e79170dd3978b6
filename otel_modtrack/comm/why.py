"""Why a collective was launched, as far as torch tells: parameters, placements, who waits for it.

torch hands none of this on: it is read from the frames that lead to the launch, and from DDP's own
account of its buckets. Only in mode "each", except `is_called_from`. What is not found is not told.
"""

from __future__ import annotations

import sys
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from otel_modtrack.comm.records import Why
from otel_modtrack.core import CORE
from otel_modtrack.engine import ACCUMULATE, current_graph_task_id, current_node
from otel_modtrack.interrupts import from_signal_handler

if TYPE_CHECKING:
    import types
    from collections.abc import Iterator

    from otel_modtrack.comm.records import Details

__all__ = ["Reasons", "is_called_from"]

_C10D = "torch.distributed.distributed_c10d"
_C: Any = torch._C  # noqa: SLF001
_NEAR = 6  # frames between a launch and the function of torch's that was called for it
_FRAMES = 40
# Another torch, which tells it otherwise: then it is not told.
_TOLD_OTHERWISE = (AttributeError, KeyError, IndexError, TypeError, ValueError, RuntimeError)
# Names of the children that wrappers hold what they wrap by.
_UNSEEN = ("", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_orig_mod")


def is_called_from(*functions: str) -> bool:
    """Whether one of these functions of `torch.distributed` is what launches.

    What a group is told is the same for `send` and `isend`, `gather` and `gather_single`.
    """
    for frame in _frames(_NEAR):
        if frame.f_code.co_name in functions and frame.f_globals.get("__name__") == _C10D:
            return True
    return False


def _frames(most: int) -> Iterator[types.FrameType]:
    frame: types.FrameType | None = sys._getframe(1)  # noqa: SLF001
    while frame is not None and most:
        yield frame
        frame = frame.f_back
        most -= 1


class Reasons:
    """Finds reasons. It holds what it knows of DDP modules weakly."""

    def __init__(self) -> None:
        self._buckets: weakref.WeakKeyDictionary[Any, _Buckets] = weakref.WeakKeyDictionary()

    def explain(self, details: Details, inputs: Any) -> None:
        """Note why a collective is launched with `inputs`, now or when the backward is over."""
        try:
            for frame in _frames(_FRAMES):
                module = str(frame.f_globals.get("__name__"))
                tell = _TELLERS.get((module, frame.f_code.co_name))
                if tell is not None:
                    details.why = tell(frame.f_locals)
                    if details.why is not None:
                        return
            self._explain_bucket(details, inputs)
        except _TOLD_OTHERWISE as error:
            if from_signal_handler(error):
                raise

    def _explain_bucket(self, details: Details, inputs: Any) -> None:
        """DDP's reducer launches a bucket from the hook of a parameter's AccumulateGrad.

        It holds its lock meanwhile, so it is asked about its buckets when the backward is over.
        """
        node = current_node()
        if node is None or node._sequence_nr() < ACCUMULATE:  # noqa: SLF001
            return
        variable = node.variable
        found = self._ddp_of(variable) if inputs[0].is_floating_point() else None
        if found is not None:
            ddp, buckets = found
            place = buckets.place(variable, sum(tensor.numel() for tensor in inputs))
            CORE.unexplained.append(partial(_explain, details, buckets, weakref.ref(ddp), place))

    def _ddp_of(self, variable: Any) -> tuple[Any, _Buckets] | None:
        """The DDP module that has this parameter, among those met before and then all."""
        for ddp, buckets in list(self._buckets.items()):
            if buckets.has(variable):
                return ddp, buckets
        for ddp in _ddp_modules():
            if ddp not in self._buckets:
                buckets = self._buckets[ddp] = _Buckets(ddp)
                if buckets.has(variable):
                    return ddp, buckets
        return None


def _explain(details: Details, buckets: _Buckets, ref: weakref.ref[Any], place: _Place) -> None:
    try:
        ddp = ref()
        names = buckets.names(ddp, place) if ddp is not None else ()
        if names:
            details.why = Why(parameters=names)
    except _TOLD_OTHERWISE as error:
        if from_signal_handler(error):
            raise


def _ddp_modules() -> Iterator[Any]:
    for subject in list(CORE.known.values()):
        if subject.wrapper:
            module = subject.ref()
            if module is not None and hasattr(module, "reducer"):
                yield module


class _Place(NamedTuple):
    """Which bucket it is: the how-manieth of its backward, for which parameter, how large."""

    launched: int
    parameter: int
    elements: int


class _Buckets:
    """A DDP module's buckets, which its reducer launches in order, once a backward."""

    def __init__(self, ddp: Any) -> None:
        self._names = {id(one): name for name, one in ddp.module.named_parameters()}
        self._buckets: list[dict[int, int]] = []  # number of elements by the parameter's id
        self._asked: bool | None = None  # whether the buckets were rebuilt when they were asked for
        self._task = -1
        self._launched = 0

    def has(self, variable: Any) -> bool:
        """Whether it is a parameter of this module."""
        return id(variable) in self._names

    def place(self, variable: Any, elements: int) -> _Place:
        """Note that something with so many elements is launched by this parameter's gradient."""
        task = current_graph_task_id()
        if task != self._task:
            self._task, self._launched = task, 0
        self._launched += 1
        return _Place(self._launched - 1, id(variable), elements)

    def names(self, ddp: Any, place: _Place) -> tuple[str, ...]:
        """The fqns of the bucket's parameters; none if it is no bucket, but a comm hook's own."""
        rebuilt = bool(ddp._has_rebuilt_buckets)  # noqa: SLF001
        if self._asked is not rebuilt:
            self._asked = rebuilt
            with _C.DisableTorchFunction(), _disable_current_modes(), _WithoutMemory():  # type: ignore[no-untyped-call]
                buckets = ddp.reducer._get_zeros_like_grad_buckets()  # noqa: SLF001
            self._buckets = [
                {id(one): one.numel() for one in bucket.parameters()} for bucket in buckets
            ]
        fitting = [b for b in self._buckets if sum(b.values()) == place.elements]
        at = place.launched
        if at < len(self._buckets) and self._buckets[at] in fitting:
            fitting = [self._buckets[at]]
        else:
            fitting = [bucket for bucket in fitting if place.parameter in bucket]
        return tuple(self._names[one] for one in fitting[0]) if fitting else ()


class _WithoutMemory(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """DDP's reducer tells of its buckets with as many zeros: they are not to be allocated."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        del types
        if func is torch.ops.aten.zeros_like.default:
            return torch.empty_like(args[0], device="meta")
        return func(*args, **(kwargs or {}))


def _fqn(module: Any, name: str) -> str:
    """A parameter's name as the whole model's `named_parameters` has it, wrappers left out."""
    known = (CORE.names.fqn(module) or "").partition(".")[2] if module is not None else ""
    return ".".join(part for part in (*known.split("."), *name.split(".")) if part not in _UNSEEN)


def _of_fsdp2(local: dict[str, Any]) -> Why:
    names = []
    for parameter in local.get("fsdp_params_with_grad") or local["self"].fsdp_params:
        owner = parameter._module_info  # noqa: SLF001
        names.append(_fqn(owner.module, owner.param_name))
    return Why(parameters=tuple(names))


def _of_flat_parameter(local: dict[str, Any]) -> Why | None:
    handle = local.get("self") or local.get("handle")
    names = getattr(getattr(handle, "flat_param", None), "_fqns", None)
    unit = getattr(handle, "_fully_sharded_module", None)
    return Why(parameters=tuple(_fqn(unit, name) for name in names)) if names else None


def _of_redistribution(local: dict[str, Any]) -> Why | None:
    source, target = local.get("current_spec"), local.get("target_spec")
    if source is None or target is None:
        return None
    return Why(source=_placed(source), target=_placed(target))


def _placed(spec: Any) -> str:
    return "(" + ", ".join(str(one) for one in spec.placements) + ")"


_FSDP2 = "torch.distributed.fsdp._fully_shard._fsdp_param_group"
_FSDP1 = "torch.distributed.fsdp._flat_param"
_RUNTIME = "torch.distributed.fsdp._runtime_utils"
_REDISTRIBUTE = "torch.distributed.tensor._redistribute"

# By module and function of a frame: what its local variables tell.
_TELLERS = {
    (_FSDP2, "unshard"): _of_fsdp2,
    (_FSDP2, "post_backward"): _of_fsdp2,
    (_FSDP1, "_all_gather_flat_param"): _of_flat_parameter,
    (_RUNTIME, "_reduce_grad"): _of_flat_parameter,
    (_REDISTRIBUTE, "redistribute_local_tensor"): _of_redistribution,
}
