"""Tells what was measured: the tables, the targets, the environment."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import platform
from typing import TYPE_CHECKING, Any

import torch
from variants import EMPTY, MODTRACKER, OFF, RECORDED, RESTING, SPANS, UNSAMPLED, UNTRACKED

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["INFER", "MODES", "TRAIN", "environment", "table", "verdicts"]

TRAIN, INFER = "forward + backward", "forward, no_grad"
MODES = (TRAIN, INFER)


@dataclasses.dataclass(frozen=True)
class Target:
    """A ratio of two overheads that is not to be exceeded."""

    variant: str
    over: str
    limit: float
    modes: Sequence[str]


_TARGETS = (
    Target(RECORDED, MODTRACKER, 0.20, (TRAIN,)),
    Target(SPANS, MODTRACKER, 0.35, (TRAIN,)),
    Target(RECORDED, EMPTY, 1.20, (INFER,)),
    Target(UNSAMPLED, EMPTY, 0.50, MODES),
)
_TARGET_WORKLOADS = ("chain", "gpt")
_MOST_RESTING = 1.01  # of the untracked step


def verdicts(results: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each target and whether it was met."""
    found = []
    for result in results:
        rows = {row["variant"]: row for row in result["variants"]}
        where = f"{result['workload']}, {result['mode']}"
        for target in _TARGETS:
            if result["workload"] not in _TARGET_WORKLOADS or result["mode"] not in target.modes:
                continue
            measured = rows[target.variant][
                "of_empty_hooks" if target.over == EMPTY else "of_modtracker"
            ]
            met = measured <= target.limit
            outcome = "met" if met else f"missed by {measured - target.limit:.2f}"
            found.append(
                {
                    "where": where,
                    "variant": target.variant,
                    "over": target.over,
                    "limit": target.limit,
                    "measured": measured,
                    "met": met,
                    "text": f"{where}: {target.variant} at most {target.limit:.2f} of"
                    f" {target.over}: {measured:.2f}: {outcome}",
                }
            )
        slowdown = rows[RESTING]["slowdown"]
        met = slowdown <= _MOST_RESTING
        outcome = "met" if met else f"missed by {slowdown - _MOST_RESTING:.3f}"
        found.append(
            {
                "where": where,
                "variant": RESTING,
                "over": UNTRACKED,
                "limit": _MOST_RESTING,
                "measured": slowdown,
                "met": met,
                "text": f"{where}: {RESTING}, at most {_MOST_RESTING} of the untracked step:"
                f" {slowdown:.3f}: {outcome}",
            }
        )
        slowdown = rows[OFF]["slowdown"]
        found.append(  # `variants` has raised if it was not so
            {
                "where": where,
                "variant": OFF,
                "over": UNTRACKED,
                "limit": 1.0,
                "measured": slowdown,
                "met": True,
                "text": f"{where}: {OFF} runs torch's own code object, nothing else: met"
                f" (measured {slowdown:.3f} of the untracked step)",
            }
        )
    return found


def table(result: dict[str, Any]) -> str:
    """One workload in one mode, as text."""
    baseline = result["variants"][0]["step_us"]["median"]
    calls = result["calls_per_step"]
    lines = [
        f"{result['workload']}, {result['mode']}: {calls} module calls a step",
        f"  {'untracked':36} {baseline / calls:>24.2f} us a call, {baseline / 1e3:.3f} ms a step",
        f"  {'':36} {'us/call over untracked':>24} {'of empty':>9} {'of Mod-':>9} {'whole':>8}",
        f"  {'variant':36} {'median [quartiles]':>24} {'hooks':>9} {'Tracker':>9} {'step':>8}",
    ]
    for row in result["variants"][1:]:
        over = row["overhead_us_per_call"]
        spread_text = f"{over['median']:.2f} [{over['q1']:.2f}, {over['q3']:.2f}]"
        lines.append(
            f"  {row['variant']:36} {spread_text:>24} {row['of_empty_hooks']:>9.2f}"
            f" {row['of_modtracker']:>9.2f} {row['slowdown']:>7.2f}x"
        )
    return "\n".join(lines)


def environment() -> dict[str, Any]:
    """Versions and the number of processors; nothing that names the machine."""
    packages = (
        "otel_modtrack",
        "opentelemetry-api",
        "opentelemetry-sdk",
        "opentelemetry-exporter-otlp-proto-http",
    )
    found: dict[str, Any] = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "system": platform.system(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
    }
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:  # run from the source tree
            found[package] = None
    return found
