"""The distributed scenarios, on two processes: a wrapped model has the regions of the plain one.

Whole trees are compared: with the plain model's, trained in one process, and with what is written
here by hand. Intervals are nested, and the wrapped and tracked model gives what the plain one does.

The oracle of `tests.tracker` judges every node that ran, in the same runs: DDP, both FSDPs, tensor
parallel, pipelines, with checkpointing and without. There is what it does not judge:

- AccumulateGrad nodes, in whose hooks DDP reduces: torch does not tell it who made them. Where
  their collectives are counted is tested in `test_frameworks`.
- Compiled models: it replaces ``nn.Module.__call__``, and Dynamo fails to trace what it puts there.
  Of them the trees alone are compared.
- Two forwards before a backward with DDP's static graph, which does not take them; and with
  reentrant checkpoints, which torch 2.8 does not take in FSDP2.
"""

from __future__ import annotations

from inspect import cleandoc
from typing import Any

import pytest
from harness import result

from otel_modtrack.testing import assert_tree_equals

WORKER = "worker_trees.py"

FORWARD = """
    forward Net
      forward Net.inp
      forward Net.blocks.0
        forward Net.blocks.0.lin1
        forward Net.blocks.0.lin2
      forward Net.blocks.1
        forward Net.blocks.1.lin1
        forward Net.blocks.1.lin2
      forward Net.head
"""
BACKWARD = """
    backward
      backward Net
        backward Net.head
        backward Net.blocks.1
          backward Net.blocks.1.lin2
          backward Net.blocks.1.lin1
        backward Net.blocks.0
          backward Net.blocks.0.lin2
          backward Net.blocks.0.lin1
        backward Net.inp
"""
# A saved tensor of its second layer is asked for first.
RECOMPUTED = """
    backward
      backward Net
        backward Net.head
        backward Net.blocks.1
          backward Net.blocks.1.lin2
            recompute Net.blocks.1
              recompute Net.blocks.1.lin1
              recompute Net.blocks.1.lin2
          backward Net.blocks.1.lin1
        backward Net.blocks.0
          backward Net.blocks.0.lin2
            recompute Net.blocks.0
              recompute Net.blocks.0.lin1
              recompute Net.blocks.0.lin2
          backward Net.blocks.0.lin1
        backward Net.inp
"""
REENTRANT = """
    backward
      backward Net
        backward Net.head
        backward Net.blocks.1
          recompute Net.blocks.1
            recompute Net.blocks.1.lin1
            recompute Net.blocks.1.lin2
          backward Net.blocks.1.lin2
          backward Net.blocks.1.lin1
        backward Net.blocks.0
          recompute Net.blocks.0
            recompute Net.blocks.0.lin1
            recompute Net.blocks.0.lin2
          backward Net.blocks.0.lin2
          backward Net.blocks.0.lin1
        backward Net.inp
"""
OPTIMIZER = "optimizer_step SGD"

WRAPPED = {  # and what is said to wrap what
    "": [],
    "ddp": ["Net: DistributedDataParallel"],
    "ddp one bucket": ["Net: DistributedDataParallel"],
    "ddp views": ["Net: DistributedDataParallel"],
    "ddp find unused": ["Net: DistributedDataParallel"],
    "ddp static graph": ["Net: DistributedDataParallel"],
    "ddp hooked": ["Net: DistributedDataParallel"],
    "ddp blocks": [
        "Net.blocks.0: DistributedDataParallel",
        "Net.blocks.1: DistributedDataParallel",
    ],
    "replicate": ["Net: DDP"],
    "fsdp2": ["Net.blocks.0: FSDPModule", "Net.blocks.1: FSDPModule", "Net: FSDPModule"],
    "fsdp2 kept": ["Net.blocks.0: FSDPModule", "Net.blocks.1: FSDPModule", "Net: FSDPModule"],
    "fsdp2 mixed": ["Net.blocks.0: FSDPModule", "Net.blocks.1: FSDPModule", "Net: FSDPModule"],
    "fsdp2 leaves": [
        "Net.blocks.0.lin1: FSDPModule",
        "Net.blocks.0.lin2: FSDPModule",
        "Net.blocks.0: FSDPModule",
        "Net.blocks.1.lin1: FSDPModule",
        "Net.blocks.1.lin2: FSDPModule",
        "Net.blocks.1: FSDPModule",
        "Net: FSDPModule",
    ],
    "fsdp2 grouped": [
        "Net.blocks.0: FSDPModule",
        "Net.blocks.1: FSDPModule",
        "Net.head: FSDPModule",
        "Net.inp: FSDPModule",
        "Net: FSDPModule",
    ],
    "fsdp2 root alone": ["Net: FSDPModule"],
    "fsdp1": [
        "Net.blocks.0: FullyShardedDataParallel",
        "Net.blocks.1: FullyShardedDataParallel",
        "Net: FullyShardedDataParallel",
    ],
    "fsdp1 flat": [
        "Net.blocks.0: FullyShardedDataParallel",
        "Net.blocks.1: FullyShardedDataParallel",
        "Net: FullyShardedDataParallel",
    ],
    "tensor parallel": [],
    "tensor parallel, fsdp2": [
        "Net.blocks.0: FSDPModule",
        "Net.blocks.1: FSDPModule",
        "Net: FSDPModule",
    ],
}
RECOMPUTING = (
    "",
    "ddp",
    "ddp static graph",
    "fsdp2",
    "fsdp2 kept",
    "fsdp1",
    "tensor parallel",
    "tensor parallel, fsdp2",
)


