"""Ranks compare their orders, and find out while they hang which of them went where."""

from __future__ import annotations

import contextlib
import copy
import json
import logging
import os
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from otel_modtrack import ModTracker
from otel_modtrack.core import CORE
from otel_modtrack.order import Call, Order, watch
from otel_modtrack.order.across import compare_ranks
from otel_modtrack.order.judging import judge
from otel_modtrack.order.positions import Launched, Moment, Position, Report, Work
from otel_modtrack.order.watch import OrderWatch
from tests.polling import poll

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opentelemetry.sdk.trace import TracerProvider

ROOT = Path(__file__).parents[2]
WORKER = Path(__file__).parent / "worker_across.py"
EXAMPLE = ROOT / "examples" / "diverging_moe.py"
TIMEOUT_S = 150


# -- what positions mean --------------------------------------------------------------------------


def work(step: int, *forward: str, backward: tuple[str, ...] = (), ended: bool = False) -> Work:
    """What has begun in a step; the step's number counts from 100."""
    calls = [Call(fqn, 0 if at else None) for at, fqn in enumerate(forward)]
    order = Order(forward=calls, recompute=[], backward=[Call(fqn) for fqn in backward])
    return Work(Moment(step, -1, 99 + step), order, ended)


def at(rank: int, now: Work | None, *past: Work, still_s: float = 12, **more: Any) -> Position:
    """Where a rank is; what it runs is the last call that has begun."""
    calls = [(one, "forward") for one in now.fqns("forward")] if now is not None else []
    inside = [f"{phase} {fqn}" for fqn, phase in calls[-1:]]
    return Position(rank, still_s, 1, now, list(past), inside, **more)


def said_of(*positions: Position, world: int | None = None) -> Report | None:
    """What they mean, after 10 seconds; also as it comes through the store."""
    found = {one.rank: Position.from_bytes(one.to_bytes()) for one in positions}
    assert list(found.values()) == [*positions]
    report = judge(found, len(found) if world is None else world, 10)
    if report is not None:
        assert Report.from_bytes(report.to_bytes()) == report
    return report


BEFORE = work(1, "M", "M.a", "M.b", ended=True)


def test_other_ways() -> None:
    """Both stand still, in different modules: that is an error, with both sides in it."""
    found = said_of(
        at(0, work(2, "M", "M.a"), BEFORE),
        at(1, work(2, "M", "M.b"), BEFORE),
        at(2, work(2, "M", "M.a"), BEFORE),
        at(3, work(2, "M"), BEFORE),
    )
    assert found is not None
    assert (found.kind, found.level) == ("diverged", logging.ERROR)
    assert found.difference is not None
    assert [(side.name, side.fqn) for side in found.difference.sides] == [
        ("ranks 0, 2", "M.a"),
        ("rank 1", "M.b"),
    ]
    assert found.text.splitlines()[0] == (
        "the ranks went different ways in step 101, and none of them goes on: the forward differs"
        " at position 1, in M, after M: ranks 0, 2: M.a; rank 1: M.b"
    )
    assert found.text.splitlines()[-3:] == [
        "ranks 0, 2: step 101, in forward M.a, still for 12 s",
        "rank 1: step 101, in forward M.b, still for 12 s",
        "rank 3: step 101, in forward M, still for 12 s",
    ]
    assert [side and side.fqn for side in map(found.side_of, range(4))] == [
        "M.a",
        "M.b",
        "M.a",
        None,
    ]


@pytest.mark.parametrize("length", range(4))
def test_one_that_has_only_not_come_as_far(length: int) -> None:
    """It is waited for: wherever it is, and also if the other has gone on to the next step."""
    fqns = ["M", "M.a", "M.b"]
    behind = at(1, work(2, *fqns[:length]), BEFORE)
    place = f"forward {fqns[length - 1]}" if length else "step 101, outside of modules"
    for ahead in (
        at(0, work(2, *fqns, backward=("M",)), BEFORE),
        at(0, work(3, "M"), work(2, *fqns, backward=("M",), ended=True)),
    ):
        found = said_of(ahead, behind)
        assert found is not None
        assert (found.kind, found.level) == ("waiting", logging.WARNING)
        assert found.text.splitlines()[0] == f"rank 0 waits for rank 1, which is in {place}"
        assert found.difference is None


