"""Two processes that cannot tell from their results whether they are tracked.

Each program is run without a tracker and in each `Variant`; whatever it can see of its own must be
the same bit for bit: losses, gradients, parameters, optimizer states, random numbers, the graph,
warnings, and how many collectives its groups have launched. What differs is what the cases return.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import importlib
import logging
import os
import pickle
import random
import re
import shutil
import signal
import sys
import tempfile
import threading
import traceback
import warnings
import weakref
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np
import pytest
import torch
import torch._dynamo as dynamo
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.distributed.checkpoint as dcp
import torch.distributed.nn.functional as dist_nn
from chosen import KINDS, QUICK_PROGRAMS
from harness import case, main
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch._dynamo.utils import counters
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed import distributed_c10d as c10d
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointImpl,
    checkpoint_wrapper,
)
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    FullyShardedDataParallel,
    MixedPrecisionPolicy,
    ShardingStrategy,
    fully_shard,
)
from torch.distributed.optim import PostLocalSGDOptimizer, ZeroRedundancyOptimizer
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
)
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.parallel import DistributedDataParallel
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import otel_modtrack
from otel_modtrack import ModTracker
from otel_modtrack.activation import ACTIVATION
from otel_modtrack.comm.hooks import HookWay
from otel_modtrack.core import CORE
from otel_modtrack.testing import Tree
from tests.conftest import patched_state
from tests.intervals import check_intervals
from tests.same import generators, graph_of
from tests.tracker.test_faults import Interrupt, Late, clean_up, object_handler, plain_handler

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.distributed.pipelining.schedules import _PipelineSchedule

# What is left of a fault or an interruption is seen at once; recognised steps have tests of their
# own, tests/tracker/test_faults_in_steps.py.
os.environ["OTEL_PYTHON_MODTRACK_STEPS"] = "explicit"
ALONE = os.environ.get("WORLD_SIZE") == "1"
OURS = str(Path(otel_modtrack.__file__).parent)
ITERATIONS = 3
WIDTH = 8
CPU = torch.device("cpu")


# -- models ---------------------------------------------------------------------------------------


class Block(nn.Module):
    """A residual block of two layers, with random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.drop = nn.Dropout(0.25)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.b(self.drop(torch.relu(self.a(x))))


class Net(nn.Module):
    """Blocks, checkpointed if wanted (`reentrant` or not), one of them left out at times."""

    def __init__(self, *, reentrant: bool | None = None, norm: bool = False) -> None:
        super().__init__()
        self.inp = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.norm = nn.BatchNorm1d(WIDTH) if norm else nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 4)
        self.reentrant = reentrant
        self.left_out: int | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.inp(x)
        for number, block in enumerate(self.blocks):
            if number == self.left_out:
                continue
            if self.reentrant is None:
                x = block(x)
            else:
                x = checkpoint(block, x, use_reentrant=self.reentrant)
        return self.head(self.norm(x))


class MLP(nn.Module):
    """What tensor parallelism splits."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.drop = nn.Dropout(0.25)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.drop(self.down(torch.relu(self.up(x))))


# -- what is compared -----------------------------------------------------------------------------


def bits(value: Any) -> Any:
    """Tensors as bytes, in whatever they are packed; of a DTensor the part that is here."""
    if isinstance(value, DTensor):
        return str(value.placements), bits(value.to_local())
    if isinstance(value, torch.Tensor):
        flat = value.detach().reshape(-1).contiguous()
        data = flat.view(torch.uint8) if flat.numel() else flat
        return data.numpy().tobytes(), str(value.dtype), tuple(value.shape), value.requires_grad
    if isinstance(value, (list, tuple)):
        return [bits(one) for one in value]
    if isinstance(value, dict):
        return {str(key): bits(one) for key, one in value.items()}
    return value


def launched(since: dict[Any, int] | None = None) -> dict[Any, int]:
    """How many collectives the groups that live have launched, as their backends count them."""
    counts = {
        group: group._get_sequence_number_for_group()
        for group in list(dist.distributed_c10d._world.pg_map)
    }
    return {group: count - (since or {}).get(group, 0) for group, count in counts.items()}


class Log:
    """What a run of a program shows to its user, in order."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, Any]] = []

    def add(self, name: str, what: Any) -> None:
        """Note something that is to be the same."""
        self.seen.append((name, bits(what)))

    def differs(self, other: Log) -> str:
        """The first thing that is not the same in both, or ""."""
        for ours, theirs in zip(self.seen, other.seen, strict=False):
            if ours != theirs:
                return f"{ours[0]}: {shown_from_difference(str(ours), str(theirs))}"
        return "" if len(self.seen) == len(other.seen) else "another number of things"


def shown_from_difference(ours: str, theirs: str) -> str:
    """The two texts from a little before they part."""
    pairs = enumerate(zip(ours, theirs, strict=False))
    at = next((at for at, (one, other) in pairs if one != other), min(len(ours), len(theirs)))
    return f"{ours[max(at - 60, 0) : at + 200]!r} instead of {theirs[at : at + 200]!r}"


# -- variants -------------------------------------------------------------------------------------


class Variant(NamedTuple):
    """How a program is tracked.

    Attributes:
        collectives: the tracker's mode.
        provider: whether spans are exported.
        inside: what is built (groups, wrappers) is built while the tracker is on.
        steps: each iteration is a step.
        only: the tracker is on in this iteration alone.
    """

    collectives: str
    provider: bool
    inside: bool = False
    steps: bool = False
    only: int | None = None


VARIANTS = {
    "off": Variant("off", provider=True),
    "summed": Variant("summed", provider=False),
    "summed, spans, built inside": Variant("summed", provider=True, inside=True),
    "each": Variant("each", provider=False, inside=True),
    "each, spans, steps": Variant("each", provider=True, steps=True),
    "each, one iteration": Variant("each", provider=True, only=1),
}


# What these could change, others change in all programs: "summed, spans, built inside" does all
# that "off" does, and with "each, spans, steps" all that "each" does.
OF_KINDS = ("off", "each")
QUICK = (sys.argv[2:] or ["hooks"])[0] == "kernels" and HookWay.there()
if QUICK:
    VARIANTS = {name: VARIANTS[name] for name in ("summed", "each, spans, steps")}


class Kept:
    """A provider of the SDK's and what it exported."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))


class Complaints(logging.Handler):
    """What was said by the library."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(self.format(record))

    def __enter__(self) -> Complaints:  # noqa: PYI034 - no typing.Self in Python 3.10
        logging.getLogger("otel_modtrack").addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger("otel_modtrack").removeHandler(self)


# -- programs -------------------------------------------------------------------------------------


def pair(function: Callable[[int], Any]) -> Callable[[int], Any]:
    """Register a case for two processes."""
    return function if ALONE else case(function)


class Training:
    """A program that trains: what it calls, what is looked at, and one iteration.

    Args:
        call: gives the loss; it is called with the inputs and the targets.
        model: whose parameters and buffers are compared.
    """

    shape = (6, WIDTH)

    def __init__(self, model: nn.Module, optimizer: Any = None, loss: Any = None) -> None:
        self.model = model
        self.optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=0.05)
        self.loss = loss or (lambda x: model(x).pow(2).mean())

    def forward_backward(self, log: Log, number: int) -> None:
        """The loss and its gradients."""
        base = torch._C._autograd._get_sequence_nr()
        loss = self.loss(torch.randn(self.shape))
        log.add("loss", loss)
        log.add("graph", graph_of(loss, base))
        loss.backward()

    def iterate(self, log: Log, number: int) -> None:
        """One iteration of a user's loop."""
        self.forward_backward(log, number)
        log.add("gradients", [one.grad for one in self.model.parameters()])
        self.optimizer.step()
        self.optimizer.zero_grad()

    def finish(self, log: Log) -> None:
        """What is compared at the end."""
        log.add("model", self.model.state_dict())
        log.add("optimizer", self.optimizer.state)


