"""Cases in which multiprocessing starts the children; run by `forks.py`."""

from __future__ import annotations

import multiprocessing
from typing import Any

import torch
from forking import case, child, spawning_case
from telling import say
from torch.utils.data import DataLoader, Dataset

from otel_modtrack import ModTracker, configure


class Numbers(Dataset[torch.Tensor]):
    """Eight numbers; each worker tells once what it is."""

    def __init__(self, name: str, role: str) -> None:
        self.name = name
        self.role = role
        self.told = False

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        found = torch.ones(2) * index
        if self.role == "tracing":
            found = child(found)
        if not self.told:
            say(case=self.name, role=self.role)
            self.told = True
        return found.detach()


def trace_worker(_: int) -> None:
    """A worker's beginning, where it is traced."""
    configure()
    ModTracker(child).__enter__()


def load(name: str, tracker: ModTracker, start: str, *, traced: bool) -> None:
    """One step of a DataLoader with two workers."""
    numbers = Numbers(name, "tracing" if traced else "quiet")
    loader = DataLoader(
        numbers,
        num_workers=2,
        multiprocessing_context=start,
        worker_init_fn=trace_worker if traced else None,
    )
    with tracker.step(1):
        say(case=name, role="parent")
        for x in loader:
            child(x).sum().backward()


@case
def quiet_loader(name: str, tracker: ModTracker) -> None:
    """Workers of a DataLoader that trace nothing."""
    load(name, tracker, "fork", traced=False)


@case
def tracing_loader(name: str, tracker: ModTracker) -> None:
    """Workers of a DataLoader that are traced."""
    load(name, tracker, "fork", traced=True)


def trace_pool_worker(both: Any) -> None:
    """A worker's beginning; it keeps what `compute` needs."""
    trace_worker(0)
    compute.both = both  # type: ignore[attr-defined]


def compute(name: str) -> None:
    """What a worker of a pool does; none does it all."""
    compute.both.wait()  # type: ignore[attr-defined]
    child(torch.ones(1, 2))
    say(case=name, role="tracing")


def use_pool(name: str, tracker: ModTracker, start: str, *, workers: int = 2, closes: bool) -> None:
    """One step of a pool of traced workers; they are sent home, or terminated."""
    with tracker.step(1):
        say(case=name, role="parent")
        context = multiprocessing.get_context(start)
        with context.Pool(workers, trace_pool_worker, (context.Barrier(workers),)) as pool:
            pool.map(compute, [name] * 4, chunksize=1)
            if closes:
                pool.close()
                pool.join()


@case
def pool(name: str, tracker: ModTracker) -> None:
    """A pool that is closed."""
    use_pool(name, tracker, "fork", closes=True)


@case
def terminated_pool(name: str, tracker: ModTracker) -> None:
    """A pool that is terminated: its workers get SIGTERM."""
    use_pool(name, tracker, "fork", closes=False)


@spawning_case
def spawning_loader(name: str, tracker: ModTracker) -> None:
    """Traced workers of a DataLoader."""
    load(name, tracker, "spawn", traced=True)


@spawning_case
def spawning_pool(name: str, tracker: ModTracker) -> None:
    """A pool that is terminated."""
    use_pool(name, tracker, "spawn", workers=1, closes=False)


@spawning_case
def forkserver_pool(name: str, tracker: ModTracker) -> None:
    """A pool that is closed."""
    multiprocessing.set_forkserver_preload(["otel_modtrack.tracker"])
    use_pool(name, tracker, "forkserver", closes=True)
