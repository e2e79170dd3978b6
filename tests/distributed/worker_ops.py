"""Launches every collective operation that gloo has, each inside one module's forward.

Started on 2 and 4 processes; `test_ops.py` knows by hand what must have been seen. The
tensors are float32 (4 bytes an element) where a case does not say otherwise. An operation is a
function that launches it; `watched` runs it in a tracked module and gives back all that was told.
"""

from __future__ import annotations

import functools
import gc
import itertools
import sys
import threading
import time
import warnings
import weakref
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.nn.functional as differentiable
from harness import case, main
from opentelemetry import trace
from opentelemetry.sdk.trace import SpanLimits, TracerProvider, sampling
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from torch import nn
from torch.distributed import distributed_c10d as c10d
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Replicate,
    Shard,
    distribute_tensor,
    init_device_mesh,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from otel_modtrack import ModTracker, region
from otel_modtrack.comm.groups import Groups
from otel_modtrack.comm.hooks import HookWay

if TYPE_CHECKING:
    from collections.abc import Callable

    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.util.types import AttributeValue

# torch 2.15 renamed them, and warns of the old names.
all_gather_single = getattr(functional, "all_gather_single", functional.all_gather_tensor)
all_gather_single_autograd = getattr(
    functional, "all_gather_single_autograd", functional.all_gather_tensor_autograd
)
all_gather_single_coalesced = getattr(
    functional, "all_gather_single_coalesced", functional.all_gather_into_tensor_coalesced
)
reduce_scatter_single = getattr(
    functional, "reduce_scatter_single", functional.reduce_scatter_tensor
)
reduce_scatter_single_autograd = getattr(
    functional, "reduce_scatter_single_autograd", functional.reduce_scatter_tensor_autograd
)
reduce_scatter_single_coalesced = getattr(
    functional, "reduce_scatter_single_coalesced", functional.reduce_scatter_tensor_coalesced
)

# What the torch in use has.
HAS_ALL_TO_ALL = hasattr(functional, "isend_inplace")  # gloo's list version came with these
HAS_FUNCTIONAL_P2P = hasattr(functional, "isend_inplace")
HAS_DIFFERENTIABLE_ALL_REDUCE = hasattr(functional, "all_reduce_backward")
HAS_HOOKS = hasattr(dist.ProcessGroup, "register_pre_hook")
HAS_GATHER_SINGLE = hasattr(dist, "gather_single")
HAS_SPLIT_GROUP = hasattr(functional, "isend_inplace")  # without a device of the default group


# -- what is tracked ------------------------------------------------------------------------------


class Inner(nn.Module):
    """Launches what it is given."""

    def forward(self, launch: Callable[[], Any]) -> Any:
        return launch()


class Net(nn.Module):
    """A module that launches nothing itself, around `Inner`."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner()

    def forward(self, launch: Callable[[], Any]) -> Any:
        return self.inner(launch)


class Recorded:
    """A provider of the SDK's and the spans that arrive there."""

    def __init__(self, **given: Any) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False, **given)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))

    @property
    def spans(self) -> tuple[ReadableSpan, ...]:
        """The finished spans."""
        return self.exporter.get_finished_spans()

    def told(self) -> dict[str, Any]:
        """What the spans say of collectives, by span; spans that say nothing are left out."""
        found: dict[str, Any] = {}
        for span in self.spans:
            attributes = dict(span.attributes or {})
            events = collective_events(span)
            count = attributes.get("modtrack.collective.count")
            size = attributes.get("modtrack.collective.size")
            if events or count is not None or size is not None:
                label = label_of(span)
                assert label not in found, f"two spans {label}"
                found[label] = {"events": events, "count": count, "size": size}
        return found

    def named(self, label: str) -> ReadableSpan:
        """The one span of that label."""
        (span,) = (span for span in self.spans if label_of(span) == label)
        return span


def label_of(span: ReadableSpan) -> str:
    """``phase fqn``, or the span's name where it is of no module."""
    attributes = span.attributes or {}
    fqn = attributes.get("modtrack.module.fqn")
    return f"{attributes['modtrack.phase']} {fqn}" if fqn else span.name


def collective_events(span: ReadableSpan) -> list[dict[str, AttributeValue]]:
    """The attributes of its collectives' events, without their common prefix, in order."""
    prefix = "modtrack.collective."
    found = []
    assert span.start_time is not None
    assert span.end_time is not None
    for event in span.events:
        if event.name == "modtrack.collective":
            attributes = dict(event.attributes or {})
            told = {key.removeprefix(prefix): one for key, one in attributes.items()}
            if not span.start_time <= event.timestamp <= span.end_time:
                told["not in its span's time"] = True
            found.append(told)
    return found


def answers(tracker: ModTracker) -> dict[str, Any]:
    """What `tracker.collectives` says."""
    told = tracker.collectives
    return {
        "total": told.total,
        "size": told.size,
        "operation": told.by_operation(),
        "operator": told.by_operator(),
        "group": told.by_group(),
        "phase": told.by_phase(),
        "module": told.by_module(),
    }


def watched(
    launch: Callable[[], Any],
    *,
    collectives: str = "summed",
    after: Callable[[Any], Any] = lambda out: None,
    **given: Any,
) -> dict[str, Any]:
    """All that is told when a module of a model launches something in a step.

    Args:
        launch: what it launches; a work that it returns is waited for.
        collectives: the tracker's mode.
        after: called with the module's output, in the step.
        given: for the provider.
    """
    net, recorded = Net(), Recorded(**given)
    with ModTracker(net, tracer_provider=recorded.provider, collectives=collectives) as tracker:
        with tracker.step(0):
            after(net(functools.partial(finished, launch)))
        inside = answers(tracker)
    found = answers(tracker)
    assert found == inside  # leaving changes nothing
    return {**found, "spans": recorded.told()}


def finished(launch: Callable[[], Any]) -> Any:
    """Launch, and wait for what is returned."""
    found = launch()
    if isinstance(found, c10d.Work):
        found.wait()
        return None
    if isinstance(found, torch.Future):
        found.wait()
        return None
    if isinstance(found, functional.AsyncCollectiveTensor):
        return found.wait()
    if isinstance(found, list):
        for one in found:
            finished(functools.partial(_same, one))
        return None
    return found


def _same(value: Any) -> Any:
    return value


