"""A program that does everything twice: run by `test_again`."""

from __future__ import annotations

import json
import os
import threading
from typing import Any

import torch
from opentelemetry import context as context_api, trace
from telling import leave_quickly

from otel_modtrack import ModTracker, configure

model = torch.nn.Sequential(torch.nn.Linear(2, 2))
tracer = trace.get_tracer("app")
trace_ids: list[str] = []


def call() -> None:
    """Call the model in a trace of its own."""
    with tracer.start_as_current_span("call") as span, torch.no_grad():
        trace_ids.append(f"{span.get_span_context().trace_id:032x}")
        model(torch.ones(1, 2))


def say(case: str, **line: Any) -> None:
    """Tell of a case."""
    found = {"case": case, "trace_ids": trace_ids, **line}
    os.write(1, f"{json.dumps(found)}\n".encode())
    trace_ids.clear()


def run_twice(source: str) -> None:
    """What a notebook does with a cell that is run again."""
    for _ in range(2):
        exec(source, globals())  # noqa: S102 - as a notebook does


CELL = """
telemetry = configure()
with ModTracker(model) as tracker:
    call()
"""
# Whoever has no place for a `with` leaves it on.
CELL_THAT_LEAVES_ONE_ON = """
telemetry = configure()
tracker = ModTracker(model)
trackers.append(tracker.__enter__())
call()
"""
trackers: list[ModTracker] = []


def leave_all() -> None:
    """Leave the trackers that were left on."""
    while trackers:
        trackers.pop().__exit__(None, None, None)


def main() -> None:
    """All cases."""
    leave_quickly()
    run_twice(CELL)
    say("a_cell_twice", calls=2)
    run_twice(CELL_THAT_LEAVES_ONE_ON)
    say("a_cell_that_leaves_its_tracker_on_twice", calls=2)
    leave_all()
    with ModTracker(model), ModTracker():
        call()
    say("a_tracker_in_a_tracker", calls=1)
    tracker = ModTracker(model)
    with tracker, tracker:
        call()
    call()  # no tracker: no spans of modules
    trace_ids.pop()
    say("one_tracker_entered_twice", calls=1)
    first, second = configure(), configure(service_name="other")
    threads = [one.name for one in threading.enumerate() if one.name.startswith("otel_modtrack")]
    same = first is second and first.spans is second.spans
    same = same and second.tracer_provider is trace.get_tracer_provider()
    say("configure_twice", same=same, threads=threads)
    suppress = getattr(context_api, "_SUPPRESS_INSTRUMENTATION_KEY", "suppress_instrumentation")
    token = context_api.attach(context_api.set_value(suppress, True))
    with ModTracker(model) as tracker, tracker.step(1):
        model(torch.ones(1, 2)).sum().backward()
    context_api.detach(token)
    say("suppressed", calls=0)


if __name__ == "__main__":
    main()
