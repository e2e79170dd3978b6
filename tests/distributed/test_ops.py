"""Each collective is seen once: operator, bytes, group and module, by hand, on 2 and 4 ranks.

The sizes stand below as numbers: what each rank's payload is in bytes, that is the larger of what
it puts in and what it gets out. The launches themselves are in `worker_ops.py`.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional_collectives
import worker_ops as ops
from harness import launch, result
from torch._C._distributed_c10d import ProcessGroup
from torch._subclasses.fake_tensor import FakeTensorMode, UnsupportedOperatorException
from torch.distributed import distributed_c10d as c10d
from torch.testing._internal.distributed.fake_pg import FakeStore

from otel_modtrack import ModTracker
from otel_modtrack.comm import intercept

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WORKER = "worker_ops.py"
WAYS = ("hooks", "kernels") if hasattr(ProcessGroup, "register_pre_hook") else ("kernels",)
PROCESSES = (2, 4)
WORLD = "0"  # what torch calls the default group

# torch renamed the operator that object collectives use when it gave it one output.
OBJECTS_GATHERED = "_allgather_base_" if ops.HAS_GATHER_SINGLE else "allgather_"


class Launch(NamedTuple):
    """What must have been seen of one launch, or of `count` equal ones.

    Attributes:
        operation, operator: names; the operator's without ``c10d.``.
        sizes: bytes by number of processes, of each rank; None where that rank launches nothing.
    """

    operation: str
    operator: str
    sizes: dict[int, tuple[int | None, ...]]
    dtype: str = "float32"
    asynchronous: bool = False
    count: int = 1
    phase: str = "forward"

    @property
    def operator_name(self) -> str:
        """The operator's name in full."""
        return self.operator if "." in self.operator else f"c10d.{self.operator}"


def same(two: int | None, four: int | None) -> dict[int, tuple[int | None, ...]]:
    """The same on all ranks."""
    return {2: (two,) * 2, 4: (four,) * 4}


def on(two: tuple[int | None, ...], four: tuple[int | None, ...]) -> dict[int, Any]:
    """By rank."""
    return {2: two, 4: four}


# 4 elements of 4 bytes, and twice and four times that; with 2 elements more.
FOUR = same(16, 16)
FOUR_OF_EACH = same(32, 64)
SIX = same(24, 24)
SIX_OF_EACH = same(48, 96)
FOUR_AT_ONE = on((16, 32), (16, 64, 16, 16))  # the list is at rank 1
# Rank r sends 1 + 2 + ... elements, and gets r + 1 of each.
UNEVEN = on((12, 16), (40, 40, 48, 64))
# The first rank or the second, and nobody else.
FROM_0 = on((16, None), (16, None, None, None))
FROM_1 = on((None, 16), (None, 16, None, None))
NOTHING = same(0, 0)

# Called with async_op False, and True.
BOTH = {
    "all_reduce": Launch("all_reduce", "allreduce_", FOUR),
    "broadcast": Launch("broadcast", "broadcast_", FOUR),
    "reduce": Launch("reduce", "reduce_", FOUR),
    "all_gather": Launch("all_gather", "allgather_", FOUR_OF_EACH),
    "all_gather_into_tensor": Launch("all_gather", "_allgather_base_", FOUR_OF_EACH),
    "all_gather_coalesced": Launch("all_gather", "allgather_coalesced_", SIX_OF_EACH),
    "all_reduce_coalesced": Launch("all_reduce", "allreduce_coalesced_", SIX),
    "reduce_scatter": Launch("reduce_scatter", "reduce_scatter_", FOUR_OF_EACH),
    "reduce_scatter_tensor": Launch("reduce_scatter", "_reduce_scatter_base_", FOUR_OF_EACH),
    "all_to_all": Launch("all_to_all", "alltoall_", FOUR_OF_EACH),
    "all_to_all_single": Launch("all_to_all", "alltoall_base_", FOUR_OF_EACH),
    "all_to_all_single_uneven": Launch("all_to_all", "alltoall_base_", UNEVEN),
    "gather": Launch("gather", "gather_", FOUR_AT_ONE),
    "scatter": Launch("scatter", "scatter_", FOUR_AT_ONE),
    "barrier": Launch("barrier", "barrier", NOTHING, dtype=""),
    "coalescing_manager_all_reduce": Launch("all_reduce", "allreduce_coalesced_", SIX),
    "coalescing_manager_all_gather": Launch(
        *("all_gather", "allgather_into_tensor_coalesced_", SIX_OF_EACH),
        asynchronous=not ops.HAS_GATHER_SINGLE,  # before, torch did not hand on who waits
    ),
    "coalescing_manager_reduce_scatter": Launch(
        "reduce_scatter", "reduce_scatter_tensor_coalesced_", SIX_OF_EACH
    ),
}