def operation(function: Callable[[], Any]) -> Callable[[], Any]:
    """Make a case of what launches an operation."""

    def one(world: int) -> dict[str, Any]:
        meet()  # who receives from any source gets nothing of the next case
        return watched(function)

    one.__name__ = function.__name__
    case(one)
    return function


def both(function: Callable[[bool], Any]) -> Callable[[bool], Any]:
    """Make two cases of it: called with False (`name`) and with True (`name_async`)."""
    for asynchronous in (False, True):
        one = functools.partial(function, asynchronous)
        one.__name__ = function.__name__ + "_async" * asynchronous  # type: ignore[attr-defined]
        operation(one)
    return function


def differentiated(function: Callable[[], Any]) -> Callable[[], Any]:
    """Make a case of it whose output is differentiated after the forward."""

    def backward(out: torch.Tensor) -> None:
        (out * torch.ones_like(out)).sum().backward()

    def one(world: int) -> dict[str, Any]:
        return watched(function, after=backward)

    one.__name__ = function.__name__
    case(one)
    return function


_meetings = itertools.count()


def meet() -> None:
    """Wait until all processes are here, by no collective.

    So that none destroys a group while another is still connecting.
    """
    store, key = c10d._get_default_store(), f"meeting {next(_meetings)}"
    if store.add(key, 1) == world_size():
        store.set(f"{key}: all", "here")
    store.wait([f"{key}: all"])


def rank() -> int:
    """Of this process."""
    return dist.get_rank()


def world_size() -> int:
    """Number of processes."""
    return dist.get_world_size()


def ones(*shape: int, **given: Any) -> torch.Tensor:
    """A tensor to send or receive."""
    return torch.ones(*shape, **given)


def several(*shape: int) -> list[torch.Tensor]:
    """One tensor for each process."""
    return [ones(*shape) for _ in range(world_size())]


def growing() -> list[int]:
    """1, 2, ... for each process: what this one sends to each in uneven exchanges."""
    return [number + 1 for number in range(world_size())]


def equal() -> list[int]:
    """What this process gets from each in uneven exchanges."""
    return [rank() + 1] * world_size()


# -- c10d, synchronous and not --------------------------------------------------------------------


@both
def all_reduce(asynchronous: bool) -> Any:
    """4 elements."""
    return dist.all_reduce(ones(4), async_op=asynchronous)


@both
def broadcast(asynchronous: bool) -> Any:
    """4 elements, from rank 1."""
    return dist.broadcast(ones(4), 1, async_op=asynchronous)


@both
def reduce(asynchronous: bool) -> Any:
    """4 elements, to rank 1."""
    return dist.reduce(ones(4), 1, async_op=asynchronous)


@both
def all_gather(asynchronous: bool) -> Any:
    """4 elements of each, into a list."""
    return dist.all_gather(several(4), ones(4), async_op=asynchronous)


@both
def all_gather_into_tensor(asynchronous: bool) -> Any:
    """4 elements of each, into one tensor."""
    return dist.all_gather_into_tensor(ones(4 * world_size()), ones(4), async_op=asynchronous)


@both
def all_gather_coalesced(asynchronous: bool) -> Any:
    """4 and 2 elements of each; deprecated."""
    out = [[ones(4), ones(2)] for _ in range(world_size())]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return dist.all_gather_coalesced(out, [ones(4), ones(2)], async_op=asynchronous)


@both
def all_reduce_coalesced(asynchronous: bool) -> Any:
    """4 and 2 elements; deprecated."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return dist.all_reduce_coalesced([ones(4), ones(2)], async_op=asynchronous)


@both
def reduce_scatter(asynchronous: bool) -> Any:
    """4 elements for each, from a list."""
    return dist.reduce_scatter(ones(4), several(4), async_op=asynchronous)


@both
def reduce_scatter_tensor(asynchronous: bool) -> Any:
    """4 elements for each, from one tensor."""
    return dist.reduce_scatter_tensor(ones(4), ones(4 * world_size()), async_op=asynchronous)


if HAS_ALL_TO_ALL:

    @both
    def all_to_all(asynchronous: bool) -> Any:
        """4 elements for each, as lists."""
        return dist.all_to_all(several(4), several(4), async_op=asynchronous)


@both
def all_to_all_single(asynchronous: bool) -> Any:
    """4 elements for each, as one tensor."""
    size = 4 * world_size()
    return dist.all_to_all_single(ones(size), ones(size), async_op=asynchronous)


@both
def all_to_all_single_uneven(asynchronous: bool) -> Any:
    """1 element for rank 0, 2 for rank 1, ..., as one tensor."""
    put, got = growing(), equal()
    return dist.all_to_all_single(ones(sum(got)), ones(sum(put)), got, put, async_op=asynchronous)


@both
def gather(asynchronous: bool) -> Any:
    """4 elements of each, at rank 1."""
    return dist.gather(ones(4), several(4) if rank() == 1 else None, dst=1, async_op=asynchronous)


@both
def scatter(asynchronous: bool) -> Any:
    """4 elements for each, from rank 1."""
    return dist.scatter(ones(4), several(4) if rank() == 1 else None, src=1, async_op=asynchronous)


@both
def barrier(asynchronous: bool) -> Any:
    """Nothing is sent."""
    return dist.barrier(async_op=asynchronous)


@operation
def monitored_barrier() -> None:
    """Nothing is sent, and the default device does not matter."""
    dist.monitored_barrier()


def _coalesced(asynchronous: bool, *launches: Callable[[], Any]) -> None:
    with c10d._coalescing_manager(async_ops=asynchronous) as manager:
        for launch in launches:
            launch()
    if asynchronous:
        manager.wait()


@both
def coalescing_manager_all_reduce(asynchronous: bool) -> None:
    """4 and 2 elements."""
    _coalesced(asynchronous, lambda: dist.all_reduce(ones(4)), lambda: dist.all_reduce(ones(2)))


@both
def coalescing_manager_all_gather(asynchronous: bool) -> None:
    """4 and 2 elements of each."""
    size = world_size()
    _coalesced(
        asynchronous,
        lambda: dist.all_gather_into_tensor(ones(4 * size), ones(4)),
        lambda: dist.all_gather_into_tensor(ones(2 * size), ones(2)),
    )


@both
def coalescing_manager_reduce_scatter(asynchronous: bool) -> None:
    """4 and 2 elements for each."""
    size = world_size()
    _coalesced(
        asynchronous,
        lambda: dist.reduce_scatter_tensor(ones(4), ones(4 * size)),
        lambda: dist.reduce_scatter_tensor(ones(2), ones(2 * size)),
    )


@operation
def process_group_itself() -> Any:
    """Called without `torch.distributed`'s functions."""
    return dist.group.WORLD.allreduce([ones(4)])