def test_one_that_has_gone_on_without() -> None:
    """It has begun its backward, or has ended its step, without the module that the other is in."""
    stuck = at(0, work(2, "M", "M.a", "M.b"), BEFORE)
    for other in (
        at(1, work(2, "M", "M.a", backward=("M",)), BEFORE),
        at(1, work(3, "M"), work(2, "M", "M.a", ended=True), BEFORE),
        at(1, None, work(2, "M", "M.a", ended=True), BEFORE),
    ):
        found = said_of(stuck, other)
        assert found is not None
        assert found.difference is not None
        assert [(side.name, side.fqn) for side in found.difference.sides] == [
            ("rank 0", "M.b"),
            ("rank 1", None),
        ]


def test_one_that_goes_on_may_come_yet() -> None:
    """While one side goes on, nothing is said; after a while, that it is waited for."""
    other = at(1, work(2, "M", "M.b"), BEFORE, still_s=2)
    assert said_of(at(0, work(2, "M", "M.a"), BEFORE), other) is None
    found = said_of(at(0, work(2, "M", "M.a"), BEFORE, still_s=31), other)
    assert found is not None
    assert found.kind == "waiting"
    assert "rank 1: step 101, in forward M.b, goes on" in found.text
    assert found.text.endswith(
        "their orders differ: the forward differs at position 1, in M, after M: rank 0: M.a;"
        " rank 1: M.b"
    )


def test_nobody_hangs() -> None:
    """Nothing is said where all go on, or where what stands still is nothing that is open."""
    assert said_of(at(0, work(2, "M"), still_s=9), at(1, work(2), still_s=1)) is None
    assert said_of(at(0, None), at(1, None)) is None


def test_ranks_that_always_go_different_ways() -> None:
    """As stages of a pipeline: that they do so now is not why they wait."""
    found = said_of(
        at(0, work(2, "S0"), work(1, "S0", "S0.a", ended=True)),
        at(1, work(2, "S1"), work(1, "S1", "S1.a", ended=True)),
    )
    assert found is not None
    assert (found.kind, found.level, found.difference) == ("waiting", logging.WARNING, None)
    assert found.text.splitlines()[0] == "ranks 0-1 have not gone on for 12 s"
    assert ", as they did in a step that they went through: " in found.text
    # Of two replicas of each stage, one that differs from its like is seen.
    stages = [at(rank, work(2, "S"), work(1, f"S{rank % 2}", ended=True)) for rank in range(4)]
    stages[3] = at(3, work(2, "T"), work(1, "S1", ended=True))
    found = said_of(*stages)
    assert found is not None
    assert found.difference is not None
    assert [side.name for side in found.difference.sides] == ["rank 1", "rank 3"]


def test_ranks_of_one_module_that_have_launched_more_or_less() -> None:
    """The one that has not launched what the other waits in is waited for."""
    found = said_of(
        at(0, work(2, "M"), launched=Launched("all_reduce", "0", 2, 7, "forward M", waits=True)),
        at(
            1,
            work(2, "M"),
            launched=Launched("all_reduce", "0", 2, 6, "", waits=False),
            line="m.py:3",
        ),
    )
    assert found is not None
    assert found.text == (
        "rank 0 waits for rank 1, which is in forward M\n\n"
        "rank 0: step 101, in forward M, still for 12 s;"
        " waits in all_reduce (no. 7 in group 0 of 2 ranks), launched in forward M\n"
        "rank 1: step 101, in forward M at m.py:3, still for 12 s;"
        " its last collective was all_reduce (no. 6 in group 0 of 2 ranks), launched in no module"
    )


def test_ranks_in_different_collectives() -> None:
    """Of one group, and the same number in it: that is an error also where the orders agree."""
    one, other = (Launched(name, "0", 2, 7, "", waits=True) for name in ("broadcast", "barrier"))
    found = said_of(at(0, work(2, "M"), launched=one), at(1, work(2, "M"), launched=other))
    assert found is not None
    assert (found.kind, found.level, found.difference) == ("diverged", logging.ERROR, None)
    found = said_of(
        at(0, work(2, "M"), launched=one), at(1, work(2, "M"), launched=other._replace(number=6))
    )
    assert found is not None
    assert found.kind == "waiting"


