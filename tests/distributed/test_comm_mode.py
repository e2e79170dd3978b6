"""CommDebugMode's behaviours hold for `tracker.collectives`, and the two agree, side by side.

First what torch's own tests assert of CommDebugMode, on a process group that sends nothing. Then
the programs of `frameworks` on two processes, under one, under the other, and under both at once:
the same totals, counts by operator, counts by module in forward and backward, parameters and
placements; and where the two differ, what torch's gets wrong, and nothing else. That ours is right
there is what `test_frameworks` proves.
"""

from __future__ import annotations

import copy
import threading
from typing import TYPE_CHECKING, Any

import frameworks
import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from harness import result
from torch import nn
from torch._C._distributed_c10d import ProcessGroup
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.debug import CommDebugMode
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._pytree import tree_map_only

from otel_modtrack import ModTracker
from otel_modtrack.comm import intercept

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WORKER = "worker_comm_mode.py"
WAYS = ("hooks", "kernels") if hasattr(ProcessGroup, "register_pre_hook") else ("kernels",)
FLOAT = 4

# torch's, of CommDebugMode's own hooks, and of names that newer torch has others for.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")


@pytest.fixture(params=WAYS)
def group(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A process group of two that sends nothing, in each way of seeing collectives."""
    monkeypatch.setattr(intercept, "forced_way", request.param)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    frameworks.mesh.cache_clear()
    try:
        yield dist.group.WORLD
    finally:
        frameworks.mesh.cache_clear()
        dist.destroy_process_group()


def side_by_side(run: Callable[[], object]) -> ModTracker:
    """Both watch the same run, and must agree upon the total and the counts by operator."""
    mode, tracker = CommDebugMode(), ModTracker()
    with tracker, mode:
        outputs = run()
    tree_map_only(torch.Tensor, lambda tensor: tensor + 0, outputs)  # waits for what is under way
    theirs = {str(key): count for key, count in mode.get_comm_counts().items()}
    assert by_operator(tracker) == theirs
    assert tracker.collectives.total == mode.get_total_counts()
    return tracker


def by_operator(tracker: ModTracker) -> dict[str, int]:
    """Counts by operator, without bytes."""
    return {name: tally.count for name, tally in tracker.collectives.by_operator().items()}


# -- what torch's tests assert -------------------------------------------------------------------


def test_functional_collectives_count_under_their_names(group: Any) -> None:
    """A gather, a scatter and a reduction are three."""
    x = torch.ones(4, 6)

    def run() -> list[torch.Tensor]:
        return [
            functional.all_gather_tensor(x, 0, group),
            functional.reduce_scatter_tensor(x, "sum", 0, group),
            functional.all_reduce(x, "sum", group),
        ]

    tracker = side_by_side(run)
    assert tracker.collectives.total == 3
    assert tracker.collectives.by_operator() == {
        "c10d_functional.all_gather_into_tensor": (1, 2 * 24 * FLOAT),
        "c10d_functional.reduce_scatter_tensor": (1, 24 * FLOAT),
        "c10d_functional.all_reduce": (1, 24 * FLOAT),
    }


def test_coalesced_functional_collectives_count_once(group: Any) -> None:
    """However many tensors they take."""
    xs = [torch.ones(4, 6), torch.ones(2)]

    def run() -> list[list[torch.Tensor]]:
        return [
            functional.all_gather_into_tensor_coalesced(xs, group),
            functional.reduce_scatter_tensor_coalesced(xs, "sum", [0, 0], group),
            functional.all_reduce_coalesced(xs, "sum", group),
        ]

    tracker = side_by_side(run)
    assert tracker.collectives.by_operator() == {
        "c10d_functional.all_gather_into_tensor_coalesced": (1, 2 * 26 * FLOAT),
        "c10d_functional.reduce_scatter_tensor_coalesced": (1, 26 * FLOAT),
        "c10d_functional.all_reduce_coalesced": (1, 26 * FLOAT),
    }
    assert tracker.collectives.by_operation() == {
        "all_gather": (1, 2 * 26 * FLOAT),
        "reduce_scatter": (1, 26 * FLOAT),
        "all_reduce": (1, 26 * FLOAT),
    }


def test_a_product_that_must_gather_counts_one(group: Any) -> None:
    """Of two DTensors whose splits do not fit; splitting one anew costs nothing."""
    mesh = frameworks.mesh(2)
    left = DTensor.from_local(torch.ones(4, 8), mesh, [Shard(0)])
    right = DTensor.from_local(torch.ones(4, 32), mesh, [Shard(0)])
    tracker = side_by_side(lambda: torch.mm(left, right))
    gathered = 8 * 32 * FLOAT
    assert tracker.collectives.by_operator() == {
        "c10d_functional.all_gather_into_tensor": (1, gathered)
    }
    whole = DTensor.from_local(torch.ones(8, 8), mesh, [Replicate()])
    assert side_by_side(lambda: whole.redistribute(mesh, [Shard(0)])).collectives.total == 0


X, PAIR = 6 * FLOAT, 2 * 6 * FLOAT  # a tensor's bytes, and both ranks' together


def _operators() -> dict[str, tuple[Callable[[], object], int]]:
    """Each c10d operator that CommDebugMode knows: how it comes about, and its bytes."""

    def x() -> torch.Tensor:
        return torch.ones(6)

    def xx() -> torch.Tensor:
        return torch.ones(12)

    def coalesced(launch: Callable[[], object]) -> Callable[[], object]:
        def run() -> None:
            with dist.distributed_c10d._coalescing_manager():
                launch()
                launch()

        return run

    return {
        "allreduce_": (lambda: dist.all_reduce(x()), X),
        "_allgather_base_": (lambda: dist.all_gather_into_tensor(xx(), x()), PAIR),
        "_reduce_scatter_base_": (lambda: dist.reduce_scatter_tensor(x(), xx()), PAIR),
        "broadcast_": (lambda: dist.broadcast(x(), 0), X),
        "gather_": (lambda: dist.gather(x(), [x(), x()]), PAIR),
        "reduce_": (lambda: dist.reduce(x(), 0), X),
        "scatter_": (lambda: dist.scatter(x(), [x(), x()]), PAIR),
        "allgather_": (lambda: dist.all_gather([x(), x()], x()), PAIR),
        "allgather_coalesced_": (
            lambda: dist.all_gather_coalesced([[x(), x()], [x(), x()]], [x(), x()]),
            2 * PAIR,
        ),
        "allgather_into_tensor_coalesced_": (
            coalesced(lambda: dist.all_gather_into_tensor(xx(), x())),
            2 * PAIR,
        ),
        "reduce_scatter_tensor_coalesced_": (
            coalesced(lambda: dist.reduce_scatter_tensor(x(), xx())),
            2 * PAIR,
        ),
        "allreduce_coalesced_": (lambda: dist.all_reduce_coalesced([x(), x()]), 2 * X),
        "reduce_scatter_": (lambda: dist.reduce_scatter(x(), [x(), x()]), PAIR),
        "alltoall_": (lambda: dist.all_to_all([x(), x()], [x(), x()]), PAIR),
        "alltoall_base_": (lambda: dist.all_to_all_single(xx(), xx()), PAIR),
    }


@pytest.mark.parametrize("name", _operators())
def test_each_operator_counts_once(group: Any, name: str) -> None:
    """Under its name, with its bytes."""
    run, size = _operators()[name]
    tracker = side_by_side(run)
    assert tracker.collectives.by_operator() == {f"c10d.{name}": (1, size)}


def test_counts_begin_again_on_re_entry(group: Any) -> None:
    """Of everything: counts, modules, parameters."""
    first, second = nn.Linear(2, 2), nn.Linear(2, 3)
    tracker = ModTracker()
    for module in (first, second):
        for _ in range(2):
            with tracker:
                assert tracker.collectives.total == 0
                assert tracker.collectives.parameters() == {}
                dist.all_reduce(module(torch.ones(1, 2)).detach())
                assert tracker.collectives.total == 1
    assert tracker.collectives.by_operation() == {"all_reduce": (1, 3 * FLOAT)}
    assert list(tracker.collectives.by_module()) == ["Global"]
    [own] = tracker.collectives.parameters().values()
    assert own["weight"] is second.weight


def test_parameters_are_told_by_module(group: Any) -> None:
    """A module's own, in the order of `named_parameters`, under its name, if it was called."""
    model = frameworks.Net()
    model.never = nn.Linear(1, 1)
    mode, tracker = CommDebugMode(), ModTracker()
    with tracker, mode:
        model(torch.ones(1, 2))
    told = tracker.collectives.parameters()
    assert list(told) == [
        *("Net.inp", "Net.blocks.0.lin1", "Net.blocks.0.lin2"),
        *("Net.blocks.1.lin1", "Net.blocks.1.lin2", "Net.head"),
    ]
    for fqn, own in told.items():
        module = model.get_submodule(fqn.removeprefix("Net."))
        assert list(own) == [name for name, _ in module.named_parameters()]
        assert all(own[name] is parameter for name, parameter in module.named_parameters())
    theirs = mode.get_parameter_info()
    assert {fqn: list(own) for fqn, own in theirs.items()} == {f: list(o) for f, o in told.items()}
    with tracker:
        pass
    assert tracker.collectives.parameters() == {}


def test_placements_are_told_by_parameter(group: Any) -> None:
    """Of those that are DTensors; and begin again on re-entry."""
    model = frameworks.tensor_parallel(2).model
    mode, tracker = CommDebugMode(), ModTracker()
    with tracker, mode:
        model(torch.ones(1, 10)).sum()
    assert tracker.collectives.placements() == {
        "MLPModule.net1.weight": (Shard(0),),
        "MLPModule.net1.bias": (Shard(0),),
        "MLPModule.net2.weight": (Shard(1),),
        "MLPModule.net2.bias": (Replicate(),),
    }
    assert tracker.collectives.placements() == mode.get_sharding_info()
    with tracker:
        nn.Linear(1, 1)(torch.ones(1))
    assert tracker.collectives.placements() == {}


def _forwards(tracker: ModTracker, operation: str) -> dict[str, int]:
    return {
        fqn: phases["forward"][operation].count
        for fqn, phases in tracker.collectives.by_module().items()
        if operation in phases.get("forward", {})
    }


def test_modules_count_what_their_descendants_launch(group: Any) -> None:
    """A tensor-parallel MLP: one reduction, seen at three levels."""
    model = frameworks.tensor_parallel(2).model
    tracker = side_by_side(lambda: model(torch.ones(1, 10)))
    assert _forwards(tracker, "all_reduce") == {"Global": 1, "MLPModule": 1, "MLPModule.net2": 1}


def test_a_transformer_counts_at_every_level(group: Any) -> None:
    """Two layers, tensor-parallel: six reductions, one gather."""
    program = frameworks.transformer(2)
    tokens = torch.zeros(frameworks.SENTENCES, frameworks.SEQUENCE, dtype=torch.int64)
    tracker = side_by_side(lambda: program.model(tokens))
    wanted = {"Global": 6, "Transformer": 6}
    wanted |= {"Transformer.tok_embeddings": 1, "Transformer.pos_embeddings": 1}
    for layer in ("Transformer.layers.0", "Transformer.layers.1"):
        wanted[layer] = 2
        for child in ("attention", "attention.wo", "feed_forward", "feed_forward.w2"):
            wanted[f"{layer}.{child}"] = 1
    assert _forwards(tracker, "all_reduce") == wanted
    gathers = {"Global": 1, "Transformer": 1, "Transformer.output": 1}
    assert _forwards(tracker, "all_gather") == gathers


def test_the_hierarchy_is_told_as_json_and_as_a_table(group: Any) -> None:
    """Modules within modules, with parameters, placements and counts."""
    model = frameworks.tensor_parallel(2).model
    tracker = side_by_side(lambda: model(torch.ones(5, 10)))
    told = tracker.collectives.to_json()
    once = {"forward": {"all_reduce": {"count": 1, "size": 5 * 12 * FLOAT}}}
    root = told["modules"]
    assert (root["fqn"], root["collectives"]) == ("Global", once)
    [mlp] = root["children"]
    assert (mlp["fqn"], mlp["type"], mlp["collectives"]) == ("MLPModule", "MLPModule", once)
    children = {child["fqn"]: child for child in mlp["children"]}
    assert list(children) == ["MLPModule.net1", "MLPModule.relu", "MLPModule.net2"]
    assert children["MLPModule.net1"]["collectives"] == {}
    assert children["MLPModule.net2"]["collectives"] == once
    weight = children["MLPModule.net1"]["parameters"][0]
    assert (weight["name"], weight["shape"]) == ("weight", [16, 10])
    lines = tracker.collectives.table(color=False).splitlines()
    rows = [line.split() for line in lines if "all_reduce" in line]
    assert [row[:4] for row in rows] == [
        ["Global", "forward", "all_reduce", "1"],
        ["MLPModule", "forward", "all_reduce", "1"],
        ["MLPModule.net2", "forward", "all_reduce", "1"],
    ]


def test_no_hook_is_left(group: Any) -> None:
    """A module called twice, a tracker entered ten times, one within itself: torch's own do not."""
    model = frameworks.Net()
    shared = nn.Sequential(model.blocks[0], model.blocks[0])
    tracker = ModTracker()
    for _ in range(10):
        with tracker:
            model(torch.ones(1, 2)).sum().backward()
            shared(torch.ones(1, 8)).sum().backward()
    with tracker, tracker:
        shared(torch.ones(1, 8))
        dist.all_reduce(torch.ones(1))
    assert tracker.collectives.total == 1
    for module in (*model.modules(), shared):
        for kind in (
            "_forward_hooks",
            "_forward_pre_hooks",
            "_backward_hooks",
            "_backward_pre_hooks",
        ):
            assert not getattr(module, kind), kind
    dist.all_reduce(torch.ones(1))
    assert tracker.collectives.total == 1


def test_a_thread_is_seen(group: Any) -> None:
    """CommDebugMode sees the thread that entered it."""
    mode, tracker = CommDebugMode(), ModTracker()
    with tracker, mode:
        thread = threading.Thread(target=dist.all_reduce, args=(torch.ones(3),))
        thread.start()
        thread.join()
    assert mode.get_total_counts() == 0
    assert tracker.collectives.by_operator() == {"c10d.allreduce_": (1, 3 * FLOAT)}


# -- side by side on real programs -----------------------------------------------------------------

OPERATIONS = {
    "c10d.allreduce_": "all_reduce",
    "c10d.broadcast_": "broadcast",
    "c10d.allgather_": "all_gather",
    "c10d._allgather_base_": "all_gather",
    "c10d._reduce_scatter_base_": "reduce_scatter",
    "c10d_functional.all_reduce": "all_reduce",
    "c10d_functional.all_gather_into_tensor": "all_gather",
    "c10d_functional.reduce_scatter_tensor": "reduce_scatter",
}
TWICE = ("ddp_no_sync", "gpipe", "one_forward_one_backward")
COMPARED = [name for name in frameworks.PROGRAMS if name != "compiled_ddp"]
ARRANGED = ("_alone", "_ours_outside", "_ours_inside")
PIPELINES = ("gpipe", "one_forward_one_backward")
FSDP2 = ("fsdp2", "fsdp2_kept", "fsdp2_blocks", "fsdp2_checkpointed", "fsdp2_wrapped")


def _sharded(root: str = "Net", *, gathers: int = 2, whole: bool = True) -> list[Any]:
    # CommDebugMode gives what is launched in a backward to the module whose backward began last. A
    # block's gradients are scattered by a node of the block's own, made when the block was entered;
    # before that node, the last to begin was the block's first layer.
    moves = [
        ("backward", "reduce_scatter", 1, f"{root}.blocks.{at}.lin1", f"{root}.blocks.{at}")
        for at in range(2)
    ]
    if whole:
        # The root's are scattered when the backward is over: no module runs.
        moves.append(("backward", "reduce_scatter", 1, f"{root}.inp", ""))
    if gathers:
        # Gathered by a hook on what the head has made, before any module's backward.
        moves.append(("backward", "all_gather", gathers, root, f"{root}.head"))
    return moves


# What CommDebugMode charges to the wrong module: phase, operation, how often, from where, to where
# (a module and all it is in; "" is no module).
MOVED: dict[str, list[Any]] = {
    # An optimizer's step is in no module; the last that ran was the first layer's backward.
    "zero": [("forward", "broadcast", 12, "Net.inp", "")],
    "fsdp2": _sharded(),
    "fsdp2_kept": _sharded(gathers=0),
    "fsdp2_blocks": _sharded(gathers=0, whole=False),
    "fsdp2_checkpointed": _sharded("CheckpointedNet"),
    "fsdp2_wrapped": _sharded(),
    # The root's parameters are scattered by the node that takes up their gradient.
    "fsdp1": [
        *_sharded(gathers=0, whole=False),
        ("backward", "reduce_scatter", 1, "Net.inp", "Net"),
        ("backward", "all_gather", 1, "Net", "Net.head"),
    ],
    "sequence_parallel": [
        # What `attention` was given is gathered by its own pre-hook, and scattered in its backward.
        *(
            ("backward", "reduce_scatter", 1, f"{layer}.attention.wq", f"{layer}.attention")
            for layer in ("Transformer.layers.0", "Transformer.layers.1")
        ),
        ("forward", "all_reduce", 10, "Transformer.tok_embeddings", ""),
    ],
}


def _around(fqn: str) -> list[str]:
    parts = fqn.split(".") if fqn else []
    return [".".join(parts[:length]) for length in range(1, len(parts) + 1)]


def corrected(name: str, arranged: str, modules: dict[str, Any]) -> dict[str, Any]:
    """CommDebugMode's counts by module, with what it charges to the wrong one put right."""
    found: dict[str, Any] = {}
    for fqn, phases in modules.items():
        for phase, counts in phases.items():
            for operator, count in counts.items():
                place = found.setdefault(fqn, {}).setdefault(phase, {})
                place[OPERATIONS[operator]] = count
    for phase, operation, count, wrong, right in MOVED.get(name, ()):
        if name == "fsdp1" and operation == "all_gather" and arranged != "_alone":
            continue  # under CommDebugMode the root's output is made by a node of its own hooks'
        for fqns, by in ((_around(wrong), -count), (_around(right), count)):
            for fqn in fqns:
                place = found.setdefault(fqn, {}).setdefault(phase, {})
                place[operation] = place.get(operation, 0) + by
    return _without_zeros(found)


def _without_zeros(modules: dict[str, Any]) -> dict[str, Any]:
    found = {
        fqn: {
            phase: kept
            for phase, counts in phases.items()
            if (kept := {operation: count for operation, count in counts.items() if count})
        }
        for fqn, phases in modules.items()
    }
    return {fqn: phases for fqn, phases in found.items() if phases}


def both(name: str, arranged: str, way: str) -> list[tuple[Any, Any]]:
    """What each rank was told by CommDebugMode and by the tracker."""
    if name in TWICE and not all(result(WORKER, 2, "survives")):
        pytest.skip("this torch's CommDebugMode raises where a module is called twice")
    ranks = [rank[way][name][arranged] for rank in result(WORKER, 2, "programs")]
    return [(rank["theirs"], rank["ours"]) for rank in ranks]


def cases(names: list[str]) -> Any:
    """A program, an arrangement, a way."""
    return [
        pytest.param(name, arranged, way, id=f"{name}{arranged}-{way}")
        for name in names
        for arranged in ARRANGED
        for way in WAYS
    ]


@pytest.mark.parametrize(("name", "arranged", "way"), cases(COMPARED))
def test_totals_and_operators_agree(name: str, arranged: str, way: str) -> None:
    """But for what CommDebugMode misses: threads of the backend's, and point to point."""
    for theirs, ours in both(name, arranged, way):
        operators = dict(ours["operators"])
        total = ours["total"]
        if name == "ddp_chained_hook" and operators != theirs["operators"]:
            # The second was launched on a thread of gloo's, where there is no mode.
            operators["c10d.allreduce_"] -= 1
            total -= 1
        if name in PIPELINES:
            assert (operators.pop("c10d.send"), operators.pop("c10d.recv_")) == (4, 4)
            total -= 8
        assert (total, operators) == (theirs["total"], theirs["operators"])


@pytest.mark.parametrize(
    ("name", "arranged", "way"),
    cases([name for name in COMPARED if name not in {*PIPELINES, "ddp_chained_hook"}]),
)
def test_modules_agree(name: str, arranged: str, way: str) -> None:
    """Forward and backward, each module with what is in it; torch's put right where it is wrong."""
    for theirs, ours in both(name, arranged, way):
        modules = {
            fqn: phases
            for fqn, phases in copy.deepcopy(ours["modules"]).items()
            if not fqn.endswith(("SGD", "Optimizer"))  # CommDebugMode knows no optimizers
        }
        assert _without_zeros(modules) == corrected(name, arranged, theirs["modules"])


@pytest.mark.parametrize(("name", "arranged", "way"), cases(COMPARED))
def test_parameters_and_placements_agree(name: str, arranged: str, way: str) -> None:
    """FSDP2's parameters are no DTensors while their module runs, which is when torch's looks."""
    for theirs, ours in both(name, arranged, way):
        assert ours["parameters"] == theirs["parameters"]
        if name in FSDP2:
            assert theirs["placements"] == {}
            sharded = {"(Shard(dim=0),)"}
            assert set(ours["placements"].values()) == sharded
        else:
            assert ours["placements"] == theirs["placements"]


@pytest.mark.parametrize("way", WAYS)
def test_what_comm_mode_misses_is_seen(way: str) -> None:
    """Barriers, point to point, objects, other threads; with bytes."""
    x = 3 * FLOAT
    for rank, ways in enumerate(result(WORKER, 2, "missed")):
        told = ways[way]
        assert all(theirs == 0 for theirs, _ in told.values())
        counts = {name: ours for name, (_, ours) in told.items()}
        assert counts["barrier"] == {"c10d.barrier": [1, 0]}
        assert counts["monitored_barrier"] == {"c10d.monitored_barrier_": [1, 0]}
        received = {"c10d.send": [1, x]} if rank else {"c10d.recv_any_source_": [1, x]}
        assert counts["_recv_from_anyone"] == received
        assert counts["_both_ways"] == {"c10d.send": [1, x], "c10d.recv_": [1, x]}
        assert counts["_batched"] == {"c10d.send": [1, x], "c10d.recv_": [1, x]}
        [(operator, (count, size))] = counts["_objects"].items()
        assert (operator, count) == ("c10d.send" if rank else "c10d.recv_", 2)
        assert size > 8  # the length of each object, and the objects
        assert counts["_on_another_thread"] == {"c10d.allreduce_": [1, x]}