OTHERS = {
    "monitored_barrier": [Launch("monitored_barrier", "monitored_barrier_", NOTHING, dtype="")],
    "process_group_itself": [Launch("all_reduce", "allreduce_", FOUR, asynchronous=True)],
    # Point to point.
    "send_recv": [Launch("send", "send", FROM_0), Launch("recv", "recv_", FROM_1)],
    "isend_irecv": [
        Launch("send", "send", FROM_0, asynchronous=True),
        Launch("recv", "recv_", FROM_1, asynchronous=True),
    ],
    "recv_any_source": [
        Launch("send", "send", FROM_1),
        Launch("recv", "recv_any_source_", FROM_0),
    ],
    "irecv_any_source": [
        Launch("send", "send", FROM_1, asynchronous=True),
        Launch("recv", "recv_any_source_", FROM_0, asynchronous=True),
    ],
    "batch_isend_irecv": [
        Launch("send", "send", on((4, 8), (4, 8, 12, 16)), asynchronous=True),
        Launch("recv", "recv_", on((8, 4), (16, 4, 8, 12)), asynchronous=True),
    ],
    # Objects of 25, 35, 45 and 55 bytes when pickled; their sizes go first, as int64.
    "all_gather_object": [
        Launch("all_gather", OBJECTS_GATHERED, same(16, 32), dtype="int64"),
        Launch("all_gather", OBJECTS_GATHERED, same(70, 220), dtype="uint8"),
    ],
    "broadcast_object_list": [
        Launch("broadcast", "broadcast_", same(16, 16), dtype="int64"),
        Launch("broadcast", "broadcast_", same(60, 60), dtype="uint8"),
    ],
    "gather_object": [
        Launch("all_gather", "allgather_", same(16, 32), dtype="int64"),
        Launch("gather", "gather_", on((35, 70), (55, 220, 55, 55)), dtype="uint8"),
    ],
    "scatter_object_list": [
        Launch("broadcast", "broadcast_", same(8, 8), dtype="int64"),
        Launch("scatter", "scatter_", on((35, 70), (55, 220, 55, 55)), dtype="uint8"),
        Launch("scatter", "scatter_", on((8, 16), (8, 32, 8, 8)), dtype="int64"),
    ],
    "send_object_list": [
        Launch("send", "send", on((16, None), (16, None, None, None)), dtype="int64"),
        Launch("send", "send", on((60, None), (60, None, None, None)), dtype="uint8"),
        Launch("recv", "recv_", on((None, 16), (None, 16, None, None)), dtype="int64"),
        Launch("recv", "recv_", on((None, 60), (None, 60, None, None)), dtype="uint8"),
    ],
    # Kinds of tensors, and modes.
    "no_grad": [Launch("all_reduce", "allreduce_", FOUR)],
    "inference_mode": [Launch("all_reduce", "allreduce_", FOUR)],
    "complex_numbers": [Launch("all_reduce", "allreduce_", same(32, 32))],
    "bfloat16": [Launch("all_reduce", "allreduce_", same(8, 8), dtype="bfloat16")],
    "int64": [Launch("all_reduce", "allreduce_", same(32, 32), dtype="int64")],
    "boolean": [Launch("broadcast", "broadcast_", same(4, 4), dtype="bool")],
    "no_dimension": [Launch("all_reduce", "allreduce_", same(4, 4))],
    "no_elements": [Launch("all_reduce", "allreduce_", NOTHING)],
    "no_elements_gathered": [Launch("all_gather", "_allgather_base_", NOTHING)],
    "strided": [Launch("all_reduce", "allreduce_", same(32, 32))],
    "sparse": [Launch("all_reduce", "allreduce_", same(24, 24))],
    "parameter": [Launch("broadcast", "broadcast_", FOUR)],
    "two_dtypes": [
        Launch("all_reduce", "allreduce_", same(16, 16)),
        Launch("all_reduce", "allreduce_", same(8, 8), dtype="bfloat16"),
    ],
    "three_operations": [
        Launch("all_reduce", "allreduce_", same(16, 16)),
        Launch("broadcast", "broadcast_", same(8, 8)),
        Launch("all_reduce", "allreduce_", same(32, 32)),
    ],
    "dtensor_distribute": [
        Launch("scatter", "scatter_", on((256, 128), (256, 64, 64, 64))),
    ],
}


def functional(
    operation: str,
    operator: str,
    sizes: dict[int, tuple[int | None, ...]],
    phase: str = "forward",
) -> Launch:
    """A functional collective: always asynchronous."""
    return Launch(operation, f"c10d_functional.{operator}", sizes, asynchronous=True, phase=phase)


def differentiable(
    operation: str, operator: str, sizes: dict[int, tuple[int | None, ...]]
) -> list[Launch]:
    """The same in forward and backward."""
    return [functional(operation, operator, sizes, phase) for phase in ("forward", "backward")]


