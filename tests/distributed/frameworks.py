"""Small distributed programs, one framework each: what the tests of collectives run.

Sizes are chosen so that every group of parameters has another size, that all are divisible by 2
and 4, and that what a bucket of DDP's holds does not depend on whether a layer's weight or its bias
gets its gradient first. `test_frameworks` computes from them by hand.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["PROGRAMS", "Marks", "Program"]

IN, WIDTH, HIDDEN, OUT = 2, 8, 16, 4
BATCH = 5
# A bucket is full when it holds this much: `Net.head` with `Net.blocks.1`, but not without the last
# parameter of either; and no bucket is filled by the rest.
BUCKET = 1240


class Marks:
    """Where a program says what it does; here nobody listens. See `witness.Witness`."""

    @contextlib.contextmanager
    def optimizer(self) -> Iterator[None]:
        """An optimizer's step runs here."""
        yield

    @contextlib.contextmanager
    def compiled(self) -> Iterator[None]:
        """A compiled model is called here."""
        yield


class Program(NamedTuple):
    """A model, and a step of its training.

    Attributes:
        model: as it is called, wrapped.
        step: one step; it says to the marks where it is.
        compiled: whether the model is called compiled: nothing then tells its modules apart.
    """

    model: nn.Module
    step: Callable[[Marks], None]
    compiled: bool = False


