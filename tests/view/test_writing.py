"""Files for other viewers: whole or not at all, and never over what is read."""

from __future__ import annotations

import io
import json
import os
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from otel_modtrack.cli import main
from otel_modtrack.sizes import render_size
from otel_modtrack.view import writing
from otel_modtrack.view.model import build_trees
from tests.view.making import make_ranks, make_run, write

if TYPE_CHECKING:
    from tests.view.running import Shown


@pytest.fixture
def run(tmp_path: Path) -> str:
    """A file of two steps of two ranks: 24 spans."""
    return write(tmp_path / "run.jsonl", make_ranks(2, 1, 2))


def names(folder: Path) -> list[str]:
    """Return what is in a folder."""
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(
    ("option", "how"),
    [
        ("html", "open it in a browser"),
        ("perfetto", "open it on https://ui.perfetto.dev"),
        ("chrome", "open it in chrome://tracing or on https://ui.perfetto.dev"),
        ("speedscope", "open it on https://www.speedscope.app"),
    ],
)
def test_each_format_is_written(
    run: str, tmp_path: Path, capsys: Shown, option: str, how: str
) -> None:
    """What was written, how large it is and how to open it is said; no tree is printed."""
    out = tmp_path / "out"
    assert main(["view", run, f"--{option}", str(out)]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    assert shown.out.count("\n") == 1
    assert shown.out.startswith(f"Wrote 24 spans to {out}, {render_size(out.stat().st_size)} in ")
    assert how in shown.out
    begins = {"html": b"<!doctype html>", "perfetto": b"\n"}.get(option, b"{")
    assert out.read_bytes().startswith(begins)
    assert names(tmp_path) == ["out", "run.jsonl"]


def test_several_formats_and_a_table(run: str, tmp_path: Path, capsys: Shown) -> None:
    """A table that was asked for is printed as well."""
    arguments = ["--chrome", str(tmp_path / "c"), "--speedscope", str(tmp_path / "s"), "--top"]
    assert main(["view", run, *arguments]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("4 steps of svc on 2 ranks")
    assert [line.split(",")[0] for line in lines[-2:]] == [
        f"Wrote 24 spans to {tmp_path / 'c'}",
        f"Wrote 24 spans to {tmp_path / 's'}",
    ]


@pytest.mark.parametrize(
    ("options", "count"),
    [([], 24), (["--step", "1"], 12), (["--rank", "0"], 12), (["--trace", "r1t2"], 6)],
)
def test_only_what_was_chosen_is_written(
    run: str, tmp_path: Path, options: list[str], count: int
) -> None:
    """--step, --rank and --trace hold for files, too."""
    out = tmp_path / "out"
    assert main(["view", run, "--chrome", str(out), *options]) == 0
    events = json.loads(out.read_bytes())["traceEvents"]
    assert sum(event["ph"] == "X" for event in events) == count


def test_document_is_alone_on_stdout(run: str, tmp_path: Path, capsys: Shown) -> None:
    """With --json, what was written is said on stderr."""
    assert main(["view", run, "--json", "--chrome", str(tmp_path / "c")]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["view"] == "tree"
    assert shown.err.startswith("Wrote 24 spans")


def test_old_file_is_replaced_and_a_link_stays_a_link(run: str, tmp_path: Path) -> None:
    """What a link points at is replaced, with the permissions that a new file gets."""
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old")
    link.symlink_to(target)
    assert main(["view", run, "--chrome", str(link)]) == 0
    assert link.is_symlink()
    assert target.read_text().startswith("{")
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(target.stat().st_mode) == 0o666 & ~umask


@pytest.mark.parametrize(
    ("out", "says"),
    [
        ("{folder}", "--html {folder} is not a file; name one that may be replaced"),
        ("{folder}/no/x", "cannot write --html {folder}/no/x: No such file or directory; name a"),
        ("{folder}/run.jsonl", "--html {folder}/run.jsonl is read; write to another file"),
        ("{folder}/link", "--html {folder}/link is read; write to another file"),
        ("{folder}/ring", "--html {folder}/ring is not a file; name one that may be replaced"),
        ("{folder}/%s" % ("x" * 300), "cannot write --html {folder}/xxx"),
        ("/dev/null", "--html /dev/null is not a file; name one that may be replaced"),
    ],
)
def test_bad_place_is_refused(run: str, tmp_path: Path, capsys: Shown, out: str, says: str) -> None:
    """In one sentence, and nothing is left."""
    (tmp_path / "link").symlink_to(run)
    (tmp_path / "ring").symlink_to("ring")
    before = Path(run).read_bytes()
    assert main(["view", run, "--html", out.format(folder=tmp_path)]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(f"otel-modtrack view: {says.format(folder=tmp_path)}")
    assert shown.err.count("\n") == 1
    assert Path(run).read_bytes() == before
    assert names(tmp_path) == ["link", "ring", "run.jsonl"]


def test_two_formats_in_one_file_are_refused(run: str, tmp_path: Path, capsys: Shown) -> None:
    """However the path is written."""
    outs = ["--html", str(tmp_path / "o"), "--chrome", f"{tmp_path}/../{tmp_path.name}/o"]
    assert main(["view", run, *outs]) == 2
    assert "o is written already; write to another file" in capsys.readouterr().err
    assert names(tmp_path) == ["run.jsonl"]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_failure_leaves_the_old_file(
    run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Shown, error: BaseException
) -> None:
    """A full disk or Ctrl-C in the middle: the old file is there as it was, and nothing else."""
    out = tmp_path / "out"
    out.write_text("old")

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("otel_modtrack.view.exports.write_speedscope", fail)
    code = main(["view", run, "--speedscope", str(out)])
    assert code == (2 if isinstance(error, OSError) else 130)
    assert capsys.readouterr().err.count("\n") == 1
    assert out.read_text() == "old"
    assert names(tmp_path) == ["out", "run.jsonl"]


def test_nothing_chosen_leaves_nothing(run: str, tmp_path: Path) -> None:
    """A step that is not there makes no file."""
    assert main(["view", run, "--chrome", str(tmp_path / "out"), "--step", "9"]) == 2
    assert names(tmp_path) == ["run.jsonl"]


class Terminal(io.StringIO):
    """A stderr that says it is a terminal."""

    def isatty(self) -> bool:
        """Return True."""
        return True


def test_long_writing_shows_a_bar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal, for many spans, with the file's name."""
    monkeypatch.setattr(writing, "_WORTH_A_BAR", 10)
    monkeypatch.setattr(sys, "stderr", Terminal())
    out = str(tmp_path / "out")
    with writing.open_files({"chrome": out}, []) as writer:
        writer.write(build_trees(make_run(1, 2)), [])
    shown = sys.stderr.getvalue()  # type: ignore[attr-defined]
    assert "\rout: 100%" in shown
    assert "12.0/12.0 [" in shown
