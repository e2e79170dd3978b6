"""What tracking costs: microseconds per module call over the untracked loop.

All variants are timed in one run, in turns: a round visits each once, the untracked loop several
times, and a variant's overhead is its time less the untracked time of the same round. Medians and
quartiles over the rounds are printed, and written as JSON. See README.md beside this file.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import json
import os
import pathlib
import statistics
import sys
import time
import warnings
from typing import TYPE_CHECKING, Any

import torch
from report import MODES, TRAIN, environment, table, verdicts
from telemetry import Telemetry
from variants import EMPTY, MODTRACKER, UNTRACKED, Variant, variants
from workloads import WORKLOADS, Workload

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Loop", "Settings", "main", "parse", "say", "spread"]

# The second leaves out what else the machine does, and waiting for the receiver.
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
_BASELINES = 3  # visits of the untracked loop per round


@dataclasses.dataclass(frozen=True)
class Settings:
    """How long is measured.

    Attributes:
        rounds: how often each variant is visited.
        visit_s: seconds that one visit of the untracked loop takes.
        warmup: steps before the clock starts, in each visit.
        clock: a key of `CLOCKS`.
    """

    rounds: int = 40
    visit_s: float = 0.02
    warmup: int = 2
    clock: str = "wall"


def say(text: str) -> None:
    """Progress, on stderr."""
    print(text, file=sys.stderr, flush=True)


@dataclasses.dataclass(frozen=True)
class Loop:
    """The loop that is timed: a model, its step in one mode, and how to time it."""

    workload: Workload
    step: Callable[[], None]
    settings: Settings

    def visit(self, variant: Variant, steps: int) -> float:
        """Seconds per step under a variant, what follows the last step included."""
        clock = CLOCKS[self.settings.clock]
        with variant.use(self.workload.model) as drain:
            step = variant.around(self.step)
            for _ in range(self.settings.warmup):
                step()
            drain()
            gc.collect()  # the collector is on, and starts from the same state for all
            begun = clock()
            for _ in range(steps):
                step()
            drain()
            return (clock() - begun) / steps

    def steps_per_visit(self, untracked: Variant) -> int:
        """How many untracked steps take about `visit_s`."""
        fastest = min(self.visit(untracked, 5) for _ in range(10))
        return max(2, round(self.settings.visit_s / fastest))


def turns(all_of_them: Sequence[Variant], turn: int) -> list[Variant]:
    """The order of one round: another one first each time, the untracked loop spread among them."""
    baseline, others = all_of_them[0], list(all_of_them[1:])
    at = turn * 5 % len(others)
    others = others[at:] + others[:at]
    if turn % 2:
        others.reverse()
    for number in range(_BASELINES):
        others.insert(number * len(all_of_them) // (_BASELINES - 1) + number, baseline)
    return others


def measure(
    name: str, mode: str, all_of_them: Sequence[Variant], settings: Settings
) -> dict[str, Any]:
    """Visit every variant in turns with one workload in one mode."""
    torch.manual_seed(0)
    workload = WORKLOADS[name]()
    calls = workload.calls()
    loop = Loop(workload, workload.train if mode == TRAIN else workload.infer, settings)
    times: dict[str, list[float]] = {variant.name: [] for variant in all_of_them}
    with torch.set_grad_enabled(mode == TRAIN):
        steps = loop.steps_per_visit(all_of_them[0])
        say(f"{name}, {mode}: {calls} calls a step, {steps} steps a visit")
        for turn in range(settings.rounds):
            if turn and turn % 10 == 0:
                say(f"  round {turn} of {settings.rounds}")
            seen: dict[str, list[float]] = {}
            for variant in turns(all_of_them, turn):
                seen.setdefault(variant.name, []).append(loop.visit(variant, steps))
            for key, values in seen.items():
                times[key].append(statistics.median(values))
    return {
        "workload": name,
        "mode": mode,
        "calls_per_step": calls,
        "steps_per_visit": steps,
        "variants": summary(times, calls),
    }


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median and quartiles."""
    if len(values) == 1:
        return dict.fromkeys(("q1", "median", "q3"), values[0])
    q1, median, q3 = statistics.quantiles(values, n=4, method="inclusive")
    return {"q1": q1, "median": median, "q3": q3}


