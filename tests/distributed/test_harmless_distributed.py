"""Collectives are seen without a program's noticing: not in its results, exceptions or compilations.

What needs two processes is run by `worker_harmless`. Faults of ours and interruptions are injected
in this process, in a group of one, where no other rank waits for what was interrupted.
"""

from __future__ import annotations

import functools
import importlib
import logging
import signal
import subprocess
import sys
import textwrap
import warnings
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from harness import result
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from otel_modtrack import ModTracker
from otel_modtrack.activation import ACTIVATION
from otel_modtrack.comm import intercept
from otel_modtrack.core import CORE
from tests.conftest import patched_state
from tests.tracker.test_faults import Interrupt, Late, clean_up, object_handler, plain_handler
from tests.trees import check_intervals, tree

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
VARIANTS = (
    "off",
    "summed",
    "summed, spans, built inside",
    "each",
    "each, spans, steps",
    "each, one iteration",
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
COMPILED = (
    "functional_function",
    "plain_function",
    "broken_function",
    "tensor_parallel_whole",
    "tensor_parallel_in_place",
    "ddp_compiled",
    "ddp_around_compiled",
    "fsdp2_by_block",
)

ways = pytest.mark.parametrize("way", WAYS)


# -- results on two processes ---------------------------------------------------------------------


@ways
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_results_are_the_same(name: str, way: str) -> None:
    """Bit for bit, whatever is tracked: losses, gradients, parameters, random numbers, graphs."""
    for found in result(WORKER, 2, f"same_{name}", way):
        for variant in VARIANTS:
            assert not found[variant]["differs"], variant
            assert not found[variant]["faults"], variant


@ways
@pytest.mark.parametrize("name", PROGRAMS)
def test_as_many_are_seen_as_were_launched(name: str, way: str) -> None:
    """gloo itself counts what it launches: as many were seen in each mode, and none in "off"."""
    for found in result(WORKER, 2, f"same_{name}", way):
        launched = found["launched"]
        if name == "by_hand":
            launched -= 3  # gloo's monitored barrier is a send and a receive
        count, size = found["summed"]["seen"]
        assert count == launched > 0
        assert found["each, spans, steps"]["seen"] == [count, size]
        assert found["each"]["seen"] == found["summed, spans, built inside"]["seen"]
        assert found["each"]["seen"][0] >= count
        assert 0 < found["each, one iteration"]["seen"][0] < count
        assert found["off"]["seen"] == [0, 0]


@ways
@pytest.mark.parametrize("name", FAILURES)
def test_what_fails_fails_the_same_way(name: str, way: str) -> None:
    """The same exception, and a clean iteration after it, in which all collectives are counted."""
    ranks = result(WORKER, 2, f"fails_{name}", way)
    assert [found.pop("raises") for found in ranks] == FAILURES[name]
    for found in ranks:
        assert {name: (one["differs"], one["faults"]) for name, one in found.items()} == {
            name: ("", []) for name in ("off", "summed", "each", "each, spans, steps")
        }


@ways
@pytest.mark.parametrize("name", FAILURES)
def test_tracebacks_are_the_same(name: str, way: str) -> None:
    """No frame of ours is in the text of a traceback."""
    for found in result(WORKER, 2, f"fails_{name}", way):
        assert not [
            one["traceback"] for key, one in found.items() if key != "raises" and one["traceback"]
        ]


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


@ways
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", COMPILED)
def test_compilation_is_the_same(name: str, backend: str, way: str) -> None:
    """Compiled before, inside, after: the same results, graphs, breaks and recompilations."""
    for found in result(WORKER, 2, f"compiles_{name}_{backend}", way):
        assert found["breaks"] == {"broken_function": 3, "ddp_compiled": 3}.get(name, 0)
        assert found["graphs"][0] > 0
        for schedule in ("compiled inside", "compiled before", "on in every call"):
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


# -- a group of one, in this process --------------------------------------------------------------


@pytest.fixture(scope="module", autouse=True)
def lone_group() -> Iterator[None]:
    """A gloo group that this process alone is in."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        Training().run()
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


class Training:
    """DDP around FSDP's kind of hooks: collectives in forward, backward and optimizer step."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = DistributedDataParallel(nn.Sequential(Sums(), nn.Linear(4, 4)))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.optimizer.register_step_post_hook(lambda *_: dist.broadcast(torch.ones(3), 0))

    def warm(self) -> Training:
        """After two iterations DDP has arranged its buckets."""
        self.iterate()
        self.iterate()
        return self

    def iterate(self) -> Any:
        """One iteration; all that is to be compared of it, as bytes."""
        out = self.model(torch.ones(2, 4))
        self.optimizer.zero_grad()
        out.sum().backward()
        grads = [one.grad.numpy().tobytes() for one in self.model.parameters()]
        self.optimizer.step()
        return out.detach().numpy().tobytes(), grads

    def run(self, tracker: ModTracker | None = None, iterations: int = 3) -> list[Any]:
        """Some iterations, the second in a step and with a group of its own."""
        found = []
        for number in range(iterations):
            if tracker is not None and number == 1:
                with tracker.step(number):
                    found.append(self.iterate())
            else:
                found.append(self.iterate())
            if number == 1:
                group = dist.new_group([0])
                dist.all_reduce(torch.ones(2), group=group)
                dist.destroy_process_group(group)
        return [*found, torch.get_rng_state().tolist()]


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


def shown(exporter: InMemorySpanExporter) -> str:
    """The tree of the finished spans, names' ordinals left out."""
    spans = exporter.get_finished_spans()
    check_intervals(spans)
    return tree(spans).replace("Sequential#2", "Sequential")


def clean_iteration(training: Training, exporter: InMemorySpanExporter) -> list[str]:
    """What is wrong with one more iteration, in the tracker that is on."""
    exporter.clear()
    ledger = CORE.ledgers[0] if CORE.ledgers else None
    with ModTracker(collectives="each") as counting:
        training.iterate()
        seen = {key: tuple(one) for key, one in counting.collectives.by_operation().items()}
    faults = [] if ledger is not None else ["nothing counts"]
    if seen != ONE_ITERATION:
        faults.append(f"seen: {seen}")
    try:
        text = shown(exporter)
    except AssertionError as unlike:
        return [*faults, str(unlike)]
    return faults if text.replace("!", "") == CLEAN else [*faults, text]


@ways
@pytest.mark.parametrize("mode", ["summed", "each"])
@pytest.mark.usefixtures("forced")
def test_a_clean_iteration(
    mode: str, provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    """What the tests below compare with is right."""
    training = Training().warm()
    with ModTracker(training.model, tracer_provider=provider, collectives=mode):
        assert clean_iteration(training, exporter) == []


INJECTED = [
    "recorder.Recorder.seen",
    "recorder.Recorder._place",
    "recorder.Recorder.launched",
    "recorder.Recorder._functional",
    "recorder._done",
    "ledger.Ledger.add",
    "groups._describe",
    "groups.Groups.of",
    "groups.Groups.backend",
    "hooks.HookWay.add",
    "telling.gather",
    "why.Reasons.explain",
]
ONLY_EACH = {"recorder.Recorder.launched", "recorder._done", "why.Reasons.explain"}


def inject(monkeypatch: pytest.MonkeyPatch, where: str, after: int) -> list[int]:
    """A fault of ours in a function, from its `after`-th call on; how often it was called."""
    module, _, path = where.partition(".")
    owner: Any = importlib.import_module(f"otel_modtrack.comm.{module}")
    *outer, name = path.split(".")
    owner = functools.reduce(getattr, outer, owner)
    original = getattr(owner, name)
    calls = [0]

    def function(*args: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        if calls[0] > after:
            raise RuntimeError("injected")
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, function)
    for holder in ("intercept", "hooks", "kernels", "recorder"):  # imported by name
        holding = importlib.import_module(f"otel_modtrack.comm.{holder}")
        if vars(holding).get(name) is original:
            monkeypatch.setattr(holding, name, function)
    return calls


@ways
@pytest.mark.parametrize("mode", ["summed", "each"])
@pytest.mark.parametrize("after", [0, 4])
@pytest.mark.parametrize("where", INJECTED)
@pytest.mark.usefixtures("forced")
def test_our_faults_are_ours(  # noqa: PLR0913, PLR0917 - fixtures
    where: str,
    after: int,
    mode: str,
    way: str,
    monkeypatch: pytest.MonkeyPatch,
    provider: TracerProvider,
    exporter: InMemorySpanExporter,
    logged: Callable[[], list[logging.LogRecord]],
) -> None:
    """A fault of ours is logged once, and switches tracking off; the results are the same."""
    untracked = Training().run()
    before = patched_state()
    with monkeypatch.context() as patch:
        calls = inject(patch, where, after)
        with ModTracker(tracer_provider=provider, collectives=mode) as tracker:
            assert Training().run(tracker) == untracked
        if calls[0] <= after:
            pytest.skip(f"called {calls[0]} times only")
    assert patched_state() == before
    (record,) = logged()
    assert "injected" in record.getMessage() + str(record.exc_info)
    training = Training().warm()
    with ModTracker(training.model, tracer_provider=provider):
        assert clean_iteration(training, exporter) == []
    assert len(logged()) == 1


@ways
@pytest.mark.parametrize("mode", ["summed", "each"])
@pytest.mark.parametrize(
    ("kind", "make", "stride"),
    [(KeyboardInterrupt, plain_handler, 1), (Late, object_handler, 2), (RuntimeError, plain_handler, 3)],
)
@pytest.mark.usefixtures("forced")
def test_interrupted_at_any_moment(  # noqa: PLR0913, PLR0917 - fixtures
    kind: type[BaseException],
    make: Callable[[BaseException], Any],
    stride: int,
    mode: str,
    provider: TracerProvider,
    exporter: InMemorySpanExporter,
    logged: Callable[[], list[logging.LogRecord]],
) -> None:
    """A signal's exception reaches the user wherever it comes; the next iteration is clean."""
    what = signal.SIGALRM
    before_all = signal.getsignal(what)
    before = patched_state()
    number, hit, broken = 1, 0, []
    try:
        while True:
            error = kind("late", 7)
            seen: BaseException | None = None
            training = Training().warm()
            with ModTracker(training.model, tracer_provider=provider, collectives=mode):
                signal.signal(what, make(error))
                try:
                    with Interrupt(what, number) as interrupt:
                        training.iterate()
                        group = dist.new_group([0])
                        dist.all_reduce(torch.ones(2), group=group)
                except kind as caught:
                    seen, caught.__traceback__ = caught, None
                if interrupt.where is None:
                    break
                hit += 1
                faults = [
                    *["swallowed"] * (seen is not error),
                    *["off"] * (not CORE.on),
                ]
                # DDP does not survive an interrupted backward: another model.
                training = Training().warm()
                faults += clean_iteration(training, exporter)
            faults += ["state left"] * (patched_state() != before)
            if faults:
                broken.append((number, *interrupt.where, *faults))
                clean_up()
            number += stride
    finally:
        signal.signal(what, before_all)
    assert not broken, f"{len(broken)} of {hit}: {broken}"
    assert hit * stride > 300
    assert not logged()


@ways
@pytest.mark.usefixtures("forced")
def test_interrupted_while_it_is_entered_or_left(provider: TracerProvider) -> None:
    """A signal's exception while a tracker is entered or left: it is the user's, nothing stays."""
    what = signal.SIGALRM
    handler = signal.signal(what, plain_handler(Late("late")))
    with ModTracker():  # once: the probe
        pass
    before = patched_state()
    number, left = 0, []
    try:
        while True:
            number += 1
            raised = False
            try:
                with (
                    Interrupt(what, number) as interrupt,
                    ModTracker(tracer_provider=provider, collectives="each"),
                ):
                    pass
            except Late:
                raised = True
            if interrupt.where is None:
                break
            if interrupt.where[::2] == ("__exit__", "call"):
                clean_up()  # before the first thing that __exit__ can do
            if not raised:
                left.append((number, interrupt.where, "swallowed"))
            if patched_state() != before:
                left.append((number, interrupt.where, "left"))
                clean_up()
            with ModTracker() as tracker:
                dist.all_reduce(torch.ones(2))
                if tracker.collectives.total != 1:
                    left.append((number, interrupt.where, "not seen"))
    finally:
        signal.signal(what, handler)
    assert not left
    assert number > 40


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
    training = Training().warm()
    before = patched_state()
    for _ in range(2):
        with ModTracker(training.model, tracer_provider=provider) as tracker:
            training.iterate()
            assert CORE.on
            assert tracker.collectives.total == 0
            assert tracker.collectives.by_operation() == {}
        assert patched_state() == before
        assert shown(exporter) == CLEAN
        exporter.clear()
        (record,) = logged()
        assert record.levelno == logging.WARNING
        assert "collectives are not counted" in record.getMessage()
        assert f"not seen by {way} (torch {torch.__version__})" in record.getMessage()


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
    return done.stdout + done.stderr


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
    """) == (
        "summed 0 0 {} {}\neach 0 0 {} {}\noff 0 0 {} {}\nFalse False False\n"
    )


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
    assert outcome("""
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
    """).replace("[Gloo] Rank 0 is connected to 0 peer ranks. Expected number of connected peer"
                 " ranks is : 0\n", "") == "2 ['0']\n2 ['0']\n"


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