def joined(*parts: str) -> str:
    """Trees one after the other."""
    return "\n".join(cleandoc(part) for part in parts)


def in_a_step(*parts: str) -> str:
    """The same in a step."""
    return "train_step\n" + "\n".join(f"  {line}" for line in joined(*parts).splitlines())


def trees(name: str, key: str) -> list[Any]:
    """What each rank gave."""
    return [found[key] for found in result(WORKER, 2, name)]


@pytest.mark.parametrize("name", WRAPPED)
def test_training(name: str) -> None:
    """Forward, backward and optimizer, in steps recognised and marked; no wrapper is in a name."""
    step = in_a_step(FORWARD, BACKWARD, OPTIMIZER)
    for found in trees("trees_of_training", name):
        assert found["plain"] == step
        assert found["steps"] == f"{step}\n{step}"


@pytest.mark.parametrize("name", WRAPPED)
def test_the_wrapper_is_told(name: str) -> None:
    """Which module is wrapped by what stands beside its name."""
    for found in trees("trees_of_training", name):
        assert found["wrappers"] == WRAPPED[name]


HALF = ("ddp hooked", "fsdp2 mixed", "ddp_half_hook", "ddp_builtin_half")


def near(name: str, outs: list[list[float]]) -> list[Any]:
    """What must come out, but for rounding: some compute or send in half precision."""
    error = 0.03 if name in HALF else 1e-5
    return [pytest.approx(out, rel=error, abs=error) for out in outs]


@pytest.mark.parametrize("name", WRAPPED)
def test_outputs_agree(name: str) -> None:
    """Four iterations, with and without the tracker: the plain model gives the same."""
    for found, plain in zip(  # noqa: B905
        trees("trees_of_training", name), trees("trees_of_training", "")
    ):
        assert len(found["outs"]) == 4
        assert found["outs"] == near(name, plain["outs"])


@pytest.mark.parametrize("name", WRAPPED)
def test_entered_before_it_is_wrapped(name: str) -> None:
    """A model that is wrapped while the tracker is on, and its very first iteration."""
    for found in trees("trees_entered_first", name):
        assert found == joined(FORWARD, BACKWARD)


recomputing = pytest.mark.parametrize(
    ("kind", "name"),
    [
        *[("not reentrant", name) for name in RECOMPUTING],
        # torch takes no others; and in torch's wrapper a plan would have other names.
        *[("reentrant", name) for name in RECOMPUTING if name not in {"ddp", "fsdp1"}],
        *[("wrapper", name) for name in RECOMPUTING if not name.startswith("tensor")],
    ],
)


@recomputing
def test_recomputation(kind: str, name: str) -> None:
    """A checkpointed block is recomputed inside its own backward."""
    backward = REENTRANT if kind == "reentrant" else RECOMPUTED
    step = in_a_step(FORWARD, backward, OPTIMIZER)
    for found in trees("trees_of_recomputation", f"{kind} {name}"):
        assert found["plain"] == step
        assert found["steps"] == f"{step}\n{step}"