# -- point to point -------------------------------------------------------------------------------


@operation
def send_recv() -> None:
    """4 elements from rank 0 to rank 1."""
    if rank() == 0:
        dist.send(ones(4), 1)
    elif rank() == 1:
        got = torch.zeros(4)
        assert dist.recv(got, 0) == 0
        assert got.eq(1).all()


@operation
def isend_irecv() -> Any:
    """4 elements from rank 0 to rank 1."""
    if rank() == 0:
        return dist.isend(ones(4), 1)
    return dist.irecv(ones(4), 0) if rank() == 1 else None


@operation
def recv_any_source() -> None:
    """4 elements from rank 1 to rank 0, which does not say from whom."""
    if rank() == 1:
        dist.send(ones(4), 0)
    elif rank() == 0:
        got = torch.zeros(4)
        assert dist.recv(got) == 1
        assert got.eq(1).all()


@operation
def irecv_any_source() -> Any:
    """The same, not waiting."""
    if rank() == 1:
        return dist.isend(ones(4), 0)
    return dist.irecv(ones(4)) if rank() == 0 else None


@operation
def batch_isend_irecv() -> Any:
    """Each rank sends as many elements as its number plus one to the next."""
    size = world_size()
    after, before = (rank() + 1) % size, (rank() - 1) % size
    return dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, ones(rank() + 1), after),
            dist.P2POp(dist.irecv, ones(before + 1), before),
        ]
    )


# -- objects: pickled, `bytes` of n < 256 are n + 15 bytes ----------------------------------------


def blob(number: int) -> bytes:
    """An object of 25, 35, 45, ... bytes when pickled."""
    return b"x" * 10 * (number + 1)


@operation
def all_gather_object() -> None:
    """25 bytes from rank 0, 35 from rank 1, ..."""
    got: list[Any] = [None] * world_size()
    dist.all_gather_object(got, blob(rank()))
    assert got == [blob(number) for number in range(world_size())]


@operation
def broadcast_object_list() -> None:
    """25 and 35 bytes from rank 1."""
    objects = [blob(0), blob(1)] if rank() == 1 else [None, None]
    dist.broadcast_object_list(objects, 1)
    assert objects == [blob(0), blob(1)]


@operation
def gather_object() -> None:
    """25 bytes from rank 0, 35 from rank 1, ..., at rank 1."""
    got: list[Any] | None = [None] * world_size() if rank() == 1 else None
    dist.gather_object(blob(rank()), got, 1)
    assert got is None or got == [blob(number) for number in range(world_size())]


@operation
def scatter_object_list() -> None:
    """25 bytes for rank 0, 35 for rank 1, ..., from rank 1."""
    got: list[Any] = [None]
    put = [blob(number) for number in range(world_size())] if rank() == 1 else None
    dist.scatter_object_list(got, put, 1)
    assert got == [blob(rank())]


@operation
def send_object_list() -> None:
    """25 and 35 bytes from rank 0 to rank 1."""
    if rank() == 0:
        dist.send_object_list([blob(0), blob(1)], 1)
    elif rank() == 1:
        got: list[Any] = [None, None]
        dist.recv_object_list(got, 0)
        assert got == [blob(0), blob(1)]


# -- kinds of tensors, and modes ------------------------------------------------------------------


@operation
def no_grad() -> None:
    """4 elements."""
    with torch.no_grad():
        dist.all_reduce(ones(4))


@operation
def inference_mode() -> None:
    """4 elements, of a tensor that autograd cannot know."""
    with torch.inference_mode():
        dist.all_reduce(ones(4))


@operation
def complex_numbers() -> None:
    """4 complex elements; torch sends them as 8 real ones."""
    dist.all_reduce(ones(4, dtype=torch.complex64))


@operation
def bfloat16() -> None:
    """4 elements."""
    dist.all_reduce(ones(4, dtype=torch.bfloat16))


@operation
def int64() -> None:
    """4 elements."""
    dist.all_reduce(ones(4, dtype=torch.int64), op=dist.ReduceOp.MAX)


@operation
def boolean() -> None:
    """4 elements."""
    dist.broadcast(ones(4, dtype=torch.bool), 0)


@operation
def no_dimension() -> None:
    """One element."""
    dist.all_reduce(torch.tensor(1.0))


@operation
def no_elements() -> None:
    """An empty tensor."""
    dist.all_reduce(ones(0))


@operation
def no_elements_gathered() -> None:
    """An empty tensor of each."""
    dist.all_gather_into_tensor(ones(0), ones(0))


@operation
def strided() -> None:
    """8 elements of a matrix that has 16."""
    dist.all_reduce(ones(4, 4).t()[:2])


@operation
def sparse() -> None:
    """2 elements of 1,000, with an index of 8 bytes each."""
    dist.all_reduce(torch.sparse_coo_tensor([[0, 2]], [1.0, 2.0], (1000,)))


@operation
def parameter() -> None:
    """4 elements that require a gradient."""
    with torch.no_grad():
        dist.broadcast(nn.Parameter(ones(4)), 0)


@operation
def two_dtypes() -> None:
    """4 elements of 4 bytes and 4 of 2, one operation each."""
    dist.all_reduce(ones(4))
    dist.all_reduce(ones(4, dtype=torch.bfloat16))


@operation
def three_operations() -> None:
    """Two all-reduces with a broadcast in between."""
    dist.all_reduce(ones(4))
    dist.broadcast(ones(2), 0)
    dist.all_reduce(ones(8))


# -- functional collectives -----------------------------------------------------------------------


@operation
def functional_all_reduce() -> Any:
    """4 elements."""
    return functional.all_reduce(ones(4), "sum", dist.group.WORLD)


@operation
def functional_all_reduce_coalesced() -> Any:
    """4 and 2 elements."""
    return functional.all_reduce_coalesced([ones(4), ones(2)], "sum", dist.group.WORLD)


@operation
def functional_all_gather() -> Any:
    """4 elements of each."""
    return all_gather_single(ones(4), 0, dist.group.WORLD)


@operation
def functional_all_gather_columns() -> Any:
    """2 by 3 elements of each, along the second dimension."""
    return all_gather_single(ones(2, 3), 1, dist.group.WORLD).sum()