class Block(nn.Module):
    """A residual block of two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.lin1 = nn.Linear(WIDTH, HIDDEN)
        self.lin2 = nn.Linear(HIDDEN, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.lin2(self.lin1(x).relu())


class Net(nn.Module):
    """A layer, two blocks, a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.inp = nn.Linear(IN, WIDTH)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(WIDTH, OUT)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.inp(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class CheckpointedNet(Net):
    """The same, whose blocks are recomputed."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.inp(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return self.head(x)


class NormNet(Net):
    """The same, with a module that has buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(OUT)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(super().forward(x))


class PartlyUsedNet(Net):
    """The same, with a module that nothing uses."""

    def __init__(self) -> None:
        super().__init__()
        self.aux = nn.Linear(WIDTH, 1)


class MLPModule(nn.Module):
    """Two layers, as in torch's tests of CommDebugMode."""

    def __init__(self) -> None:
        super().__init__()
        self.net1 = nn.Linear(10, 16)
        self.relu = nn.ReLU()
        self.net2 = nn.Linear(16, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net2(self.relu(self.net1(x)))


class Layer(nn.Module):
    """Such two layers, and one that keeps what comes out of them for its backward."""

    def __init__(self) -> None:
        super().__init__()
        self.mlp = MLPModule()
        self.after = nn.Linear(12, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.after(self.mlp(x)).sigmoid()


class MLPStacked(nn.Module):
    """A stack of them, recomputed if wanted."""

    def __init__(self, *, recompute: bool) -> None:
        super().__init__()
        self.inp = nn.Linear(IN, 10)
        self.layers = nn.ModuleList([Layer(), Layer()])
        self.recompute = recompute

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.inp(x)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.recompute else layer(x)
        return x


VOCABULARY, LONGEST, DIM, HEADS, SEQUENCE, SENTENCES = 8, 16, 16, 4, 8, 3


class Attention(nn.Module):
    """Of several heads."""

    def __init__(self) -> None:
        super().__init__()
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(DIM, DIM, bias=False) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, sequence, _ = x.shape
        parts = [w(x).view(batch, sequence, -1, DIM // HEADS) for w in (self.wq, self.wk, self.wv)]
        queries, keys, values = (part.transpose(1, 2) for part in parts)
        weights = (queries @ keys.transpose(-2, -1)).softmax(-1)
        return self.wo((weights @ values).transpose(1, 2).reshape(batch, sequence, -1))


class FeedForward(nn.Module):
    """Two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.w1 = nn.Linear(DIM, 4 * DIM)
        self.gelu = nn.GELU()
        self.w2 = nn.Linear(4 * DIM, DIM)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.w2(self.gelu(self.w1(x)))


class TransformerBlock(nn.Module):
    """Attention and two layers, each after a norm and beside a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(DIM)
        self.attention = Attention()
        self.ffn_norm = nn.LayerNorm(DIM)
        self.feed_forward = FeedForward()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.ffn_norm(x))


class Transformer(nn.Module):
    """Two layers, with the names of the one in torch's tests of CommDebugMode."""

    def __init__(self) -> None:
        super().__init__()
        self.tok_embeddings = nn.Embedding(VOCABULARY, DIM)
        self.pos_embeddings = nn.Embedding(LONGEST, DIM)
        self.layers = nn.ModuleList([TransformerBlock(), TransformerBlock()])
        self.norm = nn.LayerNorm(DIM)
        self.output = nn.Linear(DIM, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(0, tokens.shape[1])
        x = self.tok_embeddings(tokens) + self.pos_embeddings(positions)
        for layer in self.layers:
            x = layer(x)
        return self.output(self.norm(x))


@functools.cache
def mesh(world: int) -> Any:
    """All processes in a row."""
    return init_device_mesh("cpu", (world,), mesh_dim_names=("all",))


def _trained(
    model: nn.Module,
    *,
    x: torch.Tensor | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    compiled: Callable[..., Any] | None = None,
) -> Program:
    """One forward, backward and optimizer step each step."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.01)
    given = torch.randn(BATCH, IN) if x is None else x

    def step(marks: Marks) -> None:
        if compiled is None:
            out = model(given)
        else:
            with marks.compiled():
                out = compiled(given)
        out.sum().backward()
        with marks.optimizer():
            optimizer.step()
        optimizer.zero_grad()

    return Program(model, step, compiled is not None)


# -- DDP -----------------------------------------------------------------------------------------


def _ddp(net: nn.Module, **options: Any) -> DistributedDataParallel:
    options = {"bucket_cap_mb": BUCKET / 2**20, **options}
    return DistributedDataParallel(net, **options)


def ddp(world: int) -> Program:
    """C++ reducer, two buckets."""
    return _trained(_ddp(Net()))


def ddp_small_buckets(world: int) -> Program:
    """Each parameter is a bucket."""
    return _trained(_ddp(Net(), bucket_cap_mb=1 / 2**20))


def ddp_views(world: int) -> Program:
    """Gradients are views of the buckets."""
    return _trained(_ddp(Net(), gradient_as_bucket_view=True))


def ddp_buffers(world: int) -> Program:
    """Buffers are broadcast before each forward."""
    return _trained(_ddp(NormNet()))


def ddp_unused(world: int) -> Program:
    """Unused parameters are looked for."""
    return _trained(_ddp(PartlyUsedNet(), find_unused_parameters=True))


def ddp_static(world: int) -> Program:
    """The graph is promised to stay."""
    return _trained(_ddp(Net(), static_graph=True))


def ddp_no_sync(world: int) -> Program:
    """Gradients of two batches are added up before they are reduced."""
    model = _ddp(Net())
    whole = _trained(model)
    x = torch.randn(BATCH, IN)

    def step(marks: Marks) -> None:
        with model.no_sync():
            model(x).sum().backward()
        whole.step(marks)

    return Program(model, step)


def _reduce_python(state, bucket):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    # torch compares annotations with the types themselves, and here they are strings.
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    return work.get_future().then(lambda done: done.value()[0])


def ddp_python_hook(world: int) -> Program:
    """A communication hook in Python."""
    model = _ddp(Net())
    model.register_comm_hook(None, _reduce_python)
    return _trained(model)


def ddp_half_hook(world: int) -> Program:
    """torch's hook that sends half precision."""
    model = _ddp(Net())
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    return _trained(model)


def _reduce_twice(state, bucket):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    def again(done: Any) -> torch.Tensor:
        threading.current_thread()  # logging calls it, and it makes the thread one of Python's
        dist.all_reduce(torch.ones(3), async_op=True).get_future().wait()
        return done.value()[0]

    return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(again)


def ddp_chained_hook(world: int) -> Program:
    """A hook that launches another collective when the first is done: on a thread of the backend's.

    PowerSGD does so; with more than one bucket, on gloo, torch itself hangs there.
    """
    model = _ddp(Net(), bucket_cap_mb=None)
    model.register_comm_hook(None, _reduce_twice)
    return _trained(model)


def ddp_builtin(world: int) -> Program:
    """The C++ communication hook that reduces."""
    model = _ddp(Net())
    model._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE)
    return _trained(model)


def ddp_builtin_half(world: int) -> Program:
    """The C++ communication hook that sends half precision."""
    model = _ddp(Net())
    model._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
    return _trained(model)


def zero(world: int) -> Program:
    """Each rank steps its part of the parameters, and broadcasts them."""
    model = _ddp(Net())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.01)
    return _trained(model, optimizer=optimizer)


# -- FSDP ----------------------------------------------------------------------------------------


def _sharded(net: Net, world: int, *, reshard: bool) -> Net:
    for block in net.blocks:
        fully_shard(block, mesh=mesh(world), reshard_after_forward=reshard)
    fully_shard(net, mesh=mesh(world), reshard_after_forward=reshard)
    return net


def fsdp2(world: int) -> Program:
    """Parameters are given back after the forward, and gathered again for the backward."""
    return _trained(_sharded(Net(), world, reshard=True))


def fsdp2_kept(world: int) -> Program:
    """Parameters are kept from the forward to the backward."""
    return _trained(_sharded(Net(), world, reshard=False))


def fsdp2_blocks(world: int) -> Program:
    """Only the blocks are sharded: no one gathers a block's parameters ahead of it."""
    net = Net()
    for block in net.blocks:
        fully_shard(block, mesh=mesh(world), reshard_after_forward=True)
    return _trained(net)


def fsdp2_checkpointed(world: int) -> Program:
    """Blocks are recomputed: the sharded block is called again."""
    return _trained(_sharded(CheckpointedNet(), world, reshard=True))


def fsdp2_wrapped(world: int) -> Program:
    """Blocks are recomputed: within what is sharded, as torch advises."""
    net = Net()
    for at in range(2):
        net.blocks[at] = checkpoint_wrapper(net.blocks[at])
    return _trained(_sharded(net, world, reshard=True))


def fsdp1(world: int) -> Program:
    """The older wrapper."""
    policy = ModuleWrapPolicy({Block})
    model = FullyShardedDataParallel(
        Net(), auto_wrap_policy=policy, device_id=torch.device("cpu"), use_orig_params=True
    )
    return _trained(model)


# -- tensor parallel -------------------------------------------------------------------------------


def tensor_parallel(world: int) -> Program:
    """Two layers, the first split by its outputs, the second by its inputs."""
    plan = {"net1": ColwiseParallel(), "net2": RowwiseParallel()}
    model = parallelize_module(MLPModule(), mesh(world), plan)
    return _trained(model, x=torch.randn(BATCH, 10, requires_grad=True))


def _parallel_stack(world: int, *, recompute: bool) -> Program:
    plan = {
        f"layers.{at}.mlp.{name}": style()
        for at in range(2)
        for name, style in (("net1", ColwiseParallel), ("net2", RowwiseParallel))
    }
    return _trained(parallelize_module(MLPStacked(recompute=recompute), mesh(world), plan))


def tensor_parallel_stack(world: int) -> Program:
    """Such layers within others."""
    return _parallel_stack(world, recompute=False)


def tensor_parallel_checkpointed(world: int) -> Program:
    """Recomputation launches the forward's collectives again."""
    return _parallel_stack(world, recompute=True)


def transformer(world: int) -> Program:
    """A transformer, split as in torch's tests of CommDebugMode."""
    model = Transformer()
    row = RowwiseParallel(input_layouts=Replicate(), output_layouts=Replicate())
    plan: dict[str, Any] = {"tok_embeddings": row, "pos_embeddings": row}
    for at in range(2):
        for name in ("wq", "wk", "wv"):
            plan[f"layers.{at}.attention.{name}"] = ColwiseParallel(use_local_output=True)
        plan[f"layers.{at}.attention.wo"] = RowwiseParallel()
        plan[f"layers.{at}.feed_forward.w1"] = ColwiseParallel()
        plan[f"layers.{at}.feed_forward.w2"] = RowwiseParallel()
    plan["output"] = ColwiseParallel(output_layouts=Replicate())
    return _trained(
        parallelize_module(model, mesh(world), plan),
        x=torch.randint(0, VOCABULARY, (SENTENCES, SEQUENCE)),
    )


def sequence_parallel(world: int) -> Program:
    """The same, whose activations are split along the sequence between the layers."""
    model = Transformer()
    plan: dict[str, Any] = {
        "tok_embeddings": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "pos_embeddings": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(0)),
        "norm": SequenceParallel(),
        "output": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    }
    for at in range(2):
        layer = f"layers.{at}."
        plan[layer + "attention_norm"] = plan[layer + "ffn_norm"] = SequenceParallel()
        plan[layer + "attention"] = PrepareModuleInput(
            input_layouts=Shard(1), desired_input_layouts=Replicate()
        )
        for name in ("wq", "wk", "wv"):
            plan[f"{layer}attention.{name}"] = ColwiseParallel(use_local_output=True)
        plan[layer + "attention.wo"] = RowwiseParallel(output_layouts=Shard(1))
        plan[layer + "feed_forward.w1"] = ColwiseParallel(input_layouts=Shard(1))
        plan[layer + "feed_forward.w2"] = RowwiseParallel(output_layouts=Shard(1))
    return _trained(
        parallelize_module(model, mesh(world), plan),
        x=torch.randint(0, VOCABULARY, (SENTENCES, SEQUENCE)),
    )


# -- pipelines -----------------------------------------------------------------------------------

MICROBATCHES = 4
MICROBATCH = 3


class Stage0(nn.Module):
    """The first half."""

    def __init__(self) -> None:
        super().__init__()
        self.inp = nn.Linear(IN, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inp(x).relu()


class Stage1(nn.Module):
    """The second half."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(WIDTH, OUT)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x)


def _pipeline(world: int, make: Callable[..., Any]) -> Program:
    rank = dist.get_rank()
    module = (Stage0, Stage1)[rank]()
    stage = PipelineStage(module, rank, world, torch.device("cpu"))
    schedule = make(stage, MICROBATCHES, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    x = torch.randn(MICROBATCHES * MICROBATCH, IN)
    target = torch.randn(MICROBATCHES * MICROBATCH, OUT)

    def step(marks: Marks) -> None:
        if rank == 0:
            schedule.step(x)
        else:
            schedule.step(target=target)
        with marks.optimizer():
            optimizer.step()
        optimizer.zero_grad()

    return Program(module, step)


def gpipe(world: int) -> Program:
    """All forwards, then all backwards."""
    return _pipeline(world, ScheduleGPipe)


def one_forward_one_backward(world: int) -> Program:
    """One forward, one backward."""
    return _pipeline(world, Schedule1F1B)


# -- compiled ------------------------------------------------------------------------------------


def compiled_ddp(world: int) -> Program:
    """DDP, compiled; without code generation, which takes a minute."""
    torch._dynamo.reset()
    model = _ddp(Net())
    whole = _trained(model, compiled=torch.compile(model, backend="aot_eager"))

    def step(marks: Marks) -> None:
        # Dynamo splits its graph where the buckets end, and believes that the first holds 1 MiB.
        with mock.patch.object(dist, "_DEFAULT_FIRST_BUCKET_BYTES", BUCKET):
            whole.step(marks)

    return whole._replace(step=step)


PROGRAMS = {
    make.__name__: make
    for make in (
        ddp,
        ddp_small_buckets,
        ddp_views,
        ddp_buffers,
        ddp_unused,
        ddp_static,
        ddp_no_sync,
        ddp_python_hook,
        ddp_half_hook,
        ddp_chained_hook,
        ddp_builtin,
        ddp_builtin_half,
        zero,
        fsdp2,
        fsdp2_kept,
        fsdp2_blocks,
        fsdp2_checkpointed,
        fsdp2_wrapped,
        fsdp1,
        tensor_parallel,
        tensor_parallel_stack,
        tensor_parallel_checkpointed,
        transformer,
        sequence_parallel,
        gpipe,
        one_forward_one_backward,
        compiled_ddp,
    )
}
