"""Where we are: the innermost region that runs on a thread, and which process of how many."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import torch
from torch import nn

from otel_modtrack.core import CORE, real
from otel_modtrack.engine import current_graph_task_id
from otel_modtrack.regions import Kind

if TYPE_CHECKING:
    import types

    from otel_modtrack.core import ThreadState
    from otel_modtrack.regions import Region

__all__ = ["fqns_on_stack", "process", "rank", "region"]


def region(state: ThreadState) -> Region | None:
    """The innermost open region of this thread, an optimizer's step included; None if none is."""
    running = state.running
    if running is None or running.subject.kind is Kind.ENGINE:
        run = CORE.runs.get(current_graph_task_id())
        if run is None and running is not None:
            run = running.span
        running = run.locate() if run is not None else real(running)
    return running or state.optimizer


def fqns_on_stack() -> set[str]:
    """The modules whose calls are on the Python stack: for where nothing is recorded."""
    code = nn.Module._wrapped_call_impl.__code__  # noqa: SLF001
    found: set[str] = set()
    frame: types.FrameType | None = sys._getframe()  # noqa: SLF001
    while frame is not None:
        if frame.f_code is code:
            module: nn.Module = frame.f_locals["self"]
            found.add(CORE.names.fqn(module) or CORE.names.name(module).fqn)
        frame = frame.f_back
    return found


def process() -> tuple[int, int]:
    """Rank and world size of this process; (0, 0) where nothing is distributed."""
    dist = torch.distributed
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 0


def rank() -> int:
    """Rank of this process: torch.distributed's, or the launcher's, or 0."""
    found, world_size = process()
    told = os.environ.get("RANK", "")
    return int(told) if not world_size and told.isdecimal() else found
