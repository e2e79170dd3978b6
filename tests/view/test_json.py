"""The document for scripts: its keys are those of docs/view.md, its numbers those of the text."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from otel_modtrack.cli import main
from tests.view.making import (
    BASE_NS,
    MS,
    as_json,
    as_line,
    launched,
    make_parallel_step,
    make_run,
    make_span,
    make_step,
    write,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.view.running import Shown

DOCS = Path(__file__).parents[2] / "docs" / "view.md"


def document(capsys: Shown, *arguments: str) -> dict[str, Any]:
    """Run the command with --json, and return what it prints."""
    assert main(["view", *arguments, "--json"]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    found = json.loads(shown.out)
    assert isinstance(found, dict)
    return found


@pytest.fixture
def parallel(tmp_path: Path) -> str:
    """A file of one step of rank 1 of 2, with collectives."""
    return write(tmp_path / "parallel.jsonl", make_parallel_step())


def test_tree(parallel: str, capsys: Shown) -> None:
    """A list of parts, each with its spans from top to bottom."""
    found = document(capsys, parallel, "--depth", "2")
    assert {key: found[key] for key in ("view", "version", "files", "skipped")} == {
        "view": "tree",
        "version": 1,
        "files": [parallel],
        "skipped": [],
    }
    (part,) = found["parts"]
    spans = part.pop("spans")
    assert part == {
        "rank": 1,
        "world_size": 2,
        "service": "svc",
        "step": 7,
        "trace_id": "t",
        "start_unix_ns": str(BASE_NS),
        "duration_ms": 10.0,
        "span_count": 6,
        "collectives": [
            {"operation": "all_gather", "group": None, "count": 4, "size_bytes": 3072},
            {"operation": "all_reduce", "group": "mesh_tp", "count": 2, "size_bytes": 64},
            {"operation": "reduce_scatter", "group": None, "count": 1, "size_bytes": 1_500_000},
            {"operation": "barrier", "group": None, "count": 1, "size_bytes": 0},
        ],
    }
    assert [(span["depth"], span["label"], span["hidden"]) for span in spans] == [
        (0, "train_step 7", 0),
        (1, "forward Net", 2),
        (1, "backward", 1),
    ]
    assert spans[1] == {
        "depth": 1,
        "span_id": "b",
        "parent_id": "a",
        "name": "forward Net",
        "label": "forward Net",
        "phase": "forward",
        "fqn": "Net",
        "template": "Net",
        "type": None,
        "call_index": None,
        "start_ms": 1.0,
        "duration_ms": 4.0,
        "self_ms": 1.0,
        "share": 0.4,
        "error": None,
        "is_context": False,
        "hidden": 2,
        "collectives": part["collectives"][:2],
    }
    assert found["slowest"][0]["name"] == "backward Net"


def test_way_down_and_errors_of_a_tree(tmp_path: Path, capsys: Shown) -> None:
    """What is shown only for what is in it is marked; a failed span has its error."""
    failed = make_span("x", "b", "forward Net.l.2", 4, 5, phase="forward", fqn="Net.l.2", error="E")
    path = write(tmp_path / "run.jsonl", [*make_step(), failed])
    (part,) = document(capsys, path, "--module", "l.2")["parts"]
    assert [(span["label"], span["is_context"], span["error"]) for span in part["spans"]] == [
        ("train_step 7", True, None),
        ("forward Net", True, None),
        ("forward Net.l.2", False, "E"),
    ]


def test_top(run: str, capsys: Shown) -> None:
    """Sums, shares and means of each row."""
    found = document(capsys, run, "--top", "1", "--by", "fqn", "--sort", "total")
    del found["files"], found["skipped"], found["version"]
    assert found == {
        "view": "top",
        "unit": "step",
        "unit_count": 3,
        "ranks": [],
        "duration_ms": 50.0,
        "span_count": 18,
        "outside_span_count": 0,
        "by": "fqn",
        "sort": "total",
        "rows": [
            {
                "name": "train_step",
                "phase": "step",
                "module": None,
                "calls": 3,
                "self_ms": 10.0,
                "self_share": 0.2,
                "self_ms_per_unit": 3.333333,
                "total_ms": 50.0,
                "total_share": 1.0,
                "total_ms_per_unit": 16.666667,
                "mean_ms": 16.666667,
                "longest_ms": 30.0,
            }
        ],
    }


def test_collectives(tmp_path: Path, capsys: Shown) -> None:
    """One row for each operation, group and module."""
    event = launched("all_reduce", 2, 64, "mesh_tp", group_size=4, duration=0.5)
    span = replace(make_span("a", "", "s", 0, 1), events=(event,))
    path = write(tmp_path / "run.jsonl", [span])
    found = document(capsys, path, "--collectives")
    assert (found["view"], found["unit"], found["by"]) == ("collectives", "trace", "template")
    assert found["rows"] == [
        {
            "operation": "all_reduce",
            "group": "mesh_tp",
            "group_size": 4,
            "name": "s",
            "phase": "other",
            "module": None,
            "count": 2,
            "size_bytes": 64,
            "duration_ms": 500.0,
            "timed_count": 2,
        }
    ]


def test_durations_that_are_not_told_are_null(parallel: str, capsys: Shown) -> None:
    """Not 0."""
    rows = document(capsys, parallel, "--collectives")["rows"]
    assert {(row["duration_ms"], row["timed_count"]) for row in rows} == {(None, 0)}


def test_diff(run: str, tmp_path: Path, capsys: Shown) -> None:
    """Both runs, and their means per step."""
    spans = [
        replace(span, end_ns=span.end_ns + MS) if span.name == "train_step" else span
        for span in make_run(1, 2)
    ]
    other = write(tmp_path / "other.jsonl", spans)
    found = document(capsys, run, "--diff", other, "--top", "1")
    assert (found["files"], found["other_files"]) == ([run], [other])
    assert found["before"] == {
        "unit": "step",
        "unit_count": 2,
        "ranks": [],
        "duration_ms": 20.0,
        "span_count": 12,
        "outside_span_count": 0,
        "left_out_count": 1,
        "mean_ms": 10.0,
        "median_ms": 10.0,
    }
    assert found["after"]["mean_ms"] == 11.0
    assert (found["difference_ms"], found["median_difference_ms"]) == (1.0, 1.0)
    assert found["rows"] == [
        {
            "name": "train_step",
            "phase": "step",
            "module": None,
            "before": {
                "self_ms": 2.0,
                "self_median_ms": 2.0,
                "total_ms": 10.0,
                "total_median_ms": 10.0,
                "calls": 1.0,
            },
            "after": {
                "self_ms": 3.0,
                "self_median_ms": 3.0,
                "total_ms": 11.0,
                "total_median_ms": 11.0,
                "calls": 1.0,
            },
            "self_difference_ms": 1.0,
            "self_median_difference_ms": 1.0,
            "total_difference_ms": 1.0,
            "total_median_difference_ms": 1.0,
        }
    ]


def test_what_is_in_one_run_only_is_null_in_the_other(tmp_path: Path, capsys: Shown) -> None:
    """And counts as no time at all."""
    path = write(tmp_path / "a.jsonl", make_step())
    other = write(tmp_path / "b.jsonl", [span for span in make_step() if span.span_id != "f"])
    rows = document(capsys, path, "--diff", other)["rows"]
    (gone,) = [row for row in rows if row["name"] == "backward Net"]
    assert (gone["after"], gone["self_difference_ms"]) == (None, -3.0)


def test_what_was_skipped_is_in_the_document(tmp_path: Path, capsys: Shown) -> None:
    """As well as on stderr."""
    path = tmp_path / "run.jsonl"
    path.write_text("torn\n" + as_line(*map(as_json, make_step())))
    assert main(["view", str(path), "--json"]) == 0
    (skipped,) = json.loads(capsys.readouterr().out)["skipped"]
    assert skipped == {"file": str(path), "reason": "no OTLP JSON", "lines": [1]}


def test_very_deep_tree(tmp_path: Path, capsys: Shown) -> None:
    """A tree deeper than Python's recursion limit is a flat list."""
    depth = 2000
    spans = [make_span(f"s{i}", f"s{i - 1}", "s", i, 2 * depth - i) for i in range(depth)]
    (part,) = document(capsys, write(tmp_path / "run.jsonl", spans))["parts"]
    assert [span["depth"] for span in part["spans"]] == list(range(depth))


