"""Models trained on two processes, wrapped and not: the trees of regions, the oracle's verdict.

A case gives trees as text, in which models are not numbered. The tree of a wrapped model must be
that of the same model, unwrapped; of the smallest the tests have the whole, written by hand.
"""

from __future__ import annotations

import contextlib
import functools
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import frameworks
import torch
import torch.distributed as dist
from frameworks import IN, PROGRAMS, WIDTH, Block, Marks, mesh
from harness import case, main
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from torch import nn
from torch.distributed._composable import replicate
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
)
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from otel_modtrack import ModTracker
from otel_modtrack.testing import Tree
from tests.intervals import check_intervals
from tests.tracker import oracle
from tests.tracker.oracle import watched

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

# As the tracker does it: one region with what they wrap.
oracle._WRAPPERS.update(
    DistributedDataParallel="module",
    FullyShardedDataParallel="_fsdp_wrapped_module",
    FSDPCheckpointWrapper="_checkpoint_wrapped_module",  # as FSDP2 renames torch's wrapper
)

CPU = torch.device("cpu")
X = torch.ones(4, IN)


class Net(frameworks.Net):
    """A layer, two blocks and a layer; blocks are checkpointed if wanted (`reentrant` or not)."""

    def __init__(self, *, reentrant: bool | None = None) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.skipped: int | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.inp(x)
        for number, block in enumerate(self.blocks):
            if number == self.skipped:
                continue
            if self.reentrant is None:
                x = block(x)
            else:
                x = checkpoint(block, x, use_reentrant=self.reentrant)
        return self.head(x)


def fresh(**options: Any) -> Net:
    """One with the same parameters each time."""
    torch.manual_seed(0)
    return Net(**options)


# -- how a model is wrapped -----------------------------------------------------------------------


def ddp(net: nn.Module, **options: Any) -> nn.Module:
    """DDP, with several buckets."""
    return DistributedDataParallel(net, **{"bucket_cap_mb": 0.0005, **options})


def ddp_hooked(net: nn.Module) -> nn.Module:
    """DDP with a communication hook in Python."""
    model = ddp(net)
    model.register_comm_hook(None, fp16_compress_hook)
    return model


def ddp_blocks(net: nn.Module) -> nn.Module:
    """DDP on each block: two of them in one model."""
    for number, block in enumerate(net.blocks):
        net.blocks[number] = DistributedDataParallel(block)
    return net


def fsdp2(net: nn.Module, **options: Any) -> nn.Module:
    """FSDP2 on each block and on the whole."""
    for block in net.blocks:
        fully_shard(block, **options)
    return fully_shard(net, **options)


def fsdp2_leaves(net: nn.Module) -> nn.Module:
    """FSDP2 on each layer as well."""
    for block in net.blocks:
        fully_shard(block.lin1)
        fully_shard(block.lin2)
    return fsdp2(net)


def fsdp2_grouped(net: nn.Module) -> nn.Module:
    """FSDP2 on lists of modules, which share their parameters' collectives."""
    fully_shard([net.inp, net.head])
    fully_shard([*net.blocks])
    return fully_shard(net)


def fsdp1(net: nn.Module, **options: Any) -> nn.Module:
    """The older FSDP on each block and on the whole."""
    options = {"device_id": CPU, "use_orig_params": True, **options}
    for number, block in enumerate(net.blocks):
        net.blocks[number] = FullyShardedDataParallel(block, **options)
    return FullyShardedDataParallel(net, **options)


def tensor_parallel(net: nn.Module) -> nn.Module:
    """Each block's layers are split."""
    plan = {}
    for number in range(2):
        plan[f"blocks.{number}.lin1"] = ColwiseParallel()
        plan[f"blocks.{number}.lin2"] = RowwiseParallel()
    return parallelize_module(net, mesh(2), plan)


def tensor_parallel_sharded(net: nn.Module) -> nn.Module:
    """The same within FSDP2."""
    both = init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp", "tp"))
    for block in net.blocks:
        parallelize_module(
            block, both["tp"], {"lin1": ColwiseParallel(), "lin2": RowwiseParallel()}
        )
    return fsdp2(net, mesh=both["dp"])


def checkpointed_blocks(net: nn.Module) -> nn.Module:
    """Each block in torch's wrapper that recomputes it."""
    for number, block in enumerate(net.blocks):
        net.blocks[number] = checkpoint_wrapper(block)
    return net


MIXED = MixedPrecisionPolicy(param_dtype=torch.bfloat16)

