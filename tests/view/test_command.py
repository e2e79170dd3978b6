"""The whole command, as it is typed: what it prints."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.trace import Status, StatusCode

from otel_modtrack.usage import UsageError
from otel_modtrack.view.command import view_spans
from otel_modtrack.view.reader import from_sdk
from tests.view.making import (
    MS,
    launched,
    make_parallel_step,
    make_ranks,
    make_run,
    make_span,
    make_step,
    write,
)
from tests.view.running import Shown, view

if TYPE_CHECKING:
    from pathlib import Path

    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


# The tree


def test_last_step_is_shown(run: str, capsys: Shown) -> None:
    """Headline, tree and a small table of the slowest."""
    assert view(capsys, run) == (
        "Step 3 of svc: 6 spans, 10.0 ms\n"
        "\n"
        " total ms    self ms   share  span\n"
        "   10.000      2.000  100.0%  train_step 3\n"
        "    4.000      1.000   40.0%  ├─ forward Net\n"
        "    1.000      1.000   10.0%  │  ├─ forward Net.l.0\n"
        "    2.000      2.000   20.0%  │  └─ forward Net.l.1\n"
        "    4.000      1.000   40.0%  └─ backward\n"
        "    3.000      3.000   30.0%     └─ backward Net\n"
        "\n"
        "Slowest by time of their own:\n"
        "\n"
        "  self ms   share   total ms  calls  span\n"
        "    3.000   30.0%      3.000      1  backward Net\n"
        "    3.000   30.0%      3.000      2  forward Net.l.*\n"
        "    2.000   20.0%     10.000      1  train_step\n"
        "    1.000   10.0%      4.000      1  backward\n"
        "    1.000   10.0%      4.000      1  forward Net\n"
    )


def test_ranks_are_shown_one_after_the_other(tmp_path: Path, capsys: Shown) -> None:
    """Each with its headline; the table sums them up."""
    paths = [
        write(
            tmp_path / f"rank{rank}.jsonl", [s for s in make_ranks(2, 1) if s.process.rank == rank]
        )
        for rank in (1, 0)
    ]
    lines = view(capsys, *paths, "--depth", "1").splitlines()
    assert lines[0] == "Step 1 of svc, rank 0 of 2: 6 spans, 10.0 ms"
    assert lines[5] == "Step 1 of svc, rank 1 of 2: 6 spans, 10.0 ms"
    assert lines[10] == "Slowest by time of their own, 2 ranks together:"
    assert lines[13] == "    6.000   30.0%      6.000      2  backward Net"


def test_same_file_twice_counts_once(run: str, capsys: Shown) -> None:
    """As after an export that was repeated."""
    assert view(capsys, run, run) == view(capsys, run)


def test_phase_and_module_leave_out_the_rest(run: str, capsys: Shown) -> None:
    """Also in the table below the tree."""
    lines = view(capsys, run, "--step", "2", "--phase", "forward", "--module", "l.1").splitlines()
    assert lines[:2] == [
        "Step 2 of svc: 6 spans, 10.0 ms",
        "1 span fits --phase forward --module l.1, and what they are in is shown",
    ]
    assert [line.split("  ")[-1].strip("└─ ") for line in lines[4:7]] == [
        "train_step 2",
        "forward Net",
        "forward Net.l.1",
    ]
    assert lines[-1] == "    2.000   20.0%      2.000      1  forward Net.l.*"


def test_headline_tells_the_rank_and_the_collectives(tmp_path: Path, capsys: Shown) -> None:
    """A step of a distributed program says whose it is, and how much it launched."""
    path = write(tmp_path / "trace.jsonl", make_parallel_step())
    assert view(capsys, path).startswith(
        "Step 7 of svc, rank 1 of 2: 6 spans, 10.0 ms, 8 collectives of 1.4 MiB\n"
    )
    one = replace(make_span("a", "", "train_step", 0, 1, step=0), events=(launched("send", 1, 8),))
    path = write(tmp_path / "trace.jsonl", [one])
    assert view(capsys, path).startswith("Step 0 of svc: 1 span, 1.0 ms, 1 collective of 8 B\n")


# Tables


def test_top_is_over_all_steps(run: str, capsys: Shown) -> None:
    """The headline says of what, and how many rows there are."""
    assert view(capsys, run, "--top", "2", "--sort", "total") == (
        "3 steps of svc: 18 spans, 50.0 ms\n"
        "\n"
        "The first 2 of 5 rows by time:\n"
        "\n"
        "  self ms   share   total ms   share  calls    mean ms  longest ms  span\n"
        "   10.000   20.0%     50.000  100.0%      3     16.667      30.000  train_step\n"
        "    5.000   10.0%     20.000   40.0%      3      6.667      12.000  backward\n"
    )


def test_top_of_a_phase_by_fqn(run: str, capsys: Shown) -> None:
    """All rows that there are are shown, and shares stay those of the steps."""
    lines = view(capsys, run, "--top", "--by", "fqn", "--phase", "forward").splitlines()
    assert lines[2] == "All 3 rows by time of their own, --phase forward only:"
    assert [line.split()[:2] + line.split()[-1:] for line in lines[5:]] == [
        ["10.000", "20.0%", "Net.l.1"],
        ["5.000", "10.0%", "Net"],
        ["5.000", "10.0%", "Net.l.0"],
    ]


def test_top_of_ranks(tmp_path: Path, capsys: Shown) -> None:
    """All ranks together, or one; spans in no step are left out, which is said."""
    outside = replace(make_span("x", "", "forward Net", 0, 1), trace_id="o")
    path = write(tmp_path / "run.jsonl", [*make_ranks(2, 1, 2), outside])
    headline = view(capsys, path, "--top").splitlines()[0]
    assert headline == "4 steps of svc on 2 ranks: 24 spans, 40.0 ms; 1 span in no step left out"
    headline = view(capsys, path, "--top", "--rank", "1").splitlines()[0]
    assert headline == "2 steps of svc, rank 1 of 2: 12 spans, 20.0 ms"


def test_collectives(tmp_path: Path, capsys: Shown) -> None:
    """A table of all steps, or a sentence where there are none."""
    path = write(tmp_path / "run.jsonl", make_parallel_step())
    text = view(capsys, path, "--collectives", "--by", "fqn")
    assert text.startswith(
        "1 step of svc, rank 1 of 2: 6 spans, 10.0 ms\n"
        "\n"
        "8 collectives of 1.4 MiB:\n"
        "\n"
        " count        size         ms  operation, group, span\n"
        "     1     1.4 MiB          -  reduce_scatter, undefined\n"
        "     1     1.4 MiB          -    backward Net\n"
    )
    path = write(tmp_path / "run.jsonl", make_step())
    assert view(capsys, path, "--collectives", "--phase", "forward") == (
        "1 step of svc: 6 spans, 10.0 ms\n\nNo collective was launched, --phase forward only.\n"
    )


def test_diff(run: str, tmp_path: Path, capsys: Shown) -> None:
    """The headline has the mean step of both, without the first."""
    spans = [
        replace(span, end_ns=span.end_ns + MS) if span.name == "train_step" else span
        for span in make_run(5, 6, 7, 8)
    ]
    other = write(tmp_path / "other.jsonl", spans)
    assert view(capsys, run, "--diff", other, "--top", "1") == (
        f"Before: {run}: 2 steps of svc, without the first: 10.000 ms a step, "
        "median 10.000 ms\n"
        f"After: {other}: 3 steps of svc, without the first: 11.000 ms a step, "
        "median 11.000 ms\n"
        "Difference: +1.000 ms (+10.0%) a step, of the medians +1.000 ms (+10.0%)\n"
        "\n"
        "The first 1 of 5 differences in time of their own a step:\n"
        "\n"
        "before ms   after ms  difference         %  of medians  calls  span\n"
        "    2.000      3.000      +1.000    +50.0%      +1.000      1  train_step\n"
    )


def test_diff_of_one_step_and_one_phase(run: str, tmp_path: Path, capsys: Shown) -> None:
    """A step that was chosen is compared although it is the first."""
    other = write(tmp_path / "other.jsonl", make_run(1, 2))
    arguments = [run, "--diff", other, "--step", "1", "--phase", "backward", "--sort", "total"]
    lines = view(capsys, *arguments).splitlines()
    assert lines[0].endswith(": 1 step of svc: 30.000 ms a step, median 30.000 ms")
    assert lines[1].endswith(": 1 step of svc: 10.000 ms a step, median 10.000 ms")
    assert lines[2] == (
        "Difference: -20.000 ms (-66.7%) a step, of the medians -20.000 ms (-66.7%)"
    )
    assert lines[4] == "All 2 differences in time a step, --phase backward only:"
    assert lines[7] == "   12.000      4.000      -8.000    -66.7%      -8.000      1  backward"


def test_diff_of_several_files_each(tmp_path: Path, capsys: Shown) -> None:
    """The files of all ranks on both sides; one step less of each is counted."""
    both = []
    for name, numbers in (("a", (1, 2)), ("b", (1, 2, 3))):
        for rank in (0, 1):
            spans = [s for s in make_ranks(2, *numbers) if s.process.rank == rank]
            both.append(write(tmp_path / f"{name}{rank}.jsonl", spans))
    lines = view(capsys, *both[:2], "--diff", *both[2:]).splitlines()
    assert "a1.jsonl: 2 steps of svc on 2 ranks, without the first of each process: 10" in lines[0]
    assert "b1.jsonl: 4 steps of svc on 2 ranks" in lines[1]
    assert lines[2] == ("Difference: +0.000 ms (+0.0%) a step, of the medians +0.000 ms (+0.0%)")


# Without a file


def test_spans_of_the_sdk_are_shown_as_those_of_a_file(
    exporter: InMemorySpanExporter, provider: TracerProvider, capsys: Shown
) -> None:
    """What an in-memory exporter holds needs no file."""
    tracer = provider.get_tracer("test")
    step: dict[str, Any] = {
        "modtrack.step.number": 3,
        "modtrack.rank": 0,
        "modtrack.world_size": 4,
    }
    event = launched("all_reduce", 2, 64)
    with (
        tracer.start_as_current_span("train_step", attributes=step),
        tracer.start_as_current_span("forward Net") as span,
    ):
        span.add_event(event.name, dict(event.attributes), event.time_ns or 1)
        span.set_status(Status(StatusCode.ERROR, "no room"))
    finished = exporter.get_finished_spans()
    child, root = from_sdk(finished)
    assert (child.parent_id, root.parent_id) == (root.span_id, "")
    assert (child.failed, child.status_message, root.failed) == (True, "no room", False)
    assert (child.end_ns, child.events) == (finished[0].end_time, (replace(event, time_ns=1),))
    view_spans(finished, depth=1, top=0)
    headline, _, _, line = capsys.readouterr().out.splitlines()
    assert headline.startswith("Step 3, rank 0 of 4: 2 spans, ")
    assert line.endswith("train_step 3 (+1 below)  all_reduce x2 64 B")
    with pytest.raises(UsageError, match="no step 9 in the program: the only step is 3"):
        view_spans(finished, step=9)
    with pytest.raises(UsageError, match="there are no spans"):
        view_spans([])
