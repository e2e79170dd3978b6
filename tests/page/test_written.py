"""The page as a file: what it weighs, what it says, and that it is what its source makes it."""

from __future__ import annotations

import pathlib
import shutil
import subprocess

import pytest

from otel_modtrack.view.html import render_page
from otel_modtrack.view.model import Process, Span, build_trees
from tests.page.made import span, training

ROOT = pathlib.Path(__file__).parents[2]
FRONTEND = ROOT / "frontend"
ASSETS = ROOT / "otel_modtrack" / "view" / "html"


def test_size() -> None:
    """20,000 spans weigh less than a megabyte: most is said once."""
    spans = training(ranks=4, steps=500)
    assert len(spans) == 20_000
    assert len(render_page(build_trees(spans))) < 1_000_000


def test_reports_progress() -> None:
    """The caller hears how many spans are done, up to all."""
    heard: list[tuple[int, int]] = []
    spans = training(ranks=2, steps=600)
    render_page(build_trees(spans), report=lambda done, of: heard.append((done, of)))
    assert heard == [(5_000, 12_000), (10_000, 12_000), (12_000, 12_000)]


@pytest.mark.parametrize(
    ("processes", "title"),
    [
        ([Process("trainer"), Process("trainer"), Process("web")], "trainer, web"),
        ([Process("unknown_service:python", source="run.jsonl")], "run.jsonl"),
        ([Process()], "spans"),
        ([Process("<b>&")], "&lt;b&gt;&amp;"),
    ],
)
def test_title(processes: list[Process], title: str) -> None:
    """The services, or else the files; as text."""
    spans = [span(f"a{number}", "work", 0, 1, process=one) for number, one in enumerate(processes)]
    assert f"<title>{title} · otel-modtrack</title>" in render_page(build_trees(spans))


def test_same_spans_same_page() -> None:
    """A page has nothing of the hour or the machine in it."""
    assert render_page(build_trees(training())) == render_page(build_trees(training()))


def test_licences_go_along() -> None:
    """The page hands on the licences of the libraries in it."""
    page = render_page(build_trees(training()))
    licences = (ASSETS / "LICENSES.txt").read_text(encoding="utf-8")
    assert "flame-chart-js 3.3.0 (MIT)" in licences
    assert licences in page


def test_modest() -> None:
    """What is not data weighs less than 400 kB."""
    assert (ASSETS / "page.html").stat().st_size < 400_000


def test_lock_names_no_host() -> None:
    """The lock file pins versions and hashes, and no registry."""
    lock = (FRONTEND / "package-lock.json").read_text(encoding="utf-8")
    assert '"integrity"' in lock
    assert '"resolved"' not in lock


def test_built_from_its_source(tmp_path: pathlib.Path) -> None:
    """`make page` would change nothing."""
    if shutil.which("node") is None:
        pytest.skip("node is not installed: the page cannot be built anew")
    if not (FRONTEND / "node_modules" / "esbuild").is_dir():
        pytest.skip("frontend/node_modules is missing: `make page` installs it")
    command = ["node", str(FRONTEND / "build.mjs"), str(tmp_path)]
    subprocess.run(command, check=True, timeout=60)  # noqa: S603 - no input of others
    for name in ("page.html", "LICENSES.txt"):
        built = (tmp_path / name).read_text(encoding="utf-8")
        assert built == (ASSETS / name).read_text(encoding="utf-8"), f"run `make page`: {name}"


def test_span_twice() -> None:
    """A span that was exported twice is in the page once."""
    twice: list[Span] = [*training(), *training()]
    assert render_page(build_trees(twice)) == render_page(build_trees(training()))