WRAPPED: dict[str, Callable[[nn.Module], nn.Module]] = {
    "ddp": ddp,
    "ddp one bucket": lambda net: ddp(net, bucket_cap_mb=25),
    "ddp views": lambda net: ddp(net, gradient_as_bucket_view=True),
    "ddp find unused": lambda net: ddp(net, find_unused_parameters=True),
    "ddp static graph": lambda net: ddp(net, static_graph=True),
    "ddp hooked": ddp_hooked,
    "ddp blocks": ddp_blocks,
    "replicate": replicate,
    "fsdp2": fsdp2,
    "fsdp2 kept": lambda net: fsdp2(net, reshard_after_forward=False),
    "fsdp2 mixed": lambda net: fsdp2(net, mp_policy=MIXED),
    "fsdp2 leaves": fsdp2_leaves,
    "fsdp2 grouped": fsdp2_grouped,
    "fsdp2 root alone": fully_shard,
    "fsdp1": fsdp1,
    "fsdp1 flat": lambda net: fsdp1(net, use_orig_params=False),
    "tensor parallel": tensor_parallel,
    "tensor parallel, fsdp2": tensor_parallel_sharded,
}
# With blocks that are recomputed.
RECOMPUTED = (
    "ddp",
    "ddp static graph",
    "fsdp2",
    "fsdp2 kept",
    "fsdp1",
    "tensor parallel",
    "tensor parallel, fsdp2",
)


# DDP takes reentrant ones only if the graph is static, and the older FSDP none.
IMPOSSIBLE = {("reentrant", "ddp"), ("reentrant", "fsdp1")}


@functools.cache
def fsdp2_scale() -> float:
    """How many times too large FSDP2's gradients are: on gloo, torch 2.8 takes no mean."""
    net = fully_shard(nn.Linear(1, 1))
    net(torch.ones(1, 1)).sum().backward()
    return net.bias.grad.full_tensor().item()


def unwrapped(net: nn.Module) -> nn.Module:
    """As it is."""
    return net


# -- trees ----------------------------------------------------------------------------------------


class Traced:
    """A tracker, and the tree of what it exported."""

    def __init__(self, *models: nn.Module) -> None:
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracker = ModTracker(*models, tracer_provider=provider, collectives="each")

    @property
    def tree(self) -> str:
        """As text; models are not numbered, for others of their class may be alive."""
        spans = self.exporter.get_finished_spans()
        check_intervals(spans)
        return re.sub(r"#\d+", "", str(Tree(spans)))


def trained(
    net: nn.Module, wrap: Callable[[nn.Module], nn.Module], rate: float = 0.01
) -> dict[str, Any]:
    """Trees of training: without a step; in steps; what wraps what; what came out each time."""
    model = wrap(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)

    def iterate() -> None:
        out = model(X)
        outs.append(out.flatten().tolist())
        out.sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    outs: list[list[float]] = []
    found: dict[str, Any] = {"outs": outs}
    plain, stepped = Traced(), Traced()
    iterate()  # DDP arranges its buckets after its first backward
    with plain.tracker:
        iterate()
    with stepped.tracker:
        for number in range(2):
            with stepped.tracker.step(number):
                iterate()
    found["plain"], found["steps"] = plain.tree, stepped.tree
    found["wrappers"] = sorted(
        {
            f"{span.attributes['modtrack.module.fqn']}: {wrapper}"
            for span in plain.exporter.get_finished_spans()
            if (wrapper := span.attributes.get("modtrack.module.wrapper"))
        }
    )
    return found


@case
def trees_of_training(world: int) -> Any:
    """Each way to wrap a model, and none."""
    found = {}
    for name, wrap in {"": unwrapped, **WRAPPED}.items():
        rate = 0.01 / (fsdp2_scale() if name.startswith("fsdp2") else 1)
        found[name] = trained(fresh(), wrap, rate)
    return found


@case
def trees_of_recomputation(world: int) -> Any:
    """The same with checkpointed blocks: not reentrant, reentrant, in torch's wrapper."""
    found = {}
    for name in ("", *RECOMPUTED):
        wrap = WRAPPED[name] if name else unwrapped
        found[f"not reentrant {name}"] = trained(fresh(reentrant=False), wrap)
        if ("reentrant", name) not in IMPOSSIBLE:
            found[f"reentrant {name}"] = trained(fresh(reentrant=True), wrap)
        if not name.startswith("tensor"):
            found[f"wrapper {name}"] = trained(checkpointed_blocks(fresh()), wrap)
    return found