@operation
def functional_all_gather_coalesced() -> Any:
    """4 and 2 elements of each."""
    return all_gather_single_coalesced([ones(4), ones(2)], dist.group.WORLD)


@operation
def functional_reduce_scatter() -> Any:
    """4 elements for each."""
    return reduce_scatter_single(ones(4 * world_size()), "sum", 0, dist.group.WORLD)


@operation
def functional_reduce_scatter_coalesced() -> Any:
    """4 and 2 elements for each."""
    tensors = [ones(4 * world_size()), ones(2 * world_size())]
    return reduce_scatter_single_coalesced(tensors, "sum", [0, 0], dist.group.WORLD)


@operation
def functional_all_to_all() -> Any:
    """4 elements for each."""
    return functional.all_to_all_single(ones(4 * world_size()), None, None, dist.group.WORLD)


@operation
def functional_all_to_all_uneven() -> Any:
    """1 element for rank 0, 2 for rank 1, ..."""
    put, got = growing(), equal()
    return functional.all_to_all_single(ones(sum(put)), got, put, dist.group.WORLD)


@operation
def functional_broadcast() -> Any:
    """4 elements from rank 1."""
    return functional.broadcast(ones(4), 1, dist.group.WORLD)


@operation
def functional_permute() -> Any:
    """4 elements to the next rank."""
    after = [(number + 1) % world_size() for number in range(world_size())]
    return functional.permute_tensor(ones(4), after, dist.group.WORLD)


@operation
def functional_all_reduce_inplace() -> None:
    """4 elements."""
    functional.all_reduce_inplace(ones(4))


@operation
def functional_all_gather_inplace() -> None:
    """4 elements of each, into a list."""
    functional.all_gather_inplace(several(4), ones(4))


@operation
def functional_all_gather_tensor_inplace() -> None:
    """4 elements of each."""
    functional.all_gather_tensor_inplace(ones(4 * world_size()), ones(4))


@operation
def functional_reduce_scatter_tensor_inplace() -> None:
    """4 elements for each."""
    functional.reduce_scatter_tensor_inplace(ones(4), ones(4 * world_size()))


@operation
def functional_all_to_all_inplace() -> None:
    """4 elements for each."""
    functional.all_to_all_inplace(ones(4 * world_size()), ones(4 * world_size()))


def _op(name: str, *given: Any, **named: Any) -> Any:
    found = getattr(torch.ops._c10d_functional, name)(*given, **named)
    wait = torch.ops._c10d_functional.wait_tensor
    return [wait(one) for one in found] if isinstance(found, list) else wait(found)


def _name() -> str:
    return dist.group.WORLD.group_name


@operation
def operator_all_reduce_() -> None:
    """4 elements, by the operator that compiled code calls."""
    _op("all_reduce_", ones(4), "sum", _name())


@operation
def operator_all_reduce_coalesced_() -> None:
    """4 and 2 elements."""
    _op("all_reduce_coalesced_", [ones(4), ones(2)], "sum", _name())


@operation
def operator_broadcast_() -> None:
    """4 elements from rank 1."""
    _op("broadcast_", ones(4), 1, _name())


@operation
def operator_all_gather_into_tensor_out() -> None:
    """4 elements of each."""
    size = world_size()
    _op("all_gather_into_tensor_out", ones(4), size, _name(), out=ones(4 * size))


@operation
def operator_autograd_all_gather() -> None:
    """4 elements of each, by the operator that torch 2.15 has for the sake of old programs."""
    gathered = torch.ops._c10d_functional_autograd.all_gather_into_tensor(
        ones(4), world_size(), _name()
    )
    torch.ops._c10d_functional.wait_tensor(gathered)


@operation
def operator_of_old_programs() -> None:
    """4 elements, by an operator of the namespace ``c10d_functional``."""
    old = torch.ops.c10d_functional
    old.wait_tensor(old.all_reduce(ones(4), "sum", "", list(range(world_size())), world_size()))


if HAS_FUNCTIONAL_P2P:

    @operation
    def operator_reduce_scatter_tensor_out() -> None:
        """4 elements for each."""
        size = world_size()
        _op("reduce_scatter_tensor_out", ones(4 * size), "sum", size, _name(), out=ones(4))

    @operation
    def functional_reduce_scatter_inplace() -> None:
        """4 elements for each, from a list."""
        functional.reduce_scatter_inplace(ones(4), several(4))

    @operation
    def functional_isend_irecv() -> Any:
        """4 elements from rank 0 to rank 1."""
        if rank() == 0:
            return functional.isend_inplace(ones(4), 1)
        return functional.irecv_inplace(ones(4), 0) if rank() == 1 else None

    @operation
    def functional_batch() -> Any:
        """4 elements to the next rank."""
        size = world_size()
        return functional.batch_p2p_ops_inplace(
            ["isend", "irecv"],
            [(rank() + 1) % size, (rank() - 1) % size],
            [0, 0],
            [ones(4), ones(4)],
            dist.group.WORLD,
        )


# -- with a backward ------------------------------------------------------------------------------


@differentiated
def backward_all_gather() -> Any:
    """4 elements of each; back, their gradients are reduced and scattered."""
    x = ones(4, requires_grad=True)
    return all_gather_single_autograd(x, 0, dist.group.WORLD) * 2


@differentiated
def backward_reduce_scatter() -> Any:
    """4 elements for each; back, their gradients are gathered."""
    x = ones(4 * world_size(), requires_grad=True)
    return reduce_scatter_single_autograd(x, "sum", 0, dist.group.WORLD) * 2


@differentiated
def backward_all_to_all() -> Any:
    """1 element for rank 0, 2 for rank 1, ...; back, the other way."""
    put, got = growing(), equal()
    x = ones(sum(put), requires_grad=True)
    return functional.all_to_all_single_autograd(x, got, put, dist.group.WORLD) * 2


if HAS_DIFFERENTIABLE_ALL_REDUCE:

    @differentiated
    def backward_all_reduce() -> Any:
        """4 elements, and their gradients."""
        x = ones(4, requires_grad=True)
        return functional.all_reduce(x, "sum", dist.group.WORLD) * 2

    @differentiated
    def backward_all_reduce_coalesced() -> Any:
        """4 and 2 elements, and their gradients."""
        xs = [ones(4, requires_grad=True), ones(2, requires_grad=True)]
        out = functional.all_reduce_coalesced(xs, "sum", dist.group.WORLD)
        return torch.cat([one * 2 for one in out])

    @differentiated
    def backward_all_gather_coalesced() -> Any:
        """4 and 2 elements of each, and their gradients."""
        xs = [ones(4, requires_grad=True), ones(2, requires_grad=True)]
        out = all_gather_single_coalesced(xs, dist.group.WORLD)
        return torch.cat([one * 2 for one in out])

    @differentiated
    def backward_reduce_scatter_coalesced() -> Any:
        """4 and 2 elements for each, and their gradients."""
        size = world_size()
        xs = [ones(4 * size, requires_grad=True), ones(2 * size, requires_grad=True)]
        out = reduce_scatter_single_coalesced(xs, "sum", [0, 0], dist.group.WORLD)
        return torch.cat([one * 2 for one in out])