FUNCTIONAL = {
    "functional_all_reduce": [functional("all_reduce", "all_reduce", FOUR)],
    "functional_all_reduce_coalesced": [functional("all_reduce", "all_reduce_coalesced", SIX)],
    "functional_all_gather": [functional("all_gather", "all_gather_into_tensor", FOUR_OF_EACH)],
    "functional_all_gather_columns": [
        functional("all_gather", "all_gather_into_tensor", same(48, 96))
    ],
    "functional_all_gather_coalesced": [
        functional("all_gather", "all_gather_into_tensor_coalesced", SIX_OF_EACH)
    ],
    "functional_reduce_scatter": [
        functional("reduce_scatter", "reduce_scatter_tensor", FOUR_OF_EACH)
    ],
    "functional_reduce_scatter_coalesced": [
        functional("reduce_scatter", "reduce_scatter_tensor_coalesced", SIX_OF_EACH)
    ],
    "functional_all_to_all": [functional("all_to_all", "all_to_all_single", FOUR_OF_EACH)],
    "functional_all_to_all_uneven": [functional("all_to_all", "all_to_all_single", UNEVEN)],
    "functional_broadcast": [functional("broadcast", "broadcast", FOUR)],
    "functional_permute": [functional("all_to_all", "all_to_all_single", FOUR)],
    "functional_all_reduce_inplace": [functional("all_reduce", "all_reduce", FOUR)],
    "functional_all_gather_inplace": [
        functional("all_gather", "all_gather_into_tensor", FOUR_OF_EACH)
    ],
    "functional_all_gather_tensor_inplace": [
        functional("all_gather", "all_gather_into_tensor", FOUR_OF_EACH)
    ],
    "functional_reduce_scatter_tensor_inplace": [
        functional("reduce_scatter", "reduce_scatter_tensor", FOUR_OF_EACH)
    ],
    "functional_reduce_scatter_inplace": [
        functional("reduce_scatter", "reduce_scatter_tensor", FOUR_OF_EACH)
    ],
    "functional_all_to_all_inplace": [functional("all_to_all", "all_to_all_single", FOUR_OF_EACH)],
    "functional_isend_irecv": [
        functional("send", "isend", FROM_0),
        functional("recv", "irecv", FROM_1),
    ],
    "functional_batch": [
        functional("send", "batch_p2p_ops", FOUR),
        functional("recv", "batch_p2p_ops", FOUR),
    ],
    "operator_all_reduce_": [functional("all_reduce", "all_reduce_", FOUR)],
    "operator_all_reduce_coalesced_": [functional("all_reduce", "all_reduce_coalesced_", SIX)],
    "operator_broadcast_": [functional("broadcast", "broadcast_", FOUR)],
    "operator_all_gather_into_tensor_out": [
        functional("all_gather", "all_gather_into_tensor_out", FOUR_OF_EACH)
    ],
    "operator_reduce_scatter_tensor_out": [
        functional("reduce_scatter", "reduce_scatter_tensor_out", FOUR_OF_EACH)
    ],
    # On newer torch it goes by no other functional operator, and what it launches is told.
    "operator_autograd_all_gather": [
        Launch(*("all_gather", "allgather_into_tensor_coalesced_", FOUR_OF_EACH), asynchronous=True)
        if ops.HAS_GATHER_SINGLE
        else functional("all_gather", "all_gather_into_tensor", FOUR_OF_EACH)
    ],
    "operator_of_old_programs": [functional("all_reduce", "all_reduce", FOUR)],
    # With a backward.
    "backward_all_reduce": differentiable("all_reduce", "all_reduce", FOUR),
    "backward_all_reduce_coalesced": differentiable("all_reduce", "all_reduce_coalesced", SIX),
    "backward_all_gather": [
        functional("all_gather", "all_gather_into_tensor", FOUR_OF_EACH),
        functional("reduce_scatter", "reduce_scatter_tensor", FOUR_OF_EACH, "backward"),
    ],
    "backward_reduce_scatter": [
        functional("reduce_scatter", "reduce_scatter_tensor", FOUR_OF_EACH),
        functional("all_gather", "all_gather_into_tensor", FOUR_OF_EACH, "backward"),
    ],
    "backward_all_to_all": differentiable("all_to_all", "all_to_all_single", UNEVEN),
    "backward_all_gather_coalesced": [
        functional("all_gather", "all_gather_into_tensor_coalesced", SIX_OF_EACH),
        functional("reduce_scatter", "reduce_scatter_tensor_coalesced", SIX_OF_EACH, "backward"),
    ],
    "backward_reduce_scatter_coalesced": [
        functional("reduce_scatter", "reduce_scatter_tensor_coalesced", SIX_OF_EACH),
        functional("all_gather", "all_gather_into_tensor_coalesced", SIX_OF_EACH, "backward"),
    ],
    "backward_nn_all_reduce": [
        Launch("all_reduce", "allreduce_", FOUR),
        Launch("all_reduce", "allreduce_", FOUR, phase="backward"),
    ],
    "backward_nn_broadcast": [
        Launch("broadcast", "broadcast_", FOUR),
        Launch("reduce", "reduce_", FOUR, phase="backward"),
    ],
    "backward_nn_all_to_all_single": [
        Launch("all_to_all", "alltoall_base_", FOUR_OF_EACH),
        Launch("all_to_all", "alltoall_base_", FOUR_OF_EACH, phase="backward"),
    ],
    # DTensor: 8 by 8 elements.
    "dtensor_shard_to_replicate": [
        functional("all_gather", "all_gather_into_tensor", same(256, 256))
    ],
    "dtensor_shard_to_shard": [functional("all_gather", "all_gather_into_tensor", same(256, 256))],
    "dtensor_partial_to_replicate": [functional("all_reduce", "all_reduce", same(256, 256))],
    "dtensor_partial_to_shard": [
        functional("reduce_scatter", "reduce_scatter_tensor", same(256, 256))
    ],
    "dtensor_mm": [functional("all_gather", "all_gather_into_tensor", same(256, 256))],
    "dtensor_full_tensor": [functional("all_gather", "all_gather_into_tensor", same(256, 256))],
}

EXPECTED: dict[str, list[Launch]] = {
    **{name: [one] for name, one in BOTH.items()},
    **{f"{name}_async": [one._replace(asynchronous=True)] for name, one in BOTH.items()},
    **OTHERS,
    **FUNCTIONAL,
}

# What torch 2.8 has not: see `in_fake_groups` for gloo's all-to-all of lists.
ABSENT = {
    name
    for there, names in (
        (ops.HAS_ALL_TO_ALL, ("all_to_all", "all_to_all_async")),
        (
            ops.HAS_FUNCTIONAL_P2P,
            (
                *("functional_isend_irecv", "functional_batch"),
                *("functional_reduce_scatter_inplace", "operator_reduce_scatter_tensor_out"),
            ),
        ),
        (
            ops.HAS_DIFFERENTIABLE_ALL_REDUCE,
            (
                *("backward_all_reduce", "backward_all_reduce_coalesced"),
                *("backward_all_gather_coalesced", "backward_reduce_scatter_coalesced"),
            ),
        ),
    )
    if not there
    for name in names
}


Sums = dict[str, list[int]]


def add(sums: Sums, key: str, count: int, size: int) -> None:
    """Count something under a name."""
    entry = sums.setdefault(key, [0, 0])
    entry[0] += count
    entry[1] += size


def group_attributes(world: int) -> dict[str, Any]:
    """What an event says of the default group."""
    return {
        "group.name": WORLD,
        "group.size": world,
        "group.description": "default_pg",
        "backend": "gloo",
    }