@case
def trees_entered_first(world: int) -> Any:
    """The tracker is on while the model is wrapped, and for the first iteration."""
    found = {}
    for name, wrap in {"": unwrapped, **WRAPPED}.items():
        traced = Traced()
        with traced.tracker:
            model = wrap(fresh())
            model(X).sum().backward()
        found[name] = traced.tree
    return found


@case
def trees_of_accumulation(world: int) -> Any:
    """Two forwards and backwards to one step of the optimizer."""

    def accumulate(model: nn.Module, quiet: Callable[[bool], Any]) -> str:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        traced = Traced()
        with traced.tracker, traced.tracker.step(0):
            with quiet(True):
                model(X).sum().backward()
            with quiet(False):
                model(X).sum().backward()
            optimizer.step()
        return traced.tree

    net, model, sharded, old = fresh(), ddp(fresh()), fsdp2(fresh()), fsdp1(fresh())

    @contextlib.contextmanager
    def unsynced(on: bool) -> Any:
        sharded.set_requires_gradient_sync(not on)
        yield

    def of(wrapper: Any) -> Callable[[bool], Any]:
        return lambda on: wrapper.no_sync() if on else contextlib.nullcontext()

    return {
        "": accumulate(net, lambda _: contextlib.nullcontext()),
        "ddp": accumulate(model, of(model)),
        "fsdp2": accumulate(sharded, unsynced),
        "fsdp1": accumulate(old, of(old)),
    }


@case
def trees_where_a_block_is_left_out(world: int) -> Any:
    """Another block on each rank: unused parameters are looked for."""
    found = {}
    for name, wrap in (("", unwrapped), ("ddp", WRAPPED["ddp find unused"])):
        net = fresh()
        model = wrap(net)
        traced = Traced()
        with traced.tracker:
            for number in range(2):
                net.skipped = (number + dist.get_rank()) % 2
                model(X).sum().backward()
        found[name] = traced.tree
    return found


@case
def trees_without_gradients(world: int) -> Any:
    """Evaluation, then training."""
    found = {}
    for name in ("", "ddp", "fsdp2", "fsdp1", "tensor parallel"):
        model = (WRAPPED[name] if name else unwrapped)(fresh())
        traced = Traced()
        with traced.tracker:
            with torch.no_grad():
                model.eval()(X)
            model.train()(X).sum().backward()
        found[name] = traced.tree
    return found


@case
def trees_of_errors(world: int) -> Any:
    """A forward that raises, on all ranks; and the next iteration."""
    found = {}
    for name in ("", "ddp", "fsdp2", "tensor parallel"):
        net = fresh()
        model = (WRAPPED[name] if name else unwrapped)(net)
        handle = net.blocks[1].lin1.register_forward_hook(lambda *_: {}["mine"])
        traced = Traced()
        with traced.tracker:
            with contextlib.suppress(KeyError):
                model(X)
            handle.remove()
            model(X).sum().backward()
        found[name] = traced.tree
    return found


@case
def trees_of_compiled(world: int) -> Any:
    """DDP and FSDP2 around what is compiled, and compiled with it."""
    found = {}
    for name, make in {
        "": lambda: torch.compile(fresh(), backend="aot_eager"),
        "ddp around": lambda: ddp(torch.compile(fresh(), backend="aot_eager"), bucket_cap_mb=25),
        "ddp inside": lambda: torch.compile(ddp(fresh(), bucket_cap_mb=25), backend="aot_eager"),
    }.items():
        torch._dynamo.reset()
        model = make()
        traced = Traced()
        model(X).sum().backward()
        with traced.tracker:
            model(X).sum().backward()
        found[name] = traced.tree
    torch._dynamo.reset()
    return found


@case
def tree_of_sequence_parallel(world: int) -> Any:
    """Activations are split between the layers, which pass DTensors on."""
    found = {}
    for name in ("", "split"):
        net = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))
        if name:
            plan = {
                "0": SequenceParallel(sequence_dim=0),
                "1": ColwiseParallel(use_local_output=False),
                "2": RowwiseParallel(),
            }
            parallelize_module(net, mesh(2), plan)
        traced = Traced()
        with traced.tracker:
            net(torch.ones(4, WIDTH)).sum().backward()
        found[name] = traced.tree
    return found


# -- the programs of `frameworks` ------------------------------------------------------------------