def test_script_reads_stdin_and_writes_ascii(run: str) -> None:
    """In a pipe, whatever the names in it."""
    content = Path(run).read_text().replace("Net", "N\\u00e9t\\u009b")
    done = subprocess.run(
        [sys.executable, "-m", "otel_modtrack", "view", "-", "--json", "--top"],
        input=content.encode(),
        capture_output=True,
        check=True,
    )
    assert done.stdout.isascii()
    assert "backward Nét\x9b" in {row["name"] for row in json.loads(done.stdout)["rows"]}


def keys(value: object) -> Iterator[str]:
    """Yield every key of a document."""
    if isinstance(value, dict):
        yield from value
        for content in value.values():
            yield from keys(content)
    elif isinstance(value, list):
        for content in value:
            yield from keys(content)


def test_every_key_is_documented(parallel: str, capsys: Shown) -> None:
    """And every key that is documented is there."""
    torn = Path(parallel).with_name("torn.jsonl")
    torn.write_text("torn\n" + Path(parallel).read_text())
    found = set()
    for options in ([], ["--top"], ["--collectives"], ["--diff", str(torn)]):
        main(["view", str(torn), *options, "--json"])
        found |= set(keys(json.loads(capsys.readouterr().out)))
    section = DOCS.read_text().split("\n## For scripts")[1].split("\n## ")[0]
    rows = "".join(line for line in section.splitlines() if line.startswith("| `"))
    views = {"tree", "top", "diff", "trace"}  # what `view` and `unit` may be
    assert set(re.findall(r"`(\w+)`", rows)) - views == found
