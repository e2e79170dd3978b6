"""The overhead benchmark runs, and its table and JSON are whole. Its figures are not looked at."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from typing import Any

import pytest

ROOT = pathlib.Path(__file__).parents[1]
SCRIPT = ROOT / "benchmarks" / "overhead.py"
WORKLOADS = ("chain", "encoder", "gpt")
MODES = ("forward + backward", "forward, no_grad")
VARIANTS = (
    "untracked",
    "empty global hooks",
    "torch ModTracker",
    "torch ModuleTracker",
    "torch.profiler",
    "torch.profiler, stacks",
    "naive spans, forward, OTLP",
    "naive spans, both, OTLP",
    "ours: recorded",
    "ours: spans, dropped by a processor",
    "ours: spans, OTLP",
    "ours: parent not sampled",
    "ours: off",
)


def run(*args: str) -> subprocess.CompletedProcess[str]:
    """The script, in a process of its own: it freezes the collector and strips the environment."""
    return subprocess.run(  # noqa: S603 - our own script
        [sys.executable, str(SCRIPT), *args],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        timeout=300,
    )


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any]]:
    """What a quick run printed and wrote."""
    out = tmp_path_factory.mktemp("results") / "new folder" / "overhead.json"
    done = run("--quick", "--rounds", "1", "--json", str(out))
    assert done.returncode == 0, done.stderr
    assert "internal error" not in done.stderr
    return done.stdout, json.loads(out.read_text())


def test_json_has_every_variant_of_every_workload_in_every_mode(
    quick: tuple[str, dict[str, Any]],
) -> None:
    """Nothing is missing, every number is one, and quartiles are in order."""
    _, report = quick
    found = [(result["workload"], result["mode"]) for result in report["results"]]
    assert found == [(workload, mode) for workload in WORKLOADS for mode in MODES]
    for result in report["results"]:
        assert (
            result["calls_per_step"] == {"chain": 101, "encoder": 55, "gpt": 77}[result["workload"]]
        )
        assert tuple(row["variant"] for row in result["variants"]) == VARIANTS
        for row in result["variants"]:
            for name in ("step_us", "overhead_us_per_call"):
                spread = row[name]
                assert spread["q1"] <= spread["median"] <= spread["q3"]
            assert row["step_us"]["q1"] > 0
            for name in ("of_empty_hooks", "of_modtracker", "slowdown"):
                assert isinstance(row[name], float)
    assert report["spans_delivered"] > 0


def test_json_tells_the_versions_and_nothing_of_the_machine_s_name(
    quick: tuple[str, dict[str, Any]],
) -> None:
    """The environment is what a reader needs to compare figures."""
    _, report = quick
    assert set(report["environment"]) == {
        "python",
        "torch",
        "system",
        "machine",
        "cpus",
        "torch_threads",
        "otel_modtrack",
        "opentelemetry-api",
        "opentelemetry-sdk",
        "opentelemetry-exporter-otlp-proto-http",
    }
    assert report["environment"]["torch_threads"] == 1
    assert report["settings"]["rounds"] == 1
    assert report["settings"]["quick"] is True


def test_table_has_a_line_for_each_variant_and_a_verdict_for_each_target(
    quick: tuple[str, dict[str, Any]],
) -> None:
    """What is printed is what was written."""
    printed, report = quick
    lines = printed.splitlines()
    for variant in VARIANTS:
        tables = [line for line in lines if line.startswith(f"  {variant}  ")]
        assert len(tables) == len(WORKLOADS) * len(MODES), variant
    verdicts = report["verdicts"]
    # chain and gpt: three targets in training, two in inference; off everywhere
    assert len(verdicts) == 2 * (3 + 2) + len(WORKLOADS) * len(MODES)
    for verdict in verdicts:
        assert f"  {verdict['text']}" in lines
        assert verdict["met"] == ("missed by" not in verdict["text"])
        assert verdict["met"] == (verdict["measured"] <= verdict["limit"]) or (
            verdict["variant"] == "ours: off"
        )


def test_one_workload_and_a_wrong_one(tmp_path: pathlib.Path) -> None:
    """`--workload` measures that one alone; a name that does not exist is told."""
    out = tmp_path / "one.json"
    done = run("--quick", "--workload", "gpt", "--clock", "cpu", "--json", str(out))
    assert done.returncode == 0, done.stderr
    report = json.loads(out.read_text())
    assert {result["workload"] for result in report["results"]} == {"gpt"}
    assert report["settings"]["clock"] == "cpu"
    wrong = run("--workload", "nothing")
    assert wrong.returncode == 2
    assert "chain" in wrong.stderr
