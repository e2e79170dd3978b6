"""Runs a worker script on several gloo processes, once, and hands out its results.

A worker is a file of cases:

    from harness import case, main

    @case
    def all_reduce_counts_once(world): ...   # returns something JSON can say

    if __name__ == "__main__":
        main()

Every rank runs all cases in order; what each returned (or the traceback of what it raised) comes
back as one dict per rank. Starting processes and importing torch costs seconds, so that a worker
has many cases and is started once per session and set of arguments; torchrun, which imports torch
for itself first, is left to the tests of the examples.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
import traceback
from concurrent import futures
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["case", "launch", "main", "result"]

HERE = Path(__file__).parent
TIMEOUT_S = 240
# By these, coverage begins in a process that is started.
COVERAGE = ("COVERAGE_PROCESS_CONFIG", "COVERAGE_PROCESS_START")

_cases: dict[str, Callable[[int], Any]] = {}


def case(function: Callable[[int], Any]) -> Callable[[int], Any]:
    """Register a case of a worker; it gets the world size."""
    _cases[function.__name__] = function
    return function


def main() -> None:
    """What a worker does when it is started: ``worker.py RESULTS_DIR WAYS``, with a comma between.

    All cases run in the first way, then all in the next.
    """
    import torch  # noqa: PLC0415 - the side of the tests does not need it
    import torch.distributed as dist  # noqa: PLC0415

    folder, ways = Path(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(1)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    found: dict[str, dict[str, Any]] = {}
    for way in ways.split(","):
        choose_way(way)
        of_way = found[way] = {}
        for name, function in _cases.items():
            torch.manual_seed(0)
            try:
                of_way[name] = {"value": function(world)}
            except BaseException:  # told by the test
                of_way[name] = {"error": traceback.format_exc()}
                raise  # the ranks may be out of step now
            finally:
                (folder / f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def choose_way(way: str) -> None:
    """Force one of the two ways of seeing collectives; "" leaves the choice to the library."""
    if way:
        from otel_modtrack.comm import intercept  # noqa: PLC0415

        intercept.forced_way = way


def covered(rank: int, processes: int, command: list[str]) -> bool:
    """Whether coverage, where it is on, sees a process; that costs half as much time again.

    One rank is enough, for all run the same lines, and two workers, for the others run no further
    ones. What is compared with an untracked run in `worker_harmless` runs as it does at the users',
    with no tracer beside ours; what is injected there is injected where it runs alone.
    """
    covering = any(name in command[1] for name in ("worker_ops", "worker_frameworks"))
    return rank == 0 and (processes == 1 or (processes == 2 and covering))


def start(rank: int, processes: int, command: list[str], port: int, out: Any) -> Any:
    """One of the processes, with what torchrun tells it."""
    unseen = () if covered(rank, processes, command) else COVERAGE
    env = {
        **{key: value for key, value in os.environ.items() if key not in unseen},
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(processes),
        "LOCAL_WORLD_SIZE": str(processes),
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(HERE),
    }
    return subprocess.Popen(  # noqa: S603 - our own command
        command, env=env, stdout=out, stderr=out, start_new_session=True
    )


def wait_for(started: list[subprocess.Popen[bytes]]) -> None:
    """Until all have ended, or one has failed or hangs: the others would wait for it."""

    def succeed(process: subprocess.Popen[bytes]) -> None:
        if process.wait():
            raise ChildProcessError

    with futures.ThreadPoolExecutor(len(started)) as pool:
        try:
            ends = [pool.submit(succeed, one) for one in started]
            futures.wait(ends, TIMEOUT_S, futures.FIRST_EXCEPTION)
        finally:
            for one in started:
                if one.poll() is None:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(one.pid, signal.SIGTERM)


@functools.cache
def launch(worker: str, processes: int, ways: str = "") -> tuple[dict[str, Any], ...]:
    """The results of all cases of a worker, by rank; of a worker that hangs, those so far.

    Args:
        worker: its file.
        processes: how many.
        ways: of seeing collectives, with a comma between; the results are by way, then by case.
    """
    import torch.distributed as dist  # noqa: PLC0415

    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "output"
        command = [sys.executable, str(HERE / worker), folder, ways]
        with log.open("ab") as out:
            wait_for(
                [start(rank, processes, command, store.port, out) for rank in range(processes)]
            )
        output = log.read_text(errors="replace")[-12_000:]
        found = []
        for rank in range(processes):
            path = Path(folder) / f"{rank}.json"
            found.append(json.loads(path.read_text()) if path.exists() else {})
    return tuple({**one, "_output": output} for one in found)


def result(worker: str, processes: int, name: str, way: str = "", ways: str = "") -> list[Any]:
    """What case `name` returned on each rank; fails with the traceback of the rank that raised.

    Args:
        worker: its file.
        processes: how many.
        name: the case's.
        way: of seeing collectives; "" is the library's choice.
        ways: all those that the worker is started for; "" is `way` alone.
    """
    values = []
    ranks = launch(worker, processes, ways or way)
    for rank, found in enumerate(ranks):
        case_ = found.get(way, {}).get(name)
        if case_ is None:
            errors = [
                one["error"]
                for each in ranks
                for key, cases in each.items()
                if key != "_output"
                for one in cases.values()
                if "error" in one
            ]
            told = errors[0] if errors else found["_output"]
            raise AssertionError(f"{name} did not run on rank {rank}\n{told}")
        if "error" in case_:
            raise AssertionError(f"{name} on rank {rank}:\n{case_['error']}")
        values.append(case_["value"])
    return values