def ddp(net: nn.Module, **options: Any) -> DistributedDataParallel:
    """DDP with several buckets."""
    return DistributedDataParallel(net, **{"bucket_cap_mb": 0.0005, **options})


PROGRAMS: dict[str, Callable[[], Any]] = {}


def program(make: Callable[[], Any]) -> Callable[[], Any]:
    """Register a program."""
    PROGRAMS[make.__name__] = make
    return make


@program
def ddp_plain() -> Training:
    """C++ reducer, several buckets, buffers that are broadcast."""
    return Training(ddp(Net(norm=True)))


@program
def ddp_views_no_buffers() -> Training:
    """Gradients are views of the buckets."""
    model = ddp(Net(norm=True), gradient_as_bucket_view=True, broadcast_buffers=False)
    return Training(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))


@program
def ddp_find_unused() -> Training:
    """Unused parameters are looked for; another block is left out each time."""
    model = ddp(Net(), find_unused_parameters=True)

    class LeavesOut(Training):
        def forward_backward(self, log: Log, number: int) -> None:
            self.model.module.left_out = number % 2  # on all ranks
            super().forward_backward(log, number)

    return LeavesOut(model)


@program
def ddp_find_unused_by_rank() -> Training:
    """And another one on each rank."""
    model = ddp(Net(), find_unused_parameters=True)

    class LeavesOut(Training):
        def forward_backward(self, log: Log, number: int) -> None:
            self.model.module.left_out = (number + dist.get_rank()) % 2
            super().forward_backward(log, number)

    return LeavesOut(model)


@program
def ddp_static_graph() -> Training:
    """The graph is promised to stay, with a block that is never used."""
    net = Net()
    net.left_out = 1
    return Training(ddp(net, static_graph=True, find_unused_parameters=True))


@program
def ddp_static_graph_reentrant() -> Training:
    """The graph is promised to stay, with reentrant checkpoints."""
    return Training(ddp(Net(reentrant=True), static_graph=True))


@program
def ddp_checkpointed() -> Training:
    """Checkpoints that are not reentrant."""
    return Training(ddp(Net(reentrant=False)))


@program
def ddp_no_sync() -> Training:
    """Two batches are accumulated."""

    class Accumulates(Training):
        def forward_backward(self, log: Log, number: int) -> None:
            with self.model.no_sync():
                super().forward_backward(log, number)
            super().forward_backward(log, number)

    return Accumulates(ddp(Net()))


@program
def ddp_uneven() -> Training:
    """One rank has more batches than the other."""

    class Joins(Training):
        def forward_backward(self, log: Log, number: int) -> None:
            with self.model.join():
                for _ in range(1 + dist.get_rank()):
                    super().forward_backward(log, number)

    return Joins(ddp(Net()))


@program
def ddp_autocast() -> Training:
    """In half precision."""
    model = ddp(Net())

    def loss(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return model(x).pow(2).mean()

    return Training(model, loss=loss)


@program
def ddp_user_hooks() -> Training:
    """Full backward hooks, tensor hooks, an optimizer step in each parameter's hook."""
    model = ddp(Net())
    optimizers = {one: torch.optim.SGD([one], lr=0.1) for one in model.parameters()}
    model.module.blocks[0].register_full_backward_hook(lambda _, __, out: (out[0] * 1.5,))

    def step(parameter: torch.Tensor) -> None:
        optimizers[parameter].step()

    for one in model.parameters():
        one.register_post_accumulate_grad_hook(step)
    return Training(model)


def hooked(hook: Any, state: Any = None, **options: Any) -> Training:
    """DDP with a communication hook in Python."""
    model = ddp(Net(), **options)
    model.register_comm_hook(state, hook)
    return Training(model)


def halving(state, bucket):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """A user's hook. torch compares annotations with the types, and here they are strings."""
    work = dist.all_reduce(bucket.buffer().div_(dist.get_world_size()), async_op=True)
    return work.get_future().then(lambda done: done.value()[0] * 0.5)


def chaining(state, bucket):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """Another, that launches its second collective where the first is done: on gloo's thread.

    With several buckets all of gloo's threads would wait.
    """
    buffer = bucket.buffer()

    def again(_):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        return dist.broadcast(buffer, 0, async_op=True).get_future().wait()[0]

    return dist.all_reduce(buffer, async_op=True).get_future().then(again)


@program
def ddp_hook_allreduce() -> Training:
    """torch's plain hook."""
    return hooked(default_hooks.allreduce_hook)


@program
def ddp_hook_fp16() -> Training:
    """torch's hook that sends half precision."""
    return hooked(default_hooks.fp16_compress_hook)


@program
def ddp_hook_own() -> Training:
    """A hook of the user's."""
    return hooked(halving)


@program
def ddp_hook_chaining() -> Training:
    """One that launches twice."""
    return hooked(chaining, bucket_cap_mb=25)


@program
def ddp_hook_power_sgd() -> Training:
    """torch's hook that compresses, and draws random numbers."""
    state = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2, min_compression_rate=0.5)
    return hooked(powerSGD_hook.powerSGD_hook, state, bucket_cap_mb=25)


@program
def ddp_hook_builtin() -> Training:
    """A hook in C++."""
    model = ddp(Net())
    model._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
    return Training(model)


@program
def ddp_averaged() -> Training:
    """Parameters are averaged after each step."""
    model = ddp(Net())
    inner = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return Training(model, PostLocalSGDOptimizer(inner, PeriodicModelAverager(period=1)))


@program
def zero_optimizer() -> Training:
    """The optimizer is split over the ranks."""

    class Zero(Training):
        def finish(self, log: Log) -> None:
            self.optimizer.consolidate_state_dict()
            super().finish(log)

    model = ddp(Net())
    kind = torch.optim.AdamW
    return Zero(model, ZeroRedundancyOptimizer(model.parameters(), kind, lr=0.05))


@program
def zero_optimizer_views() -> Training:
    """The same, with parameters as views of buckets."""
    model = ddp(Net())
    kind = torch.optim.SGD
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), kind, parameters_as_bucket_view=True, lr=0.05
    )
    return Training(model, optimizer)


def sharded(net: Net, **options: Any) -> Net:
    """FSDP2 on each block and on the whole."""
    for block in net.blocks:
        fully_shard(block, **options)
    return fully_shard(net, **options)


@program
def fsdp2() -> Training:
    """Parameters are given back after the forward."""
    return Training(sharded(Net(), mesh=init_device_mesh("cpu", (2,))))


@program
def fsdp2_kept() -> Training:
    """Parameters are kept until the backward."""
    return Training(sharded(Net(), reshard_after_forward=False))


@program
def fsdp2_checkpointed() -> Training:
    """Checkpoints that are not reentrant."""
    return Training(sharded(Net(reentrant=False)))


@program
def fsdp2_reentrant() -> Training:
    """Reentrant checkpoints."""
    return Training(sharded(Net(reentrant=True)))


@program
def fsdp2_wrapped_checkpoint() -> Training:
    """torch's checkpoint wrapper."""
    net = Net()
    for number, block in enumerate(net.blocks):
        net.blocks[number] = checkpoint_wrapper(block)
    return Training(sharded(net))


@program
def fsdp2_accumulated() -> Training:
    """Two batches are accumulated."""

    class Accumulates(Training):
        def forward_backward(self, log: Log, number: int) -> None:
            self.model.set_requires_gradient_sync(False)
            self.model.set_is_last_backward(False)
            super().forward_backward(log, number)
            self.model.set_requires_gradient_sync(True)
            self.model.set_is_last_backward(True)
            super().forward_backward(log, number)

    return Accumulates(sharded(Net()))


@program
def fsdp2_mixed_clipped() -> Training:
    """In half precision; gradients are clipped."""

    class Clips(Training):
        def forward_backward(self, log: Log, number: int) -> None:
            super().forward_backward(log, number)
            norm = nn.utils.clip_grad_norm_(self.model.parameters(), 0.1)
            log.add("norm", norm.full_tensor())

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    return Clips(sharded(Net(), mp_policy=policy))