@pytest.mark.parametrize("name", ["", "ddp", "fsdp2", "fsdp1"])
def test_accumulation(name: str) -> None:
    """Two batches to a step, the first without synchronisation."""
    for found in trees("trees_of_accumulation", name):
        assert found == in_a_step(FORWARD, BACKWARD, FORWARD, BACKWARD, OPTIMIZER)


@pytest.mark.parametrize("name", ["", "ddp"])
def test_a_block_that_is_left_out(name: str) -> None:
    """Another block on each rank: only what ran has regions."""

    def of(block: int) -> str:
        return f"""
            forward Net
              forward Net.inp
              forward Net.blocks.{block}
                forward Net.blocks.{block}.lin1
                forward Net.blocks.{block}.lin2
              forward Net.head
            backward
              backward Net
                backward Net.head
                backward Net.blocks.{block}
                  backward Net.blocks.{block}.lin2
                  backward Net.blocks.{block}.lin1
                backward Net.inp
        """

    ranks = trees("trees_where_a_block_is_left_out", name)
    assert ranks == [joined(of(1), of(0)), joined(of(0), of(1))]


@pytest.mark.parametrize("name", ["", "ddp", "fsdp2", "fsdp1", "tensor parallel"])
def test_evaluation(name: str) -> None:
    """What ran without gradients has no backward, and takes none of the next one's."""
    for found in trees("trees_without_gradients", name):
        assert found == joined(FORWARD, FORWARD, BACKWARD)


@pytest.mark.parametrize("name", ["", "ddp", "fsdp2", "tensor parallel"])
def test_errors(name: str) -> None:
    """A forward that raises is an error on what it leaves; the next iteration is clean."""
    failed = """
        forward Net!
          forward Net.inp
          forward Net.blocks.0
            forward Net.blocks.0.lin1
            forward Net.blocks.0.lin2
          forward Net.blocks.1!
            forward Net.blocks.1.lin1!
    """
    for found in trees("trees_of_errors", name):
        assert found == joined(failed, FORWARD, BACKWARD)


@pytest.mark.parametrize("name", ["", "ddp around", "ddp inside"])
def test_compiled(name: str) -> None:
    """One region for a compiled callable, whatever DDP has to do with it."""
    for found in trees("trees_of_compiled", name):
        assert_tree_equals(
            found,
            """
            forward Net
            backward
              backward Net
        """,
        )


@pytest.mark.parametrize("name", ["", "split"])
def test_sequence_parallel(name: str) -> None:
    """DTensors between the layers."""
    for found in trees("tree_of_sequence_parallel", name):
        assert_tree_equals(
            found,
            """
            forward Sequential
              forward Sequential.0
              forward Sequential.1
              forward Sequential.2
            backward
              backward Sequential
                backward Sequential.2
                backward Sequential.1
                backward Sequential.0
        """,
        )


# -- the programs of `frameworks` ------------------------------------------------------------------

STACK_FORWARD = """
    forward MLPStacked
      forward MLPStacked.inp
      forward MLPStacked.layers.0
        forward MLPStacked.layers.0.mlp
          forward MLPStacked.layers.0.mlp.net1
          forward MLPStacked.layers.0.mlp.relu
          forward MLPStacked.layers.0.mlp.net2
        forward MLPStacked.layers.0.after
      forward MLPStacked.layers.1
        forward MLPStacked.layers.1.mlp
          forward MLPStacked.layers.1.mlp.net1
          forward MLPStacked.layers.1.mlp.relu
          forward MLPStacked.layers.1.mlp.net2
        forward MLPStacked.layers.1.after
"""


def stack_backward(*, recompute: bool) -> str:
    """Of such layers; the sigmoid is a layer's own, and keeps what comes out of it."""
    lines = ["", "backward", "  backward MLPStacked"]
    for layer in ("MLPStacked.layers.1", "MLPStacked.layers.0"):
        again = [
            f"      recompute {layer}",
            f"        recompute {layer}.mlp",
            f"          recompute {layer}.mlp.net1",
            f"          recompute {layer}.mlp.relu",
            f"          recompute {layer}.mlp.net2",
            f"        recompute {layer}.after",
        ]
        lines += [
            f"    backward {layer}",
            *(again if recompute else ()),
            f"      backward {layer}.after",
            f"      backward {layer}.mlp",
            f"        backward {layer}.mlp.net2",
            f"        backward {layer}.mlp.relu",
            f"        backward {layer}.mlp.net1",
        ]
    return "\n".join([*lines, "    backward MLPStacked.inp"])