def expected(
    launches: list[Launch], rank: int, world: int, group: dict[str, Any] | None = None
) -> dict[str, Any]:
    """All that must be told on a rank when `Net.inner` launches these in a step."""
    group = group_attributes(world) if group is None else group
    here = [one for one in launches if one.sizes[world][rank] is not None]
    found: dict[str, Any] = {"total": 0, "size": 0}
    for key in ("operation", "operator", "group", "phase", "module", "spans"):
        found[key] = {}
    events: dict[tuple[str, str], dict[str, Any]] = {}
    inclusive: Sums = {}
    for one in here:
        count, size = one.count, one.sizes[world][rank] or 0
        found["total"] += count
        found["size"] += size
        add(found["operation"], one.operation, count, size)
        add(found["operator"], one.operator_name, count, size)
        add(found["group"], group["group.name"], count, size)
        add(found["phase"], one.phase, count, size)
        for fqn in ("Global", "Net", "Net.inner"):
            phases = found["module"].setdefault(fqn, {})
            add(phases.setdefault(one.phase, {}), one.operation, count, size)
        around = [f"{one.phase} Net.inner", f"{one.phase} Net", "train_step"]
        for span in (*around, *(["backward"] if one.phase == "backward" else [])):
            add(inclusive, span, count, size)
        event = events.setdefault(
            (one.phase, one.operation),
            {"operation": one.operation, "count": 0, "size": 0, "async": False, **group},
        )
        event["count"] += count
        event["size"] += size
        event["async"] |= one.asynchronous
        if one.dtype:
            dtypes = f"{one.dtype},{event.get('dtype', one.dtype)}".split(",")
            event["dtype"] = ",".join(sorted(set(dtypes)))
    for span, (count, size) in inclusive.items():
        phase, _, fqn = span.partition(" ")
        found["spans"][span] = {
            "events": [one for (of, _), one in events.items() if (of, fqn) == (phase, "Net.inner")],
            "count": count,
            "size": size,
        }
    return found


def results(name: str, processes: int, way: str) -> list[Any]:
    """What a case returned on each rank; one start of the processes serves both ways."""
    return result(WORKER, processes, name, way, ",".join(WAYS))


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    """One of the two ways of seeing collectives."""
    return str(request.param)


@pytest.fixture(params=PROCESSES)
def processes(request: pytest.FixtureRequest) -> int:
    """Number of processes."""
    return int(request.param)


@pytest.mark.parametrize("name", EXPECTED)
def test_operation(name: str, processes: int, way: str) -> None:
    """Counts, bytes, operator, group and module of an operation, on every rank."""
    if name in ABSENT:
        pytest.skip("this torch does not have it, or not with gloo")
    for rank, found in enumerate(results(name, processes, way)):
        assert found == expected(EXPECTED[name], rank, processes), f"rank {rank}"


def test_no_operation_is_forgotten() -> None:
    """Every operation that the worker launches has its numbers here."""
    launched = launch(WORKER, 2, ",".join(WAYS))[0][WAYS[0]].keys()
    assert EXPECTED.keys() - ABSENT <= launched
    scenarios = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    scenarios |= {*CIRCUMSTANCES, *BEYOND}
    assert launched - EXPECTED.keys() - scenarios == {"dtensor_prepare"}


# -- groups ---------------------------------------------------------------------------------------


def all_reduces(name: str, count: int, size: int, world: int, **given: Any) -> dict[str, Any]:
    """The event of some synchronous all-reduces of float32."""
    return {
        **group_attributes(world),
        "operation": "all_reduce",
        "count": count,
        "size": size,
        "dtype": "float32",
        "async": False,
        "group.name": name,
        **given,
    }