@program
def fsdp2_prefetched() -> Training:
    """Prefetching by hand; the whole parameters in the end."""
    net = sharded(Net())
    net.set_modules_to_forward_prefetch([net.blocks[0], net.blocks[1]])
    net.blocks[1].set_modules_to_backward_prefetch([net.blocks[0]])

    class Unshards(Training):
        def forward_backward(self, log: Log, number: int) -> None:
            handle = self.model.blocks[0].unshard(async_op=True)
            handle.wait()
            super().forward_backward(log, number)

        def finish(self, log: Log) -> None:
            log.add("full", {key: one.full_tensor() for key, one in net.state_dict().items()})
            super().finish(log)

    return Unshards(net)


@program
def fsdp2_hybrid() -> Training:
    """Replicated over two, sharded over one."""
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard"))
    return Training(sharded(Net(), mesh=mesh))


def fsdp1(strategy: ShardingStrategy, *, original: bool, wrapped: bool = False) -> Training:
    """The older FSDP."""
    options = {"sharding_strategy": strategy, "use_orig_params": original, "device_id": CPU}
    net = Net()
    for number, block in enumerate(net.blocks):
        inner = block
        if wrapped:
            inner = checkpoint_wrapper(block, checkpoint_impl=CheckpointImpl.NO_REENTRANT)
        net.blocks[number] = FullyShardedDataParallel(inner, **options)

    class Fsdp1(Training):
        def finish(self, log: Log) -> None:
            log.add("model", [one.data for one in self.model.parameters()])

    return Fsdp1(FullyShardedDataParallel(net, **options))


@program
def fsdp1_full() -> Training:
    """The older FSDP."""
    return fsdp1(ShardingStrategy.FULL_SHARD, original=True)


@program
def fsdp1_flat_checkpointed() -> Training:
    """With flat parameters and a checkpoint wrapper."""
    return fsdp1(ShardingStrategy.FULL_SHARD, original=False, wrapped=True)


@program
def fsdp1_grad_op_no_sync() -> Training:
    """Gradients are sharded alone; two batches are accumulated."""
    inner = fsdp1(ShardingStrategy.SHARD_GRAD_OP, original=True)

    class Accumulates(type(inner)):  # type: ignore[misc]
        def forward_backward(self, log: Log, number: int) -> None:
            with self.model.no_sync():
                super().forward_backward(log, number)
            super().forward_backward(log, number)

    return Accumulates(inner.model)


def split(mlp: nn.Module, mesh: Any) -> nn.Module:
    """Tensor parallel."""
    return parallelize_module(mlp, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})


@program
def tensor_parallel() -> Training:
    """Layers that are split."""
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    return Training(nn.Sequential(*(split(MLP(), mesh) for _ in range(2))))


@program
def sequence_parallel() -> Training:
    """Activations that are split between them."""
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    net = nn.Sequential(nn.LayerNorm(WIDTH), MLP())
    plan = {
        "0": SequenceParallel(sequence_dim=0, use_local_output=True),
        "1.up": ColwiseParallel(input_layouts=Shard(0)),
        "1.down": RowwiseParallel(output_layouts=Shard(0)),
    }
    return Training(parallelize_module(net, mesh, plan))


@program
def tensor_parallel_loss() -> Training:
    """A loss over split outputs."""
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    net = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 4))
    plan = {
        "0": ColwiseParallel(output_layouts=Replicate()),
        "1": ColwiseParallel(use_local_output=False),
    }
    parallelize_module(net, mesh, plan)

    class Loss(Training):
        def forward_backward(self, log: Log, number: int) -> None:
            with loss_parallel():
                super().forward_backward(log, number)

    target = torch.arange(6) % 4
    return Loss(net, loss=lambda x: nn.functional.cross_entropy(net(x), target))


@program
def two_dimensions() -> Training:
    """Layers that are split, within FSDP2."""
    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp", "tp"))
    net = nn.Sequential(*(split(MLP(), mesh["tp"]) for _ in range(2)))
    for part in net:
        fully_shard(part, mesh=mesh["dp"])
    return Training(fully_shard(net, mesh=mesh["dp"]))


class Pipeline:
    """A pipeline schedule in training."""

    def __init__(self, kind: type[_PipelineSchedule], stages: int) -> None:
        self.parts = [Block() for _ in range(stages)]
        rank, world = dist.get_rank(), dist.get_world_size()
        made = [
            PipelineStage(part, rank + number * world, stages * world, CPU)
            for number, part in enumerate(self.parts)
        ]
        given: Any = made[0] if stages == 1 else made
        self.schedule = kind(given, 4, loss_fn=nn.functional.mse_loss)
        self.model = nn.ModuleList(self.parts)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.05)

    def iterate(self, log: Log, number: int) -> None:
        """One iteration of a user's loop."""
        rank, x, losses = dist.get_rank(), torch.randn(8, WIDTH), []
        last = rank == dist.get_world_size() - 1
        if last:
            log.add("out", self.schedule.step(target=x, losses=losses))
        else:
            self.schedule.step(x)
        log.add("losses", losses)
        log.add("gradients", [one.grad for one in self.model.parameters()])
        self.optimizer.step()
        self.optimizer.zero_grad()

    def finish(self, log: Log) -> None:
        """What is compared at the end."""
        log.add("model", self.model.state_dict())
        log.add("optimizer", self.optimizer.state)


@program
def pipeline_gpipe() -> Pipeline:
    """All forwards, then all backwards."""
    return Pipeline(ScheduleGPipe, 1)


@program
def pipeline_1f1b() -> Pipeline:
    """In turns."""
    return Pipeline(Schedule1F1B, 1)


@program
def pipeline_interleaved() -> Pipeline:
    """In turns, two stages a rank."""
    return Pipeline(ScheduleInterleaved1F1B, 2)


@program
def pipeline_zero_bubble() -> Pipeline:
    """Backwards in two parts, for inputs and for weights."""
    return Pipeline(ScheduleInterleavedZeroBubble, 2)