def test_ranks_that_are_not_there() -> None:
    """One does not answer; one was left by an exception; one has left by itself."""
    stuck = at(0, work(2, "M"), BEFORE)
    found = said_of(stuck, world=3)
    assert found is not None
    assert (found.kind, found.level) == ("gone", logging.WARNING)
    assert found.text.startswith(
        "rank 0 has not gone on, and ranks 1-2 do not answer: have they ended?\n"
    )
    assert found.text.endswith("\nranks 1-2: does not answer")
    found = said_of(stuck, at(1, None, BEFORE, left=True, error="ValueError"))
    assert found is not None
    assert (found.kind, found.level) == ("gone", logging.ERROR)
    assert found.text.startswith("rank 0 has not gone on; rank 1 has failed\n")
    assert found.text.endswith("\nrank 1: ended with ValueError, after step 100")
    found = said_of(stuck, at(1, None, BEFORE, left=True))
    assert found is not None
    assert found.kind == "waiting"
    assert found.text.endswith("\nrank 1: has left the watch, after step 100")
    found = judge({0: stuck}, 2, 10, unwatched=[1])
    assert found is not None
    assert found.text.endswith("\nrank 1: is not watched")


def test_calls_outside_of_steps() -> None:
    """They are told apart by how many there were."""
    calls = [Call("M"), Call("M.a", 0)]
    over = Work(Moment(0, 4), Order(forward=calls), ended=True)
    now = Work(Moment(0, 4), Order(forward=[Call("M"), Call("M.b", 0)]))
    found = said_of(at(0, now), at(1, None, over))
    assert found is not None
    assert found.text.startswith("the ranks went different ways in call 4 outside of steps, ")


def test_numbers_of_roots_are_no_difference() -> None:
    """As in `first_difference`."""
    found = said_of(at(0, work(2, "M", "M.a")), at(1, work(2, "M#2", "M#2.a")))
    assert found is not None
    assert found.kind == "waiting"


def test_many_ranks() -> None:
    """A report of a large job is short."""
    positions = [at(rank, work(2, "M", "M.a" if rank != 77 else "M.b")) for rank in range(256)]
    found = said_of(*positions)
    assert found is not None
    assert len(found.text) < 600
    assert "ranks 0-76, 78-255: M.a; rank 77: M.b" in found.text


# -- where a backward is --------------------------------------------------------------------------


class Nested(nn.Module):
    """Layers at several depths."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2), nn.Tanh()))
        self.last = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(x) * 2 + self.first(x))


def test_a_backward_is_told_without_a_change(provider: TracerProvider) -> None:
    """At each node, what is found by looking on is what is made when it is asked for."""
    model = Nested()
    compared = []

    def compare(_: torch.Tensor) -> None:
        run = next(iter(CORE.runs.values()))
        unit = run.unit
        assert unit is not None
        before = copy.copy(run)
        before._open, before._regions = list(run._open), dict(run._regions)
        known = len(unit.regions)
        run.locate()  # makes the regions, of what has fired and of the node that runs now
        new, still_open = before.peek()
        assert [repr(one) for one in new] == [repr(one) for one in unit.regions[known:]]
        assert [one.parent.subject for one in new if one.parent] == [
            one.parent.subject for one in unit.regions[known:] if one.parent
        ]
        assert [one.forward for one in still_open] == [one.forward for one in run._open]
        compared.append(len(new))

    hook = nn.modules.module.register_module_forward_hook(
        lambda _module, _args, out: out.register_hook(compare) and None
    )
    try:
        with ModTracker(model, tracer_provider=provider) as tracker, tracker.step(0):
            model(torch.ones(1, 2)).sum().backward()
    finally:
        hook.remove()
    assert sum(compared) == len(compared) == 12  # of seven modules, five are called twice


# -- one process ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        (
            {"after": 0},
            ValueError,
            r"OrderWatch\(after=0\): a positive number of seconds is wanted",
        ),
        ({"after": float("inf")}, ValueError, r"OrderWatch\(after=inf\): a positive number"),
        ({"after": "10"}, TypeError, r"OrderWatch\(after=...\): seconds are wanted, not str"),
        ({"answer": True}, TypeError, r"OrderWatch\(answer=...\): seconds are wanted, not bool"),
        ({"answer": -1.0}, ValueError, r"OrderWatch\(answer=-1.0\): a positive number"),
        ({"on_difference": 1}, TypeError, r"OrderWatch\(on_difference=...\): a function is wanted"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], error: type[Exception], says: str) -> None:
    """Each raises one sentence."""
    with pytest.raises(error, match=f"^{says}"):
        OrderWatch(**arguments)


def test_without_a_process_group(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is said, and nothing is left; what is raised comes through."""
    before = CORE.ledgers
    model = nn.Linear(2, 2)
    block = OrderWatch(after=0.05)
    waited = threading.Event()

    def run() -> None:
        with block:
            model(torch.ones(1, 2))
            waited.wait(0.2)
            assert len(CORE.ledgers) == len(before) + 2
            raise KeyError("mine")

    with ModTracker(model), pytest.raises(KeyError, match="mine"):
        run()
    block.__exit__(None, None, None)  # again: does nothing
    with block:  # again, from the start
        pass
    assert block.reports == []
    assert caplog.records == []
    assert CORE.ledgers == before


