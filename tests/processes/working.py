"""What the children of `scenarios.py` do. Nothing here needs torch, unless a child wants it."""

from __future__ import annotations

import os
import sys

from opentelemetry import trace
from telling import say

from otel_modtrack import configure


def work(place: str, role: str, *, with_torch: bool = False) -> None:
    """Configure, make spans, and tell."""
    configure()
    if with_torch:
        import torch  # noqa: PLC0415 - takes seconds

        from otel_modtrack import ModTracker  # noqa: PLC0415 - needs torch

        model = torch.nn.Sequential(torch.nn.Linear(2, 2))
        with ModTracker(model), torch.no_grad():
            model(torch.ones(1, 2))
    else:
        with trace.get_tracer("app").start_as_current_span("work"):
            pass
    say(place=place, role=role, added=os.environ.get("ADDED"))


if __name__ == "__main__":
    work(*sys.argv[1:])