class ByHand(nn.Module):
    """Collectives of every kind inside a module."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.group = dist.new_group([0, 1])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rank, group = dist.get_rank(), self.group
        y = self.layer(x)
        y = y + dist_nn.all_reduce(y.relu(), group=group)
        y = y + funcol.all_gather_tensor_autograd(y, 0, group)[: len(y)]
        with torch.no_grad():
            extra = y.detach().clone()
            works = [dist.all_reduce(extra, async_op=True, group=group)]
            gathered = [torch.empty_like(extra) for _ in range(2)]
            works.append(dist.all_gather(gathered, x, async_op=True))
            for work in works:
                work.wait()
            both = torch.empty(2 * len(x), WIDTH)
            dist.all_gather_into_tensor(both, x)
            dist.reduce_scatter_tensor(extra, both)
            dist.broadcast(extra, 0)
            dist.reduce(extra.clone(), 1)
            dist.all_to_all_single(extra, x.contiguous())
            dist.gather(x, gathered if rank == 0 else None, dst=0)
            dist.scatter(extra, gathered if rank == 0 else None, src=0)
            ops = [
                dist.P2POp(dist.isend, x, 1 - rank, group),
                dist.P2POp(dist.irecv, extra, 1 - rank, group),
            ]
            for work in dist.batch_isend_irecv(ops):
                work.wait()
            if rank == 0:
                dist.send(extra, 1)
            else:
                dist.recv(extra)
            dist.barrier()
            dist.monitored_barrier()
            with dist._coalescing_manager(group):
                dist.all_reduce(gathered[0], group=group)
                dist.all_reduce(gathered[1], group=group)
            objects: list[Any] = [None, None]
            dist.all_gather_object(objects, {"rank": rank})
            dist.broadcast_object_list(objects, 0)
            extra = extra + funcol.all_reduce(x, "avg", group) + gathered[0]
        return y + extra


@program
def by_hand() -> Training:
    """A module of collectives."""
    return Training(ByHand())


@program
def distributed_tensors() -> Training:
    """DTensors by hand."""
    mesh = init_device_mesh("cpu", (2,))
    net = nn.Linear(WIDTH, WIDTH)

    def loss(x: torch.Tensor) -> torch.Tensor:
        there = distribute_tensor(x, mesh, [Shard(0)])
        weight = distribute_tensor(net.weight, mesh, [Replicate()])
        out = (there @ weight).redistribute(mesh, [Replicate()])
        part = DTensor.from_local(out.to_local(), mesh, [Partial()])
        return part.redistribute(mesh, [Shard(1)]).full_tensor().pow(2).mean()

    return Training(net, loss=loss)


@program
def threads() -> Training:
    """Each iteration in a thread of its own, which has a group of its own."""

    class InThread(Training):
        def iterate(self, log: Log, number: int) -> None:
            thread = threading.Thread(target=super().iterate, args=(log, number))
            thread.start()
            thread.join()

    return InThread(ddp(Net(), process_group=dist.new_group([0, 1])))


# -- running --------------------------------------------------------------------------------------


class Run(NamedTuple):
    """What a run showed, and what the tracker saw of it."""

    log: Log
    seen: tuple[int, int]
    faults: list[str]


def tracked(variant: Variant, kept: Kept) -> ModTracker:
    """A tracker as the variant wants it."""
    provider = kept.provider if variant.provider else None
    return ModTracker(tracer_provider=provider, collectives=variant.collectives)


def run(make: Callable[[], Any], variant: Variant | None = None) -> Run:
    """Run a program; what it made should be gone in the end."""
    rank = dist.get_rank()
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(0)
    log, kept, faults = Log(), Kept(), []
    before = patched_state()
    with contextlib.ExitStack() as stack:
        caught = stack.enter_context(warnings.catch_warnings(record=True))
        warnings.simplefilter("always")
        complaints = stack.enter_context(Complaints())
        whole = contextlib.ExitStack()
        tracker = tracked(variant, kept) if variant else None
        if tracker and variant.inside:
            whole.enter_context(tracker)
        training = make()
        since = launched()
        for seed in (random.seed, np.random.seed, torch.manual_seed):
            seed(rank + 1)
        if tracker and not variant.inside and variant.only is None:
            whole.enter_context(tracker)
        for number in range(ITERATIONS):
            base = torch._C._autograd._get_sequence_nr()
            with contextlib.ExitStack() as inner:
                if tracker and variant.only == number:
                    inner.enter_context(tracker)
                if tracker and variant.steps:
                    inner.enter_context(tracker.step(number))
                training.iterate(log, number)
            log.add("nodes", torch._C._autograd._get_sequence_nr() - base)
            log.add("random", generators())
        log.add("launched", sorted(count for count in launched(since).values() if count))
        del since
        seen = (tracker.collectives.total, tracker.collectives.size) if tracker else (0, 0)
        whole.close()
        if patched_state() != before:
            faults.append(f"left: {patched_state()} and not {before}")
        training.finish(log)
        died = weakref.ref(training.model)
        del training
        gc.collect()
        log.add("held", died() is not None)
        log.add("warnings", [(str(one.category), str(one.message)) for one in caught])
        faults += complaints.said
    spans = kept.exporter.get_finished_spans()
    check_intervals(spans)
    if variant and variant.provider and not spans:
        faults.append("no spans")
    return Run(log, seen, faults)


def compared(make: Callable[[], Any]) -> dict[str, Any]:
    """What differs, by variant, and how much the tracker saw in each."""
    run(make)  # what torch does once only
    gc.freeze()  # a collection after each run is affordable if it looks at the run's objects only
    untracked = run(make)
    found: dict[str, Any] = {}
    for name, variant in VARIANTS.items():
        if name in OF_KINDS and make.__name__ not in KINDS:
            continue
        tracked = run(make, variant)
        found[name] = {
            "differs": tracked.log.differs(untracked.log),
            "faults": tracked.faults,
            "seen": tracked.seen,
        }
    found["launched"] = sum(dict(untracked.log.seen)["launched"])
    return found


for _name, _make in PROGRAMS.items():
    if QUICK and _name not in QUICK_PROGRAMS:
        continue

    def _case(world: int, make: Any = _make) -> Any:
        return compared(make)

    _case.__name__ = f"same_{_name}"
    pair(_case)


# -- what fails -----------------------------------------------------------------------------------

FAILURES: dict[str, Callable[[], Any]] = {}
SHORT = timedelta(milliseconds=50)


def failure(function: Callable[[], Any]) -> Callable[[], Any]:
    """Register something that raises, on one rank or on both."""
    FAILURES[function.__name__] = function
    return function


def all_ranks() -> Any:
    """A group of its own."""
    return dist.new_group([0, 1])


def breakable() -> Any:
    """The same, connected on both: a rank that is slow still connects while the other breaks it."""
    group = all_ranks()
    dist.barrier()
    return group


@failure
def output_of_another_shape() -> None:
    """Refused when it is launched."""
    dist.all_gather([torch.empty(3), torch.empty(3)], torch.ones(4))


@failure
def output_of_another_shape_functional() -> None:
    """Refused inside a functional collective."""
    funcol.reduce_scatter_tensor(torch.ones(3), "sum", 0, breakable()).wait()


@failure
def operation_refused_when_waited_for() -> None:
    """The work raises."""
    dist.all_reduce(torch.ones(2), op=dist.ReduceOp.BAND, group=breakable())


@failure
def operation_refused_when_waited_for_later() -> None:
    """The work raises, later."""
    group = breakable()
    work = dist.all_reduce(torch.ones(2), op=dist.ReduceOp.BAND, group=group, async_op=True)
    work.wait()


@failure
def ranks_of_different_shapes() -> None:
    """Whatever gloo makes of it."""
    tensor = torch.ones(2 + 3 * dist.get_rank())
    dist.broadcast(tensor, 0, group=breakable())


@failure
def group_that_is_not_there() -> None:
    """A name that nothing is registered by."""
    funcol.all_reduce(torch.ones(2), "sum", "no such group")


@failure
def group_that_was_destroyed() -> None:
    """It says so, or warns."""
    group = breakable()
    dist.destroy_process_group(group)
    dist.all_reduce(torch.ones(2), group=group)
    dist.barrier(group=group)
    dist.get_process_group_ranks(group)


@failure
def peer_that_is_gone() -> None:
    """The other end of the connection is closed."""
    group = breakable()
    x = torch.ones(2)
    dist.all_reduce(x, group=group)
    if dist.get_rank() == 1:
        dist.destroy_process_group(group)
        del group
        gc.collect()
    dist.barrier()
    if dist.get_rank() == 0:
        dist.all_reduce(x, group=group)


@failure
def barrier_that_times_out() -> None:
    """One rank does not come."""
    group = breakable()
    if dist.get_rank() == 0:
        dist.monitored_barrier(group, timeout=SHORT)


@failure
def receive_that_times_out() -> None:
    """Nothing is sent."""
    group = breakable()
    if dist.get_rank() == 0:
        dist.irecv(torch.ones(2), src=1, group=group).wait(SHORT)


@failure
def hook_that_raises() -> None:
    """A communication hook of the user's, in the backward."""

    def hook(state, bucket):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        dist.all_reduce(bucket.buffer())
        raise KeyError("mine", bucket.index())

    hooked(hook).forward_backward(Log(), 0)


@failure
def hook_whose_future_raises() -> None:
    """The same in a callback."""

    def hook(state, bucket):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        def then(_):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
            raise KeyError("mine")

        future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
        future.wait()  # the message tells the frames of the thread that the callback runs on
        return future.then(then)

    hooked(hook).forward_backward(Log(), 0)


@failure
def block_of_coalesced_that_raises() -> None:
    """The user's, between collectives that are launched together."""
    group = breakable()  # it does not go on after this
    with dist._coalescing_manager(group, async_ops=True):
        dist.all_reduce(torch.ones(2), group=group)
        raise KeyError("mine")


@failure
def forward_that_raises_under_ddp() -> None:
    """After buffers were broadcast."""
    training = ddp_plain()
    training.model.module.blocks[1].b = None
    training.forward_backward(Log(), 0)