# What each of them wraps.
PLAIN: dict[str, Callable[[], nn.Module]] = {
    name: frameworks.Net for name in PROGRAMS if name.startswith(("ddp", "fsdp", "zero"))
}
PLAIN.update(
    ddp_buffers=frameworks.NormNet,
    ddp_unused=frameworks.PartlyUsedNet,
    fsdp2_checkpointed=frameworks.CheckpointedNet,
    fsdp2_wrapped=lambda: checkpointed_blocks(frameworks.Net()),
    tensor_parallel=frameworks.MLPModule,
    tensor_parallel_stack=lambda: frameworks.MLPStacked(recompute=False),
    tensor_parallel_checkpointed=lambda: frameworks.MLPStacked(recompute=True),
    transformer=frameworks.Transformer,
    sequence_parallel=frameworks.Transformer,
)


def keep(given: list[torch.Tensor], _: nn.Module, args: tuple[torch.Tensor]) -> None:
    """A hook that keeps what goes into a model."""
    given.append(args[0])


def train(model: nn.Module, given: list[torch.Tensor], optimizer: Any = None) -> None:
    """One step of it."""
    for x in given:
        model(x).sum().backward()
    if optimizer is not None:
        optimizer.step()
        optimizer.zero_grad()


def followed(model: nn.Module, steps: Iterable[Callable[[], None]]) -> Any:
    """The tree of some steps from the very first; what went into the model, and what came out."""
    given: list[torch.Tensor] = []
    outs: list[list[float]] = []
    model.register_forward_pre_hook(functools.partial(keep, given))
    model.register_forward_hook(lambda _, args, out: outs.append(out.flatten().tolist()))
    traced = Traced(model)
    with traced.tracker:
        for number, step in enumerate(steps):
            with traced.tracker.step(number):
                step()
    return {"tree": traced.tree, "outs": outs}, given


@case
def programs(world: int) -> Any:
    """Each program, and the same training of the plain model in one process."""
    found = {}
    for name, make in PLAIN.items():
        torch.manual_seed(0)
        program = PROGRAMS[name](world)
        wrapped, given = followed(program.model, [functools.partial(program.step, Marks())] * 3)
        torch.manual_seed(0)
        model = make()
        # The hooks in Python add up, where all others take the mean.
        scale = world if name in {"ddp_python_hook", "ddp_chained_hook"} else 1
        scale = fsdp2_scale() if name.startswith("fsdp2") else scale
        scaled = (model.blocks if name == "fsdp2_blocks" else model).parameters()
        rates = dict.fromkeys(model.parameters(), 0.01) | dict.fromkeys(scaled, 0.01 * scale)
        groups = [{"params": [parameter], "lr": rate} for parameter, rate in rates.items()]
        optimizer = torch.optim.SGD(groups)
        each = len(given) // 3
        batches = [given[at : at + each] for at in range(0, len(given), each)]
        steps = [functools.partial(train, model, batch, optimizer) for batch in batches]
        found[name] = {"wrapped": wrapped, "plain": followed(model, steps)[0]}
    return found


# -- pipelines ------------------------------------------------------------------------------------


class Pipeline:
    """A schedule of `stages` stages a rank, blocks of classes of their own: Stage0, Stage1, ..."""

    def __init__(self, kind: Any, stages: int = 1) -> None:
        rank, world = dist.get_rank(), dist.get_world_size()
        at = [rank + number * world for number in range(stages)]
        self.parts = [self.part(one) for one in at]
        self.stages = stages * world
        made = [
            PipelineStage(part, one, stages * world, CPU)
            for one, part in zip(at, self.parts, strict=True)
        ]
        loss = nn.functional.mse_loss
        self.schedule = kind(made[0] if stages == 1 else made, 4, loss_fn=loss)

    @staticmethod
    def part(stage: int) -> nn.Module:
        """One stage, with the same parameters each time."""
        torch.manual_seed(stage)
        return type(f"Stage{stage}", (Block,), {})()

    def step(self) -> torch.Tensor | None:
        """One step of the schedule; the last rank has what comes out."""
        x = torch.ones(8, WIDTH)
        if dist.get_rank() == 0:
            return self.schedule.step(x)
        return self.schedule.step(target=x, losses=[])

    def agrees(self, out: torch.Tensor | None) -> bool:
        """Whether that is what the parts give in one process, one after the other."""
        if dist.get_rank() == 0:
            return out is None
        whole = nn.Sequential(*map(self.part, range(self.stages)))
        return torch.allclose(out, whole(torch.ones(8, WIDTH)))


