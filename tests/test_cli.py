"""The command line: what it refuses, how it says so, and what it does not import."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from otel_modtrack.cli import main

LINE = (
    '{"resourceSpans":[{"scopeSpans":[{"spans":[{"traceId":"t","spanId":"%s","parentSpanId":"%s",'
    '"name":"forward Net","startTimeUnixNano":"0","endTimeUnixNano":"1000000"}],'
    '"scope":{"name":"otel_modtrack"}}]}]}\n'
)


@pytest.fixture
def trace_file(tmp_path: Path) -> Path:
    """A file with two spans, one in the other."""
    path = tmp_path / "trace.jsonl"
    path.write_text(LINE % ("a", "") + LINE % ("b", "a"))
    return path


def command(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own."""
    return subprocess.run(  # noqa: S603 - our own command
        [sys.executable, "-m", "otel_modtrack", *map(str, arguments)],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["fly"], "invalid choice: 'fly'"),
        (["demo", "--speed", "9"], "unrecognized arguments: --speed 9"),
        (["demo", "--steps", "0"], "argument --steps: '0' is not a whole number of 1 or more"),
        (["demo", "--steps", "-3"], "argument --steps: '-3' is not a whole number of 1 or more"),
        (["demo", "--steps", "1.5"], "argument --steps: '1.5' is not a whole number"),
        (["demo", "--seed", "-1"], "argument --seed: '-1' is not a whole number of 0 or more"),
        (["view"], "the following arguments are required: FILE"),
        (["view", "f", "--step", "last"], "argument --step: 'last' is not a whole number"),
        (["view", "f", "--depth", "0"], "argument --depth: '0' is not a whole number of 1 or more"),
        (["replay"], "the following arguments are required: FILE"),
        (["view", "f", "--top", "0"], "argument --top: '0' is not a whole number of 1 or more"),
        (
            ["view", "--top", "f"],
            "argument --top: 'f' is not a whole number of 1 or more; files co",
        ),
        (["view", "f", "--rank", "one"], "argument --rank: 'one' is not a whole number"),
        (["view", "f", "--phase", "up"], "argument --phase: invalid choice: 'up'"),
        (["view", "f", "--by", "name"], "argument --by: invalid choice: 'name'"),
        (["view", "f", "--html"], "argument --html: expected one argument"),
    ],
)
def test_bad_option_gets_one_line(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A wrong option is named in one line on stderr, with exit code 2."""
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    shown = capsys.readouterr()
    assert caught.value.code == 2
    assert shown.out == ""
    assert shown.err.startswith("otel-modtrack")
    assert says in shown.err
    assert shown.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["demo", "--out", "{folder}"], "--out {folder} is not a file"),
        (["demo", "--out", "{folder}/no/x.jsonl"], "cannot write --out {folder}/no/x.jsonl: No su"),
        (["view", "{folder}"], "cannot read {folder}: Is a directory"),
        (["view", "{folder}/none.jsonl"], "cannot read {folder}/none.jsonl: No such file"),
    ],
)
def test_bad_file_gets_one_line(
    arguments: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file of no use is named in one line on stderr, with exit code 2."""
    code = main([argument.format(folder=tmp_path) for argument in arguments])
    shown = capsys.readouterr()
    assert code == 2
    assert shown.out == ""
    assert shown.err.startswith(f"otel-modtrack {arguments[0]}: {says.format(folder=tmp_path)}")
    assert shown.err.count("\n") == 1


def test_refusal_as_a_process(tmp_path: Path) -> None:
    """The exit code and the sentence are what a shell sees."""
    done = command("view", tmp_path / "none.jsonl")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1


def test_view_as_a_process(trace_file: Path) -> None:
    """`python -m otel_modtrack view` prints the tree, without colour where nobody sees it."""
    done = command("view", trace_file)
    assert done.returncode == 0
    assert "└─ forward Net" in done.stdout
    assert "\033" not in done.stdout
    assert done.stderr == ""


def test_installed_command_is_this_one(trace_file: Path) -> None:
    """The script `otel-modtrack` is installed beside Python and does the same."""
    script = Path(sys.executable).with_name("otel-modtrack")
    done = subprocess.run(  # noqa: S603 - our own command
        [script, "view", trace_file],
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=True,
    )
    assert done.stdout == command("view", trace_file).stdout


def test_view_depth(trace_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Options reach the view."""
    assert main(["view", str(trace_file), "--depth", "1"]) == 0
    assert "forward Net (+1 below)\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("environment", "is_coloured"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)],
)
def test_colour_on_a_terminal(
    trace_file: Path, environment: dict[str, str], is_coloured: bool
) -> None:
    """A terminal gets colours unless the user does not want them or it has none."""
    pty = pytest.importorskip("pty")
    ours, theirs = pty.openpty()
    plain = {key: value for key, value in os.environ.items() if key != "NO_COLOR"}
    with os.fdopen(ours, "rb", buffering=0) as screen:
        try:
            subprocess.run(  # noqa: S603 - our own command
                [sys.executable, "-m", "otel_modtrack", "view", trace_file],
                env=plain | {"TERM": "xterm"} | environment,
                stdout=theirs,
                check=True,
            )
        finally:
            os.close(theirs)
        assert (b"\033[" in screen.read(4096)) is is_coloured


def test_view_imports_neither_torch_nor_opentelemetry(trace_file: Path) -> None:
    """Looking at a file does not wait for libraries that it does not need."""
    script = (
        "import sys; from otel_modtrack.cli import main; "
        f"main(['view', {str(trace_file)!r}]); "
        "sys.exit(str([m for m in ('torch', 'opentelemetry', 'tqdm') if m in sys.modules] or ''))"
    )
    done = subprocess.run(  # noqa: S603 - our own command
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.stderr.strip() == ""


@pytest.mark.parametrize("arguments", [["--help"], ["demo", "--help"], ["view", "--help"]])
def test_help(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Help goes to stdout and is no failure."""
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 0
    assert "usage: otel-modtrack" in capsys.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    """--version is the installed version."""
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"otel-modtrack {version('otel_modtrack')}\n"


def test_terminal_without_box_drawing(trace_file: Path) -> None:
    """Where the encoding lacks a character, another stands there and nothing fails."""
    done = command("view", trace_file, PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert done.returncode == 0
    assert "?? forward Net" in done.stdout
    assert done.stderr == ""


def test_reader_that_has_enough(tmp_path: Path) -> None:
    """A closed pipe, as with `| head`, ends the command without a traceback."""
    path = tmp_path / "trace.jsonl"
    # More text than a pipe holds.
    path.write_text(LINE % ("a", "") + "".join(LINE % (f"s{i}", "a") for i in range(5000)))
    with subprocess.Popen(  # noqa: S603 - our own command
        [sys.executable, "-m", "otel_modtrack", "view", path],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        running.stdout.readline()
        running.stdout.close()
        assert running.stderr.read() == b""
    assert running.returncode == 141


def test_interrupt(trace_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C ends the command with a shell's exit code, not a traceback."""

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("otel_modtrack.view.command.view_files", interrupted)
    assert main(["view", str(trace_file)]) == 130