@differentiated
def backward_nn_all_reduce() -> Any:
    """4 elements, and their gradients, by `torch.distributed.nn`."""
    return differentiable.all_reduce(ones(4, requires_grad=True)) * 2


@differentiated
def backward_nn_broadcast() -> Any:
    """4 elements from rank 1; back, their gradients are reduced."""
    return differentiable.broadcast(ones(4, requires_grad=True), 1) * 2


@differentiated
def backward_nn_all_to_all_single() -> Any:
    """4 elements for each; back, the other way."""
    size = 4 * world_size()
    x = ones(size, requires_grad=True)
    return differentiable.all_to_all_single(torch.empty(size), x) * 2


# -- DTensor: 8 by 8 elements, 256 bytes ----------------------------------------------------------


@functools.cache
def mesh() -> Any:
    """All processes in one dimension."""
    return init_device_mesh("cpu", (world_size(),))


@functools.cache
def sharded() -> DTensor:
    """Rows over all processes."""
    return distribute_tensor(ones(8, 8), mesh(), [Shard(0)])


@functools.cache
def partial() -> DTensor:
    """A sum of one matrix of each process."""
    return DTensor.from_local(ones(8, 8), mesh(), [Partial()])


def _redistributed(tensor: DTensor, placement: Any) -> None:
    tensor.redistribute(placements=[placement]).to_local().sum()


@case
def dtensor_prepare(world: int) -> None:
    """Not a test: makes the tensors, which takes collectives of its own."""
    sharded()
    partial()


@operation
def dtensor_distribute() -> None:
    """Rows go from rank 0 to all."""
    distribute_tensor(ones(8, 8), mesh(), [Shard(0)])


@operation
def dtensor_shard_to_replicate() -> None:
    """All rows to all."""
    _redistributed(sharded(), Replicate())


@operation
def dtensor_shard_to_shard() -> None:
    """Rows to columns; on CPU torch gathers for it."""
    _redistributed(sharded(), Shard(1))


@operation
def dtensor_partial_to_replicate() -> None:
    """The sum to all."""
    _redistributed(partial(), Replicate())


@operation
def dtensor_partial_to_shard() -> None:
    """Rows of the sum to each."""
    _redistributed(partial(), Shard(0))


@operation
def dtensor_mm() -> None:
    """A product of two matrices with rows here and there: one of them must be gathered."""
    torch.mm(sharded(), sharded()).to_local().sum()


@operation
def dtensor_full_tensor() -> None:
    """All rows to all."""
    sharded().full_tensor().sum()


@case
def dtensor_placements(world: int) -> dict[str, Any]:
    """A redistribution, told by itself."""
    return watched(dtensor_shard_to_replicate, collectives="each")


# -- process groups -------------------------------------------------------------------------------


@case
def groups(world: int) -> dict[str, Any]:
    """Groups made before and inside tracking, by all roads; and used after it."""
    net, recorded = Net(), Recorded()
    made = {"before": dist.new_group(group_desc="made before")}
    tracker = ModTracker(net, tracer_provider=recorded.provider)
    with tracker, tracker.step(0):
        made["inside"] = dist.new_group(group_desc="made inside")
        square = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("rows", "columns"))
        made["rows"], made["columns"] = square.get_group("rows"), square.get_group("columns")
        if HAS_SPLIT_GROUP:
            pairs = [[first, first + 1] for first in range(0, world, 2)]
            made["split"] = dist.split_group(split_ranks=pairs)

        def launch() -> None:
            for number, group in enumerate(made.values()):
                for _ in range(number + 1):
                    dist.all_reduce(ones(4), group=group)

        net(launch)
    inside = answers(tracker)
    made["after"] = dist.new_group()
    launch()
    assert answers(tracker) == inside
    return {
        **inside,
        "spans": recorded.told(),
        "names": {key: group.group_name for key, group in made.items()},
        "sizes": {key: group.size() for key, group in made.items()},
        "descriptions": {key: group.group_desc for key, group in made.items()},
    }


@case
def subgroup(world: int) -> dict[str, Any]:
    """A group of ranks 0 and 1, that the others know of and are not in."""
    group = dist.new_group([0, 1], group_desc="two")

    def launch() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that this rank is not in the group
            dist.all_reduce(ones(4), group=group)

    found = watched(launch)
    found["name"] = group.group_name if rank() < 2 else None
    return found


@case
def group_destroyed_inside(world: int) -> dict[str, Any]:
    """A group that comes and goes while tracking is on."""

    def gone() -> bool:
        group = dist.new_group()
        dist.all_reduce(ones(4), group=group)
        ref = weakref.ref(group)
        meet()
        dist.destroy_process_group(group)
        del group
        return ref() is None

    without = gone()
    with ModTracker(collectives="each") as tracker:
        within = gone()
        for _ in range(20):
            gone()
        found = {
            "without": without,
            "within": within,
            "total": tracker.collectives.total,
            "names": len(tracker.collectives.by_group()),
        }
        inside = entries()
        found["no more than live"] = max(inside.values()) <= len(c10d._world.pg_map)
    after = entries()
    found["hooked after"] = after["hooked"]
    found["no more after"] = after["described"] <= len(c10d._world.pg_map)
    return found


def entries() -> dict[str, int]:
    """How many groups we have entries of: descriptions, and hooks."""
    found = {"described": 0, "hooked": 0}
    for one in gc.get_objects():
        if isinstance(one, Groups):
            found["described"] = max(found["described"], len(one._known), len(one._refs))
        elif isinstance(one, HookWay):
            found["hooked"] = max(found["hooked"], len(one._groups), len(one._after))
    return found


