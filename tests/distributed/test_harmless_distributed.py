"""Collectives are seen, and no program can tell: results, exceptions and compilations are the same.

`worker_harmless` runs on two processes. Faults of ours and interruptions are injected where it runs
on one, where no other rank waits for what was interrupted.
"""

from __future__ import annotations

import importlib
import logging
import subprocess
import sys
import textwrap
import warnings
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from chosen import KINDS, QUICK_PROGRAMS
from harness import result
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from otel_modtrack import ModTracker
from otel_modtrack.activation import ACTIVATION
from otel_modtrack.comm import intercept
from otel_modtrack.core import CORE
from otel_modtrack.testing import Tree
from tests.conftest import patched_state
from tests.tracker.test_faults import clean_up

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

HOOKS = hasattr(dist.ProcessGroup, "register_pre_hook")
WAYS = ("hooks", "kernels") if HOOKS else ("kernels",)
WORKER = "worker_harmless.py"

PROGRAMS = (
    "ddp_plain",
    "ddp_views_no_buffers",
    "ddp_find_unused",
    "ddp_find_unused_by_rank",
    "ddp_static_graph",
    "ddp_static_graph_reentrant",
    "ddp_checkpointed",
    "ddp_no_sync",
    "ddp_uneven",
    "ddp_autocast",
    "ddp_user_hooks",
    "ddp_hook_allreduce",
    "ddp_hook_fp16",
    "ddp_hook_own",
    "ddp_hook_chaining",
    "ddp_hook_power_sgd",
    "ddp_hook_builtin",
    "ddp_averaged",
    "zero_optimizer",
    "zero_optimizer_views",
    "fsdp2",
    "fsdp2_kept",
    "fsdp2_checkpointed",
    "fsdp2_reentrant",
    "fsdp2_wrapped_checkpoint",
    "fsdp2_accumulated",
    "fsdp2_mixed_clipped",
    "fsdp2_prefetched",
    "fsdp2_hybrid",
    "fsdp1_full",
    "fsdp1_flat_checkpointed",
    "fsdp1_grad_op_no_sync",
    "tensor_parallel",
    "sequence_parallel",
    "tensor_parallel_loss",
    "two_dimensions",
    "pipeline_gpipe",
    "pipeline_1f1b",
    "pipeline_interleaved",
    "pipeline_zero_bubble",
    "by_hand",
    "distributed_tensors",
    "threads",
)
FAILURES = {  # how often each raises, by rank, in three places
    "output_of_another_shape": [3, 3],
    "output_of_another_shape_functional": [3, 3],
    "operation_refused_when_waited_for": [3, 3],
    "operation_refused_when_waited_for_later": [3, 3],
    "ranks_of_different_shapes": [0, 0],
    "group_that_is_not_there": [3, 3],
    "group_that_was_destroyed": [3, 3],
    "peer_that_is_gone": [3, 0],
    "barrier_that_times_out": [3, 0],
    "receive_that_times_out": [3, 0],
    "hook_that_raises": [3, 3],
    "hook_whose_future_raises": [3, 3],
    "block_of_coalesced_that_raises": [3, 3],
    "forward_that_raises_under_ddp": [3, 3],
    "forward_that_raises_under_fsdp": [3, 3],
    "tensor_hook_that_raises_under_fsdp": [3, 3],
    "object_that_cannot_be_pickled": [3, 3],
}
COMPILED = {
    "functional_function": ("eager", "aot_eager"),
    "plain_function": ("aot_eager",),
    "broken_function": ("aot_eager",),
    "tensor_parallel_whole": ("aot_eager",),
    "ddp_compiled": ("aot_eager",),
    "ddp_around_compiled": ("aot_eager",),
    "fsdp2_by_block": ("aot_eager",),
}
COMPILED_QUICKLY = (
    "functional_function",
    "broken_function",
    "tensor_parallel_whole",
)

ways = pytest.mark.parametrize("way", WAYS)
programs = pytest.mark.parametrize(
    ("name", "way"),
    [
        *[(name, WAYS[0]) for name in PROGRAMS],
        *[(name, way) for way in WAYS[1:] for name in QUICK_PROGRAMS],
    ],
)


# -- results on two processes ---------------------------------------------------------------------


