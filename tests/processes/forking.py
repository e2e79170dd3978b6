"""What the programs that fork have in common: cases, a model, and ways for a child to leave."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from typing import TYPE_CHECKING

import torch
from opentelemetry import trace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from otel_modtrack import ModTracker

tracer = trace.get_tracer("app")
child = torch.nn.Sequential(torch.nn.Linear(2, 2))
cases: list[Callable[[str, ModTracker], None]] = []
spawning_cases: list[Callable[[str, ModTracker], None]] = []


def wait_for(*pids: int) -> None:
    """Until these children have ended, and well."""
    for pid in pids:
        _, status = os.waitpid(pid, 0)
        assert status == 0, f"child {pid} ended with status {status}"


def case(function: Callable[[str, ModTracker], None]) -> None:
    """Register a case; it gets its name, and the tracker that is on."""
    cases.append(function)


def spawning_case(function: Callable[[str, ModTracker], None]) -> None:
    """The same, where children begin anew: each of them imports torch."""
    spawning_cases.append(function)


@contextlib.contextmanager
def leaving(way: str) -> Iterator[None]:
    """What a child does, and how it leaves the process then."""
    try:
        yield
    except Exception:  # noqa: BLE001 - told by the test
        traceback.print_exc()
        os._exit(1)
    if way == "os._exit":
        os._exit(0)
    sys.exit(0)
