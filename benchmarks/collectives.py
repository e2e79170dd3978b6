"""What counting collectives costs: where there are none, per all_reduce, and on other operators.

All variants are timed in one run, in turns, as in `overhead.py`. The reference is the same program
under a tracker that does not look for collectives, ``collectives="off"``. See README.md beside this
file.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import math
import os
import pathlib
import random
import statistics
import sys
import tempfile
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from opentelemetry.sdk.trace import TracerProvider
from overhead import Loop, Settings, parse, prepare, publish, say, spread
from programs import (
    OFF,
    WAYS,
    Program,
    adding,
    all_reducing,
    counting,
    program_variants,
    without_collectives,
)
from report import INFER, TRAIN
from telemetry import Dropping
from torch import multiprocessing
from variants import UNTRACKED

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

__all__ = ["main"]

LIMIT_RATIO = 1.02  # of the whole, where there are no collectives
_BASELINES = 3  # visits of the reference per round


# -- measuring ----------------------------------------------------------------------------------


def measure(
    program: Program, provider: TracerProvider | None, settings: Settings
) -> dict[str, Any]:
    """Visit every variant in turns; on all ranks in the same order."""
    all_of_them = program_variants(program, provider)
    reference = next(variant for variant in all_of_them if variant.name == OFF)
    loop = Loop(program.workload, program.step, settings)
    fastest = min(loop.visit(reference, 2) for _ in range(3))
    steps = _agreed(max(2, round(settings.visit_s / fastest)))
    say(f"{program.what}: {program.units} {program.unit}s a step, {steps} steps a visit")
    times: dict[str, list[float]] = {variant.name: [] for variant in all_of_them}
    for turn in range(settings.rounds):
        order = all_of_them + [reference] * (_BASELINES - 1)
        random.Random(turn).shuffle(order)  # noqa: S311 - no secret
        seen: dict[str, list[float]] = {}
        for variant in order:
            seen.setdefault(variant.name, []).append(loop.visit(variant, steps))
        for key, values in seen.items():
            times[key].append(statistics.median(values) / program.units * 1e6)
    return {
        "program": program.what,
        "unit": program.unit,
        "steps_per_visit": steps,
        "variants": [row(name, times, program) for name in times],
    }


def _agreed(steps: int) -> int:
    """What rank 0 says."""
    found = torch.tensor(steps)
    dist.broadcast(found, 0)
    return int(found)


def row(name: str, times: dict[str, list[float]], program: Program) -> dict[str, Any]:
    """One variant: us per unit, over the untracked and over the reference, paired by round."""
    mine, reference, bare = times[name], times[OFF], times[UNTRACKED]
    found: dict[str, Any] = {
        "variant": name,
        "us": spread(mine),
        "over_untracked_us": statistics.median(a - b for a, b in zip(mine, bare, strict=True)),
        "over_off_us": spread([a - b for a, b in zip(mine, reference, strict=True)]),
        "of_off": spread([a / b for a, b in zip(mine, reference, strict=True)]),
        "limit": None,
        "met": None,
        "error": None,
    }
    way = name.rpartition(", ")[2]
    if way in WAYS:
        limit = program.limits.get(way)
        measured = found["of_off" if limit is None else "over_off_us"]
        found["limit"] = LIMIT_RATIO if limit is None else limit
        found["met"] = measured["median"] <= found["limit"]
        found["error"] = _error(measured, len(mine))
    return found


def _error(measured: dict[str, float], rounds: int) -> float:
    """Standard error of a median: 1.253 standard deviations, that are 0.741 quartile distances."""
    return 1.253 * 0.741 * (measured["q3"] - measured["q1"]) / math.sqrt(rounds)


def in_one_process(settings: Settings) -> list[dict[str, Any]]:
    """Everything that one process can measure."""
    provider = _provider()
    results = []
    with _group(rank=0, world=1):
        for name in ("chain", "gpt"):
            for mode in (TRAIN, INFER):
                torch.manual_seed(0)
                with torch.set_grad_enabled(mode == TRAIN):
                    results.append(measure(without_collectives(name, mode), provider, settings))
        with torch.no_grad():
            results.append(measure(adding(), provider, settings))
        results += _all_reduces(all_reducing((1, 5)), provider, settings)
        results += _all_reduces([counting()], None, settings)
    return results


def _all_reduces(
    programs: Iterable[Program], provider: TracerProvider | None, settings: Settings
) -> list[dict[str, Any]]:
    with torch.no_grad():
        return [measure(program, provider, settings) for program in programs]


def in_two_processes(settings: Settings) -> list[dict[str, Any]]:
    """What two processes measure; the figures are those of rank 0."""
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(_worker, (folder, settings), nprocs=2)
        return json.loads((pathlib.Path(folder) / "results").read_text())


def _worker(rank: int, folder: str, settings: Settings) -> None:
    if rank:
        sys.stderr = pathlib.Path(os.devnull).open("w")  # noqa: SIM115 - rank 0 tells for both
    prepare()
    with _group(rank, world=2, folder=folder):
        results = _all_reduces(all_reducing((1,)), _provider(), settings)
    if not rank:
        (pathlib.Path(folder) / "results").write_text(json.dumps(results))


@contextlib.contextmanager
def _group(rank: int, world: int, folder: str = "") -> Iterator[None]:
    store = dist.FileStore(f"{folder}/store", world) if folder else dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    gc.collect()
    gc.freeze()  # what was imported is not walked in anyone's time
    try:
        yield
    finally:
        gc.unfreeze()
        dist.destroy_process_group()


def _provider() -> TracerProvider:
    """Its spans are made, and dropped by a processor."""
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(Dropping())
    return provider


# -- telling ------------------------------------------------------------------------------------


def table(result: dict[str, Any]) -> str:
    """One program, as text."""
    unit = f"us per {result['unit']}"
    lines = [
        result["program"],
        f"  {'variant':24} {unit:>17} {'over off [quartiles]':>24} {'of off':>7} {'over':>10}",
        f"  {'':24} {'':>17} {'':>24} {'':>7} {'untracked':>10}  target",
    ]
    for one in result["variants"]:
        over = one["over_off_us"]
        over_text = f"{over['median']:+.2f} [{over['q1']:+.2f}, {over['q3']:+.2f}]"
        lines.append(
            f"  {one['variant']:24} {one['us']['median']:>17.2f}"
            f" {'' if one['variant'] == OFF else over_text:>24} {one['of_off']['median']:>7.3f}"
            f" {one['over_untracked_us']:>+10.2f}  {_verdict(one, result['unit'])}".rstrip()
        )
    return "\n".join(lines)


def _verdict(one: dict[str, Any], unit: str) -> str:
    """Whether a target was met; where noise may have decided that, the word is in brackets."""
    if one["limit"] is None:
        return ""
    is_ratio = unit != "all_reduce"
    limit = f"{one['limit']:.2f} of off" if is_ratio else f"{one['limit']:+.0f} us"
    by = one["of_off" if is_ratio else "over_off_us"]["median"] - one["limit"]
    digits = 3 if is_ratio else 1
    outcome = "met" if one["met"] else f"missed by {by:.{digits}f}"
    if abs(by) > one["error"]:
        return f"{limit}: {outcome}"
    return f"{limit}: ({outcome}, +-{one['error']:.{digits}f})"


def verdicts(results: Sequence[dict[str, Any]]) -> list[str]:
    """How many targets were met, and those that were not."""
    found = [
        (result, one) for result in results for one in result["variants"] if one["met"] is not None
    ]
    missed = [
        f"{result['program']}: {one['variant']}: {_verdict(one, result['unit'])}"
        for result, one in found
        if not one["met"]
    ]
    return [f"{len(found) - len(missed)} of {len(found)} met", *missed]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, write. A missed target is told, and is not an error."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options, settings = parse(parser, argv, Settings(rounds=12), "collectives.json")
    prepare()
    results = in_one_process(settings) + in_two_processes(settings)
    found = verdicts(results)
    return publish(options, settings, results, table, found, verdicts=found)


if __name__ == "__main__":
    sys.exit(main())