@programs
def test_the_results_are_the_same(name: str, way: str) -> None:
    """Bit for bit, whatever is tracked: losses, gradients, parameters, random numbers, graphs."""
    for found in result(WORKER, 2, f"same_{name}", way):
        variants = [key for key in found if key != "launched"]
        assert len(variants) == (2 if way != WAYS[0] else 6 if name in KINDS else 4)
        for variant in variants:
            assert not found[variant]["differs"], variant
            assert not found[variant]["faults"], variant


@programs
def test_as_many_are_seen_as_were_launched(name: str, way: str) -> None:
    """gloo itself counts what it launches: as many were seen in each mode, and none in "off"."""
    for found in result(WORKER, 2, f"same_{name}", way):
        launched = found["launched"]
        if name == "by_hand":
            launched -= 3  # gloo's monitored barrier is a send and a receive
        count, size = found["summed"]["seen"]
        assert count == launched > 0
        assert found["each, spans, steps"]["seen"] == [count, size]
        if way != WAYS[0]:
            continue
        inside = found["summed, spans, built inside"]["seen"]
        assert inside[0] >= count
        assert 0 < found["each, one iteration"]["seen"][0] < count
        if name in KINDS:
            assert found["each"]["seen"] == inside
            assert found["off"]["seen"] == [0, 0]


@ways
@pytest.mark.parametrize("name", FAILURES)
def test_what_fails_fails_the_same_way(name: str, way: str) -> None:
    """The same exception, and a clean iteration after it, in which all collectives are counted."""
    ranks = result(WORKER, 2, f"fails_{name}", way)
    assert [found["raises"] for found in ranks] == FAILURES[name]
    for found in ranks:
        variants = [key for key in found if key != "raises"]
        assert len(variants) == (3 if way == WAYS[0] else 2)
        for variant in variants:
            assert not found[variant]["differs"], variant
            assert not found[variant]["faults"], variant


# Where a kernel of ours is in place, and refuses: what functional collectives, a monitored barrier
# and, by kernels, each operator raises as it is launched. By way.
THROUGH_KERNELS = {
    "hooks": {"group_that_is_not_there", "barrier_that_times_out"},
    "kernels": {"group_that_is_not_there", "barrier_that_times_out", "output_of_another_shape"},
}


@ways
@pytest.mark.parametrize("name", FAILURES)
def test_tracebacks_are_the_same(name: str, way: str) -> None:
    """The text is the same; a kernel of ours that an exception passes has two entries in it."""
    for rank, found in enumerate(result(WORKER, 2, f"fails_{name}", way)):
        for variant in [key for key in found if key != "raises"]:
            assert not found[variant]["traceback"], variant
            passes = name in THROUGH_KERNELS[way] and variant != "off"
            assert found[variant]["kernels"] == (FAILURES[name][rank] if passes else 0)


# -- what else is there beside a tracker ----------------------------------------------------------


@ways
def test_nothing_is_called_afterwards(way: str) -> None:
    """No group, new or old, and no operator calls anything of ours once a tracker was left."""
    for found in result(WORKER, 2, "nothing_is_called_afterwards", way):
        for mode in ("summed", "each"):
            inside, after = found[mode]
            assert inside > 50
            assert after == []


@ways
@pytest.mark.parametrize("mode", ["Functions", "Dispatch"])
@pytest.mark.parametrize(
    "name",
    ["by_hand", "ddp_plain", "fsdp2", "tensor_parallel", "pipeline_1f1b", "distributed_tensors"],
)
def test_modes_see_the_same(name: str, mode: str, way: str) -> None:
    """A TorchFunctionMode and a TorchDispatchMode of the user's are told of no call of ours."""
    for found in result(WORKER, 2, "modes_see_the_same", way):
        one = found[f"{name} {mode}"]
        assert one["size"] > 20
        assert not one["differs"]


@ways
def test_comm_debug_mode_counts_the_same(way: str) -> None:
    """torch's own counter counts what it counts without us."""
    for found in result(WORKER, 2, "comm_debug_mode_counts_the_same", way):
        assert [name for name, one in found.items() if one["differs"]] == []