def transformer_forward() -> str:
    """In the order in which it is written down."""
    lines = ["", "forward Transformer", "  .tok_embeddings", "  .pos_embeddings"]
    for layer in (".layers.0", ".layers.1"):
        lines += [
            f"  {layer}",
            f"    {layer}.attention_norm",
            f"    {layer}.attention",
            *(f"      {layer}.attention.{name}" for name in ("wq", "wk", "wv", "wo")),
            f"    {layer}.ffn_norm",
            f"    {layer}.feed_forward",
            *(f"      {layer}.feed_forward.{name}" for name in ("w1", "gelu", "w2")),
        ]
    lines += ["  .norm", "  .output"]
    return "\n".join(line.replace(" .", " forward Transformer.", 1) for line in lines)


def transformer_backward() -> str:
    """The other way round."""
    lines = ["", "backward", "  backward Transformer", "    .output", "    .norm"]
    for layer in (".layers.1", ".layers.0"):
        lines += [
            f"    {layer}",
            f"      {layer}.feed_forward",
            *(f"        {layer}.feed_forward.{name}" for name in ("w2", "gelu", "w1")),
            f"      {layer}.ffn_norm",
            f"      {layer}.attention",
            *(f"        {layer}.attention.{name}" for name in ("wo", "wv", "wk", "wq")),
            f"      {layer}.attention_norm",
        ]
    lines += ["    .pos_embeddings", "    .tok_embeddings"]
    return "\n".join(line.replace(" .", " backward Transformer.", 1) for line in lines)


PARTS = (FORWARD, BACKWARD, OPTIMIZER)
TRANSFORMER = (transformer_forward(), transformer_backward(), OPTIMIZER)
PROGRAMS = {
    "ddp": PARTS,
    "ddp_small_buckets": PARTS,
    "ddp_views": PARTS,
    "ddp_buffers": (
        FORWARD + "      forward Net.norm\n",
        BACKWARD.replace("backward Net.head", "backward Net.norm\n        backward Net.head"),
        OPTIMIZER,
    ),
    "ddp_unused": PARTS,
    "ddp_static": PARTS,
    "ddp_no_sync": (FORWARD, BACKWARD, *PARTS),
    "ddp_python_hook": PARTS,
    "ddp_half_hook": PARTS,
    "ddp_chained_hook": PARTS,
    "ddp_builtin": PARTS,
    "ddp_builtin_half": PARTS,
    "zero": (FORWARD, BACKWARD, OPTIMIZER),
    "fsdp2": PARTS,
    "fsdp2_kept": PARTS,
    "fsdp2_blocks": PARTS,
    "fsdp2_checkpointed": (FORWARD, RECOMPUTED, OPTIMIZER),
    "fsdp2_wrapped": (FORWARD, RECOMPUTED, OPTIMIZER),
    "fsdp1": PARTS,
    "tensor_parallel": (
        """
        forward MLPModule
          forward MLPModule.net1
          forward MLPModule.relu
          forward MLPModule.net2
        """,
        """
        backward
          backward MLPModule
            backward MLPModule.net2
            backward MLPModule.relu
            backward MLPModule.net1
        """,
        OPTIMIZER,
    ),
    "tensor_parallel_stack": (STACK_FORWARD, stack_backward(recompute=False), OPTIMIZER),
    "tensor_parallel_checkpointed": (STACK_FORWARD, stack_backward(recompute=True), OPTIMIZER),
    "transformer": TRANSFORMER,
    "sequence_parallel": TRANSFORMER,
}
ROOTS = {  # where it is not Net
    "ddp_buffers": "NormNet",
    "ddp_unused": "PartlyUsedNet",
    "fsdp2_checkpointed": "CheckpointedNet",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str) -> None:
    """Three steps from the first: the tree of the plain model in one process, the same outputs."""
    step = in_a_step(*PROGRAMS[name]).replace(" Net", f" {ROOTS.get(name, 'Net')}")
    for found in trees("programs", name):
        wrapped, plain = found["wrapped"], found["plain"]
        assert plain["tree"] == "\n".join([step] * 3)
        if name == "zero":  # a rank's own part of the optimizer's step is a step inside
            inner = "  optimizer_step ZeroRedundancyOptimizer\n    optimizer_step SGD"
            plain["tree"] = plain["tree"].replace("  optimizer_step SGD", inner)
        assert wrapped["tree"] == plain["tree"]
        assert len(wrapped["outs"]) == (6 if name == "ddp_no_sync" else 3)
        assert wrapped["outs"] == near(name, plain["outs"])


