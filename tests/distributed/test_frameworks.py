"""Frameworks: every collective on the module that launched it, with the right bytes and reason.

Three proofs for each program of `frameworks`, in both ways of seeing collectives:

- *where*: `worker_frameworks` compares events, sums on spans and `tracker.collectives` with an
  oracle that knows nothing of the tracker (`witness`); it found nothing wrong;
- *what*: the launches of each step, in order, are those that are written down here, with bytes
  computed from the sizes of parameters and activations;
- *why*: the parameters of DDP's buckets and FSDP's groups, the placements of DTensor's
  redistributions.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from harness import result
from torch._C._distributed_c10d import ProcessGroup

WORKER = "worker_frameworks.py"
HAS_HOOKS = hasattr(ProcessGroup, "register_pre_hook")
WAYS = ("hooks", "kernels") if HAS_HOOKS else ("kernels",)

FLOAT, HALF, INT, LONG = 4, 2, 4, 8


def linear(inputs: int, outputs: int) -> int:
    """Bytes of a linear layer's weight and bias."""
    return (inputs * outputs + outputs) * FLOAT


# `frameworks.Net`: 2 -> 8, two blocks 8 -> 16 -> 8, 8 -> 4.
INP, LIN1, LIN2, HEAD = linear(2, 8), linear(8, 16), linear(16, 8), linear(8, 4)
BLOCK = LIN1 + LIN2
NET = INP + 2 * BLOCK + HEAD
PARAMETERS = 12
# Its buckets, rebuilt in the order in which gradients get ready: each at least 1240 bytes.
FIRST, SECOND = HEAD + BLOCK, BLOCK + INP
# What its root's FSDP group holds: all but the blocks.
REST = INP + HEAD
# Two batches of activations: `MLPModule` and `Layer` have 5 rows.
ROWS = 5
# `frameworks.Transformer`: 3 sentences of 8 tokens, 16 wide; 8 words.
WIDE = 3 * 8 * 16 * FLOAT
POSITIONS = 8 * 16 * FLOAT
LOGITS = 3 * 8 * 8 * FLOAT
# A microbatch between the pipeline's stages: 3 rows, 8 wide.
SENT = 3 * 8 * FLOAT


class Launch(NamedTuple):
    """What must have been told of a launch.

    Attributes:
        why: parameters of a bucket or group, sorted, or ("before -> after",) of a redistribution;
            () for neither; None where torch has nothing to tell it by.
    """

    phase: str
    module: str
    operation: str
    size: int
    why: tuple[str, ...] | None = ()


def of(*modules: str) -> tuple[str, ...]:
    """The parameters of some of `Net`'s modules."""
    layers = [
        layer
        for module in modules
        for layer in ((f"{module}.lin1", f"{module}.lin2") if "blocks" in module else (module,))
    ]
    return tuple(sorted(f"{layer}.{name}" for layer in layers for name in ("weight", "bias")))


EVERYTHING = of("inp", "blocks.0", "blocks.1", "head")

# -- DDP -----------------------------------------------------------------------------------------