@ways
def test_shapes_alone_are_no_collectives(way: str) -> None:
    """Fake and meta tensors: the same results, nothing counted, nothing said."""
    for found in result(WORKER, 2, "shapes_only", way):
        for mode in ("summed", "each"):
            assert found[mode] == found["untracked"]
            assert found[f"{mode} total"] == [0, []]


@ways
def test_copies_and_files(way: str) -> None:
    """deepcopy, pickle and distributed checkpoints give what they give untracked."""
    for found in result(WORKER, 2, "copies_and_files", way):
        assert {name: one["differs"] for name, one in found.items()} == {
            "ddp_plain": "",
            "fsdp2": "",
            "tensor_parallel": "",
        }


@ways
def test_a_fork(way: str) -> None:
    """A forked child is not tracked, and calls nothing of ours; its parent goes on counting."""
    for found in result(WORKER, 2, "forked", way):
        assert found == {"child": "(False, [])", "parent": [True, True]}


@ways
def test_groups_are_not_held(way: str) -> None:
    """A group that was destroyed is gone at once, also in the middle of a step."""
    for found in result(WORKER, 2, "groups_that_are_destroyed", way):
        gone = [False] * 3
        assert found == {
            "untracked": gone,
            "summed": [gone, gone],
            "summed total": 12,
            "each": [gone, gone],
            "each total": 12,
        }


@ways
def test_somebody_elses_hooks(way: str) -> None:
    """Hooks of the user's on a group and a wrapper of his around torch's registration stay.

    What his hook kept from being launched is counted by kernels, and not by hooks after his.
    """
    for found in result(WORKER, 2, "somebody_elses_hooks", way):
        assert found == {
            "hooks": HOOKS,
            "seen": ["ALLREDUCE"] * 5 if HOOKS else [],
            "raised": ["the user's hook"] if HOOKS else [],
            "total": 3 if way == "hooks" else 4,
            "stays": True,
            "named": 2,
        }


# -- torch.compile --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "backend", "way"),
    [
        *[(name, one, WAYS[0]) for name, backends in COMPILED.items() for one in backends],
        *[(name, "aot_eager", way) for way in WAYS[1:] for name in COMPILED_QUICKLY],
    ],
)
def test_compilation_is_the_same(name: str, backend: str, way: str) -> None:
    """Compiled before, inside, after: the same results, graphs, breaks and recompilations."""
    for found in result(WORKER, 2, f"compiles_{name}_{backend}", way):
        assert found["breaks"] == {"broken_function": 3, "ddp_compiled": 3}.get(name, 0)
        assert found["graphs"][0] > 0
        for schedule in ("compiled inside", "compiled before"):
            one = found[schedule]
            assert not one["differs"], schedule
            assert not one["said"], schedule
            seen, launched = one["seen"]
            assert seen == launched > 0, schedule


@ways
def test_compilation_by_inductor_is_the_same(way: str) -> None:
    """The default backend: the same results and counters, and its collectives are seen."""
    for found in result(WORKER, 2, "compiles_with_inductor", way):
        assert found["compiled inside"] == {"differs": [], "said": [], "seen": [6, 6]}


@ways
def test_exports_are_the_same(way: str) -> None:
    """torch.export and make_fx, real, fake and symbolic, trace functional collectives as before."""
    for found in result(WORKER, 2, "exported", way):
        assert found == {"size": 5, "differs": ""}


# -- faults of ours, and interruptions ------------------------------------------------------------


@ways
def test_a_clean_iteration_is_one(way: str) -> None:
    """What the tests below compare with is right."""
    assert result(WORKER, 1, "nothing_happens", way) == [[[], []]]


@ways
def test_our_faults_are_ours(way: str) -> None:
    """A fault of ours is told once and ends the tracking; results are the same, nothing is left."""
    (found,) = result(WORKER, 1, "our_faults", way)
    assert len(found) > 20
    assert {name: faults for name, faults in found.items() if faults} == {}


@ways
@pytest.mark.parametrize("mode", ["summed", "each"])
@pytest.mark.parametrize("kind", ["KeyboardInterrupt", "Late", "RuntimeError"])
def test_interrupted_at_any_moment(kind: str, mode: str, way: str) -> None:
    """A signal's exception reaches the user wherever it comes; the next iteration is clean."""
    (found,) = result(WORKER, 1, f"interrupted_{kind}_{mode}", way)
    assert found["wrong"] == []
    assert found["said"] == []
    assert found["places"] > 300


