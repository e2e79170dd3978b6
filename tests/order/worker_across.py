"""Ranks that compare their orders, and that hang; what each found is written to a file.

Started as ``worker_across.py CASES FOLDER``. A hang is in a process group of its own, whose timeout
is short: the others live on.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import logging
import os
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from torch import nn

from otel_modtrack import ModTracker, Policy, semconv
from otel_modtrack.core import CORE
from otel_modtrack.order.across import compare_ranks
from otel_modtrack.order.watch import OrderWatch
from otel_modtrack.testing import Tree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from otel_modtrack.order.difference import Difference

AFTER_S = 0.8
# Of those who answer, which may take its time. Leaving waits for the watch as long.
ANSWER_S = 20.0
NO_ANSWER_S = 1.2
TIMEOUT_S = 4  # of the groups that are to hang
SLOW_S = 2.0

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


class Expert(nn.Module):
    """Does something between its two layers, if it is given something to do."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4)
        self.act: Callable[[], None] = lambda: None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.up(x)
        self.act()
        return self.down(x)


class MoE(nn.Module):
    """Two experts, of which it calls those that it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.head = nn.Linear(4, 2), nn.Linear(4, 1)
        self.experts = nn.ModuleList(Expert() for _ in range(2))
        self.chosen = [0, 1]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights = self.router(x).softmax(-1)
        return self.head(x + sum(weights[:, i, None] * self.experts[i](x) for i in self.chosen))


class Kept(logging.Handler):
    """What was logged, and when."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[tuple[str, str]] = []
        self.at_s = 0.0

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append((record.levelname, record.getMessage()))
        self.at_s = self.at_s or time.monotonic()


class Job:
    """A model in training, its spans, and what is said while it trains."""

    def __init__(self, *, chosen: list[int] | None = None, **options: Any) -> None:
        torch.manual_seed(0)
        self.net = MoE()
        self.net.chosen = chosen or [0, 1]
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracker = ModTracker(self.net, tracer_provider=provider, **options)
        self.kept = Kept()
        self.failed_s = 0.0

    def step(self) -> None:
        """Forward, backward, optimizer."""
        self.net(torch.ones(2, 4)).sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    @contextlib.contextmanager
    def watched(self, **options: Any) -> Iterator[OrderWatch]:
        """The tracker is on and the order is watched; an exception ends that."""
        logger = logging.getLogger("otel_modtrack")
        logger.addHandler(self.kept)
        logger.setLevel(logging.INFO)
        try:
            watch = OrderWatch(**{"after": AFTER_S, "answer": ANSWER_S, **options})
            with contextlib.suppress(Failure), self.tracker, watch:
                try:
                    yield watch
                except RuntimeError as error:
                    self.failed_s = time.monotonic()
                    raise Failure from error
        finally:
            logger.removeHandler(self.kept)

    def found(self, watch: OrderWatch) -> dict[str, Any]:
        """What a test wants to know."""
        events = [
            (span.name, span.attributes.get(semconv.STEP_NUMBER), dict(event.attributes))
            for span in self.exporter.get_finished_spans()
            for event in span.events
            if event.name == semconv.ORDER_DIVERGED_EVENT
        ]
        return {
            "said": self.kept.said,
            "reports": [one.kind for one in watch.reports],
            "sides": [
                [[side.names, side.fqn] for side in one.difference.sides]
                for one in watch.reports
                if one.difference is not None
            ],
            "events": events,
            "in time": self.kept.at_s < self.failed_s,
            "failed": bool(self.failed_s),
            "threads": [one.name for one in threading.enumerate() if "modtrack" in one.name],
            "ledgers": len(CORE.ledgers),
        }


class Failure(Exception):  # noqa: N818
    """Leaves the block in which a job is watched."""


def keys() -> int:
    """How many there are in the store, while no rank writes any."""
    dist.barrier()
    count = dist.distributed_c10d._get_default_store().num_keys()
    dist.barrier()
    return count


def told(found: Difference | None) -> Any:
    """For the file."""
    return found.as_dict() if found is not None else None


# -- orders that are there ------------------------------------------------------------------------


