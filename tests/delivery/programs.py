"""A program that calls `configure`, in a process of its own: what it made, counted and printed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

# Reports what is known when everything that `configure` does at the exit is done.
_FRAME = """
import atexit, json, os, sys, time

spans = []

def report():
    counts = telemetry.spans
    print(json.dumps({{
        "spans": spans, "delivered": counts.delivered, "lost": counts.lost_by_reason,
        "waiting": counts.waiting, "exit_s": time.monotonic() - over_s,
    }}))

atexit.register(report)

from opentelemetry import trace
from otel_modtrack import configure

telemetry = configure()

def produce(count):
    for _ in range(count):
        with trace.get_tracer("tests").start_as_current_span("span") as span:
            spans.append(f"{{span.get_span_context().span_id:016x}}")

{body}
over_s = time.monotonic()
"""


@dataclass(frozen=True)
class Report:
    """What a program left.

    Attributes:
        spans: ids of what it made.
        delivered, lost, waiting: its counts, after everything.
        exit_s: from its last line to the end of all that is done at the exit.
        printed: what it printed besides.
        said: all of its standard error.
    """

    spans: list[str]
    delivered: int
    lost: Mapping[str, int]
    waiting: int
    exit_s: float
    printed: str
    said: str


def run(body: str, variables: Mapping[str, str]) -> Report:
    """Run `body` after `configure()`; `produce(n)` makes spans, `telemetry` is there.

    Args:
        body: lines of Python.
        variables: of the environment, beside what Python needs.
    """
    known = {name: os.environ[name] for name in ("HOME", "PATH") if name in os.environ}
    done = subprocess.run(  # noqa: S603 - our own program
        [sys.executable, "-W", "error", "-c", _FRAME.format(body=body)],
        env={**known, **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    *printed, last = done.stdout.splitlines()
    found: dict[str, Any] = json.loads(last)
    return Report(printed="\n".join(printed), said=done.stderr, **found)
