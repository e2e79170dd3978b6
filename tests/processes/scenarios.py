"""Processes that continue a trace, and start others that do: run by `parents.py`.

Each scenario runs in a fork of its own, with its own environment, of a process that has imported
torch and nothing else.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import multiprocessing.process
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from opentelemetry import trace
from telling import leave_quickly, say, told_errors
from working import work

from otel_modtrack import ModTracker, configure

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = Path(__file__).parent
# Says what it was given, and needs no environment for that.
TELL = """
import json, os
line = {"place": %r, "role": %r, "given": os.environ.get("TRACEPARENT")}
os.write(1, (json.dumps(line) + "\\n").encode())
"""
OTHER = "00-11111111111111111111111111111111-2222222222222222-01"

tracer = trace.get_tracer("app")
child = torch.nn.Sequential(torch.nn.Linear(2, 2))
started: list[Any] = []


def start(command: list[str], env: dict[str, str] | None = None) -> None:
    """A subprocess."""
    started.append(subprocess.Popen(command, env=env))  # noqa: S603 - our own command


def start_subprocesses(place: str) -> None:
    """One for each way to say what its environment is."""
    copy = dict(os.environ)
    program = [sys.executable, str(HERE / "working.py"), place]
    tell = [sys.executable, "-c"]
    start([*program, "inherited"])
    start([*program, "changed"], {**copy, "ADDED": "1"})
    start([*tell, TELL % (place, "empty")], {})
    start([*tell, TELL % (place, "its own")], {**copy, "TRACEPARENT": OTHER})


def start_worker(place: str, method: str, *, with_torch: bool = False) -> None:
    """One of multiprocessing's."""
    context = multiprocessing.get_context(method)
    process = context.Process(target=work, args=(place, method), kwargs={"with_torch": with_torch})
    process.start()
    started.append(process)


def start_all(place: str) -> None:
    """Start children of every kind where the trace is now."""
    say(place=place, role="parent")
    start_subprocesses(place)
    start_worker(place, "fork", with_torch=True)
    start_worker(place, "forkserver", with_torch=True)
    # Each of these would import torch: once is enough.
    start_worker(place, "spawn", with_torch=place == "forward")


def start_few(place: str) -> None:
    """Start children of each kind that is quickly started."""
    say(place=place, role="parent")
    program = [sys.executable, str(HERE / "working.py"), place, "inherited"]
    start(program)
    start_worker(place, "fork", with_torch=True)
    start_worker(place, "spawn")


def wait_for_all() -> None:
    """Until all that was started has ended, and well."""
    while started:
        one = started.pop()
        if isinstance(one, subprocess.Popen):
            assert one.wait() == 0, one.args
        else:
            one.join()
            assert one.exitcode == 0, one


class Starts(torch.nn.Module):
    """Starts children in its forward, and in its backward."""

    def __init__(self, start: Callable[[str], None]) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(2, 2)
        self.start = start

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.start("forward")
        x = self.linear(x)
        x.register_hook(lambda _: self.start("backward"))
        return self.linear(x)


def originals() -> list[Any]:
    """What is wrapped while a tracker is on."""
    return [subprocess.Popen.__init__, multiprocessing.process.BaseProcess.start]


def continued() -> None:
    """The environment has a parent; children are started in every place."""
    configure()
    multiprocessing.set_forkserver_preload(["otel_modtrack.tracker"])
    before, environment = originals(), dict(os.environ)
    with tracer.start_as_current_span("own"):
        pass
    model = Starts(start_all)
    with ModTracker(child) as tracker:
        with torch.no_grad():
            child(torch.ones(1, 2))
            thread = threading.Thread(target=child, args=(torch.ones(1, 2),))
            thread.start()
            thread.join()
        with tracker.step(1):
            start_all("step")
            model(torch.ones(1, 2)).sum().backward()
            assert dict(os.environ) == environment
    assert originals() == before
    assert dict(os.environ) == environment
    wait_for_all()


async def start_with_asyncio() -> None:
    """A subprocess as asyncio starts it."""
    say(place="asyncio", role="parent")
    program = (sys.executable, str(HERE / "working.py"), "asyncio", "inherited")
    process = await asyncio.create_subprocess_exec(*program)
    assert await process.wait() == 0


def alone() -> None:
    """No parent in the environment: outside of spans there is none for children either."""
    configure()
    with ModTracker(child) as tracker:
        with torch.no_grad():
            child(torch.ones(1, 2))
        start_few("outside")
        wait_for_all()
        with tracker.step(1):
            asyncio.run(start_with_asyncio())


def not_sampled() -> None:
    """The parent in the environment is not sampled."""
    configure()
    with tracer.start_as_current_span("own"):
        pass
    with ModTracker(child) as tracker:
        start_few("outside")
        with tracker.step(1):
            Starts(lambda place: start_few(place) if place == "forward" else None)(
                torch.ones(1, 2)
            ).sum().backward()
    wait_for_all()


def not_sampled_here() -> None:
    """The sampler of this process drops the step; the child's would keep a trace of its own."""
    configure()
    keeping = {**os.environ, "OTEL_TRACES_SAMPLER": "parentbased_always_on"}
    with ModTracker(child) as tracker, tracker.step(1):
        say(place="step", role="parent")
        program = [sys.executable, str(HERE / "working.py"), "step", "changed"]
        start(program, keeping)
    wait_for_all()


def malformed() -> None:
    """What is in the environment is no trace context."""
    configure()
    with tracer.start_as_current_span("own"):
        pass
    for _ in range(2):
        with ModTracker(child), torch.no_grad():
            child(torch.ones(1, 2))
    configure()


def main() -> None:
    """Each scenario in a process of its own, with the variables that the test gives."""
    leave_quickly()
    for scenario in (continued, alone, not_sampled, not_sampled_here, malformed):
        name = scenario.__name__
        with told_errors(scenario=name, role="over"):
            pid = os.fork()
            if not pid:
                for variable in sys.argv[1:]:
                    of, key, value = variable.split(":", 2)
                    if of == name:
                        os.environ[key] = value
                say(scenario=name, role="begun")
                scenario()
                sys.exit(0)
            assert os.waitpid(pid, 0)[1] == 0
