"""However a training run ends, the spans of its steps are delivered."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.processes.running import Program, Span

    Start = Callable[..., Program]

TRAINING = """
    import sys, torch
    from otel_modtrack import ModTracker, configure

    class Waits(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(2, 2)

        def forward(self, x):
            x = self.linear(x)
            if number == 2:
                print("ready", flush=True)
                sys.stdin.readline()
            return x

    configure()
    model = Waits()
    with ModTracker(model) as tracker:
        for number in range(4):
            with tracker.step(number):
                model(torch.ones(1, 2)).sum().backward()
"""
ONE_STEP = ["backward", "backward Waits", "backward Waits.linear"]
ONE_STEP += ["forward Waits", "forward Waits.linear", "train_step"]


def test_training_is_interrupted_in_the_middle_of_a_step(start: Start) -> None:
    """SIGTERM or Ctrl-C: the steps before are whole; Ctrl-C ends the open spans as well."""
    number = {signal.SIGTERM: start(TRAINING), signal.SIGINT: start(TRAINING)}
    for signalled, running in number.items():
        assert running.line() == "ready"
        running.process.send_signal(signalled)
    for signalled, running in number.items():
        assert running.wait() == -signalled
        assert "otel_modtrack" not in running.errors
    terminated, interrupted = number.values()
    assert terminated.names == sorted(ONE_STEP * 2)
    assert interrupted.names == sorted([*ONE_STEP * 2, *ONE_STEP[3:]])
    failed = {span["attributes"].get("error.type") for span in interrupted.spans}
    assert failed == {None, "KeyboardInterrupt"}


def test_one_rank_of_two_is_killed(start: Start) -> None:
    """kill -9: what that rank has flushed is there, and all that the other one has ended."""
    running = start(
        """
        import os, signal, torch, torch.distributed as dist
        from otel_modtrack import ModTracker, configure

        telemetry = configure()
        dist.init_process_group("gloo")
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
        with ModTracker(model) as tracker:
            for number in range(4):
                with tracker.step(number):
                    model(torch.ones(1, 2)).sum().backward()
                if number == 1:
                    assert telemetry.flush()
                if number == 2:
                    dist.barrier()
                    if dist.get_rank() == 1:
                        os.kill(os.getpid(), signal.SIGKILL)
        """,
        {"OTEL_BSP_SCHEDULE_DELAY": "600000"},
        launcher=(
            *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"),
            *("--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--rdzv-id=job-7"),
        ),
    )
    assert running.wait() == 1
    by_rank: dict[int, list[Span]] = {0: [], 1: []}
    for span in running.spans:
        assert span["resource"]["modtrack.job.id"] == "job-7"
        assert span["resource"]["modtrack.world_size"] == 2
        by_rank[span["resource"]["modtrack.rank"]].append(span)
    whole = ["backward", "backward Linear", "forward Linear", "train_step"]
    assert sorted(span["name"] for span in by_rank[1]) == sorted(whole * 2)
    # What the other one did after its third step was in the middle of a step, or failed.
    steps = [span for span in by_rank[0] if span["name"] == "train_step"]
    done = [span["trace_id"] for span in steps if span["attributes"]["modtrack.step.number"] < 3]
    assert len(done) == 3
    names = [span["name"] for span in by_rank[0] if span["trace_id"] in done]
    assert sorted(names) == sorted(whole * 3)