def equal_orders() -> Any:
    """Of one model, recorded on each rank; and in a step, in which that is on no span."""
    job = Job(collectives="each")
    with job.tracker as tracker:
        with tracker.record_order():
            job.step()
        order = tracker.execution_order
        before = order.as_dict()
        with tracker.step(7):
            found = compare_ranks(order)
            dist.all_reduce(torch.ones(3))
        dist.all_reduce(torch.ones(1))
        table = tracker.collectives.table()
    tree = Tree(job.exporter.get_finished_spans())
    seen = dist.distributed_c10d._get_default_store() is not None
    return [
        told(found),
        order.as_dict() == before and seen,
        str(tree).splitlines()[-1],
        table.splitlines()[0].partition(": ")[2],
    ]


def other_experts() -> Any:
    """The last rank calls the other expert; nobody hangs."""
    job = Job(chosen=[1] if RANK == WORLD - 1 else [0])
    with job.tracker as tracker, tracker.record_order():
        job.step()
    found = compare_ranks(job.tracker.execution_order)
    return [told(found), str(found), job.tracker.execution_order.name]


def groups() -> Any:
    """Of two ranks, of one, of others."""
    pair, alone = dist.new_group([0, 2]), [dist.new_group([rank]) for rank in range(WORLD)]
    job = Job(chosen=[1] if RANK == 2 else [0])
    with job.tracker as tracker, tracker.record_order():
        job.step()
    order = job.tracker.execution_order
    if RANK in (0, 2):
        found = told(compare_ranks(order, pair))["sides"]
    else:
        try:
            found = compare_ranks(order, pair)
        except ValueError as error:
            found = str(error)
    return [found, told(compare_ranks(order, alone[RANK]))]


# -- ranks that hang ------------------------------------------------------------------------------


def nobody_hangs() -> Any:
    """Many steps, marked and recognised; no thread and no key is left."""
    before = keys()
    job = Job()
    with job.watched(after=1.0) as watch:
        until = time.monotonic() + 2.5
        while time.monotonic() < until:
            job.step()
        for number in range(3):
            with job.tracker.step(number):
                job.step()
    return [job.found(watch), keys() - before]


def hang(skipper: int) -> Any:
    """A rank skips an expert in which the others wait for it; it waits for them elsewhere."""
    group = dist.new_group(timeout=dt.timedelta(seconds=TIMEOUT_S))
    job = Job()
    called: list[str] = []
    for expert in job.net.experts:
        expert.act = lambda: dist.all_reduce(torch.ones(2), group=group)
    with job.watched(on_difference=lambda report: called.append(report.kind)) as watch:
        for number in range(4):
            if number == 3 and skipper == RANK:
                job.net.chosen = [0]
            with job.tracker.step(10 + number):
                job.net(torch.ones(2, 4)).sum().backward()
                dist.barrier(group=group)
                job.optimizer.step()
                job.optimizer.zero_grad()
    return {**job.found(watch), "called": called}


def an_expert_is_skipped() -> Any:
    """Rank 1 does."""
    return hang(skipper=1)


def one_of_four_skips() -> Any:
    """The other three wait."""
    return hang(skipper=2)


def backward_hangs() -> Any:
    """In the backward of an expert, which rank 1 has not called; no collective is seen."""
    group = dist.new_group(timeout=dt.timedelta(seconds=TIMEOUT_S))
    job = Job(chosen=[0] if RANK == 1 else [0, 1], collectives="off")

    def wait(module: Any, args: Any, out: torch.Tensor) -> torch.Tensor:
        return Reduced.apply(out, group)

    job.net.experts[1].up.register_forward_hook(wait)
    with job.watched() as watch:
        job.net(torch.ones(2, 4)).sum().backward()
        dist.barrier(group=group)
        job.optimizer.step()
    return job.found(watch)