def bucketed(*, half: bool = False, root: str = "Net") -> list[list[Launch]]:
    """One bucket; then the buckets are rebuilt, which the ranks agree upon; two buckets."""
    by = 2 if half else 1
    one = Launch("backward", f"{root}.inp", "all_reduce", NET // by, EVERYTHING)
    two = [
        Launch(
            "backward", f"{root}.blocks.1.lin1", "all_reduce", FIRST // by, of("head", "blocks.1")
        ),
        Launch("backward", f"{root}.inp", "all_reduce", SECOND // by, of("blocks.0", "inp")),
    ]
    return [[one], [*agreed(2), *two], two]


def agreed(buckets: int, parameters: int = PARAMETERS, root: str = "Net") -> list[Launch]:
    """Rank 0 says which parameter is in which bucket: their numbers and how many, their sizes."""
    return [
        Launch("forward", root, "broadcast", (parameters + 1) * INT),
        Launch("forward", root, "broadcast", buckets * INT),
    ]


def ddp_small_buckets() -> list[list[Launch]]:
    """Each parameter alone, once the buckets are rebuilt."""
    one = bucketed()[0]
    # In a linear layer the bias's gradient is ready first.
    sizes = {
        "head": (4, 8 * 4),
        "blocks.1.lin2": (8, 16 * 8),
        "blocks.1.lin1": (16, 8 * 16),
        "blocks.0.lin2": (8, 16 * 8),
        "blocks.0.lin1": (16, 8 * 16),
        "inp": (8, 2 * 8),
    }
    each = [
        Launch("backward", f"Net.{module}", "all_reduce", size * FLOAT, (f"{module}.{name}",))
        for module, both in sizes.items()
        for name, size in zip(("bias", "weight"), both)  # noqa: B905
    ]
    return [one, [*agreed(PARAMETERS), *each], each]


def ddp_buffers() -> list[list[Launch]]:
    """The running statistics are broadcast before each forward."""
    norm = 2 * 4 * FLOAT
    both = ("norm.bias", "norm.weight")
    buffers = [  # running mean and variance as one, and the number of batches
        Launch("forward", "NormNet", "broadcast", 2 * 4 * FLOAT),
        Launch("forward", "NormNet", "broadcast", LONG),
    ]
    names = tuple(sorted(EVERYTHING + both))
    first = tuple(sorted(of("head", "blocks.1") + both))
    one = Launch("backward", "NormNet.inp", "all_reduce", NET + norm, names)
    two = [
        Launch("backward", "NormNet.blocks.1.lin1", "all_reduce", FIRST + norm, first),
        Launch("backward", "NormNet.inp", "all_reduce", SECOND, of("blocks.0", "inp")),
    ]
    return [
        [*buffers, one],
        [*agreed(2, PARAMETERS + 2, "NormNet"), *buffers, *two],
        [*buffers, *two],
    ]


def ddp_unused() -> list[list[Launch]]:
    """Buckets in the order of the parameters; then, which were used."""
    # The buckets stay as they were made: in the order of the parameters, until they are full.
    aux = linear(8, 1)
    lower = tuple(sorted((*of("inp", "blocks.0"), "blocks.1.lin1.weight")))
    upper = tuple(sorted((*of("blocks.1", "head", "aux"),)))
    upper = tuple(name for name in upper if name != "blocks.1.lin1.weight")
    weight = 8 * 16 * FLOAT
    root = "PartlyUsedNet"
    step = [
        Launch(
            "backward", f"{root}.blocks.1.lin1", "all_reduce", BLOCK - weight + HEAD + aux, upper
        ),
        Launch("backward", f"{root}.inp", "all_reduce", INP + BLOCK + weight, lower),
        # Which parameters were used: in no bucket.
        Launch("backward", f"{root}.inp", "all_reduce", (PARAMETERS + 2) * INT),
    ]
    return [step] * 3


def ddp_static() -> list[list[Launch]]:
    """The first reduction waits for the end of the backward."""
    one, rebuilt, _ = bucketed()
    delayed = [  # when the backward is over: what was used, and the bucket
        Launch("backward", "", "all_reduce", PARAMETERS * INT),
        Launch("backward", "", "all_reduce", NET, None),
    ]
    return [delayed, one, rebuilt]


def ddp_chained_hook() -> list[list[Launch]]:
    """A bucket, and what its hook launches when it is done."""
    [bucket] = bucketed()[0]
    both = [bucket, Launch("backward", "", "all_reduce", 3 * FLOAT)]
    return [both, [*agreed(1), *both], both]


def zero() -> list[list[Launch]]:
    """As DDP, and the optimizer's broadcasts."""
    # The largest parameters first, each to the rank that has the least; each broadcasts its own.
    parts = [512, 512, 128, 64, 32], [512, 512, 64, 64, 32, 32, 16]
    assert sum(map(sum, parts)) == NET
    sent = [Launch("optimizer", "", "broadcast", size) for part in parts for size in part]
    return [[*step, *sent] for step in bucketed()]


def compiled_ddp() -> list[list[Launch]]:
    """Nothing tells the modules inside apart."""
    return [[one._replace(module="Net") for one in step] for step in bucketed()]


# -- FSDP ----------------------------------------------------------------------------------------


def gathered(phase: str, module: str, size: int, why: tuple[str, ...]) -> Launch:
    """An FSDP group's parameters."""
    return Launch(phase, module, "all_gather", size, why)


def reduced(module: str, size: int, why: tuple[str, ...]) -> Launch:
    """An FSDP group's gradients."""
    return Launch("backward", module, "reduce_scatter", size, why)


def fsdp2(root: str = "Net", *, kept: bool = False) -> list[list[Launch]]:
    """The root and both blocks are sharded."""
    rest, low, high = of("inp", "head"), of("blocks.0"), of("blocks.1")
    forward = [
        gathered("forward", root, REST, rest),
        gathered("forward", f"{root}.blocks.0", BLOCK, low),
        gathered("forward", f"{root}.blocks.1", BLOCK, high),
    ]
    # Before the backward of what comes out of the root: its own, and ahead those of the last block,
    # from a hook on the head's node; from the last block's, ahead those of the first.
    before = [
        gathered("backward", f"{root}.head", REST, rest),
        gathered("backward", f"{root}.head", BLOCK, high),
        gathered("backward", f"{root}.blocks.1", BLOCK, low),
    ]
    after = [
        reduced(f"{root}.blocks.1", BLOCK, high),
        reduced(f"{root}.blocks.0", BLOCK, low),
        reduced("", REST, rest),  # when the backward is over
    ]
    return [[*forward, *([] if kept else before), *after]] * 3


def fsdp2_blocks() -> list[list[Launch]]:
    """Only the blocks are: each gathers for itself, inside itself."""
    low, high = of("blocks.0"), of("blocks.1")
    step = [
        gathered("forward", "Net.blocks.0", BLOCK, low),
        gathered("forward", "Net.blocks.1", BLOCK, high),
        gathered("backward", "Net.blocks.1", BLOCK, high),
        reduced("Net.blocks.1", BLOCK, high),
        gathered("backward", "Net.blocks.0", BLOCK, low),
        reduced("Net.blocks.0", BLOCK, low),
    ]
    return [step] * 3


def fsdp1() -> list[list[Launch]]:
    """As the newer one, but for the root."""
    # The root keeps its parameters, and reduces when the last of them has its gradient.
    step = [
        one
        for one in fsdp2()[0]
        if one != gathered("backward", "Net.head", REST, of("inp", "head"))
    ]
    step[-1] = step[-1]._replace(module="Net")
    return [step] * 3


# -- tensor parallel -------------------------------------------------------------------------------

SUM = "sum"  # partial; torch writes it in several ways


def mlp(module: str, phase: str = "forward") -> Launch:
    """The second layer's outputs are summed: rows of 12."""
    return Launch(phase, f"{module}.net2", "all_reduce", ROWS * 12 * FLOAT, (f"{SUM} -> whole",))


def mlp_backward(module: str) -> Launch:
    """The first layer's gradients for its inputs are summed: rows of 10."""
    size = ROWS * 10 * FLOAT
    return Launch("backward", f"{module}.net1", "all_reduce", size, (f"{SUM} -> whole",))


def stacked(*, recompute: bool) -> list[list[Launch]]:
    """Two such layers; recomputed, the first sum is done again."""
    low, high = "MLPStacked.layers.0.mlp", "MLPStacked.layers.1.mlp"
    step = [mlp(low), mlp(high)]
    for module in (high, low):
        step += [mlp(module, "recompute")] * recompute + [mlp_backward(module)]
    return [step] * 3


def _split(phase: str, module: str, operation: str, size: int, why: str) -> Launch:
    return Launch(phase, f"Transformer.{module}", operation, size, (why,))


def transformer() -> list[list[Launch]]:
    """Every second layer sums its outputs, every first one its gradients."""
    summed = f"{SUM} -> whole"
    step = [
        _split("forward", "tok_embeddings", "all_reduce", WIDE, summed),
        _split("forward", "pos_embeddings", "all_reduce", POSITIONS, summed),
    ]
    step += [
        _split("forward", f"layers.{at}.{module}", "all_reduce", WIDE, summed)
        for at in range(2)
        for module in ("attention.wo", "feed_forward.w2")
    ]
    step.append(_split("forward", "output", "all_gather", LOGITS, "split 2 -> whole"))
    step.append(_split("backward", "output", "all_reduce", WIDE, summed))
    step += [
        _split("backward", f"layers.{at}.{module}", "all_reduce", WIDE, summed)
        for at in (1, 0)
        for module in ("feed_forward.w1", "attention.wv", "attention.wk", "attention.wq")
    ]
    return [step] * 3


def sequence_parallel() -> list[list[Launch]]:
    """Activations are split between layers: scattered and gathered."""
    scatter, gather = f"{SUM} -> split 1", "split 1 -> whole"
    # Older torch calls what a backward gathers by what the forward scattered.
    after = "whole" if HAS_HOOKS else SUM
    back = f"split 1 -> {after}"
    step = [
        _split("forward", "tok_embeddings", "reduce_scatter", WIDE, scatter),
        _split("forward", "pos_embeddings", "reduce_scatter", POSITIONS, f"{SUM} -> split 0"),
    ]
    for at in range(2):
        layer = f"layers.{at}."
        step += [
            _split("forward", layer + "attention", "all_gather", WIDE, gather),
            _split("forward", layer + "attention.wo", "reduce_scatter", WIDE, scatter),
            _split("forward", layer + "feed_forward.w1", "all_gather", WIDE, gather),
            _split("forward", layer + "feed_forward.w2", "reduce_scatter", WIDE, scatter),
        ]
    step += [
        _split("forward", "output", "all_gather", WIDE, gather),
        _split("forward", "output", "all_gather", LOGITS, "split 2 -> whole"),
        _split("backward", "output", "reduce_scatter", WIDE, scatter),
    ]
    for at in (1, 0):
        layer = f"layers.{at}."
        step += [
            _split("backward", layer + "feed_forward.w2", "all_gather", WIDE, back),
            _split("backward", layer + "feed_forward.w1", "reduce_scatter", WIDE, scatter),
            _split("backward", layer + "attention.wo", "all_gather", WIDE, back),
            _split("backward", layer + "attention", "reduce_scatter", WIDE, scatter),
        ]
    step += [
        _split("backward", "pos_embeddings", "all_gather", POSITIONS, f"split 0 -> {after}"),
        _split("backward", "tok_embeddings", "all_gather", WIDE, back),
    ]
    # The optimizer sums the gradients of the five norms' weights and biases, which are partial.
    norm = Launch("optimizer", "", "all_reduce", 16 * FLOAT, (f"{SUM} -> whole",))
    return [step + [norm] * 10] * 3


EXPECTED = {
    "ddp": bucketed(),
    "ddp_small_buckets": ddp_small_buckets(),
    "ddp_views": bucketed(),
    "ddp_buffers": ddp_buffers(),
    "ddp_unused": ddp_unused(),
    "ddp_static": ddp_static(),
    "ddp_no_sync": bucketed(),  # nothing for the batch that is only added up
    "ddp_python_hook": bucketed(),
    "ddp_half_hook": bucketed(half=True),
    "ddp_chained_hook": ddp_chained_hook(),
    "ddp_builtin": bucketed(),
    "ddp_builtin_half": bucketed(half=True),
    "zero": zero(),
    "fsdp2": fsdp2(),
    "fsdp2_kept": fsdp2(kept=True),
    "fsdp2_blocks": fsdp2_blocks(),
    "fsdp2_checkpointed": fsdp2("CheckpointedNet"),
    "fsdp2_wrapped": fsdp2(),
    "fsdp1": fsdp1(),
    "tensor_parallel": [[mlp("MLPModule"), mlp_backward("MLPModule")]] * 3,
    "tensor_parallel_stack": stacked(recompute=False),
    "tensor_parallel_checkpointed": stacked(recompute=True),
    "transformer": transformer(),
    "sequence_parallel": sequence_parallel(),
    "compiled_ddp": compiled_ddp(),
}
ON_FOUR = ("ddp", "fsdp2", "tensor_parallel", "transformer", "sequence_parallel")
PIPELINES = ("gpipe", "one_forward_one_backward")


def found(name: str, way: str, processes: int = 2) -> list[dict[str, Any]]:
    """What each rank has found out about a program."""
    return [ranks[way][name] for ranks in result(WORKER, processes, "programs")]


def told(name: str, way: str) -> list[Any]:
    """What each rank was told in another case."""
    return [ranks[way][name] for ranks in result(WORKER, 2, "others")]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", [*EXPECTED, *PIPELINES])
def test_the_oracle_finds_nothing_wrong(name: str, way: str) -> None:
    """Events, sums and answers are as an independent witness has it, in both modes."""
    for rank in found(name, way):
        assert rank["wrong"] == []


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", EXPECTED)
def test_launches_are_those_computed_by_hand(name: str, way: str) -> None:
    """Each launch of each step: phase, module, operation and bytes, in order."""
    wanted = [[list(one[:4]) for one in step] for step in EXPECTED[name]]
    for rank in found(name, way):
        launches = rank["launches"]
        if (
            name == "ddp_chained_hook"
        ):  # if the first was done at once, the hook goes on right there
            for launch in (one for step in launches for one in step if one[3] == 3 * FLOAT):
                assert launch[1] in {"", "Net.inp"}
                launch[1] = ""
        assert launches == wanted


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", EXPECTED)
def test_reasons_are_told(name: str, way: str) -> None:
    """A bucket's or group's parameters; what a redistribution goes from and to."""
    for rank in found(name, way):
        for at, (step, wanted) in enumerate(zip(rank["reasons"], EXPECTED[name])):  # noqa: B905
            for launch, reason in zip(wanted, step):  # noqa: B905
                if launch.why is not None:
                    assert _reason(*reason) == launch.why, f"step {at}: {launch}"


def _reason(parameters: list[str], source: str, target: str) -> tuple[str, ...]:
    if source:
        return (f"{_placed(source)} -> {_placed(target)}",)
    return tuple(parameters)


def _placed(text: str) -> str:
    """What torch calls a placement, on one mesh dimension, in words of ours."""
    text = text.removeprefix("(").removesuffix(")")
    if "sum" in text or text.startswith(("P", "MaskP", "_MaskPartial")):
        return SUM
    return "whole" if text == "R" else text.replace("S(", "split ").removesuffix(")")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["ddp_half_hook", "ddp_builtin_half"])
def test_compressed_gradients_say_their_type(name: str, way: str) -> None:
    """What is sent is half precision, and half as many bytes."""
    for rank in found(name, way):
        assert rank["dtypes"] == ["float16", "float16"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", PIPELINES)
def test_pipelines_send_a_microbatch_each_way(name: str, way: str) -> None:
    """Activations one way, gradients the other: on the step's own span; no module sends them."""
    first, last = found(name, way)
    orders = {
        "gpipe": ("ssssrrrr", "rrrrssss"),
        "one_forward_one_backward": ("ssrsrsrr", None),
    }
    for rank, order in zip((first, last), orders[name]):  # noqa: B905
        steps = [step[-8:] for step in rank["launches"]]
        assert [len(step) for step in rank["launches"][1:]] == [8, 8]
        for step in steps:
            assert all(one[:2] == ["outside", ""] and one[3] == SENT for one in step)
            letters = "".join(one[2][0] for one in step)
            assert sorted(letters) == sorted("ssssrrrr")
            assert order is None or letters == order
        # Before the first: the stages tell each other shapes; and newer torch asks who is there.
        asked = [one for one in rank["launches"][0][:-8] if one[2] == "all_reduce"]
        assert len(asked) == (2 if HAS_HOOKS else 0)


@pytest.mark.parametrize("name", ON_FOUR)
def test_on_four_processes(name: str) -> None:
    """Payloads do not depend on the number of ranks; neither does what they belong to."""
    wanted = [[list(one[:4]) for one in step] for step in EXPECTED[name]]
    for rank in found(name, WAYS[0], processes=4):
        assert rank["wrong"] == []
        assert rank["launches"] == wanted


@pytest.mark.parametrize("way", WAYS)
def test_a_model_distributed_while_tracking(way: str) -> None:
    """DDP's constructor runs in no module: shapes are compared, and the parameters broadcast."""
    dimensions = 6 * 2 + 6  # of six weights and six biases
    for rank in told("constructed_inside", way):
        outside = {
            "all_gather": [1, 2 * LONG],  # how many parameters each rank has
            "broadcast": [2, 2 * dimensions * LONG + NET],  # their sizes and strides; themselves
        }
        assert rank == {"Global": {"outside": outside}, "modules": ["Global"]}


@pytest.mark.parametrize("way", WAYS)
def test_modules_are_counted_without_a_provider(way: str) -> None:
    """No OpenTelemetry is needed; every ancestor has what is below it."""
    backward, rebuilt = {"all_reduce": [3, 2 * NET]}, {"broadcast": [2, 13 * INT + 2 * INT]}
    first = {"backward": {"all_reduce": [1, FIRST]}}
    for rank in told("without_provider", way):
        assert rank == {
            "Global": {"backward": backward, "forward": rebuilt},
            "Net": {"backward": backward, "forward": rebuilt},
            "Net.inp": {"backward": {"all_reduce": [2, NET + SECOND]}},
            "Net.blocks.1": first,
            "Net.blocks.1.lin1": first,
        }


@pytest.mark.parametrize("way", WAYS)
def test_each_stay_counts_from_nothing(way: str) -> None:
    """What is launched between two stays counts in neither."""
    for rank in told("entered_again", way):
        assert rank == [[1, NET], [2, NET], [2, NET]]


@pytest.mark.parametrize("way", WAYS)
def test_a_backward_whose_forward_was_not_seen(way: str) -> None:
    """It has no regions; what it launches is counted all the same."""
    for rank in told("untracked_forward", way):
        assert rank == {"total": 2, "phases": {"outside": [2, NET]}}