@case
def group_destroyed_outside(world: int) -> bool:
    """A group made before and destroyed after tracking is not held either."""
    group = dist.new_group()
    with ModTracker() as tracker:
        dist.all_reduce(ones(4), group=group)
    ref = weakref.ref(group)
    meet()
    dist.destroy_process_group(group)
    del group
    assert tracker.collectives.total == 1
    return ref() is None


@case
def group_made_by_another_thread(world: int) -> dict[str, Any]:
    """A group that a thread makes while tracking is on."""
    made = []

    def make() -> None:
        made.append(dist.new_group())

    with ModTracker() as tracker:
        in_thread(make)
        dist.all_reduce(ones(4), group=made[0])
    return {**answers(tracker), "name": made[0].group_name}


# -- where it is launched -------------------------------------------------------------------------


def in_thread(function: Callable[[], Any]) -> None:
    """Run it in a thread, to its end."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            function()
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]


@case
def thread_without_module(world: int) -> dict[str, Any]:
    """A thread of the forward's launches: it is in no module."""
    return watched(lambda: in_thread(all_reduce_4))


def all_reduce_4() -> None:
    """4 elements."""
    dist.all_reduce(ones(4))


@case
def thread_with_module(world: int) -> dict[str, Any]:
    """A thread calls the model: what it launches is the module's."""
    net, recorded = Net(), Recorded()
    with ModTracker(net, tracer_provider=recorded.provider) as tracker, tracker.step(0):
        in_thread(lambda: net(all_reduce_4))
    return {**answers(tracker), "spans": recorded.told()}


@case
def several_threads(world: int) -> dict[str, Any]:
    """Two threads launch at the same time, each in a group of its own, many times."""
    net = Net()
    pair = [dist.new_group(), dist.new_group()]

    def run(group: Any) -> None:
        for _ in range(200):
            net(lambda: dist.all_reduce(ones(4), group=group))

    with ModTracker(net) as tracker:
        threads = [threading.Thread(target=run, args=(group,)) for group in pair]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return {**answers(tracker), "names": [group.group_name for group in pair]}


@case
def places(world: int) -> dict[str, Any]:
    """In no step, in a step, in a named region, in a module, in a backward hook."""
    net, recorded = Net(), Recorded()

    def launch() -> torch.Tensor:
        x = ones(2, requires_grad=True) * 2
        x.register_hook(lambda grad: dist.broadcast(ones(4), 0))
        return x

    with ModTracker(net, tracer_provider=recorded.provider) as tracker:
        dist.barrier()
        with tracker.step(0):
            dist.all_reduce(ones(1))
            with region("loss"):
                dist.all_reduce(ones(2))
                net(lambda: dist.all_reduce(ones(3)))
            net(launch).sum().backward()
            dist.all_reduce(ones(5))
        dist.barrier()
    step = recorded.named("train_step").attributes or {}
    return {
        **answers(tracker),
        "spans": recorded.told(),
        "step": {key: step.get(f"modtrack.{key}") for key in ("rank", "world_size", "local_rank")},
    }


class Averaging(torch.optim.SGD):
    """An optimizer that averages gradients itself."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for one in group["params"]:
                dist.all_reduce(one.grad)
        return super().step(closure)


@case
def optimizer(world: int) -> dict[str, Any]:
    """An optimizer launches."""
    net, recorded = nn.Linear(3, 1), Recorded()
    averaging = Averaging(net.parameters(), lr=0.1)
    with ModTracker(net, tracer_provider=recorded.provider) as tracker, tracker.step(0):
        net(ones(1, 3)).sum().backward()
        averaging.step()
    return {**answers(tracker), "spans": recorded.told()}


class Checkpointed(nn.Module):
    """Runs `Inner` again in the backward."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner()

    def forward(self, launch: Callable[[], Any]) -> Any:
        return checkpoint(self.inner, launch, use_reentrant=False)


@case
def recomputed(world: int) -> dict[str, Any]:
    """A checkpointed module launches, and launches again when it is run again."""
    net, recorded = Checkpointed(), Recorded()
    x = ones(2, requires_grad=True)

    def launch() -> torch.Tensor:
        all_reduce_4()
        return x * x

    with ModTracker(net, tracer_provider=recorded.provider) as tracker, tracker.step(0):
        net(launch).sum().backward()
    return {**answers(tracker), "spans": recorded.told()}


@case
def no_step(world: int) -> dict[str, Any]:
    """A module called in no step: the event is on its span all the same."""
    net, recorded = Net(), Recorded()
    with ModTracker(net, tracer_provider=recorded.provider) as tracker:
        net(all_reduce_4)
    return {**answers(tracker), "spans": recorded.told()}


@case
def no_model(world: int) -> dict[str, Any]:
    """A tracker that was not told the model."""
    net, recorded = Net(), Recorded()
    with ModTracker(tracer_provider=recorded.provider) as tracker, tracker.step(0):
        net(all_reduce_4)
    return {**answers(tracker), "spans": recorded.told()}


@case
def no_provider(world: int) -> dict[str, Any]:
    """Without any OpenTelemetry provider."""
    net = Net()
    with ModTracker(net) as tracker:
        net(all_reduce_4)
        with tracker.step(0):
            net(all_reduce_4)
    return answers(tracker)


@case
def unsampled_step(world: int) -> dict[str, Any]:
    """The sampler says no: no spans, and all is counted."""
    return watched(all_reduce_4, sampler=sampling.ALWAYS_OFF)


@case
def unsampled_request(world: int) -> dict[str, Any]:
    """The request around the forward is not sampled."""
    net, recorded = Net(), Recorded()
    context = trace.SpanContext(1, 2, is_remote=True, trace_flags=trace.TraceFlags(0))
    with (
        ModTracker(net, tracer_provider=recorded.provider) as tracker,
        trace.use_span(trace.NonRecordingSpan(context)),
    ):
        net(all_reduce_4)
    return {**answers(tracker), "spans": recorded.told(), "exported": len(recorded.spans)}


@case
def refused(world: int) -> dict[str, Any]:
    """An operation that gloo refuses: the user sees what gloo says."""
    said = []

    def launch() -> None:
        for _ in range(2):
            try:
                dist.gather(
                    ones(4, dtype=torch.complex64),
                    [ones(4, dtype=torch.complex64) for _ in range(world)] if rank() == 0 else None,
                )
            except RuntimeError as error:
                said.append(str(error).split("\n", maxsplit=1)[0])

    launch()
    found = watched(launch)
    return {**found, "same": len(said) == 4 and len(set(said)) == 1}