def summary(times: dict[str, list[float]], calls: int) -> list[dict[str, Any]]:
    """Per variant: step time, overhead per call (paired by round), and the ratios of medians."""
    baseline = times[UNTRACKED]
    overheads = {
        name: [(one - base) / calls * 1e6 for one, base in zip(values, baseline, strict=True)]
        for name, values in times.items()
    }
    medians = {name: statistics.median(values) for name, values in overheads.items()}
    return [
        {
            "variant": name,
            "step_us": spread([value * 1e6 for value in values]),
            "overhead_us_per_call": spread(overheads[name]),
            "of_empty_hooks": medians[name] / medians[EMPTY],
            "of_modtracker": medians[name] / medians[MODTRACKER],
            "slowdown": statistics.median(
                one / base for one, base in zip(values, baseline, strict=True)
            ),
        }
        for name, values in times.items()
    ]


def parse(
    parser: argparse.ArgumentParser, argv: Sequence[str] | None, default: Settings, results: str
) -> tuple[argparse.Namespace, Settings]:
    """What all benchmarks are told, beside what `parser` knows already; the folder is made.

    Args:
        parser: of the benchmark's own options.
        argv: the command line.
        default: what is measured how often, unless it is told otherwise.
        results: the file that the results are written to, unless it is told otherwise.
    """
    parser.add_argument(
        "--rounds", type=int, help=f"visits of each variant (default: {default.rounds})"
    )
    parser.add_argument("--quick", action="store_true", help="see that it runs; figures are rough")
    parser.add_argument(
        "--clock",
        choices=list(CLOCKS),
        default="wall",
        help="cpu: the processor time of this process, where others use the machine as well",
    )
    parser.add_argument(
        "--json",
        type=pathlib.Path,
        default=pathlib.Path(__file__).with_name("results") / results,
        metavar="OUT",
        help="where the results are written (default: %(default)s)",
    )
    options = parser.parse_args(argv)
    if options.rounds is not None and options.rounds < 1:
        parser.error("--rounds: at least 1")
    settings = dataclasses.replace(default, clock=options.clock)
    if options.quick:
        settings = dataclasses.replace(settings, rounds=3, visit_s=0.002)
    if options.rounds is not None:
        settings = dataclasses.replace(settings, rounds=options.rounds)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    return options, settings


def forget_environment() -> None:
    """Where the caller exports to, limits and samplers of theirs, are not what is measured."""
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        del os.environ[name]


def prepare() -> None:
    """One thread of torch's, and nothing of the caller's."""
    forget_environment()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # torch's, about what is compared with


def publish(
    options: argparse.Namespace,
    settings: Settings,
    results: Sequence[dict[str, Any]],
    tell: Callable[[dict[str, Any]], str],
    targets: Sequence[str] | None = None,
    **more: Any,
) -> int:
    """Print results and targets, and write all of it to the file that was asked for.

    Args:
        options: from `parse`.
        settings: likewise.
        results: what was measured.
        tell: one of them as text.
        targets: which were met and which were not, a line each; None for none.
        more: that is written besides.

    Returns:
        The exit code.
    """
    report = {
        "environment": environment(),
        "settings": dataclasses.asdict(settings) | {"quick": options.quick},
        "results": results,
        **more,
    }
    print(" ".join(f"{key}={value}" for key, value in report["environment"].items()))
    for result in results:
        print(f"\n{tell(result)}")
    if targets is not None:
        print("\nTargets")
        for target in targets:
            print(f"  {target}")
    options.json.write_text(json.dumps(report, indent=1) + "\n")
    say(f"\nwritten: {options.json}")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, write. A missed target is told, and is not an error."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--workload",
        action="append",
        choices=list(WORKLOADS),
        help="only this one; may be repeated",
    )
    options, settings = parse(parser, argv, Settings(), "overhead.json")
    prepare()
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler tells every start and stop
    telemetry = Telemetry()
    try:
        gc.collect()
        gc.freeze()  # what was imported is not walked in anyone's time
        results = [
            measure(name, mode, variants(telemetry), settings)
            for name in options.workload or WORKLOADS
            for mode in MODES
        ]
    finally:
        gc.unfreeze()
        telemetry.close()
    found = verdicts(results)
    return publish(
        options,
        settings,
        results,
        table,
        [verdict["text"] for verdict in found],
        spans_delivered=telemetry.exporter.delivered,
        verdicts=found,
    )


if __name__ == "__main__":
    sys.exit(main())