@failure
def forward_that_raises_under_fsdp() -> None:
    """With parameters gathered."""
    training = fsdp2()
    training.model.head.register_forward_hook(lambda *_: {}["mine"])
    training.forward_backward(Log(), 0)


@failure
def tensor_hook_that_raises_under_fsdp() -> None:
    """In the middle of the backward."""
    training = fsdp2()

    def hook(*_: Any) -> None:
        raise KeyboardInterrupt("mine")

    training.model.blocks[1].register_full_backward_hook(hook)
    training.forward_backward(Log(), 0)


@failure
def object_that_cannot_be_pickled() -> None:
    """On both ranks, before anything is sent."""
    dist.all_gather_object([None, None], threading.Lock())


def describe(error: BaseException) -> tuple[Any, str]:
    """All that a user sees of an exception, and the traceback's text; no addresses and ports."""
    chain = []
    one: BaseException | None = error
    while one is not None:
        chain.append((str(type(one)), _ADDRESS.sub("N", str(one.args))))
        one = one.__cause__ or one.__context__
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    return chain, _ADDRESS.sub("N", text)


# And how much of its timeout gloo had left when it began to wait.
_ADDRESS = re.compile(r"0x[0-9a-f]+|\]:\d+|\d+ms for")


def without_kernels(text: str) -> str:
    """A traceback without the two entries of a kernel of ours: itself, and its redispatch."""
    kernel = rf'  File "{re.escape(OURS)}/comm/kernels.py", line \d+, in kernel\n'
    redispatch = r'  File "[^"]*torch/_ops.py", line \d+, in redispatch\n'
    return re.sub(rf"{kernel}(?:    .*\n)+{redispatch}(?:    .*\n)+", "", text)


class Failed(NamedTuple):
    """What is seen of a failure and of the next iteration, which is a clean one."""

    log: Log
    texts: list[str]
    faults: list[str]


def failing(function: Callable[[], Any], variant: Variant | None) -> Failed:
    """Let something fail outside of everything, in a step and in a module."""
    log, kept, texts, faults = Log(), Kept(), [], []
    before = patched_state()
    with contextlib.ExitStack() as stack:
        caught = stack.enter_context(warnings.catch_warnings(record=True))
        warnings.simplefilter("always")
        complaints = stack.enter_context(Complaints())
        whole = stack.enter_context(contextlib.ExitStack())
        tracker = tracked(variant, kept) if variant else None
        if tracker:
            whole.enter_context(tracker)
        for where in ("outside", "in a step", "in a module"):
            torch.manual_seed(dist.get_rank())
            step = tracker.step(0) if tracker and where == "in a step" else None
            call = Calls(function) if where == "in a module" else function
            try:
                with step or contextlib.nullcontext():
                    log.add(where, call())
            except BaseException as error:  # noqa: BLE001
                what, text = describe(error)
                log.add(where, what)
                texts.append(text)
            del call
            dist.barrier()
            faults += clean_iteration(log, tracker)
        log.add("warnings", [(str(one.category), str(one.message)) for one in caught])
        whole.close()
        faults += complaints.said
    if patched_state() != before:
        faults.append(f"left: {patched_state()} and not {before}")
    check_intervals(kept.exporter.get_finished_spans())
    return Failed(log, texts, faults)


def clean_iteration(log: Log, tracker: ModTracker | None) -> list[str]:
    """DDP's collectives are counted as its group counts them."""
    group = dist.group.WORLD
    training = ddp_plain()
    before = group._get_sequence_number_for_group()
    total = tracker.collectives.total if tracker else 0
    training.iterate(log, 0)
    count = group._get_sequence_number_for_group() - before
    log.add("launched", count)
    if tracker is None or tracker._mode == "off":
        return []
    total = tracker.collectives.total - total
    return [] if total == count else [f"{total} collectives were counted, not {count}"]


class Calls(nn.Module):
    """A module that does what it is given."""

    def __init__(self, does: Callable[[], Any]) -> None:
        super().__init__()
        self.does = does

    def forward(self) -> Any:
        return self.does()


FAILING = [name for name in VARIANTS if name in {"off", "summed", "each, spans, steps"}]

for _name, _function in FAILURES.items():

    def _case(world: int, function: Any = _function) -> Any:
        found: dict[str, Any] = {}
        for name in ("warm-up", "untracked", *FAILING):
            tracked = failing(function, VARIANTS.get(name))  # one line: messages tell of lines
            if name == "untracked":
                untracked, found["raises"] = tracked, len(tracked.texts)
            elif name != "warm-up":
                texts = [without_kernels(text) for text in tracked.texts]
                found[name] = {
                    "differs": tracked.log.differs(untracked.log),
                    "traceback": ""
                    if texts == untracked.texts
                    else shown_from_difference(str(texts), str(untracked.texts)),
                    "kernels": sum(text.count(OURS) for text in tracked.texts),
                    "faults": tracked.faults,
                }
        return found

    _case.__name__ = f"fails_{_name}"
    pair(_case)


# -- what else is there beside a tracker ----------------------------------------------------------


def both(function: Callable[[], Any], variant: str = "each, spans, steps") -> list[Any]:
    """What a function gives untracked, and tracked."""
    found = []
    for how in (None, None, variant):
        kept = Kept()
        torch.manual_seed(dist.get_rank())
        with tracked(VARIANTS[how], kept) if how else contextlib.nullcontext() as tracker:
            found.append(function())
        if tracker:
            check_intervals(kept.exporter.get_finished_spans())
            assert tracker.collectives.total
    return found[1:]


def equal(function: Callable[[], Any]) -> dict[str, Any]:
    """What a function gives untracked, and where it gives something else tracked."""
    untracked, found = both(function)
    parts = shown_from_difference(str(found), str(untracked))
    return {"size": len(untracked), "differs": "" if found == untracked else parts}


class OurCalls:
    """Notes which functions of the library are called, on this thread."""

    def __init__(self) -> None:
        self.seen: set[str] = set()

    def __call__(self, frame: Any, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(OURS):
            self.seen.add(frame.f_code.co_qualname if HAS_QUALNAME else frame.f_code.co_name)

    def __enter__(self) -> OurCalls:  # noqa: PYI034 - no typing.Self in Python 3.10
        sys.setprofile(self)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)


HAS_QUALNAME = sys.version_info >= (3, 11)
SOME = tuple(name for name in KINDS if name != "threads")


@pair
def nothing_is_called_afterwards(world: int) -> Any:
    """Which of our functions run when programs run after a tracker was left."""
    trainings = {name: PROGRAMS[name]() for name in SOME}
    found = {}
    for mode in ("summed", "each"):
        with ModTracker(collectives=mode), OurCalls() as inside:
            for training in trainings.values():
                training.iterate(Log(), 0)
            group = all_ranks()
        with OurCalls() as after:
            for training in trainings.values():
                training.iterate(Log(), 0)
            dist.all_reduce(torch.ones(2), group=group)
            new = all_ranks()
            dist.all_reduce(torch.ones(2), group=new)
            dist.monitored_barrier(new)
        found[mode] = [len(inside.seen), sorted(after.seen)]
    return found