class Seen(TorchDispatchMode):
    """A mode of the user's: the operators that it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


class SeenFunctions(torch.overrides.TorchFunctionMode):
    """A mode of the user's: the functions that it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(getattr(func, "__qualname__", str(func)))
        return func(*args, **(kwargs or {}))


@case
def modes_of_the_users(world: int) -> dict[str, Any]:
    """Modes of the user's see the same operators and functions with tracking as without."""

    def seen() -> list[list[str]]:
        with Seen() as operators, SeenFunctions() as functions:
            for launch in (all_reduce_4, sparse, all_gather_object, functional_all_reduce, barrier):
                finished(functools.partial(launch, *[False] * (launch is barrier)))
        return [operators.names, functions.names]

    without = seen()
    found: dict[str, Any] = {"some": all(without)}
    for mode in ("summed", "each"):
        with ModTracker(collectives=mode) as tracker:
            within = seen()
        found[mode] = within == without or [
            [name for name in now if name not in before]
            for now, before in zip(within, without, strict=True)
        ]
        found[f"{mode}, total"] = tracker.collectives.total
    return found


if HAS_HOOKS:

    @case
    def hooks_of_the_users(world: int) -> dict[str, Any]:
        """Hooks of the user's on a process group fire as without us, and stay (torch 2.14)."""
        group = dist.new_group()
        fired: list[str] = []
        group.register_pre_hook(1, lambda _: fired.append("before pre"))
        group.register_post_hook(1, lambda _: fired.append("before post"))
        with ModTracker(collectives="each") as tracker:
            group.register_pre_hook(2, lambda _: fired.append("inside pre"))
            dist.all_reduce(ones(4), group=group)
        inside, fired[:] = sorted(fired), []
        dist.all_reduce(ones(4), group=group)
        return {"inside": inside, "after": sorted(fired), "total": tracker.collectives.total}


@case
def debugged_group(world: int) -> dict[str, Any]:
    """A group that checks every collective with collectives of its own."""
    level = dist.get_debug_level()
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    try:
        group = dist.new_group(group_desc="debugged")
    finally:
        dist.set_debug_level(level)
    found = watched(lambda: dist.all_reduce(ones(4), group=group))
    return {**found, "name": group.group_name}


# -- trackers -------------------------------------------------------------------------------------


@case
def entered_again(world: int) -> list[Any]:
    """A tracker that is entered twice counts from its last entry."""
    net, recorded = Net(), Recorded()
    tracker = ModTracker(net, tracer_provider=recorded.provider)
    found = [answers(tracker)]
    with tracker:
        net(all_reduce_4)
        dist.barrier()
    found.append(answers(tracker))
    dist.barrier()
    found.append(answers(tracker))
    with tracker:
        found.append(answers(tracker))
        net(lambda: dist.broadcast(ones(2), 0))
    found.append(answers(tracker))
    return found


@case
def nested(world: int) -> dict[str, Any]:
    """The inner of two trackers counts what happens while it is on."""
    net, outside, inside = Net(), Recorded(), Recorded()
    with ModTracker(net, tracer_provider=outside.provider) as outer, outer.step(0):
        dist.barrier()
        with ModTracker(net, tracer_provider=inside.provider) as inner:
            net(all_reduce_4)
        dist.barrier()
    return {
        "outer": answers(outer),
        "inner": answers(inner),
        "spans": outside.told(),
        "inner spans": inside.told(),
    }


@case
def nested_left_out_of_order(world: int) -> list[int]:
    """The outer tracker is left first."""
    first, second = ModTracker(), ModTracker()
    first.__enter__()
    second.__enter__()
    all_reduce_4()
    first.__exit__(None, None, None)
    all_reduce_4()
    second.__exit__(None, None, None)
    all_reduce_4()
    return [first.collectives.total, second.collectives.total]


@case
def nested_modes(world: int) -> dict[str, Any]:
    """A tracker in mode "each" inside one in mode "summed"."""
    net, recorded = Net(), Recorded()

    def launch() -> None:
        for _ in range(3):
            all_reduce_4()

    totals = []
    for number, modes in enumerate((("summed", "each"), ("each", "summed"))):
        outer = ModTracker(net, tracer_provider=recorded.provider, collectives=modes[0])
        inner = ModTracker(net, collectives=modes[1])
        with outer, outer.step(number):
            net(launch)
            with inner:
                net(launch)
            net(launch)
        totals.append([outer.collectives.total, inner.collectives.total])
    counts = [
        sum(event["count"] for event in collective_events(span))
        for span in recorded.spans
        if label_of(span) == "forward Net.inner"
    ]
    return {"totals": totals, "counts": counts}


@case
def one_of_two_off(world: int) -> dict[str, Any]:
    """Of two trackers one does not want to know of collectives, in both orders."""
    found = {}
    for outer_mode, inner_mode in (("off", "summed"), ("summed", "off")):
        net = Net()
        with (
            ModTracker(net, collectives=outer_mode) as outer,
            ModTracker(net, collectives=inner_mode) as inner,
        ):
            net(all_reduce_4)
        found[outer_mode, inner_mode] = [outer.collectives.total, inner.collectives.total]
    return {" in ".join(reversed(key)): totals for key, totals in found.items()}


@case
def off(world: int) -> dict[str, Any]:
    """Mode "off" sees nothing."""
    return watched(all_reduce_4, collectives="off")


def dispatcher() -> str:
    """All kernels that torch's dispatcher has for collectives."""
    namespaces = ("c10d::", "_c10d_functional::", "_c10d_functional_autograd::", "_dtensor::")
    names = sorted(torch._C._dispatch_get_all_op_names())
    return "\n".join(torch._C._dispatch_dump(name) for name in names if name.startswith(namespaces))