def test_groups(processes: int, way: str) -> None:
    """Groups made before and inside tracking count under their own names; after, nothing does."""
    for rank, found in enumerate(results("groups", processes, way)):
        names, sizes, descriptions = found["names"], found["sizes"], found["descriptions"]
        used = [key for key in names if key != "after"]
        assert used == ["before", "inside", "rows", "columns", "split"][: len(used)]
        assert len(used) == 4 + ops.HAS_SPLIT_GROUP
        assert [sizes[key] for key in used][:4] == [processes, processes, processes // 2, 2]
        assert descriptions["inside"] == "made inside"
        # One all-reduce of 16 bytes in the first, two in the second, and so on.
        wanted = {names[key]: [at + 1, 16 * (at + 1)] for at, key in enumerate(used)}
        assert len(wanted) == len(used)
        assert found["group"] == wanted, f"rank {rank}"
        assert found["operation"] == {"all_reduce": [sum(range(len(used) + 1)), found["size"]]}
        events = found["spans"]["forward Net.inner"]["events"]
        assert events == [
            all_reduces(
                names[key],
                at + 1,
                16 * (at + 1),
                sizes[key],
                **{"group.description": descriptions[key]},
            )
            for at, key in enumerate(used)
        ]


def test_subgroup(processes: int, way: str) -> None:
    """A group of two says so, and the ranks that are not in it launch nothing."""
    for rank, found in enumerate(results("subgroup", processes, way)):
        if rank >= 2:
            assert found["total"] == 0
            assert found["group"] == found["module"] == found["spans"] == {}
            continue
        assert found["group"] == {found["name"]: [1, 16]}
        assert found["name"] != WORLD
        assert found["spans"]["forward Net.inner"]["events"] == [
            all_reduces(found["name"], 1, 16, 2, **{"group.description": "two"})
        ]


def test_group_destroyed_inside(processes: int, way: str) -> None:
    """A group that is destroyed dies at once, with tracking as without, and nothing keeps it."""
    for found in results("group_destroyed_inside", processes, way):
        assert found == {
            "without": True,
            "within": True,
            "total": 21,
            "names": 21,
            "no more than live": True,
            "hooked after": 0,
            "no more after": True,
        }


def test_group_destroyed_outside(way: str) -> None:
    """A group that was used inside tracking can die after it."""
    assert results("group_destroyed_outside", 2, way) == [True, True]


def test_group_made_by_another_thread(way: str) -> None:
    """A new group is seen whichever thread makes it."""
    for found in results("group_made_by_another_thread", 2, way):
        assert found["group"] == {found["name"]: [1, 16]}


# -- where ----------------------------------------------------------------------------------------


def counted(phase: str, *fqns: str, count: int = 1, size: int = 16) -> dict[str, Any]:
    """`by_module` of all-reduces that were launched in these modules."""
    return {fqn: {phase: {"all_reduce": [count, size]}} for fqn in fqns}


ONE_ALL_REDUCE = EXPECTED["all_reduce"]


def test_thread_without_module(way: str) -> None:
    """What another thread launches is counted, in no module, and on no span."""
    for rank, found in enumerate(results("thread_without_module", 2, way)):
        wanted = expected(ONE_ALL_REDUCE, rank, 2)
        wanted |= {
            "phase": {"outside": [1, 16]},
            "module": counted("outside", "Global"),
            "spans": {},
        }
        assert found == wanted


def test_thread_with_module(way: str) -> None:
    """What a thread launches in a module is that module's."""
    for rank, found in enumerate(results("thread_with_module", 2, way)):
        wanted = expected(ONE_ALL_REDUCE, rank, 2)
        del wanted["spans"]["train_step"]  # the thread is not in the step
        assert found == wanted


def test_several_threads(way: str) -> None:
    """Nothing is lost or doubled when threads launch at once."""
    for found in results("several_threads", 2, way):
        assert found["group"] == {name: [200, 3200] for name in found["names"]}
        assert found["total"] == 400
        assert found["size"] == 6400
        assert found["module"] == counted(
            "forward", "Global", "Net", "Net.inner", count=400, size=6400
        )


def test_places(processes: int, way: str) -> None:
    """In no step, in a step, in a named region, in a module, in a hook of the backward."""
    for rank, found in enumerate(results("places", processes, way)):
        assert found["phase"] == {"outside": [4, 24], "forward": [2, 20], "backward": [1, 16]}
        assert found["module"] == {
            "Global": {
                "outside": {"barrier": [2, 0], "all_reduce": [2, 24]},
                "forward": {"all_reduce": [2, 20]},
                "backward": {"broadcast": [1, 16]},
            },
            "loss": {"forward": {"all_reduce": [2, 20]}},
            "Net": {
                "forward": {"all_reduce": [1, 12]},
                "backward": {"broadcast": [1, 16]},
            },
            "Net.inner": {
                "forward": {"all_reduce": [1, 12]},
                "backward": {"broadcast": [1, 16]},
            },
        }

        def event(count: int, size: int) -> dict[str, Any]:
            return all_reduces(WORLD, count, size, processes)

        broadcast = {**event(1, 16), "operation": "broadcast"}
        assert found["spans"] == {
            "train_step": {"events": [event(2, 24)], "count": 5, "size": 60},
            "forward loss": {"events": [event(1, 8)], "count": 2, "size": 20},
            "forward Net": {"events": [], "count": 1, "size": 12},
            "forward Net.inner": {"events": [event(1, 12)], "count": 1, "size": 12},
            "backward": {"events": [], "count": 1, "size": 16},
            "backward Net": {"events": [], "count": 1, "size": 16},
            "backward Net.inner": {"events": [broadcast], "count": 1, "size": 16},
        }
        assert found["step"] == {"rank": rank, "world_size": processes, "local_rank": rank}


def test_optimizer(way: str) -> None:
    """What an optimizer launches is on its span, in the phase "optimizer"."""
    for found in results("optimizer", 2, way):
        assert found["operation"] == {"all_reduce": [2, 16]}  # 3 weights and a bias
        assert found["phase"] == {"optimizer": [2, 16]}
        assert found["module"]["Global"] == {"optimizer": {"all_reduce": [2, 16]}}
        assert "Linear" not in found["module"]
        assert found["spans"] == {
            "optimizer_step Averaging": {
                "events": [all_reduces(WORLD, 2, 16, 2)],
                "count": 2,
                "size": 16,
            },
            "train_step": {"events": [], "count": 2, "size": 16},
        }


def test_recomputed(way: str) -> None:
    """What a checkpointed module launches again is in the phase "recompute"."""
    for found in results("recomputed", 2, way):
        assert found["phase"] == {"forward": [1, 16], "recompute": [1, 16]}
        once = {"forward": {"all_reduce": [1, 16]}}
        again = {"recompute": {"all_reduce": [1, 16]}}
        assert found["module"]["Checkpointed.inner"] == once | again
        spans = found["spans"]
        event = all_reduces(WORLD, 1, 16, 2)
        told = {"events": [event], "count": 1, "size": 16}
        assert spans["forward Checkpointed.inner"] == told
        assert spans["recompute Checkpointed.inner"] == told
        assert spans["backward"] == {**told, "events": []}
        assert spans["train_step"] == {"events": [], "count": 2, "size": 32}
        assert sum(len(one["events"]) for one in spans.values()) == 2


CIRCUMSTANCES = ("no_step", "no_model", "no_provider", "unsampled_step")


@pytest.mark.parametrize("name", CIRCUMSTANCES)
def test_circumstances(name: str, way: str) -> None:
    """With and without step, model, provider and sampling, the counts are the same."""
    for rank, found in enumerate(results(name, 2, way)):
        launches = ONE_ALL_REDUCE
        if name == "no_provider":  # once in a step and once in none
            launches = launches * 2
        wanted = expected(launches, rank, 2)
        if name == "no_step":
            del wanted["spans"]["train_step"]
        elif name == "no_provider":
            del wanted["spans"]
        elif name == "unsampled_step":
            wanted["spans"] = {}
        assert found == wanted


def test_unsampled_request(way: str) -> None:
    """In a request that is not sampled nothing is exported, and all is counted."""
    for rank, found in enumerate(results("unsampled_request", 2, way)):
        wanted = {**expected(ONE_ALL_REDUCE, rank, 2), "spans": {}, "exported": 0}
        assert found == wanted


def test_refused(way: str) -> None:
    """What the backend refuses was launched; the user is told the same as without us."""
    for found in results("refused", 2, way):
        assert found["same"]
        assert {key: count for key, (count, _) in found["operation"].items()} == {"gather": 2}


def test_modes_of_the_users(way: str) -> None:
    """Dispatch and function modes of the user's see nothing of ours."""
    wanted = {"some": True}
    for mode in ("summed", "each"):
        wanted |= {mode: True, f"{mode}, total": 6}
    assert results("modes_of_the_users", 2, way) == [wanted] * 2


@pytest.mark.skipif("hooks" not in WAYS, reason="process groups have no hooks")
def test_hooks_of_the_users(way: str) -> None:
    """Hooks of the user's fire once, beside ours and after them."""
    wanted = {
        "inside": ["before post", "before pre", "inside pre"],
        "after": ["before post", "before pre", "inside pre"],
        "total": 1,
    }
    assert results("hooks_of_the_users", 2, way) == [wanted] * 2


def test_debugged_group(way: str) -> None:
    """The collectives that torch checks one by are no launches; its backend is gloo."""
    for found in results("debugged_group", 2, way):
        assert found["group"] == {found["name"]: [1, 16]}
        assert found["spans"]["forward Net.inner"]["events"] == [
            all_reduces(found["name"], 1, 16, 2, **{"group.description": "debugged"})
        ]


# -- trackers -------------------------------------------------------------------------------------


def test_entered_again(way: str) -> None:
    """Counts begin again, stay when the tracker is left, and begin at nothing."""
    nothing = expected([], 0, 2)
    del nothing["spans"]
    for rank, found in enumerate(results("entered_again", 2, way)):
        first = expected(ONE_ALL_REDUCE, rank, 2)
        del first["spans"]
        first["total"] = 2
        first["operation"]["barrier"] = first["operator"]["c10d.barrier"] = [1, 0]
        first["group"][WORLD] = [2, 16]
        first["phase"]["outside"] = [1, 0]
        first["module"]["Global"]["outside"] = {"barrier": [1, 0]}
        second = expected([Launch("broadcast", "broadcast_", same(8, 8))], rank, 2)
        del second["spans"]
        assert found == [nothing, first, first, nothing, second]


def test_nested(way: str) -> None:
    """Each of two trackers counts its own time; the spans say everything once."""
    for rank, found in enumerate(results("nested", 2, way)):
        inner = expected(ONE_ALL_REDUCE, rank, 2)
        spans = inner.pop("spans")
        assert found["inner"] == inner
        assert found["outer"]["total"] == 3
        assert found["outer"]["operation"] == {"barrier": [2, 0], "all_reduce": [1, 16]}
        assert found["outer"]["module"]["Net.inner"] == inner["module"]["Net.inner"]
        barriers = {
            **group_attributes(2),
            "operation": "barrier",
            "count": 2,
            "size": 0,
            "async": False,
        }
        spans["train_step"] = {"events": [barriers], "count": 3, "size": 16}
        assert found["spans"] == spans
        assert found["inner spans"] == {}


def test_nested_left_out_of_order(way: str) -> None:
    """Trackers that are left in the wrong order count while they are on, and not after."""
    assert results("nested_left_out_of_order", 2, way) == [[1, 2]] * 2


def test_nested_modes(way: str) -> None:
    """Whatever the modes of two trackers: all is told once, and each counts its own time."""
    wanted = {"totals": [[9, 3]] * 2, "counts": [3] * 6}
    assert results("nested_modes", 2, way) == [wanted] * 2


def test_one_of_two_off(way: str) -> None:
    """Mode "off" of one tracker is not the other's."""
    wanted = {"summed in off": [0, 1], "off in summed": [1, 0]}
    assert results("one_of_two_off", 2, way) == [wanted] * 2


def test_off(way: str) -> None:
    """Mode "off" sees nothing and tells nothing."""
    for rank, found in enumerate(results("off", 2, way)):
        assert found == expected([], rank, 2)


def test_left(processes: int, way: str) -> None:
    """After tracking, torch is as it was, and nothing of ours runs."""
    wanted: dict[str, Any] = {}
    for mode in ("summed", "each", "off"):
        wanted |= {
            f"{mode}, inside": mode != "off",
            f"{mode}, after": [],
            f"{mode}, counted after": 0,
            f"{mode}, dispatcher": True,
            f"{mode}, groups": True,
        }
    assert results("left", processes, way) == [wanted] * processes


def test_left_by_an_exception(way: str) -> None:
    """The same where the tracked block raises."""
    wanted = {"total": 1, "after": [], "dispatcher": True}
    assert results("left_by_an_exception", 2, way) == [wanted] * 2


# -- mode "each" ----------------------------------------------------------------------------------


def one_by_itself(operation: str, operator: str, size: int, *shapes: str, **given: Any) -> Any:
    """An event of a collective on its own."""
    found = {
        **all_reduces(WORLD, 1, size, 2),
        "operation": operation,
        "operator": operator,
        "shapes": list(shapes),
        **given,
    }
    return {key: one for key, one in found.items() if one not in ("", [])}


def test_each(way: str) -> None:
    """One event per collective, at its own time, with operator and shapes."""
    for found in results("each", 2, way):
        assert found["operation"] == {
            "all_reduce": [4, 68],
            "all_gather": [1, 32],
            "barrier": [1, 0],
        }
        assert found["spans"]["forward Net.inner"] == {
            "events": [
                one_by_itself("all_reduce", "c10d.allreduce_", 8, "[1, 2]"),
                one_by_itself("all_reduce", "c10d.allreduce_", 16, "[2, 2]"),
                one_by_itself("all_reduce", "c10d.allreduce_", 24, "[3, 2]"),
                one_by_itself("all_gather", "c10d._allgather_base_", 32, "[4]"),
                one_by_itself("barrier", "c10d.barrier", 0, dtype=""),
                one_by_itself("all_reduce", "c10d.allreduce_", 20, "[5]", **{"async": True}),
            ],
            "count": 6,
            "size": 100,
        }
        assert found["in order"]
        assert found["in their time"] == [True] * 3
        assert found["durations"] == [True] * 6


def test_each_tells_durations(way: str) -> None:
    """gloo tells when a collective was done."""
    assert results("each_tells_durations", 2, way) == [[True] * 20] * 2


def test_each_coalesced(way: str) -> None:
    """All shapes of a coalesced one."""
    for found in results("each_coalesced", 2, way):
        (event,) = found["spans"]["forward Net.inner"]["events"]
        event.pop("duration", None)
        assert event == one_by_itself("all_reduce", "c10d.allreduce_coalesced_", 24, "[4]", "[2]")


def test_each_point_to_point(way: str) -> None:
    """The shapes of what is sent, and of what is received."""
    send, recv = results("each_point_to_point", 2, way)
    for found, operation, operator in ((send, "send", "send"), (recv, "recv", "recv_")):
        (event,) = found["spans"]["forward Net.inner"]["events"]
        event.pop("duration", None)
        assert event == one_by_itself(operation, f"c10d.{operator}", 16, "[4]")


def test_dtensor_placements(way: str) -> None:
    """A redistribution says from where to where."""
    for found in results("dtensor_placements", 2, way):
        (event,) = found["spans"]["forward Net.inner"]["events"]
        assert event["operator"] == "c10d_functional.all_gather_into_tensor"
        assert event["shapes"] == ["[4, 8]"]
        source, target = event["placements.source"], event["placements.target"]
        assert ("S(0)" in source) or ("Shard(dim=0)" in source)
        assert ("R" in target) or ("Replicate()" in target)
        assert event["size"] == 256


# 100 of 300 are broadcasts of 8 bytes; the 200 all-reduces have 600 elements together.
OF_300 = {"all_reduce": [200, 2400], "broadcast": [100, 800]}


def test_each_128(way: str) -> None:
    """As many as the provider takes on a span are all told by themselves."""
    for found in results("each_128", 2, way):
        assert (found["events"], found["single"], found["dropped"]) == (128, 128, 0)
        assert (
            found["sums"]
            == found["operation"]
            == {"all_reduce": [85, 1012], "broadcast": [43, 344]}
        )
        assert found["in order"]
        assert found["attributes"] == {"count": 128, "size": 1356}


# How many events there may be, and which other ones there are.
BEYOND: dict[str, tuple[int, list[str]]] = {
    "each_300": (128, []),
    "each_300_and_an_exception": (128, ["exception"]),
    "each_300_and_events_of_the_users": (128, ["mine 0", "mine 100", "mine 200"]),
    "each_300_and_room_for_10": (10, []),
}


@pytest.mark.parametrize("name", BEYOND)
def test_each_beyond_the_limit(name: str, way: str) -> None:
    """Beyond the provider's limit the rest is summed: no event is lost, and the sums are exact."""
    most, others = BEYOND[name]
    for found in results(name, 2, way):
        assert found["events"] <= most
        assert found["dropped"] == 0
        assert found["others"] == others
        assert found["sums"] == found["operation"] == OF_300
        # All but the two sums are told by themselves.
        assert found["single"] == most - len(others) - 2
        assert found["in order"]
        assert found["attributes"] == {"count": 300, "size": 3200}


def test_each_300_and_room_for_1(way: str) -> None:
    """Where there is room for one event, it has the sum of all."""
    for found in results("each_300_and_room_for_1", 2, way):
        assert (found["events"], found["dropped"]) == (1, 0)
        assert [sum(one) for one in zip(*found["sums"].values(), strict=True)] == [300, 3200]
        assert found["operation"] == OF_300
        assert found["attributes"] == {"count": 300, "size": 3200}


def test_summed_300(way: str) -> None:
    """Mode "summed" tells the same in two events."""
    launches = [
        Launch("broadcast", "broadcast_", same(800, 800), count=100),
        Launch("all_reduce", "allreduce_", same(2400, 2400), count=200),
    ]
    for rank, found in enumerate(results("summed_300", 2, way)):
        assert found == expected(launches, rank, 2)


# -- what gloo has not, in groups that send nothing -----------------------------------------------

FOUR_RANKS = 4
TAKEN = on((), (0, 1, 2, 3))


@pytest.fixture(params=[0, 1])
def fake_rank(request: pytest.FixtureRequest, way: str) -> Iterator[int]:
    """A default group of 4 ranks in this process, of which it is one; nothing is sent."""
    intercept.forced_way = way
    dist.init_process_group("fake", store=FakeStore(), rank=request.param, world_size=FOUR_RANKS)
    try:
        yield int(request.param)
    finally:
        dist.destroy_process_group()
        intercept.forced_way = None


def fake_group() -> dict[str, Any]:
    """What an event says of it."""
    group = dist.group.WORLD
    assert group is not None
    return {
        **group_attributes(FOUR_RANKS),
        "group.name": group.group_name,
        "group.description": group.group_desc,
        "backend": "fake",
    }


def check_fake(launch_it: Callable[[], Any], rank: int, *launches: Launch) -> None:
    """What a launch in a fake group must tell; sizes are of ranks 0 and 1."""
    found = ops.watched(launch_it)
    found = {key: _listed(one) for key, one in found.items()}
    assert found == expected(list(launches), rank, 2, fake_group())


def _listed(value: Any) -> Any:
    """As JSON would have it."""
    if isinstance(value, dict):
        return {key: _listed(one) for key, one in value.items()}
    return [_listed(one) for one in value] if isinstance(value, (list, tuple)) else value


def two(first: int | None, second: int | None) -> dict[int, tuple[int | None, ...]]:
    """Bytes on ranks 0 and 1."""
    return {2: (first, second)}


@pytest.mark.parametrize("asynchronous", [False, True])
def test_fake_all_to_all(fake_rank: int, asynchronous: bool) -> None:
    """gloo of torch 2.8 has no all-to-all of lists."""
    check_fake(
        lambda: dist.all_to_all(ops.several(4), ops.several(4), async_op=asynchronous),
        fake_rank,
        Launch("all_to_all", "alltoall_", two(64, 64), asynchronous=asynchronous),
    )


def test_fake_all_to_all_of_uneven_lists(fake_rank: int) -> None:
    """gloo's all-to-all of lists wants them equal; so does this group, once it was launched."""

    def exchange() -> None:
        put, got = map(ops.ones, ops.growing()), map(ops.ones, ops.equal())
        with contextlib.suppress(RuntimeError):
            dist.all_to_all(list(got), list(put))

    check_fake(exchange, fake_rank, Launch("all_to_all", "alltoall_", two(40, 40)))


def test_fake_gather_of_complex_numbers(fake_rank: int) -> None:
    """torch does not send these as real ones; gloo refuses them."""

    def gather() -> None:
        at_root = [ops.ones(4, dtype=torch.complex64) for _ in range(4)]
        dist.gather(ops.ones(4, dtype=torch.complex64), at_root if fake_rank == 0 else None)

    check_fake(gather, fake_rank, Launch("gather", "gather_", two(128, 32), dtype="complex64"))


@pytest.mark.skipif(not ops.HAS_GATHER_SINGLE, reason="torch has no gather_single")
def test_fake_gather_single(fake_rank: int) -> None:
    """An operator newer than `CommDebugMode`'s list, which no backend for CPU has yet."""

    def gather() -> None:
        with pytest.raises(RuntimeError, match="does not support gather_single"):
            dist.gather_single(ops.ones(4), ops.ones(16) if fake_rank == 0 else None, dst=0)

    check_fake(gather, fake_rank, Launch("gather", "gather_into_tensor_", two(64, 16)))


def test_fake_float8(fake_rank: int) -> None:
    """One byte an element."""
    check_fake(
        lambda: dist.broadcast(ops.ones(4).to(torch.float8_e4m3fn), 0),
        fake_rank,
        Launch("broadcast", "broadcast_", two(4, 4), dtype="float8_e4m3fn"),
    )


def test_fake_coalesced_dtypes(fake_rank: int) -> None:
    """Two dtypes in one launch."""
    tensors = [ops.ones(4), ops.ones(2, dtype=torch.bfloat16)]

    def reduce() -> Any:
        assert dist.group.WORLD is not None
        return dist.group.WORLD.allreduce_coalesced(tensors)

    check_fake(
        reduce,
        fake_rank,
        Launch(
            *("all_reduce", "allreduce_coalesced_", two(20, 20)),
            dtype="bfloat16,float32",
            asynchronous=True,
        ),
    )


def test_fake_coalescing_of_launches(fake_rank: int) -> None:
    """A manager with a device brackets launches that each are one."""

    def broadcast() -> None:
        with c10d._coalescing_manager(dist.group.WORLD, torch.device("cpu")):
            dist.broadcast(ops.ones(4), 0)
            dist.broadcast(ops.ones(2), 0)

    check_fake(broadcast, fake_rank, Launch("broadcast", "broadcast_", two(24, 24), count=2))


def test_fake_recv_any_source(fake_rank: int) -> None:
    """Received from whomever."""
    check_fake(
        lambda: dist.irecv(ops.ones(4)),
        fake_rank,
        Launch("recv", "recv_any_source_", two(16, 16), asynchronous=True),
    )


def test_fake_default_group_made_inside(way: str) -> None:
    """A tracker that was entered before there was any group; the group comes, goes and comes."""
    intercept.forced_way = way
    net, totals = ops.Net(), []
    try:
        with ModTracker(net) as tracker:
            for _ in range(3):
                dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
                net(lambda: dist.all_reduce(torch.ones(4)))
                totals.append(tracker.collectives.total)
                dist.destroy_process_group()
        assert totals == [1, 2, 3]
        assert _listed(tracker.collectives.by_module()) == counted(
            "forward", "Global", "Net", "Net.inner", count=3, size=48
        )
    finally:
        intercept.forced_way = None


def test_fake_tensors(fake_rank: int) -> None:
    """torch finding out shapes sends nothing, and counts nothing."""
    assert dist.group.WORLD is not None
    with FakeTensorMode(), ModTracker() as tracker:
        tensor = torch.ones(4)
        with contextlib.suppress(UnsupportedOperatorException):  # torch 2.8
            dist.all_reduce(tensor)
            dist.all_gather_into_tensor(torch.ones(16), tensor)
        functional_collectives.all_reduce(tensor, "sum", dist.group.WORLD).sum()
    assert tracker.collectives.total == 0


def test_meta_tensors(fake_rank: int) -> None:
    """Nor do tensors without data."""
    assert dist.group.WORLD is not None
    with ModTracker() as tracker:
        functional_collectives.all_reduce(
            torch.ones(4, device="meta"), "sum", dist.group.WORLD
        ).sum()
    assert tracker.collectives.total == 0


# -- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["sumed", "", "EACH", 1, [], b"each"])
def test_an_unknown_mode(mode: Any) -> None:
    """One clear sentence."""
    with pytest.raises(ValueError, match="collectives") as caught:
        ModTracker(collectives=mode)
    message = str(caught.value)
    assert "\n" not in message
    assert repr(mode) in message or str(mode) in message
    assert all(one in message for one in ("summed", "each", "off"))


@pytest.mark.parametrize("name", ["table", "write_table", "to_json", "write_json"])
def test_a_table_before_anything_ran(name: str, tmp_path: Any) -> None:
    """One clear sentence, and no file."""
    path = tmp_path / "table"
    given = [path] if name.startswith("write") else []
    tracker = ModTracker()
    with pytest.raises(RuntimeError) as caught:
        getattr(tracker.collectives, name)(*given)
    assert "\n" not in str(caught.value)
    assert str(caught.value)
    assert not path.exists()
    with tracker, pytest.raises(RuntimeError, match=str(caught.value).split(":", maxsplit=1)[0]):
        getattr(tracker.collectives, name)(*given)
    assert not path.exists()


def test_counts_before_anything_ran() -> None:
    """Counts are no table: they are nothing."""
    told = ModTracker().collectives
    assert (told.total, told.size) == (0, 0)
    assert told.by_operation() == told.by_operator() == told.by_group() == told.by_phase() == {}
    assert told.by_module() == told.parameters() == told.placements() == {}
