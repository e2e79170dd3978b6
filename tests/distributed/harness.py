"""Runs a worker script on several gloo processes under torchrun, once, and hands out its results.

A worker is a file of cases:

    from harness import case, main

    @case
    def all_reduce_counts_once(world): ...   # returns something JSON can say

    if __name__ == "__main__":
        main()

Every rank runs all cases in order; what each returned (or the traceback of what it raised) comes
back as one dict per rank. Starting processes and importing torch costs seconds, so that a worker
has many cases and is started once per session and set of arguments.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["case", "launch", "main", "result"]

HERE = Path(__file__).parent
TIMEOUT_S = 240

_cases: dict[str, Callable[[int], Any]] = {}


def case(function: Callable[[int], Any]) -> Callable[[int], Any]:
    """Register a case of a worker; it gets the world size."""
    _cases[function.__name__] = function
    return function


def main() -> None:
    """What a worker does when torchrun starts it: ``worker.py RESULTS_DIR [way]``."""
    import torch  # noqa: PLC0415 - the side of the tests does not need it
    import torch.distributed as dist  # noqa: PLC0415

    folder, way = Path(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(1)
    choose_way(way)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    found: dict[str, Any] = {}
    for name, function in _cases.items():
        torch.manual_seed(0)
        try:
            found[name] = {"value": function(world)}
        except BaseException:  # told by the test
            found[name] = {"error": traceback.format_exc()}
            (folder / f"{rank}.json").write_text(json.dumps(found))
            raise  # the ranks may be out of step now
        (folder / f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def choose_way(way: str) -> None:
    """Force one of the two ways of seeing collectives; "" leaves the choice to the library."""
    if way:
        from otel_modtrack.comm import intercept  # noqa: PLC0415

        intercept.forced_way = way


@functools.cache
def launch(worker: str, processes: int, way: str = "") -> tuple[dict[str, Any], ...]:
    """The results of all cases of a worker, by rank; of a worker that hangs, those so far."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *(f"--nproc-per-node={processes}", str(HERE / worker), folder, way),
        ]
        env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE)}
        log = Path(folder) / "output"
        with (
            log.open("wb") as out,
            subprocess.Popen(  # noqa: S603 - our own command
                command, env=env, stdout=out, stderr=out, start_new_session=True
            ) as started,
        ):
            try:
                started.wait(TIMEOUT_S)
            except subprocess.TimeoutExpired:  # with its workers
                os.killpg(started.pid, signal.SIGTERM)
        output = log.read_text(errors="replace")[-12_000:]
        found = []
        for rank in range(processes):
            path = Path(folder) / f"{rank}.json"
            found.append(json.loads(path.read_text()) if path.exists() else {})
    return tuple({**one, "_output": output} for one in found)


def result(worker: str, processes: int, name: str, way: str = "") -> list[Any]:
    """What case `name` returned on each rank; fails with the traceback of the rank that raised."""
    values = []
    ranks = launch(worker, processes, way)
    for rank, found in enumerate(ranks):
        case_ = found.get(name)
        if case_ is None:
            errors = [
                one["error"]
                for r in ranks
                for key, one in r.items()
                if key != "_output" and "error" in one
            ]
            told = errors[0] if errors else found["_output"]
            raise AssertionError(f"{name} did not run on rank {rank}\n{told}")
        if "error" in case_:
            raise AssertionError(f"{name} on rank {rank}:\n{case_['error']}")
        values.append(case_["value"])
    return values
