"""The real programs as fixtures: built, or found built, once; skipped where Go is not installed.

- `binaries`: where they are.
- `collector`, `jaeger`: one of each for the whole run; tests tell their spans apart by trace id.
- `to_backend(NAME, **variables)`: a Collector with a file of `collector/`, and the one behind it.
- `make_rank(collector, rank)`: a rank that sends known spans to a Collector.
- `make_collector(config=..., env=...)`, `make_jaeger()`: one of the test's own, to be stopped,
  killed, started again, or configured differently. It is gone when the test is over.
"""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.backends.programs import ROOT, TO_FILE, Binaries, Collector, Jaeger
from tests.backends.ranks import Rank

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_CANNOT_BE_HAD = (3, 4)  # exit codes of build.sh: Go is missing, a download failed


@pytest.fixture(scope="session")
def binaries() -> Binaries:
    """Jaeger and the Collector, built by `scripts/backends/build.sh` or found in its cache."""
    done = subprocess.run(  # noqa: S603 - our own script
        [ROOT / "scripts" / "backends" / "build.sh"], capture_output=True, text=True, check=False
    )
    if done.returncode in _CANNOT_BE_HAD:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr
    jaeger, collector = done.stdout.split("\n")[:2]
    return Binaries(Path(jaeger), Path(collector))


@pytest.fixture(scope="session")
def collector(binaries: Binaries, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collector]:
    """A Collector that writes what it is sent into a file, for the whole run."""
    with Collector(binaries.collector, tmp_path_factory.mktemp("collector")) as collector:
        yield collector


@pytest.fixture(scope="session")
def jaeger(binaries: Binaries, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jaeger]:
    """A Jaeger for the whole run."""
    with Jaeger(binaries.jaeger, tmp_path_factory.mktemp("jaeger")) as jaeger:
        yield jaeger


@pytest.fixture
def make_collector(binaries: Binaries, tmp_path: Path) -> Iterator[Callable[..., Collector]]:
    """Start a Collector of the test's own: `make_collector(config=a file or text, env={...})`."""
    with contextlib.ExitStack() as running:

        def make(config: Path | str = TO_FILE, env: Mapping[str, str] | None = None) -> Collector:
            number = len(list(tmp_path.glob("collector-*")))
            folder = tmp_path / f"collector-{number}"
            return running.enter_context(Collector(binaries.collector, folder, config, env))

        yield make


@pytest.fixture
def make_jaeger(binaries: Binaries, tmp_path: Path) -> Iterator[Callable[[], Jaeger]]:
    """Start a Jaeger of the test's own: `make_jaeger()`."""
    with contextlib.ExitStack() as running:

        def make() -> Jaeger:
            number = len(list(tmp_path.glob("jaeger-*")))
            return running.enter_context(Jaeger(binaries.jaeger, tmp_path / f"jaeger-{number}"))

        yield make


@pytest.fixture
def make_rank() -> Iterator[Callable[..., Rank]]:
    """Make ranks that send to a Collector, and close them afterwards."""
    ranks: list[Rank] = []

    def make(collector: Collector, rank: int = 0) -> Rank:
        ranks.append(Rank(collector, rank))
        return ranks[-1]

    yield make
    for rank in ranks:
        rank.close()


@pytest.fixture
def to_backend(
    make_collector: Callable[..., Collector],
) -> Callable[..., tuple[Collector, Collector]]:
    """Start a Collector with a file of ours, and behind it one that writes what arrives."""

    def make(name: str, **env: str) -> tuple[Collector, Collector]:
        backend = make_collector()
        variables = {
            "COLLECTOR_BACKEND": backend.grpc_address,
            "COLLECTOR_METRICS_INTERVAL": "200ms",
        }
        return make_collector(ROOT / "collector" / name, variables | env), backend

    return make