def ran_of_ours(function: Callable[[], Any]) -> list[str]:
    """The functions of this library's that run while `function` does, on any thread."""
    found = set()

    def notice(frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_globals.get("__name__", "").startswith("otel_modtrack"):
            found.add(frame.f_code.co_qualname if sys.version_info >= (3, 11) else "ours")

    threading.setprofile(notice)
    sys.setprofile(notice)
    try:
        function()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    return sorted(found)


@case
def left(world: int) -> dict[str, Any]:
    """A tracker that was left: nothing of ours runs, nothing is registered."""
    groups_then = [dist.new_group(), dist.new_group()]
    dispatcher_before, register = dispatcher(), c10d._register_process_group

    def use() -> None:
        for group in (None, *groups_then):
            dist.all_reduce(ones(4), group=group)
            dist.all_gather_into_tensor(ones(4 * world), ones(4), group=group)
        dist.monitored_barrier()
        functional.all_reduce(ones(4), "sum", dist.group.WORLD).sum()
        group = dist.new_group()
        meet()
        dist.destroy_process_group(group)

    found: dict[str, Any] = {}
    for mode in ("summed", "each", "off"):
        with ModTracker(collectives=mode) as tracker:
            groups_then.append(dist.new_group())
            found[f"{mode}, inside"] = bool(ran_of_ours(use))
            use()
        total = tracker.collectives.total
        found[f"{mode}, after"] = ran_of_ours(use)
        found[f"{mode}, counted after"] = tracker.collectives.total - total
        found[f"{mode}, dispatcher"] = dispatcher() == dispatcher_before
        found[f"{mode}, groups"] = c10d._register_process_group is register
    return found


@case
def left_by_an_exception(world: int) -> dict[str, Any]:
    """The same, where the block that was tracked raises."""
    net, before = Net(), dispatcher()

    def launch() -> None:
        dist.all_reduce(ones(4))
        raise ZeroDivisionError

    tracker = ModTracker(net)
    try:
        with tracker:
            net(launch)
    except ZeroDivisionError:
        pass
    return {
        "total": tracker.collectives.total,
        "after": ran_of_ours(all_reduce_4),
        "dispatcher": dispatcher() == before,
    }


# -- mode "each" ----------------------------------------------------------------------------------


@case
def each(world: int) -> dict[str, Any]:
    """Every collective is an event of its own."""
    net, recorded = Net(), Recorded()
    times = []

    def launch() -> None:
        for number in range(1, 4):
            begun = time.time_ns()
            dist.all_reduce(ones(number, 2))
            times.append((begun, time.time_ns()))
        dist.all_gather_into_tensor(ones(4 * world), ones(4))
        dist.barrier()
        dist.all_reduce(ones(5), async_op=True).wait()

    with (
        ModTracker(net, tracer_provider=recorded.provider, collectives="each") as tracker,
        tracker.step(0),
    ):
        net(launch)
    span = recorded.named("forward Net.inner")
    stamps = [event.timestamp for event in span.events]
    events = [dict(event.attributes or {}) for event in span.events]
    durations = [event.pop("modtrack.collective.duration", None) for event in events]
    told = recorded.told()
    for event in told["forward Net.inner"]["events"]:
        event.pop("duration", None)
    return {
        **answers(tracker),
        "spans": told,
        "in order": stamps == sorted(stamps) and len(set(stamps)) == len(stamps),
        "in their time": [
            begun - 1_000_000 <= stamp <= ended + 1_000_000
            for (begun, ended), stamp in zip(times, stamps, strict=False)
        ],
        "durations": [
            one is None or (isinstance(one, float) and 0 <= one < 60) for one in durations
        ],
    }


@case
def each_tells_durations(world: int) -> list[bool]:
    """gloo says when a collective was done: on a thread of its own, maybe after who waits for it.

    So of a hundred, one after the other, the first twenty are looked at.
    """

    def launch() -> None:
        for _ in range(100):
            dist.all_reduce(ones(1000), async_op=True).wait()

    events = watched(launch, collectives="each")["spans"]["forward Net.inner"]["events"]
    return [isinstance(event.get("duration"), float) for event in events[:20]]


@case
def each_coalesced(world: int) -> dict[str, Any]:
    """One launch of several tensors is one event, with all their shapes."""
    return watched(functools.partial(coalescing_manager_all_reduce, False), collectives="each")


@case
def each_point_to_point(world: int) -> dict[str, Any]:
    """A receive has the shape of what it receives."""
    return watched(send_recv, collectives="each")


def _many(count: int, fail: bool = False, own_events: int = 0, **given: Any) -> dict[str, Any]:
    net, recorded = Net(), Recorded(**given)

    def launch() -> None:
        for number in range(count):
            if number % 100 == 0 and number < 100 * own_events:
                trace.get_current_span().add_event(f"mine {number}")
            if number % 3:
                dist.all_reduce(ones(number % 7))
            else:
                dist.broadcast(ones(2), 0)
        if fail:
            raise ZeroDivisionError

    tracker = ModTracker(net, tracer_provider=recorded.provider, collectives="each")
    try:
        with tracker, tracker.step(0):
            net(launch)
    except ZeroDivisionError:
        assert fail
    span = recorded.named("forward Net.inner")
    events = recorded.told()["forward Net.inner"]["events"]
    # The SDK gives no order to events of different makers.
    stamps = [one.timestamp for one in span.events if one.name == "modtrack.collective"]
    sums: dict[str, list[int]] = {}
    for event in events:
        entry = sums.setdefault(event["operation"], [0, 0])
        entry[0] += event["count"]
        entry[1] += event["size"]
    return {
        **answers(tracker),
        "events": len(span.events),
        "dropped": span.dropped_events,
        "single": sum(event["count"] == 1 and "operator" in event for event in events),
        "sums": sums,
        "others": [one.name for one in span.events if one.name != "modtrack.collective"],
        "in order": stamps == sorted(stamps),
        "attributes": {
            key: (span.attributes or {}).get(f"modtrack.collective.{key}")
            for key in ("count", "size")
        },
    }


@case
def each_128(world: int) -> dict[str, Any]:
    """As many as there is room for."""
    return _many(128)


@case
def each_300(world: int) -> dict[str, Any]:
    """More than there is room for."""
    return _many(300)


@case
def each_300_and_an_exception(world: int) -> dict[str, Any]:
    """The exception finds room."""
    return _many(300, fail=True)


@case
def each_300_and_events_of_the_users(world: int) -> dict[str, Any]:
    """The user's events find room."""
    return _many(300, own_events=3)


@case
def each_300_and_room_for_10(world: int) -> dict[str, Any]:
    """A provider whose spans have few events."""
    return _many(300, span_limits=SpanLimits(max_events=10))


@case
def each_300_and_room_for_1(world: int) -> dict[str, Any]:
    """A provider whose spans have one event."""
    return _many(300, span_limits=SpanLimits(max_events=1))


@case
def summed_300(world: int) -> dict[str, Any]:
    """The same, summed."""

    def launch() -> None:
        for number in range(300):
            if number % 3:
                dist.all_reduce(ones(number % 7))
            else:
                dist.broadcast(ones(2), 0)

    return watched(launch)


if __name__ == "__main__":
    main()