@ways
def test_interrupted_while_it_is_entered_or_left(way: str) -> None:
    """The same while a tracker is entered and left: nothing stays, and nothing is missing after."""
    (found,) = result(WORKER, 1, "interrupted_entering_and_leaving", way)
    assert found["wrong"] == []
    assert found["places"] > 40


# -- a group of one, in this process --------------------------------------------------------------


@pytest.fixture(scope="module", autouse=True)
def lone_group() -> Iterator[None]:
    """A gloo group that this process alone is in."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        yield
        dist.destroy_process_group()


@pytest.fixture
def forced(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tracker sees collectives by this way."""
    monkeypatch.setattr(intercept, "forced_way", way)


@pytest.fixture(autouse=True)
def nothing_on() -> Iterator[None]:
    """After each test nothing is on; the next test is spared if something is."""
    yield
    on = CORE.on
    clean_up()
    assert not on


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Callable[[], list[logging.LogRecord]]:
    """What was logged by us."""
    return lambda: [one for one in caplog.records if one.name.startswith("otel_modtrack")]


TREE = """\
forward Linear
backward
  backward Linear"""


# -- where nothing can be seen --------------------------------------------------------------------


@ways
@pytest.mark.usefixtures("forced")
def test_a_probe_that_sees_nothing(
    way: str,
    monkeypatch: pytest.MonkeyPatch,
    provider: TracerProvider,
    exporter: InMemorySpanExporter,
    logged: Callable[[], list[logging.LogRecord]],
) -> None:
    """If collectives are not seen, it is said once, with why; everything else is tracked."""
    owner: Any
    if way == "hooks":
        owner, name = importlib.import_module("otel_modtrack.comm.hooks").HookWay, "add"
    else:
        owner, name = importlib.import_module("otel_modtrack.comm.kernels")._Kernels, "install"
    monkeypatch.setattr(owner, name, lambda *_: None)
    monkeypatch.setattr(ACTIVATION, "_interception", None)
    monkeypatch.setattr(ACTIVATION, "_said", set())
    model = DistributedDataParallel(nn.Linear(4, 4))
    x = torch.ones(2, 4)
    before = patched_state()
    for _ in range(2):
        with ModTracker(model, tracer_provider=provider) as tracker:
            model(x).sum().backward()
            assert CORE.on
            assert tracker.collectives.total == 0
            assert tracker.collectives.by_operation() == {}
        assert patched_state() == before
        Tree(exporter.get_finished_spans()).assert_equals(TREE)
        exporter.clear()
        (record,) = logged()
        assert record.levelno == logging.WARNING
        assert "collectives are not counted" in record.getMessage()
        assert f"not seen by {way} (torch {torch.__version__})" in record.getMessage()


@ways
@pytest.mark.usefixtures("forced")
def test_a_probe_that_meets_another_torch(
    way: str, monkeypatch: pytest.MonkeyPatch, logged: Callable[[], list[logging.LogRecord]]
) -> None:
    """A torch that tells its hooks or kernels something else is found out, and waits for nobody."""
    name, what = {"hooks": ("hooks", "_BY_NUMBER"), "kernels": ("kernels", "_is_fake")}[way]
    monkeypatch.setattr(f"otel_modtrack.comm.{name}.{what}", None)
    monkeypatch.setattr(ACTIVATION, "_interception", None)
    monkeypatch.setattr(ACTIVATION, "_said", set())
    before = patched_state()
    with ModTracker() as tracker:
        assert CORE.on
        dist.all_reduce(torch.ones(2))
        assert tracker.collectives.total == 0
    assert patched_state() == before
    (record,) = logged()
    assert f"not seen by {way} (torch {torch.__version__}): " in record.getMessage()
    assert "Error: 'NoneType' object" in record.getMessage()