@pytest.fixture
def alone() -> Iterator[None]:
    """A process group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
def test_with_one_rank(caplog: pytest.LogCaptureFixture) -> None:
    """There is nobody to compare with, and nobody to ask."""
    assert compare_ranks(Order(forward=[Call("M")])) is None
    model, waited = nn.Linear(2, 2), threading.Event()
    with ModTracker(model), OrderWatch(after=0.05) as watched:
        handle = model.register_forward_hook(lambda *_: waited.wait(0.3) and None)
        model(torch.ones(1, 2))
        handle.remove()
    assert watched.reports == []
    assert caplog.records == []


def test_comparing_without_ranks() -> None:
    """What is missing is named in one sentence."""
    with pytest.raises(TypeError, match=r"an Order is wanted, not list"):
        compare_ranks([])  # type: ignore[arg-type]
    with pytest.raises(
        RuntimeError, match=r"call torch\.distributed\.init_process_group\(\) first$"
    ):
        compare_ranks(Order(forward=[]))


class Group:
    """Stands for a process group."""


@pytest.mark.parametrize("connects", [True, False])
def test_a_store_that_does_not_answer(
    connects: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The rank tells where it is itself, once; the program goes on."""

    def wait_until_told(*_: Any) -> None:
        until = time.monotonic() + TIMEOUT_S  # not by `poll`: this is the line that is told
        while not caplog.records and time.monotonic() < until:
            waited.wait(0.05)
        waited.wait(0.2)  # not again

    class Talk:
        rank, world, answered = 1, 2, 0

        def __init__(self, group: Any, *_: object) -> None:
            self.group = weakref.ref(group)
            if not connects:
                raise RuntimeError("it is gone\nframe #0")

        def round(self) -> int:
            raise RuntimeError("it is gone\nframe #0")

    group, model, waited = Group(), nn.Linear(2, 2), threading.Event()
    monkeypatch.setattr(watch, "_default_group", lambda: group)
    monkeypatch.setattr(watch, "Talk", Talk)
    monkeypatch.setattr(dist, "get_rank", lambda: 1)
    with ModTracker(model), OrderWatch(after=0.05) as watched:
        handle = model.register_forward_hook(wait_until_told)
        model(torch.ones(1, 2))
        handle.remove()
    assert [one.levelname for one in caplog.records] == ["WARNING"]
    assert [one.text for one in watched.reports] == [one.getMessage() for one in caplog.records]
    headline, _, line = caplog.messages[0].splitlines()
    assert headline == (
        "rank 1 has not gone on, and the store of the process group does not answer (it is gone):"
        " has the process ended that serves it?"
    )
    assert line.startswith("rank 1: call 1 outside of steps, in forward Linear at test_across.py:")


