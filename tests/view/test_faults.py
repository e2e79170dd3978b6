"""What the command says of files that are not as they should be, and what it refuses."""

from __future__ import annotations

import io
import os
import sys
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import TextIO

import pytest

from otel_modtrack.cli import main
from otel_modtrack.view import reader
from tests.view.making import as_json, as_line, make_span, make_step, write
from tests.view.running import Shown, refusal


def test_skipped_lines_are_named(tmp_path: Path, capsys: Shown) -> None:
    """What was skipped is said on stderr, a long list shortened; the rest is shown."""
    path = tmp_path / "trace.jsonl"
    path.write_text("torn\n" * 7 + as_line(*map(as_json, make_step())))
    assert main(["view", str(path)]) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("Step 7 of svc: 6 spans")
    assert shown.err == (
        f"otel-modtrack view: skipped what could not be read in {path}, "
        "lines 1, 2, 3, 4, 5 and 2 more: no OTLP JSON\n"
    )


def test_file_that_is_being_written_is_shown(tmp_path: Path, capsys: Shown) -> None:
    """Its last line is incomplete, which is said."""
    path = tmp_path / "trace.jsonl"
    content = as_line(*map(as_json, make_step()))
    path.write_text(content + content[:99])
    assert main(["view", str(path)]) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("Step 7 of svc: 6 spans")
    assert shown.err.endswith(
        "line 2: incomplete: still being written, or its program was killed\n"
    )


def test_spans_of_others_are_shown_and_said(tmp_path: Path, capsys: Shown) -> None:
    """Once for each file that has none of ours."""
    ours = write(tmp_path / "ours.jsonl", make_step())
    path = tmp_path / "theirs.jsonl"
    spans = [replace(make_span(f"s{i}", "", "GET /", i + 50, i + 51), scope="app") for i in (0, 1)]
    path.write_text("".join(as_line(as_json(span), scope="app") for span in spans))
    assert main(["view", str(path), ours, "--trace", "t"]) == 0
    shown = capsys.readouterr()
    assert "└─ forward Net.l.1" in shown.out
    assert "GET /\n" in shown.out
    assert shown.err == (
        f"otel-modtrack view: no span in {path} is of otel_modtrack's; they are shown as they are\n"
    )


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--step", "9"], "there is no step 9 in {run}: the steps run from 1 to 3"),
        (["--trace", "x"], "there is no trace x in {run}: the last of 3 traces: t3, t2, t1"),
        (["--rank", "0"], "there is no rank 0 in {run}: no span tells its rank, leave it out"),
        (["--module", "GPT"], "no module fits GPT: the modules there are Net, Net.l.*"),
        (["--top", "--step", "9"], "there is no step 9 in {run}: the steps run from 1 to 3"),
        (
            ["--diff", "{run}", "--step", "9"],
            "there is no step 9 in {run}: the steps run from 1 to 3",
        ),
        (["--diff", "none.jsonl"], "cannot read none.jsonl: No such file or directory; give files"),
    ],
)
def test_what_is_not_there(run: str, capsys: Shown, options: list[str], says: str) -> None:
    """The sentence says which there are."""
    arguments = [option.format(run=run) for option in options]
    assert refusal(capsys, run, *arguments).startswith(says.format(run=run))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("--depth 2 --top", "--depth does nothing with --top; leave one of them out"),
        ("--depth 2 --collectives", "--depth does nothing with --collectives; leave one of them"),
        ("--depth 2 --diff x", "--depth does nothing with --diff; leave one of them out"),
        ("--depth 2 --html x", "--depth does nothing with --html; leave one of them out"),
        ("--by fqn", "--by does nothing with the tree; leave one of them out"),
        ("--sort total", "--sort does nothing with the tree; leave one of them out"),
        ("--sort total --collectives", "--sort does nothing with --collectives; leave one of"),
        ("--top --collectives", "--top does nothing with --collectives; leave one of them out"),
        ("--collectives --diff x", "--collectives does nothing with --diff; leave one of them"),
        ("--trace t --diff x", "--trace does nothing with --diff; leave one of them out"),
        ("--html o --diff x", "--html does nothing with --diff; leave one of them out"),
        ("--phase forward --chrome o", "--phase forward does nothing with --chrome: a file that"),
        ("--diff -", "stdin can be read once only; give - once"),
    ],
)
def test_contradictions_are_named(capsys: Shown, options: str, says: str) -> None:
    """An option that would do nothing is refused, before any file is read."""
    path = "-" if options == "--diff -" else "no such file"
    assert refusal(capsys, path, *options.split()).startswith(says)


def test_ring_of_links_is_refused(tmp_path: Path, capsys: Shown) -> None:
    """A link that leads to itself cannot be read, which is said as of any other file."""
    ring = tmp_path / "ring"
    ring.symlink_to(ring)
    says = f"cannot read {ring}: Too many levels of symbolic links; give files of OTLP JSON lines"
    assert refusal(capsys, str(ring)) == says


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
@pytest.mark.parametrize("options", [[], ["--json"], ["--chrome", "{folder}/out"]])
def test_full_disk_is_named(
    run: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], options: list[str]
) -> None:
    """What is shown goes to a full disk: one sentence."""
    arguments = [option.format(folder=tmp_path) for option in options]
    with open("/dev/full", "w") as full, redirect_stdout(full):  # noqa: PTH123 - as a shell's >
        assert main(["view", run, *arguments]) == 2
        discard(full)
    assert capfd.readouterr().err == (
        "otel-modtrack view: cannot write to stdout: No space left on device; let it go to a file "
        "or a pipe with room\n"
    )


def discard(file: TextIO) -> None:
    """Let what waits to be written go nowhere, so that it can be closed."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), file.fileno())


class Terminal(io.StringIO):
    """A stderr that says it is a terminal."""

    def isatty(self) -> bool:
        """Return True."""
        return True


def test_long_reading_shows_a_bar(run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal, for files that take a while."""
    monkeypatch.setattr(reader, "_WORTH_A_BAR_BYTES", 100)
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert main(["view", run]) == 0
    assert "100%" in sys.stderr.getvalue()  # type: ignore[attr-defined]
    assert "18 spans" in sys.stderr.getvalue()  # type: ignore[attr-defined]