def test_a_probe_leaves_nothing_and_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """The probe is launched once a process, in a group that nobody sees."""
    groups = dict(dist.distributed_c10d._world.pg_map)
    monkeypatch.setattr(ACTIVATION, "_interception", None)
    probed = []
    original = intercept.Interception._launch
    monkeypatch.setattr(
        intercept.Interception,
        "_launch",
        lambda self, way: [probed.append(way), original(self, way)],
    )
    sequence = dist.group.WORLD._get_sequence_number_for_group()
    for _ in range(3):
        with ModTracker(collectives="each") as tracker:
            assert tracker.collectives.total == 0
    assert probed == [WAYS[0]]
    assert dist.distributed_c10d._world.pg_map == groups
    assert dist.group.WORLD._get_sequence_number_for_group() == sequence


def outcome(code: str) -> str:
    """What a Python of its own prints."""
    done = subprocess.run(  # noqa: S603 - our own command
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = done.stdout + done.stderr
    return "".join(line for line in said.splitlines(True) if not line.startswith("[Gloo]"))


def test_a_torch_without_distributed() -> None:
    """Collectives are simply absent: nothing is imported for them, nothing is said."""
    assert outcome("""
        import logging, sys
        import torch
        torch.distributed.is_available = lambda: False
        from otel_modtrack import ModTracker
        logging.basicConfig()
        net = torch.nn.Linear(2, 2)
        for mode in ("summed", "each", "off"):
            with ModTracker(net, collectives=mode) as tracker, tracker.step(0):
                net(torch.ones(1, 2)).sum().backward()
            print(mode, tracker.collectives.total, tracker.collectives.size,
                  tracker.collectives.by_module(), tracker.collectives.by_phase())
        ours = [name for name in sys.modules if name.startswith("otel_modtrack.comm.")]
        print("intercept" in str(ours), "kernels" in str(ours), "hooks" in str(ours))
    """) == ("summed 0 0 {} {}\neach 0 0 {} {}\noff 0 0 {} {}\nFalse False False\n")


@pytest.mark.parametrize("way", WAYS)
def test_a_tracker_that_is_never_left(way: str) -> None:
    """The interpreter ends with the tracker on and the group alive: no crash, nothing said."""
    program = f"""
        import torch, torch.distributed as dist
        from otel_modtrack import ModTracker
        from otel_modtrack.comm import intercept

        intercept.forced_way = {way!r}
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        tracker = ModTracker(torch.nn.Linear(2, 2))
        tracker.__enter__()
        dist.all_reduce(torch.ones(1))
        print(tracker.collectives.total)
    """
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "1")
    assert done.stderr == ""


def test_a_torch_without_the_package() -> None:
    """The same where even its C++ part is missing, as in torch built without it."""
    assert outcome("""
        import logging, sys
        import torch
        torch.distributed.is_available = lambda: False
        for name in [one for one in sys.modules if one.startswith("torch.distributed.")]:
            sys.modules[name] = None
        sys.modules["torch._C._distributed_c10d"] = None
        from otel_modtrack import ModTracker
        logging.basicConfig()
        net = torch.nn.Linear(2, 2)
        with ModTracker(net, collectives="each") as tracker, tracker.step(0):
            net(torch.ones(1, 2)).sum().backward()
        print(tracker.collectives.total, tracker.collectives.table())
    """).startswith("0 ")


def test_a_group_that_comes_and_goes_inside() -> None:
    """init_process_group and destroy_process_group while tracking; nothing is said or left."""
    assert (
        outcome("""
        import logging
        import torch, torch.distributed as dist
        from otel_modtrack import ModTracker
        logging.basicConfig()
        for way in range(2):
            with ModTracker(collectives="each") as tracker:
                for _ in range(2):
                    dist.init_process_group(
                        "gloo", store=dist.HashStore(), rank=0, world_size=1)
                    dist.all_reduce(torch.ones(2))
                    dist.destroy_process_group()
                print(tracker.collectives.total, list(tracker.collectives.by_group()))
    """)
        == "2 ['0']\n2 ['0']\n"
    )


@ways
@pytest.mark.usefixtures("forced")
def test_fsdp_alone(way: str) -> None:
    """A sharded model in a group of one: what it launches is seen, and nothing is left."""
    net = fully_shard(nn.Linear(4, 4))
    before = patched_state()
    with ModTracker(net, collectives="each") as tracker:
        net(torch.ones(2, 4)).sum().backward()
    assert patched_state() == before
    assert set(tracker.collectives.by_operation()) <= {"all_gather", "reduce_scatter"}
