"""Forks while the parent traces, in every place where programs do that: run by `test_forks`.

What each child is, and sees, it tells in a line of JSON.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

import pools  # noqa: F401 - has cases
import torch
from forking import case, cases, child, leaving, spawning_cases, tracer, wait_for
from opentelemetry import trace
from telling import leave_quickly, say, told_errors

from otel_modtrack import ModTracker, configure


class Forks(torch.nn.Module):
    """Forks in its forward; the child goes on as if nothing had happened, or leaves."""

    def __init__(self, name: str, *, asks: bool, leaves: bool) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(2, 2)
        self.name = name
        self.asks = asks
        self.leaves = leaves
        self.pid = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.asks:  # its span is made now, and not when all is over
            trace.get_current_span().set_attribute("app.case", self.name)
        x = self.linear(x)
        self.pid = os.fork()
        if not self.pid and self.leaves:
            sys.exit(0)
        return self.linear(x)


def fork_in_forward(name: str, tracker: ModTracker, *, asks: bool, leaves: bool) -> None:
    """A step with a `Forks`; its child makes another step, and leaves."""
    model = Forks(name, asks=asks, leaves=leaves)
    with tracker.step(1):
        say(case=name, role="parent")
        model(torch.ones(1, 2)).sum().backward()
    if not model.pid:
        with tracker.step(2):
            child(torch.ones(1, 2)).sum().backward()
        say(case=name, role="quiet")
        sys.exit(0)
    wait_for(model.pid)


@case
def fork_in_a_step(name: str, tracker: ModTracker) -> None:
    """The child goes on in the step and in the loop."""
    with tracker.step(1):
        say(case=name, role="parent")
        pid = os.fork()
        child(torch.ones(1, 2)).sum().backward()
    if not pid:
        with tracker.step(2):
            child(torch.ones(1, 2)).sum().backward()
        say(case=name, role="quiet")
        sys.exit(0)
    wait_for(pid)


@case
def exit_in_a_step(name: str, tracker: ModTracker) -> None:
    """Children leave in the middle of a step, which they never end."""
    with tracker.step(1):
        say(case=name, role="parent")
        child(torch.ones(1, 2))
        for way in ("os._exit", "sys.exit"):
            pid = os.fork()
            if not pid:
                with leaving(way):
                    say(case=name, role="quiet")
            wait_for(pid)


@case
def fork_in_a_forward(name: str, tracker: ModTracker) -> None:
    """The child goes on in the forward."""
    fork_in_forward(name, tracker, asks=False, leaves=False)


@case
def fork_in_a_forward_with_a_span(name: str, tracker: ModTracker) -> None:
    """The child goes on in a forward whose span was made before the fork."""
    fork_in_forward(name, tracker, asks=True, leaves=False)


@case
def exit_in_a_forward(name: str, tracker: ModTracker) -> None:
    """SystemExit of a child travels through the forward and the step."""
    fork_in_forward(name, tracker, asks=False, leaves=True)


@case
def exit_in_a_forward_with_a_span(name: str, tracker: ModTracker) -> None:
    """The same through a forward whose span was made before the fork."""
    fork_in_forward(name, tracker, asks=True, leaves=True)


@case
def exit_in_a_span(name: str, tracker: ModTracker) -> None:
    """SystemExit of a child travels through a span of the program's own."""
    with tracer.start_as_current_span(name):
        say(case=name, role="parent")
        pid = os.fork()
        if not pid:
            sys.exit(0)
        wait_for(pid)


@case
def own_spans(name: str, tracker: ModTracker) -> None:
    """A child that does not configure, and makes a span."""
    with tracker.step(1):
        say(case=name, role="parent")
        for _ in range(2):
            pid = os.fork()
            if not pid:
                with leaving("sys.exit"):
                    with tracer.start_as_current_span(name):
                        pass
                    say(case=name, role="tracing")
            wait_for(pid)


def trace_the_child(name: str, *, way: str) -> int:
    """Fork a child that is traced in its own right."""
    pid = os.fork()
    if not pid:
        with leaving(way):
            telemetry = configure()
            with ModTracker(child):
                child(torch.ones(1, 2))
            say(case=name, role="tracing")
            if way == "os._exit":
                assert telemetry.flush()
    return pid


@case
def configured(name: str, tracker: ModTracker) -> None:
    """Children that call configure and enter a tracker, and leave either way."""
    with tracker.step(1):
        say(case=name, role="parent")
        wait_for(*(trace_the_child(name, way=way) for way in ("sys.exit", "os._exit")))


@case
def grandchild(name: str, tracker: ModTracker) -> None:
    """A child's child, as of a daemon."""
    with tracker.step(1):
        say(case=name, role="parent")
        pid = os.fork()
        if not pid:
            with leaving("sys.exit"):
                configure()
                wait_for(trace_the_child(name, way="sys.exit"))
                with tracer.start_as_current_span(name):
                    pass
                say(case=name, role="tracing")
        wait_for(pid)


@case
def shut_down(name: str, tracker: ModTracker) -> None:
    """A child that shuts down by itself has no thread left."""
    with tracker.step(1):
        say(case=name, role="parent")
        pid = os.fork()
        if not pid:
            with leaving("sys.exit"):
                telemetry = configure()
                with tracer.start_as_current_span(name):
                    pass
                assert telemetry.shutdown()
                say(case=name, role="shut down")
        wait_for(pid)


def serve(name: str, *, configures: bool) -> None:
    """A worker of a preforking server: it answers two requests, and leaves on SIGTERM."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    if configures:
        configure()
    with ModTracker(child):
        for _ in range(2):
            with tracer.start_as_current_span(name), torch.no_grad():
                child(torch.ones(1, 2))
        say(case=name, role="tracing")
        while not stop.wait(0.01):
            pass


def prefork(name: str, *, configures: bool) -> None:
    """The master of such a server: it has loaded the model, and two workers."""
    read, write = os.pipe()
    pids = []
    for _ in range(2):
        pid = os.fork()
        if not pid:
            os.dup2(write, 1)
            with leaving("sys.exit"):
                serve(name, configures=configures)
        pids.append(pid)
    os.close(write)
    with os.fdopen(read) as lines:
        for _ in pids:
            os.write(1, lines.readline().encode())
        for pid in pids:
            os.kill(pid, signal.SIGTERM)
    wait_for(*pids)


def main(*, spawning: bool) -> None:
    """Run the cases; those of preforking servers before there is any tracker."""
    leave_quickly()
    telemetry = configure()
    with tracer.start_as_current_span("before"):
        pass
    assert telemetry.flush()  # the transport has been in use
    if not spawning:
        for name, configures in (("preforked_and_configured", True), ("preforked", False)):
            with told_errors(case=name, role="over"):
                prefork(name, configures=configures)
    with ModTracker(child) as tracker:
        for function in spawning_cases if spawning else cases:
            name = function.__name__
            with told_errors(case=name, role="over"):
                function(name, tracker)
                assert telemetry.flush()


if __name__ == "__main__":
    main(spawning=sys.argv[1:] == ["spawning"])