@pair
def modes_see_the_same(world: int) -> Any:
    """The calls that a dispatch mode and a function mode of the user's are told of."""
    seen: list[str] = []

    class Functions(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(f"function {getattr(func, '__name__', func)}")
            return func(*args, **(kwargs or {}))

    class Dispatch(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(f"dispatch {func}")
            return func(*args, **(kwargs or {}))

    def watched(name: str, mode: type) -> list[str]:
        training = PROGRAMS[name]()
        seen.clear()
        with mode():
            for number in range(2):
                training.iterate(Log(), number)
        return list(seen)

    return {
        f"{name} {mode.__name__}": equal(functools.partial(watched, name, mode))
        for name in SOME
        for mode in (Functions, Dispatch)
    }


@pair
def comm_debug_mode_counts_the_same(world: int) -> Any:
    """torch's own counter, beside ours."""

    def counts(name: str) -> Any:
        training = PROGRAMS[name]()
        with CommDebugMode() as mode:
            training.iterate(Log(), 0)
        counted = {str(key): count for key, count in mode.get_comm_counts().items()}
        return counted, mode.get_total_counts(), mode.comm_module_counts

    # It does not survive a pipeline's search for shapes.
    names = [name for name in SOME if not name.startswith("pipeline")]
    return {name: equal(functools.partial(counts, name)) for name in names}


@pair
def shapes_only(world: int) -> Any:
    """Collectives on fake and meta tensors: what they give, or raise; how many were counted."""
    group = dist.group.WORLD

    def functional(x: torch.Tensor) -> Any:
        y = funcol.all_reduce(x, "sum", group)
        z = funcol.all_gather_tensor(y, 0, group)
        return [
            funcol.reduce_scatter_tensor(z, "sum", 0, group),
            *funcol.all_reduce_coalesced([y], "sum", group),
        ]

    def plain(x: torch.Tensor) -> Any:
        dist.all_reduce(x)
        return [x]

    def program() -> Any:
        found = []
        for call in (functional, plain):
            for around in (FakeTensorMode(), torch.device("meta")):
                try:
                    with around:
                        outs = call(torch.ones(4, 2))
                    found.append([(str(out.device), tuple(out.shape)) for out in outs])
                except Exception as error:  # noqa: BLE001
                    found.append(str(type(error)))
        return found

    untracked = program()
    found = {"untracked": untracked}
    for mode in ("summed", "each"):
        with Complaints() as complaints, ModTracker(collectives=mode) as tracker:
            found[mode] = program()
            found[f"{mode} total"] = [tracker.collectives.total, complaints.said]
    return found


@pair
def copies_and_files(world: int) -> Any:
    """deepcopy, pickle and a distributed checkpoint of models in training."""
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder, 0)
    number = iter(range(100))

    def outcome(does: Callable[[], Any]) -> Any:
        try:
            return bits(does())
        except Exception as error:  # noqa: BLE001
            return str(type(error)), str(error)

    def checkpointed(model: nn.Module) -> Any:
        path = f"{folder[0]}/{next(number)}"
        dcp.save({"model": model.state_dict()}, checkpoint_id=path)
        for one in model.parameters():
            one.detach().zero_()
        state = {"model": model.state_dict()}
        dcp.load(state, checkpoint_id=path)
        model.load_state_dict(state["model"])
        files = sorted((one.name, one.stat().st_size) for one in Path(path).iterdir())
        return model.state_dict(), [one for one in files if one[0] != ".metadata"]

    def program(name: str) -> Any:
        training = PROGRAMS[name]()
        training.iterate(Log(), 0)
        model = training.model
        inner = model.module if isinstance(model, DistributedDataParallel) else model
        return [
            outcome(lambda: copy.deepcopy(model).state_dict()),
            outcome(lambda: pickle.loads(pickle.dumps(model)).state_dict()),  # noqa: S301
            outcome(lambda: len(pickle.dumps(inner.state_dict()))),
            outcome(functools.partial(checkpointed, model)),
            outcome(
                lambda: get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
            ),
        ]

    found = {
        name: equal(functools.partial(program, name))
        for name in ("ddp_plain", "fsdp2", "tensor_parallel")
    }
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(folder[0])
    return found


@pair
def forked(world: int) -> Any:
    """In a child nothing is on; the parent goes on counting."""
    net = Net()
    training = ddp_plain()
    with ModTracker(collectives="each") as tracker, tracker.step(0):
        training.iterate(Log(), 0)
        before = tracker.collectives.total
        receiving, sending = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                with OurCalls() as calls, torch.no_grad():
                    net(torch.ones(6, WIDTH))
                told = repr((CORE.on, sorted(calls.seen)))
            except BaseException:  # noqa: BLE001 - told by the parent
                told = traceback.format_exc()
            os.write(sending, told.encode())
            os._exit(0)
        os.waitpid(child, 0)
        os.close(sending)
        told = os.read(receiving, 2**16).decode()
        os.close(receiving)
        training.iterate(Log(), 1)
        after = tracker.collectives.total
    return {"child": told, "parent": [before > 0, after > before]}


@pair
def groups_that_are_destroyed(world: int) -> Any:
    """Groups live no longer than they live untracked; those made and destroyed in one stay too."""

    def alive() -> list[bool]:
        refs = []
        for _ in range(3):
            group = all_ranks()
            dist.all_reduce(torch.ones(2), group=group)
            funcol.all_reduce(torch.ones(2), "sum", group).wait()
            dist.destroy_process_group(group)
            refs.append(weakref.ref(group))
            del group
        gc.collect()
        return [ref() is not None for ref in refs]

    def in_a_step() -> list[bool]:
        with tracker.step(1):
            return alive()

    found = {"untracked": alive()}
    for mode in ("summed", "each"):
        with ModTracker(collectives=mode) as tracker:
            found[mode] = [alive(), in_a_step()]
            found[f"{mode} total"] = tracker.collectives.total
    return found


@pair
def somebody_elses_hooks(world: int) -> Any:
    """Hooks of the user's on groups, and a wrapper around the registration of groups, stay."""
    group, seen = all_ranks(), []
    hooks = hasattr(group, "register_pre_hook")

    def before(args: Any) -> None:
        seen.append(args.name.name)
        if len(seen) == 3:
            raise KeyError("the user's hook")

    if hooks:
        group.register_pre_hook(7, before)
    raised = []
    original = c10d._register_process_group
    named: list[str] = []

    def register(name: Any, made: Any) -> Any:
        named.append(name)
        return wrapped(name, made)

    with ModTracker(collectives="each") as tracker:
        wrapped = c10d._register_process_group
        c10d._register_process_group = register
        for _ in range(4):
            try:
                dist.all_reduce(torch.ones(2), group=group)
            except KeyError as error:
                raised.append(error.args[0])
        all_ranks()
        total = tracker.collectives.total
    stays = c10d._register_process_group is register
    all_ranks()
    c10d._register_process_group = original
    dist.all_reduce(torch.ones(2), group=group)
    return {
        "hooks": hooks,
        "seen": seen,
        "raised": raised,
        "total": total,
        "stays": stays,
        "named": len(named),
    }


# -- torch.compile --------------------------------------------------------------------------------

# In which of four calls of what is compiled a tracker is on, and whether when it is compiled.
SCHEDULES = {
    "compiled inside": (True, (0, 1)),
    "compiled before": (False, (1, 2)),
}
WIDE = 512  # where a layer fills a bucket: no bucket of a compiled DDP is below 1 MB
COUNTED = ("frames", "graph_break", "recompiles", "unimplemented", "stats")


def x_of(number: int, width: int = WIDTH) -> torch.Tensor:
    """The input of a call."""
    torch.manual_seed(10 * number + dist.get_rank())
    return torch.randn(6, width)


def trained(
    call: Callable[[torch.Tensor], torch.Tensor], model: nn.Module, width: int = WIDTH
) -> Callable[[int], Any]:
    """A call that is an iteration: forward and backward; output and gradients as bytes."""

    def iterate(number: int) -> Any:
        out = call(x_of(number, width))
        out.pow(2).mean().backward()
        found = bits([out, *(one.grad for one in model.parameters())])
        model.zero_grad()
        return found

    return iterate


class Stack(nn.Module):
    """Layers in a row."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.parts = nn.ModuleList([nn.Linear(width, width) for _ in range(3)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for part in self.parts:
            x = part(x).relu()
        return x


def functional_function(backend: Any) -> Any:
    """Functional collectives in a function, fullgraph."""
    group = dist.group.WORLD

    @torch.compile(backend=backend, fullgraph=True)
    def function(x: torch.Tensor) -> torch.Tensor:
        x = funcol.all_reduce(x * 2, "sum", group)
        x = funcol.all_gather_tensor(x.relu(), 0, group)
        return funcol.reduce_scatter_tensor(x + 1, "sum", 0, group).sin()

    return lambda number: bits(function(x_of(number)))


def plain_function(backend: Any) -> Any:
    """Collectives as users write them, which the compiler makes functional."""

    @torch.compile(backend=backend, fullgraph=True)
    def function(x: torch.Tensor) -> torch.Tensor:
        x = x * 2
        dist.all_reduce(x)
        gathered = torch.empty(2 * len(x), WIDTH)
        dist.all_gather_into_tensor(gathered, x)
        return gathered.sin()

    return lambda number: bits(function(x_of(number)))


def broken_function(backend: Any) -> Any:
    """A collective that the compiler breaks at."""

    @torch.compile(backend=backend)
    def function(x: torch.Tensor) -> torch.Tensor:
        x = x * 2
        dist.barrier()
        work = dist.all_reduce(x, async_op=True)
        work.wait()
        return x.sin()

    return lambda number: bits(function(x_of(number)))


def tensor_parallel_whole(backend: Any) -> Any:
    """DTensor: tensor parallel, fullgraph, with a backward."""
    net = split(MLP(), init_device_mesh("cpu", (2,), mesh_dim_names=("tp",)))
    net.drop.p = 0.0
    return trained(torch.compile(net, backend=backend, fullgraph=True), net)


def ddp_compiled(backend: Any) -> Any:
    """DDP around, compiled with it; the compiler splits the graph by buckets."""
    model = ddp(Stack(WIDE), bucket_cap_mb=1)
    return trained(torch.compile(model, backend=backend), model, WIDE)


def ddp_around_compiled(backend: Any) -> Any:
    """DDP around what is compiled."""
    model = ddp(torch.compile(Stack(WIDE), backend=backend), bucket_cap_mb=1)
    return trained(model, model, WIDE)


def fsdp2_by_block(backend: Any) -> Any:
    """FSDP2 around compiled blocks."""
    net = nn.Sequential(*(Stack(WIDTH) for _ in range(2)))
    for part in net:
        part.compile(backend=backend)
        fully_shard(part)
    fully_shard(net)
    return trained(net, net)


COMPILED = {
    one.__name__: one
    for one in (
        functional_function,
        plain_function,
        broken_function,
        tensor_parallel_whole,
        ddp_compiled,
        ddp_around_compiled,
        fsdp2_by_block,
    )
}


def compiled(make: Any, backend: str, inside: bool, on: tuple[int, ...]) -> Any:
    """What four calls give, what was compiled for them, and how many collectives were seen."""
    dynamo.reset()
    counters.clear()
    counting = CompileCounterWithBackend(backend) if backend != "inductor" else backend
    seen, sent, values = 0, 0, []
    torch.manual_seed(0)
    with Complaints() as complaints:
        with ModTracker(collectives="each") if inside else contextlib.nullcontext():
            call = make(counting)
        for number in range(4):
            tracker = ModTracker(collectives="each") if number in on else None
            since = launched()
            with tracker or contextlib.nullcontext():
                values.append(call(number))
            if tracker:
                seen += tracker.collectives.total
                sent += sum(launched(since).values())
    told = {key: dict(counters[key]) for key in COUNTED}
    if backend != "inductor":
        told["graphs"] = [counting.frame_count, counting.op_count]
        told["code"] = [graph.code for graph in counting.graphs]
    return values, told, [seen, sent], complaints.said


def compile_case(make: Any, backend: str) -> Any:
    """How calls differ where a tracker is on in some of them."""
    if make not in _compiled:  # the first time, more of torch is compiled
        _compiled.add(make)
        compiled(make, backend, False, ())
    values, told, _, _ = compiled(make, backend, False, ())
    found: dict[str, Any] = {
        "breaks": sum(told["graph_break"].values()),
        "graphs": told.get("graphs"),
    }
    for name, (inside, on) in SCHEDULES.items():
        if backend == "inductor" and name != "compiled inside":
            continue
        tracked_values, tracked_told, seen, said = compiled(make, backend, inside, on)
        differs = [
            shown_from_difference(str(ours), str(theirs))
            for ours, theirs in ((tracked_values, values), (tracked_told, told))
            if ours != theirs
        ]
        found[name] = {"differs": differs, "said": said, "seen": seen}
    return found


_compiled: set[Any] = set()
# What the other compiler finds in these, it would in all.
EAGER = ("functional_function",)
QUICKLY = ("functional_function", "tensor_parallel_whole", "broken_function")

for _name, _make in COMPILED.items():
    for _backend in ("eager", "aot_eager"):
        if (_backend == "eager" and (QUICK or _name not in EAGER)) or (
            QUICK and _name not in QUICKLY
        ):
            continue

        def _case(world: int, make: Any = _make, backend: str = _backend) -> Any:
            return compile_case(make, backend)

        _case.__name__ = f"compiles_{_name}_{_backend}"
        pair(_case)


@pair
def compiles_with_inductor(world: int) -> Any:
    """The default backend, once."""
    return compile_case(functional_function, "inductor")


@pair
def exported(world: int) -> Any:
    """Graphs of torch.export and make_fx, with functional collectives in them."""
    group = dist.group.WORLD.group_name

    def gather(x: torch.Tensor) -> torch.Tensor:
        x = funcol.all_reduce(x * 2, "sum", group)
        return funcol.all_gather_tensor(x, 0, group)

    class Gathers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return gather(self.layer(x))

    def program() -> Any:
        net, x = Gathers(), torch.ones(6, WIDTH)
        program = torch.export.export(net, (x,))
        with torch.no_grad():
            out = program.module()(x)
        return [
            program.graph_module.code,
            bits(out),
            *(make_fx(gather, tracing_mode=how)(x).code for how in ("real", "fake", "symbolic")),
        ]

    return equal(program)


# -- alone: faults of ours, and interruptions ------------------------------------------------------

# No other rank waits for what was interrupted. Run where the world is this process.


class Sums(nn.Module):
    """A layer, and collectives of several kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layer(x)
        with torch.no_grad():
            y = funcol.all_reduce(x.detach(), "sum", dist.group.WORLD) * 1
            work = dist.all_reduce(y, async_op=True)
            dist.monitored_barrier()
            work.wait()
        return x + y


class Lone:
    """A program in a world of one: collectives in forward, backward and optimizer step."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = DistributedDataParallel(nn.Sequential(Sums(), nn.Linear(4, 4)))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.optimizer.register_step_post_hook(lambda *_: dist.broadcast(torch.ones(3), 0))

    def warm(self) -> Lone:
        """After two iterations DDP has arranged its buckets."""
        self.iterate()
        self.iterate()
        return self

    def iterate(self) -> Any:
        """One iteration; all that is to be compared of it, as bytes."""
        out = self.model(torch.ones(2, 4))
        self.optimizer.zero_grad()
        out.sum().backward()
        grads = [one.grad for one in self.model.parameters()]
        self.optimizer.step()
        return bits([out, grads])

    def run(self, tracker: ModTracker | None = None) -> list[Any]:
        """Three iterations, the second in a step, and a group of its own."""
        found = []
        for number in range(3):
            with tracker.step(number) if tracker and number == 1 else contextlib.nullcontext():
                found.append(self.iterate())
            if number == 1:
                group = dist.new_group([0])
                dist.all_reduce(torch.ones(2), group=group)
                dist.destroy_process_group(group)
        return [*found, generators()]


# All-reduce twice, barrier; DDP's bucket; the optimizer's hook.
ONE_ITERATION = {
    "all_reduce": (3, 32 + 32 + 160),
    "monitored_barrier": (1, 0),
    "broadcast": (1, 12),
}

CLEAN = """\
forward Sequential
  forward Sequential.0
    forward Sequential.0.layer
  forward Sequential.1
backward
  backward Sequential
    backward Sequential.1
    backward Sequential.0
      backward Sequential.0.layer
optimizer_step SGD"""


def not_clean(lone: Lone, kept: Kept) -> list[str]:
    """What is wrong with one more iteration in the tracker that is on."""
    kept.exporter.clear()
    if not CORE.on:
        return ["off"]
    with ModTracker(collectives="each") as counting:
        lone.iterate()
        seen = {key: tuple(one) for key, one in counting.collectives.by_operation().items()}
    faults = [] if seen == ONE_ITERATION else [f"seen: {seen}"]
    spans = kept.exporter.get_finished_spans()
    try:
        check_intervals(spans)
    except AssertionError as unlike:
        faults.append(f"intervals: {unlike}")
    # An optimizer step that was interrupted: that it is over is found out by the next call.
    text = re.sub(r"#\d+|^optimizer_step SGD!\n", "", str(Tree(spans)))
    return faults if text == CLEAN else [*faults, text]


def alone(mode: str) -> list[str]:
    """What is wrong where nothing happens: nothing."""
    lone, kept = Lone().warm(), Kept()
    with ModTracker(lone.model, tracer_provider=kept.provider, collectives=mode):
        return not_clean(lone, kept)


# A function of ours in `otel_modtrack.comm`, from which call on it raises, and where it is called.
INJECTED = (
    ("recorder.Recorder.seen", 0, ""),
    ("recorder.Recorder.seen", 4, ""),
    ("recorder.Recorder.launched", 0, "each"),
    ("recorder.Recorder.launched", 4, "each"),
    ("ledger.Ledger.add", 0, ""),
    ("ledger.Ledger.add", 4, ""),
    ("ledger.Ledger.take_modules", 0, ""),
    ("groups._describe", 0, ""),
    ("groups.Groups.of", 0, ""),
    ("groups.Groups.backend", 0, ""),
    ("groups.existing_groups", 0, ""),
    ("hooks.HookWay.add", 1, "hooks"),
    ("telling.gather", 0, ""),
    ("telling.Told.events", 0, ""),
    ("why.Reasons.explain", 0, "each"),
    ("why.Reasons.explain", 4, "each"),
)


class InjectedError(Exception):
    """A fault of ours."""


def inject(patch: pytest.MonkeyPatch, where: str, after: int) -> list[int]:
    """Have a function raise from its `after`-th call on; how often it was called."""
    module, _, path = where.partition(".")
    owner: Any = importlib.import_module(f"otel_modtrack.comm.{module}")
    *outer, name = path.split(".")
    owner = functools.reduce(getattr, outer, owner)
    original = getattr(owner, name)
    calls = [0]

    def function(*args: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        if calls[0] > after:
            raise InjectedError("injected")
        return original(*args, **kwargs)

    patch.setattr(owner, name, function)
    for holder, holding in list(sys.modules.items()):
        if holder.startswith("otel_modtrack") and vars(holding).get(name) is original:
            patch.setattr(holding, name, function)
    return calls


def faulty(where: str, after: int, mode: str, untracked: Any) -> list[str]:
    """What is wrong where a fault of ours is injected: more than that it is said once."""
    faults = []
    before = patched_state()
    with Complaints() as complaints:
        with pytest.MonkeyPatch.context() as patch:
            calls = inject(patch, where, after)
            patch.setattr(ACTIVATION, "_said", set())  # what was said in another case
            kept = Kept()
            results = None
            try:
                with ModTracker(tracer_provider=kept.provider, collectives=mode) as tracker:
                    results = Lone().run(tracker)
            except InjectedError:
                faults.append("reached the user")
            if calls[0] <= after:
                faults.append(f"called {calls[0]} times only")
        if results != untracked:
            faults.append("other results")
        if patched_state() != before:
            faults.append("left")
        # Spans that are lost are told of by a sentence of their own.
        most = 2 if where.startswith("telling") else 1
        if not 1 <= len(complaints.said) <= most or "injected" not in complaints.said[0]:
            faults.append(f"said: {complaints.said}")
        clean_up()
        faults += alone(mode)
    return faults


def interrupted(kind: type[BaseException], make: Any, stride: int, mode: str) -> dict[str, Any]:
    """A signal at each place of ours in turn: how many there are, and where something is wrong."""
    what = signal.SIGALRM
    before_all = signal.getsignal(what)
    before = patched_state()
    number, hit, wrong = 1, 0, []
    complaints, steady = Complaints(), Lone().warm()
    try:
        while True:
            error = kind("late", 7)
            seen: BaseException | None = None
            # DDP does not survive an interrupted backward: another model each time.
            lone, kept = Lone().warm(), Kept()
            complaints.__enter__()
            with ModTracker(lone.model, tracer_provider=kept.provider, collectives=mode):
                signal.signal(what, make(error))
                try:
                    with Interrupt(what, number) as interrupt:
                        lone.iterate()
                        dist.all_reduce(torch.ones(2), group=dist.new_group([0]))
                except kind as caught:
                    seen, caught.__traceback__ = caught, None
                if interrupt.where is None:
                    break
                hit += 1
                faults = ["swallowed"] * (seen is not error)
                faults += not_clean(steady, kept)
            faults += ["left"] * (patched_state() != before)
            for group in list(c10d._world.pg_map):
                if group is not dist.group.WORLD:
                    with contextlib.suppress(KeyError):  # it was interrupted while it was made
                        dist.destroy_process_group(group)
            complaints.__exit__()
            if faults:
                wrong.append(str((number, *interrupt.where, *faults)))
                clean_up()
            number += stride
    finally:
        complaints.__exit__()
        signal.signal(what, before_all)
    return {"places": hit * stride, "wrong": wrong[:20], "said": complaints.said}


def interrupted_while_entered_or_left() -> dict[str, Any]:
    """The same while a tracker is entered and left."""
    what = signal.SIGALRM
    handler = signal.signal(what, plain_handler(Late("late")))
    kept = Kept()
    with ModTracker():  # once: the probe
        pass
    before = patched_state()
    number, wrong = 0, []
    try:
        while True:
            number += 1
            raised = False
            try:
                with (
                    Interrupt(what, number) as interrupt,
                    ModTracker(tracer_provider=kept.provider, collectives="each"),
                ):
                    pass
            except Late:
                raised = True
            if interrupt.where is None:
                break
            if interrupt.where[::2] == ("__exit__", "call"):
                clean_up()  # before the first thing that __exit__ can do
            faults = ["swallowed"] * (not raised)
            if patched_state() != before:
                faults.append("left")
                clean_up()
            with OurCalls() as calls:
                dist.all_reduce(torch.ones(2))
            faults += sorted(calls.seen)
            with ModTracker() as tracker:
                dist.all_reduce(torch.ones(2))
            faults += ["not seen"] * (tracker.collectives.total != 1)
            if faults:
                wrong.append(str((number, *interrupt.where, *faults)))
    finally:
        signal.signal(what, handler)
    return {"places": number, "wrong": wrong[:20]}


# 1 tries each place of ours, for a search that takes longer than a test may.
STRIDE = 1 if os.environ.get("MODTRACK_EXAMPLES") else 15 if QUICK else 5

if ALONE:

    @case
    def nothing_happens(world: int) -> Any:
        """What the other cases compare with is right."""
        return [alone("summed"), alone("each")]

    for _mode in ("summed", "each"):
        for _kind, _handler, _stride in (
            (KeyboardInterrupt, plain_handler, STRIDE),
            (Late, object_handler, 4 * STRIDE),
            (RuntimeError, plain_handler, 4 * STRIDE),
        ):

            def _case(
                world: int,
                kind: Any = _kind,
                make: Any = _handler,
                stride: int = _stride,
                mode: str = _mode,
            ) -> Any:
                return interrupted(kind, make, stride, mode)

            _case.__name__ = f"interrupted_{_kind.__name__}_{_mode}"
            case(_case)

    @case
    def interrupted_entering_and_leaving(world: int) -> Any:
        """A signal while a tracker is entered and left."""
        return interrupted_while_entered_or_left()

    @case
    def our_faults(world: int) -> Any:
        """What is wrong after each fault of ours, in each mode."""
        Lone().run()
        untracked, way = Lone().run(), sys.argv[2]
        return {
            f"{where} {after} {mode}": faulty(where, after, mode, untracked)
            for where, after, only in INJECTED
            for mode in ("summed", "each")
            if only in {"", mode, way}
        }


if __name__ == "__main__":
    main()