# -- pipelines ------------------------------------------------------------------------------------


def forward(stage: int) -> str:
    """One microbatch's forward through a stage."""
    return f"""
        forward Stage{stage}
          forward Stage{stage}.lin1
          forward Stage{stage}.lin2
    """


def backward(stage: int) -> str:
    """And its backward."""
    return f"""
        backward
          backward Stage{stage}
            backward Stage{stage}.lin2
            backward Stage{stage}.lin1
    """


# By rank, four microbatches: F1 is a forward through stage 1, B1 its backward.
SCHEDULES = {
    "gpipe": ["F0 F0 F0 F0 B0 B0 B0 B0", "F1 F1 F1 F1 B1 B1 B1 B1"],
    "1f1b": ["F0 F0 B0 F0 B0 F0 B0 B0", "F1 B1 F1 B1 F1 B1 F1 B1"],
    "interleaved": [
        "F0 F0 F2 F2 F0 B2 F0 B2 F2 B0 F2 B0 B2 B2 B0 B0",
        "F1 F1 F3 B3 F3 B3 F1 B1 F1 B1 F3 B3 F3 B3 B1 B1",
    ],
}


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("name", SCHEDULES)
def test_pipelines(name: str, rank: int) -> None:
    """Each microbatch has its forward and its backward, in the order of the schedule."""
    kinds = {"F": forward, "B": backward}
    parts = [kinds[one[0]](int(one[1])) for one in SCHEDULES[name][rank].split()]
    found = result(WORKER, 2, "trees_of_pipelines")[rank]
    assert found[name] == in_a_step(*parts)
    assert found[f"{name}, no step"] == joined(*parts)
    assert found[f"{name} agrees"]


# -- the oracle -----------------------------------------------------------------------------------


NODES = 16  # of one forward: two a linear layer, two a block


def forwards(name: str, kind: str = "") -> int:
    """How many forwards the oracle saw: two steps, and two that have one backward."""
    return 2 if name == "ddp static graph" or kind == "reentrant" else 4


@pytest.mark.parametrize("name", WRAPPED)
def test_the_oracle_finds_nothing_wrong(name: str) -> None:
    """Every node ran in the region of the call that made it, before and after it was wrapped."""
    for key in (name, f"{name}, inside"):
        for found in trees("verdicts", key):
            assert isinstance(found, list), found
            checked, labelled = found
            assert checked - labelled == forwards(name)  # a sum each step; a product and a sum
            assert labelled >= NODES * forwards(name)  # a wrapper makes some of its own
            assert name or labelled == NODES * 4


@recomputing
def test_the_oracle_finds_nothing_wrong_in_recomputation(kind: str, name: str) -> None:
    """The same with checkpointed blocks."""
    nodes = NODES + (2 if kind == "reentrant" else 0)  # the checkpoints' own
    for found in trees("verdicts", f"{kind} {name}"):
        assert isinstance(found, list), found
        checked, labelled = found
        assert checked - labelled == forwards(name, kind)
        assert labelled >= nodes * forwards(name, kind)
        assert name or labelled == nodes * forwards(name, kind)


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_oracle_finds_nothing_wrong_in_programs(name: str) -> None:
    """The same of each program, from its first step; it has no fewer nodes than what it wraps."""
    sums = 4 if name == "ddp_no_sync" else 2
    for found in trees("verdicts_of_programs", name):
        wrapped, plain = found["wrapped"], found["plain"]
        assert isinstance(wrapped, list), wrapped
        assert isinstance(plain, list), plain
        assert wrapped[0] - wrapped[1] == plain[0] - plain[1] == sums
        assert wrapped[1] >= plain[1] > 0


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_oracle_finds_nothing_wrong_in_pipelines(name: str) -> None:
    """The same with microbatches in between: six nodes a microbatch and stage; the loss's own."""
    nodes = 4 * 6 * (2 if name == "interleaved" else 1)
    assert trees("verdicts_of_pipelines", name) == [[nodes, nodes], [nodes + 4, nodes]]