class Reduced(torch.autograd.Function):
    """Reduces gradients."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        return x * 1

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


def a_rank_is_slow() -> Any:
    """In a forward, while the other waits for it; they go on."""
    job = Job()
    slow = False

    def act() -> None:
        if slow:
            time.sleep(SLOW_S)
        dist.all_reduce(torch.ones(2))

    for expert in job.net.experts:
        expert.act = act
    with job.watched() as watch:
        for number in range(3):
            with job.tracker.step(number):
                weights = job.net.router(torch.ones(2, 4))
                job.net.experts[0](weights.new_ones(2, 4))
                slow = number == 1 and RANK == 1
                job.net.experts[1](weights.new_ones(2, 4))
                slow = False
    return job.found(watch)


def other_modules_each_step() -> Any:
    """As the stages of a pipeline have; one of them is slow."""
    job = Job(chosen=[RANK])
    with job.watched() as watch:
        for number in range(3):
            with job.tracker.step(number):
                job.net(torch.ones(2, 4)).sum().backward()
                if number == 2 and RANK == 1:
                    time.sleep(SLOW_S)
                dist.barrier()
    return job.found(watch)


def a_rank_fails() -> Any:
    """Rank 1 raises, and is watched no more; the other waits for it."""
    group = dist.new_group(timeout=dt.timedelta(seconds=TIMEOUT_S))
    job = Job()

    def act() -> None:
        if RANK == 1:
            raise RuntimeError("it is broken")
        dist.all_reduce(torch.ones(2), group=group)

    job.net.experts[1].act = act
    with job.watched() as watch, job.tracker.step(0):
        job.step()
    return job.found(watch)


def policy_leaves_steps_out() -> Any:
    """What is not recorded is watched all the same: rank 0 takes its time in such a step."""
    job = Job(policy=Policy(every=100))
    with job.watched(after=0.4) as watch:
        for number in range(3):
            with job.tracker.step(number + 1):
                job.step()
                time.sleep(1.2 if number == 1 and RANK == 0 else 0)
                dist.barrier()
    return job.found(watch)


def a_child_is_forked() -> Any:
    """It leaves the block, and its parent is watched as before."""
    job = Job()
    with job.watched(after=0.4) as watch:
        pid = os.fork()
        if not pid:
            began = time.monotonic()
            watch.__exit__(None, None, None)
            os._exit(0 if time.monotonic() - began < ANSWER_S / 2 else 1)
        status = os.waitpid(pid, 0)[1]
        with job.tracker.step(0):
            job.step()
            if RANK == 0:
                time.sleep(1.2)
            dist.barrier()
    return [status, job.found(watch)]


def the_group_goes() -> Any:
    """The process group is destroyed, and another one made, while the order is watched."""
    job = Job()
    with job.watched(after=0.4) as watch:
        job.step()
        time.sleep(0.5)
        dist.barrier()
        dist.destroy_process_group()
        time.sleep(0.5)
        initialise(2)
        with job.tracker.step(0):
            job.step()
            if RANK == 1:
                time.sleep(1.5)
            dist.barrier()
    return job.found(watch)


def a_rank_dies() -> Any:
    """Without a word, in a step; the last case."""
    job = Job()

    def act() -> None:
        if RANK == 1:
            time.sleep(AFTER_S / 2)  # so that it was seen to be watched
            os._exit(0)
        time.sleep(AFTER_S + NO_ANSWER_S + 2)

    job.net.experts[1].act = act
    with job.watched(answer=NO_ANSWER_S) as watch, job.tracker.step(0):
        job.step()
    return job.found(watch)


CASES: dict[str, tuple[Callable[[], Any], ...]] = {
    "two": (
        equal_orders,
        other_experts,
        nobody_hangs,
        an_expert_is_skipped,
        backward_hangs,
        a_rank_is_slow,
        other_modules_each_step,
        a_rank_fails,
        policy_leaves_steps_out,
        a_child_is_forked,
        the_group_goes,
        a_rank_dies,
    ),
    "four": (equal_orders, other_experts, groups, one_of_four_skips),
}


def initialise(attempt: int) -> None:
    """Join the group, with a store of the launcher's, or in a file."""
    if "MASTER_PORT" in os.environ:
        server = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
        store: dist.Store = dist.PrefixStore(f"attempt {attempt}", server)
    else:
        store = dist.FileStore(f"{sys.argv[2]}/store", WORLD)
    dist.init_process_group("gloo", store=store, rank=RANK, world_size=WORLD)


def main() -> None:
    """Run all cases, in order."""
    torch.set_num_threads(1)
    initialise(1)
    path = Path(sys.argv[2]) / f"{RANK}.json"
    found: dict[str, Any] = {}
    for case in CASES[sys.argv[1]]:
        dist.barrier()
        try:
            found[case.__name__] = case()
        except BaseException:
            found["error"] = traceback.format_exc()
            raise
        finally:
            path.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
