"""Programs of several processes: those that the program trains in have spans, and no others."""

from __future__ import annotations

import contextlib
import http.client
import re
import signal
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from tests.auto.conftest import BIN, INSTRUMENT, PLAIN, RUN, paths
from tests.polling import poll

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.processes.running import Program

    Start = Callable[..., Program]

ROOT = "train_step"


def kinds(program: Program) -> list[str]:
    """The first module of each step, with its process: which processes trained what."""
    fqn = "modtrack.module.type"
    return sorted(
        span["attributes"][fqn]
        for span in program.spans
        if span["attributes"].get(fqn) in ("ReLU", "Tanh", "Embedding")
        and span["name"].startswith("forward")
    )


@pytest.mark.parametrize(
    ("launcher", "method"),
    [(RUN, "spawn"), (INSTRUMENT, "forkserver")],
)
def test_workers(start: Start, launcher: tuple[str, ...], method: str) -> None:
    """A worker of multiprocessing's that trains has its spans; one that loads data has none."""
    program = start(launcher, "workers", method)
    program.finish()
    assert program.output == "ReLU\nTanh\n0\n[(1, 4), (1, 4)]\n"
    assert program.errors == ""
    assert kinds(program) == ["ReLU", "Tanh"]
    assert program.names.count(ROOT) == 2
    pids = {span["resource"].get("process.pid") for span in program.spans}
    assert len(pids) == 2 or launcher is INSTRUMENT


@pytest.mark.parametrize("forked", ["false", "true"])
def test_forks(start: Start, forked: str) -> None:
    """A forked child is tracked if that is asked for; a worker that loads data never is."""
    program = start(RUN, "forks", OTEL_PYTHON_MODTRACK_FORKED=forked)
    program.finish()
    assert program.output == "ReLU\nTanh\n5\n[(1, 4), (1, 4)]\n"
    assert program.errors == ""
    expected = ["ReLU", "Tanh"] if forked == "true" else ["ReLU"]
    assert kinds(program) == expected
    assert len({span["resource"]["process.pid"] for span in program.spans}) == len(expected)


def test_a_provider_of_its_own(start: Start) -> None:
    """The program's provider is used, and no other is made."""
    program = start(RUN, "own_provider").finish()
    assert program.output == "['forward Sequential', 'forward Sequential.*', 'request']\n"
    assert (program.errors, program.spans) == ("", [])


def serve(start: Start, launcher: tuple[str, ...], server: str, *arguments: str, **env: str) -> Any:
    """A service that has answered a request, and was then stopped by SIGTERM."""
    if not (BIN / server).exists():
        pytest.skip(f"{server} is not installed")
    program = start((*launcher, str(BIN / server)), *arguments, **env)
    while not (found := re.search(r"http://[\d.]+:(\d+)", program.errors)):
        line = program.process.stderr.readline().decode()
        program.errors += line
        assert line, program.errors

    def ask() -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", int(found[1]), timeout=60)
        with contextlib.closing(connection), contextlib.suppress(ConnectionError):
            connection.request("GET", "/")
            return connection.getresponse().read()

    assert poll(ask, "an answer") == b"(1, 2)"
    program.process.send_signal(signal.SIGTERM)
    program.wait()
    return program


SERVED = Counter(
    {
        ("forward Sequential Sequential forward",): 1,
        ("forward Sequential Sequential forward", "forward Sequential.* Sequential.0 forward"): 1,
        ("forward Sequential Sequential forward", "forward Sequential.* Sequential.1 forward"): 1,
    }
)


def test_a_service(start: Start) -> None:
    """uvicorn ends by the signal that stopped it; the spans are there all the same."""
    program = serve(start, RUN, "uvicorn", "--port=0", "app:app")
    assert program.process.returncode == -signal.SIGTERM
    assert paths(program) == SERVED


def test_a_service_under_opentelemetry_instrument(start: Start) -> None:
    """The SDK sends them in time; its queue is too small by default, and that is said once."""
    program = serve(
        start,
        INSTRUMENT[:1],
        "uvicorn",
        "--port=0",
        "app:app",
        OTEL_BSP_SCHEDULE_DELAY="50",
        OTEL_BSP_MAX_QUEUE_SIZE="",
    )
    assert paths(program) == SERVED
    assert program.errors.count("set OTEL_BSP_MAX_QUEUE_SIZE to 8192 or more") == 1


@pytest.mark.parametrize("preload", [(), ("--preload",)])
def test_a_service_that_forks(start: Start, preload: tuple[str, ...]) -> None:
    """gunicorn's worker has spans; if it was forked with the model, where that is asked for."""
    program = serve(
        start,
        RUN,
        "gunicorn",
        *preload,
        "--bind=127.0.0.1:0",
        "app:wsgi",
        OTEL_PYTHON_MODTRACK_FORKED="true" if preload else "",
    )
    assert program.process.returncode == 0
    assert paths(program) == SERVED


@pytest.mark.parametrize(
    "launcher",
    [
        (*RUN, str(BIN / "torchrun"), "--standalone", "--nproc-per-node=2"),
        (
            *PLAIN,
            *("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"),
            *("-m", "otel_modtrack", "run", "--steps=auto"),
        ),
    ],
)
def test_ranks(start: Start, launcher: tuple[str, ...]) -> None:
    """Each rank has its spans, wherever `run` stands; what starts them has none."""
    program = start(launcher, "ranks", "--lr", "1").finish()
    assert sorted(re.findall(r"\d \[.*\]", program.output)) == [
        f"{rank} ['--lr', '1']" for rank in (0, 1)
    ]
    ranks = Counter(span["resource"]["modtrack.rank"] for span in program.spans)
    assert ranks.keys() == {0, 1}
    assert ranks[0] == ranks[1]
    assert program.names.count("train_step") == 2
