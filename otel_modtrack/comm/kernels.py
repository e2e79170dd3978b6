"""The other way to see collectives: kernels of ours in torch's dispatcher, which call the next.

They are registered for the collectives' operators alone, under the key ``BackendSelect``: above
the backends, below autograd, functionalisation and every mode. Other operators do not change.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import torch
from torch._C._distributed_c10d import ProcessGroup, Work

from otel_modtrack.comm.faults import fault
from otel_modtrack.comm.operators import (
    C10D,
    functional_operators,
    known_operators,
    torch_function_modes,
)
from otel_modtrack.core import CORE
from otel_modtrack.swap import skip_by_dynamo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from otel_modtrack.comm.recorder import Recorder

__all__ = ["FUNCTIONAL", "FunctionalKernels", "KernelWay"]

_C: Any = torch._C  # noqa: SLF001
_KEY = "BackendSelect"
_OUTPUTS = {"output_tensors", "output_tensor", "outputs", "output", "output_lists"}
_TENSORS = ("Tensor", "List[Tensor]", "List[List[Tensor]]")


class _Functional(threading.local):
    """`name`: of the functional collective that is running on this thread, or ""."""

    name = ""


FUNCTIONAL = _Functional()


class _Kernels:
    """Kernels in several of the dispatcher's namespaces; made once, put in and taken out often."""

    def __init__(self) -> None:
        self._kernels: list[tuple[str, str, Any]] = []
        self._libraries: dict[str, Any] = {}

    def add(self, namespace: str, name: str, make: Callable[[Any, Any], Any]) -> None:
        """Add what `make` returns for the operator and the keys that come after ours."""
        operator = getattr(getattr(torch.ops, namespace), name).default
        after = _C._dispatch_keyset_full_after(getattr(_C.DispatchKey, _KEY))  # noqa: SLF001
        kernel = make(operator, after)
        skip_by_dynamo(kernel)
        self._kernels.append((namespace, name, kernel))

    def install(self) -> None:
        """Put them in."""
        for namespace, name, kernel in self._kernels:
            library = self._libraries.get(namespace)
            if library is None:
                # What `torch.library.Library` is made of; that leaves a little behind each time.
                library = _C._dispatch_library("IMPL", namespace, "", __file__, 0)  # noqa: SLF001
                self._libraries[namespace] = library
            library.impl(name, _KEY, kernel, True)

    def remove(self) -> None:
        """Take all of them away."""
        while self._libraries:
            namespace, library = next(iter(self._libraries.items()))
            library.reset()
            del self._libraries[namespace]


class KernelWay(_Kernels):
    """Sees c10d's operators in the dispatcher, in every group.

    Args:
        recorder: that is told.
        names: of the operators, without namespace.
    """

    def __init__(self, recorder: Recorder, names: Iterable[str] = tuple(C10D)) -> None:
        super().__init__()
        self._recorder = recorder
        for name in names:
            if f"c10d::{name}" in known_operators():
                self.add("c10d", name, self._make(name))

    def _make(self, name: str) -> Callable[[Any, Any], Any]:
        recorder, operator = self._recorder, C10D[name]

        def make(op: Any, after: Any) -> Any:
            schema = op._schema.arguments  # noqa: SLF001
            of_type = [(at, one.name, str(one.type)) for at, one in enumerate(schema)]
            tensors = [(at, name) for at, name, kind in of_type if kind in _TENSORS]
            ins = [at for at, name in tensors if name not in _OUTPUTS]
            outs = [at for at, name in tensors if name in _OUTPUTS]
            if operator.told_by_inputs:
                outs = []
            group_at = next(at for at, one in enumerate(schema) if one.name == "process_group")
            async_at = next((at for at, one in enumerate(schema) if one.name == "async_op"), -1)
            redispatch = op.redispatch

            def kernel(keys: Any, *args: Any) -> Any:
                try:
                    if (CORE.on or CORE.resting) and not _is_fake(inputs := _flat(args, ins)):
                        asynchronous = async_at >= 0 and (
                            args[async_at] if async_at < len(args) else True
                        )
                        group = recorder.groups.of(ProcessGroup.unbox(args[group_at]))
                        recorder.seen(operator, group, inputs, _flat(args, outs), asynchronous)
                except Exception as error:  # noqa: BLE001 - nothing of ours may reach the user
                    fault("a collective's kernel", error)
                found = redispatch(keys & after, *args)
                if recorder.each:
                    try:
                        work = found[-1] if isinstance(found, (tuple, list)) else found
                        if work is not None:
                            recorder.launched(Work.unbox(work))
                    except Exception as error:  # noqa: BLE001 - nothing of ours may reach the user
                        fault("a collective's kernel", error)
                return found

            return kernel

        return make


class FunctionalKernels(_Kernels):
    """Knows the functional collective that is running, which the ones it launches are named by."""

    def __init__(self) -> None:
        super().__init__()
        for namespace, name, shown in functional_operators():
            self.add(namespace, name, _naming(shown))


def _naming(shown: str) -> Callable[[Any, Any], Any]:
    def make(op: Any, after: Any) -> Any:
        redispatch, functional = op.redispatch, FUNCTIONAL

        def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
            if functional.name:
                return redispatch(keys & after, *args, **kwargs)
            functional.name = shown
            try:
                return redispatch(keys & after, *args, **kwargs)
            finally:
                functional.name = ""

        return kernel

    return make


def _flat(args: tuple[Any, ...], at: list[int]) -> list[Any]:
    """The tensors among the arguments at these places, lists of them laid out flat."""
    found: list[Any] = []
    for place in at:
        if place < len(args):
            one = args[place]
            if type(one) is not list:
                found.append(one)
            elif one and type(one[0]) is list:
                for some in one:
                    found.extend(some)
            else:
                found.extend(one)
    return found


def _is_fake(tensors: list[Any]) -> bool:
    """Whether this is torch finding out shapes, and nothing is sent."""
    if torch_function_modes():
        with _C.DisableTorchFunction():
            return any(map(_has_no_data, tensors))
    return any(map(_has_no_data, tensors))


def _has_no_data(tensor: Any) -> bool:
    kind = type(tensor)
    return (kind is not torch.Tensor and kind.__name__ == "FakeTensor") or tensor.is_meta