@case
def trees_of_pipelines(world: int) -> Any:
    """GPipe, 1F1B and the interleaved 1F1B, after the step in which shapes are found out."""
    found = {}
    for name, kind, stages in (
        ("gpipe", ScheduleGPipe, 1),
        ("1f1b", Schedule1F1B, 1),
        ("interleaved", ScheduleInterleaved1F1B, 2),
    ):
        pipeline, traced, plain = Pipeline(kind, stages), Traced(), Traced()
        pipeline.step()
        with traced.tracker, traced.tracker.step(0):
            outs = [pipeline.step()]
        with plain.tracker:
            outs.append(pipeline.step())
        found[f"{name} agrees"] = all(map(pipeline.agrees, outs))
        found[name] = traced.tree
        found[f"{name}, no step"] = plain.tree
    return found


# -- the oracle -----------------------------------------------------------------------------------


def judged(net: nn.Module, wrap: Any, *, inside: bool, both: bool = True) -> Any:
    """How many nodes were looked at, of which so many were made by a module; or what is wrong.

    Args:
        net: the plain model.
        wrap: gives the wrapped one.
        inside: it is wrapped while the tracker is on.
        both: two forwards come before a backward, in the end.
    """
    try:
        with watched(partly=True, nodes=True) as run:
            run.oracle.learn(net)
            model = None if inside else wrap(net)
            with run.tracker:
                model = wrap(net) if model is None else model
                for number in range(2):
                    with run.tracker.step(number):
                        model(X).sum().backward()
                if both:
                    (model(X) * model(X)).sum().backward()
    except AssertionError as error:
        return str(error)
    return [run.verdict.checked, run.verdict.labelled]


@case
def verdicts(world: int) -> Any:
    """The oracle's, on models wrapped before the tracker is entered, and inside."""
    found = {}
    for name, wrap in {"": unwrapped, **WRAPPED}.items():
        both = name != "ddp static graph"  # which has one forward for each backward
        found[name] = judged(fresh(), wrap, inside=False, both=both)
        found[f"{name}, inside"] = judged(fresh(), wrap, inside=True, both=both)
    for name in ("", *RECOMPUTED):
        wrap = WRAPPED[name] if name else unwrapped
        for kind, net in (
            ("not reentrant", fresh(reentrant=False)),
            ("reentrant", fresh(reentrant=True)),
            ("wrapper", checkpointed_blocks(fresh())),
        ):
            if (kind, name) in IMPOSSIBLE or (kind == "wrapper" and name.startswith("tensor")):
                continue
            # Not in older torch's FSDP2 with reentrant ones.
            both = name != "ddp static graph" and kind != "reentrant"
            found[f"{kind} {name}"] = judged(net, wrap, inside=False, both=both)
    return found


def judged_steps(step: Callable[[], None]) -> Any:
    """The same of two steps, the first ones; names are not known beforehand."""
    try:
        with watched(partly=True, nodes=True) as run, run.tracker:
            for number in range(2):
                with run.tracker.step(number):
                    step()
    except AssertionError as error:
        return str(error)
    return [run.verdict.checked, run.verdict.labelled]


@case
def verdicts_of_programs(world: int) -> Any:
    """The same of each program, and of what it wraps."""
    found = {}
    for name, make in PLAIN.items():
        given: list[torch.Tensor] = []
        program, model = PROGRAMS[name](world), make()
        wrapped = judged_steps(functools.partial(program.step, Marks()))
        handle = program.model.register_forward_pre_hook(functools.partial(keep, given))
        program.step(Marks())
        handle.remove()
        plain = judged_steps(functools.partial(train, model, given))
        found[name] = {"wrapped": wrapped, "plain": plain}
    return found


@case
def verdicts_of_pipelines(world: int) -> Any:
    """The same of pipelines."""
    found = {}
    for name, kind, stages in (
        ("gpipe", ScheduleGPipe, 1),
        ("1f1b", Schedule1F1B, 1),
        ("interleaved", ScheduleInterleaved1F1B, 2),
    ):
        pipeline = Pipeline(kind, stages)
        pipeline.step()
        try:
            with watched(*pipeline.parts) as run:
                pipeline.step()
            found[name] = [run.verdict.checked, run.verdict.labelled]
        except AssertionError as error:
            found[name] = str(error)
    return found


if __name__ == "__main__":
    main()