def test_a_fault_of_ours(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Is said once, and ends the watch; the program goes on."""

    def fail() -> None:
        raise LookupError("a fault")

    monkeypatch.setattr(watch, "_default_group", fail)
    model = nn.Linear(2, 2)
    with ModTracker(model), OrderWatch(after=0.01) as watched:
        model(torch.ones(1, 2))
        poll(lambda: caplog.messages, "it is said")
        assert watched.is_on
    assert caplog.messages == ["the order is not watched any more"]
    assert not watched.is_on


# -- several processes ----------------------------------------------------------------------------


class Ranks:
    """A worker that is started on several ranks; what it has found is waited for when asked for.

    Args:
        cases: which of its.
        count: how many ranks.
        folder: for what it writes.
        in_file: whether the process group's store is a file.
    """

    def __init__(self, cases: str, count: int, folder: Path, *, in_file: bool = False) -> None:
        self._count, self._folder = count, folder
        self._found: list[dict[str, Any]] | None = None
        self._server = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
        place = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(self._server.port)}
        command = [sys.executable, "-W", "error", str(WORKER), cases, str(folder)]
        self._processes = []
        for rank in range(count):
            told = {"RANK": str(rank), "WORLD_SIZE": str(count), "PYTHONPATH": str(ROOT)}
            env = {**os.environ, "OMP_NUM_THREADS": "1", **told, **({} if in_file else place)}
            with (folder / f"{rank}.txt").open("wb") as out:
                process = subprocess.Popen(command, env=env, stdout=out, stderr=out)  # noqa: S603
            self._processes.append(process)

    def of(self, case: str) -> list[Any]:
        """What a case gave on each rank."""
        if self._found is None:
            until = time.monotonic() + TIMEOUT_S
            while any(one.poll() is None for one in self._processes) and time.monotonic() < until:
                if any(one.poll() for one in self._processes):
                    break  # the others wait for it
                time.sleep(0.1)
            paths = [self._folder / f"{rank}.json" for rank in range(self._count)]
            self._found = [json.loads(one.read_text()) if one.exists() else {} for one in paths]
            self.end()
        for one, text in zip(self._found, self.printed, strict=True):
            assert case in one or case == LAST, one.get("error", text)
        return [one.get(case) for one in self._found]

    @property
    def printed(self) -> list[str]:
        """By rank."""
        return [(self._folder / f"{rank}.txt").read_text() for rank in range(self._count)]

    def end(self) -> None:
        """No process is left."""
        for one in self._processes:
            one.kill()
            one.wait()


LAST = "a_rank_dies"  # which tells nothing, then


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    """Ranks whose store is a file."""
    with contextlib.ExitStack() as running:
        ranks = Ranks("four", 4, tmp_path_factory.mktemp("four"), in_file=True)
        running.callback(ranks.end)
        yield ranks


@pytest.fixture(scope="module")
def example() -> Iterator[subprocess.Popen[str]]:
    """The example, under torchrun."""
    command = [sys.executable, "-W", "error", "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node=2", str(EXAMPLE), "--diverge", "--timeout", "9"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=env, stdout=pipe, stderr=pipe, text=True) as process:  # noqa: S603
        yield process
        process.terminate()


@pytest.fixture(scope="module")
def two(
    tmp_path_factory: pytest.TempPathFactory, four: Ranks, example: subprocess.Popen[str]
) -> Iterator[Ranks]:
    """Two, which wait most of the time, at the same time as the others do."""
    assert four
    assert example
    with contextlib.ExitStack() as running:
        ranks = Ranks("two", 2, tmp_path_factory.mktemp("two"))
        running.callback(ranks.end)
        yield ranks


@pytest.mark.parametrize("ranks", ["two", "four"])
def test_equal_orders(ranks: str, request: pytest.FixtureRequest) -> None:
    """They agree; the comparison changes no order, and is on no span and in no count."""
    for difference, unchanged, last, table in request.getfixturevalue(ranks).of("equal_orders"):
        assert difference is None
        assert unchanged
        assert last == "train_step"
        assert table == "2, 16 B"


@pytest.mark.parametrize(
    ("ranks", "others"), [("two", ["rank 0"]), ("four", ["rank 0", "rank 1", "rank 2"])]
)
def test_other_experts(ranks: str, others: list[str], request: pytest.FixtureRequest) -> None:
    """All ranks get the same answer, which names the first module that differs."""
    answers = request.getfixturevalue(ranks).of("other_experts")
    assert all(one[:2] == answers[0][:2] for one in answers)
    difference, text, _ = answers[0]
    assert (difference["sequence"], difference["position"]) == ("forward", 2)
    assert [(side["names"], side["fqn"]) for side in difference["sides"]] == [
        (others, "MoE.experts.0"),
        ([f"rank {len(others)}"], "MoE.experts.1"),
    ]
    assert f"rank {len(others)}: MoE.experts.1" in text
    names = [one[2] for one in answers]  # each rank's own order is called as before
    assert names == [f"step 0 of rank {rank}" for rank in range(len(answers))]


def test_groups(four: Ranks) -> None:
    """The ranks of the group are named as among all; others are told so; one alone agrees."""
    inside, outside = [], []
    for rank, (found, alone) in enumerate(four.of("groups")):
        (inside if rank in (0, 2) else outside).append(found)
        assert alone is None
    for sides in inside:
        assert [side["names"] for side in sides] == [["rank 0"], ["rank 2"]]
    for rank, text in zip((1, 3), outside, strict=True):
        assert text == (
            f"compare_ranks(group=...): rank {rank} is not in that group; call it on the ranks of"
            " the group alone"
        )


def quiet(found: dict[str, Any]) -> None:
    """Nothing is left of a watch."""
    assert found["threads"] == []
    assert found["ledgers"] == 0


def test_training_in_which_nobody_hangs(two: Ranks) -> None:
    """Nothing is said, and no thread and no key is left."""
    for found, new_keys in two.of("nobody_hangs"):
        assert found["said"] == []
        assert not found["failed"]
        assert new_keys == 0
        quiet(found)


def diverged(found: dict[str, Any], *, step: int) -> str:
    """The one report of a hang, in the log, on the span and to the callback, before the timeout."""
    assert found["failed"]
    assert found["in time"]
    ((level, text),) = found["said"]
    assert level == "ERROR"
    assert text.startswith(
        f"the ranks went different ways in step {step}, and none of them goes on"
    )
    assert found["reports"] == ["diverged"]
    ((name, number, attributes),) = found["events"]
    assert (name, number) == ("train_step", step)
    assert attributes["modtrack.order.report"] == text
    quiet(found)
    return text


def test_an_expert_is_skipped(two: Ranks) -> None:
    """Both ranks say which of them went where, and what each of them waits in."""
    both = two.of("an_expert_is_skipped")
    text = diverged(both[0], step=13)
    assert text == diverged(both[1], step=13)
    assert (
        "the forward differs at position 5, in MoE, after MoE.experts.0.down:"
        " rank 0: MoE.experts.1; rank 1: MoE.head\n"
    ) in text
    lines = text.splitlines()
    assert lines[-2].startswith("rank 0: step 13, in forward MoE.experts.1 at worker_across.py:")
    assert ", position 6 of the forward (MoE.experts.1.up), still for " in lines[-2]
    assert (
        lines[-2].endswith(
            "; waits in all_reduce (no. 8 in group 1 of 2 ranks), launched in forward MoE.experts.1"
        )
        or "waits in all_reduce (no. 11 in group " in lines[-2]
    )
    assert lines[-1].startswith("rank 1: step 13, outside of modules at worker_across.py:")
    assert "; waits in barrier (no. 11 in group " in lines[-1]
    for rank, fqn in enumerate(["MoE.experts.1", "MoE.head"]):
        assert both[rank]["called"] == ["diverged"]
        assert both[rank]["sides"] == [[[["rank 0"], "MoE.experts.1"], [["rank 1"], "MoE.head"]]]
        attributes = both[rank]["events"][0][2]
        assert attributes["modtrack.order.sequence"] == "forward"
        assert attributes["modtrack.order.position"] == 5
        assert attributes["modtrack.order.fqn"] == fqn


def test_a_hang_in_the_backward(two: Ranks) -> None:
    """It is told where in that the rank is; the step is a recognised one, no collective is seen."""
    for found in two.of("backward_hangs"):
        text = diverged(found, step=0)
        assert "rank 0: MoE.experts.1; rank 1: MoE.head\n" in text
        line = text.splitlines()[-2]
        assert line.startswith("rank 0: step 0, in backward MoE.experts.1.up at worker_across.py:")
        assert ", position 4 of the backward, still for " in line
        assert "all_reduce" not in text


def test_one_of_four_skips(four: Ranks) -> None:
    """The other three are told together; the store is a file."""
    for rank, found in enumerate(four.of("one_of_four_skips")):
        text = diverged(found, step=13)
        assert "ranks 0-1, 3: MoE.experts.1; rank 2: MoE.head\n" in text
        assert "\nranks 0-1, 3: step 13, in forward MoE.experts.1" in text
        fqn = found["events"][0][2]["modtrack.order.fqn"]
        assert fqn == ("MoE.head" if rank == 2 else "MoE.experts.1")


def test_a_slow_rank(two: Ranks) -> None:
    """It is waited for, and that is no error: once, on both ranks."""
    for found in two.of("a_rank_is_slow"):
        ((level, text),) = found["said"]
        assert level in ("WARNING", "INFO")
        assert text.startswith("rank 0 waits for rank 1, which is in forward MoE.experts.1\n")
        assert "; waits in all_reduce (no. " in text
        assert not found["failed"]
        assert found["events"] == []
        quiet(found)


def test_ranks_that_run_other_modules_in_each_step(two: Ranks) -> None:
    """They are not said to have gone different ways when one is slow."""
    for found in two.of("other_modules_each_step"):
        assert found["reports"] in (["waiting"], [])
        assert [level for level, _ in found["said"]] in (["WARNING"], ["INFO"], [])
        assert found["events"] == []
    assert two.of("other_modules_each_step")[0]["reports"] == ["waiting"]


def test_a_rank_that_has_failed(two: Ranks) -> None:
    """The one that waits for it says so, before its own timeout."""
    waits, failed = two.of("a_rank_fails")
    ((level, text),) = waits["said"]
    assert level == "ERROR"
    assert text.startswith("rank 0 has not gone on; rank 1 has failed\n")
    assert text.endswith("\nrank 1: ended with Failure in step 0, in forward MoE.experts.1")
    assert waits["in time"]
    assert failed["said"] == []


def test_what_a_policy_leaves_out(two: Ranks) -> None:
    """Is watched all the same, for as long as somebody watches."""
    slow, waits = two.of("policy_leaves_steps_out")
    ((level, text),) = waits["said"]
    assert level == "WARNING"
    assert text.startswith("rank 1 waits for rank 0, which is ")
    assert "\nrank 1: step 2, " in text
    quiet(slow)
    quiet(waits)


def test_a_forked_child(two: Ranks) -> None:
    """Leaves the block at once; its parent is watched as before."""
    for status, found in two.of("a_child_is_forked"):
        assert status == 0
        assert found["reports"]
        assert {level for level, _ in found["said"]} <= {"WARNING", "INFO"}
        quiet(found)


def test_another_process_group(two: Ranks) -> None:
    """The ranks find each other again."""
    for found in two.of("the_group_goes"):
        assert found["reports"] == ["waiting"]
        quiet(found)


def test_a_rank_that_died(two: Ranks) -> None:
    """Is asked about."""
    found = two.of(LAST)[0]
    ((level, text),) = found["said"]
    assert level == "WARNING"
    assert text.startswith("rank 0 has not gone on, and rank 1 does not answer: has it ended?\n")
    assert text.endswith("\nrank 1: does not answer")
    quiet(found)


def test_nothing_is_printed(two: Ranks, four: Ranks) -> None:
    """Neither by a warning, nor by torch about the store."""
    for printed in (*two.printed, *four.printed):
        lines = [line for line in printed.splitlines() if not line.startswith("[Gloo] Rank")]
        assert lines == []


def test_the_example(example: subprocess.Popen[str]) -> None:
    """It says where the ranks went, on both of them, and fails."""
    out, errors = example.communicate(timeout=TIMEOUT_S)
    assert example.returncode != 0
    said = "ERROR:otel_modtrack:the ranks went different ways in step 3, and none of them goes on: "
    assert errors.count(said) == 2
    assert errors.index(said) < errors.index("Timed out waiting")
    assert "is done" not in out
