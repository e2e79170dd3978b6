"""What `collectives.py` times: programs with and without collectives, and what watches them."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from report import TRAIN
from torch import nn
from torch.distributed import _functional_collectives as functional
from torch.distributed.tensor.debug import CommDebugMode
from torch.utils._python_dispatch import TorchDispatchMode
from variants import UNTRACKED, Variant, still_on, untracked
from workloads import WORKLOADS, Workload

from otel_modtrack import ModTracker
from otel_modtrack.comm import intercept

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from opentelemetry.sdk.trace import TracerProvider

__all__ = [
    "OFF",
    "WAYS",
    "Program",
    "adding",
    "all_reducing",
    "counting",
    "program_variants",
    "without_collectives",
]

OFF = "ours: off"
AGAIN = "ours: off, again"  # what the machine makes of one and the same thing
# Older torch has no hooks of process groups.
WAYS = ("hooks", "kernels") if hasattr(dist.ProcessGroup, "register_pre_hook") else ("kernels",)

_LIMITS_US = {"hooks": 6.0, "kernels": 16.0}  # per all_reduce, over `OFF`
_MODULES, _ADDS = 10, 100  # per step


@dataclasses.dataclass
class Program:
    """What is timed.

    Attributes:
        what: as shown.
        unit: what the figures are per.
        workload: the model that a tracker is given.
        work: of one step.
        units: how many of `unit` are in a step.
        limits: of a way, in us over the reference; where there is none, a ratio is to hold.
        around: begins a step of the tracker, where there is one.
    """

    what: str
    unit: str
    workload: Workload
    work: Callable[[], object]
    units: int
    limits: dict[str, float] = dataclasses.field(default_factory=dict)
    around: Callable[[int], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext

    def step(self) -> None:
        """One step."""
        with self.around(0):
            self.work()


# -- programs -----------------------------------------------------------------------------------


def without_collectives(name: str, mode: str) -> Program:
    """A workload of `overhead.py`."""
    workload = WORKLOADS[name]()
    work = workload.train if mode == TRAIN else workload.infer
    return Program(f"no collectives: {name}, {mode}", "call", workload, work, workload.calls())


def adding() -> Program:
    """An operator that is no collective."""
    x = torch.ones(8)

    def work() -> None:
        for _ in range(_ADDS):
            torch.add(x, x)

    workload = Workload(nn.Identity(), (x,), torch.sum)
    return Program("no collectives: torch.add of 8 floats", "add", workload, work, _ADDS)


class Reducing(nn.Module):
    """All-reduces its input, as a tensor-parallel layer does, and does nothing else."""

    def __init__(self, reduce: Callable[[torch.Tensor], torch.Tensor], times: int) -> None:
        super().__init__()
        self.reduce, self.times = reduce, times

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Any shape to the same."""
        for _ in range(self.times):
            x = self.reduce(x)
        return x


def _in_place(x: torch.Tensor) -> torch.Tensor:
    dist.all_reduce(x, dist.ReduceOp.MAX)
    return x


def _functional(x: torch.Tensor) -> torch.Tensor:
    return functional.wait_tensor(functional.all_reduce(x, "max", dist.group.WORLD))


def _reducing(
    what: str, reduce: Callable[[torch.Tensor], torch.Tensor], times: int, also: str = ""
) -> Program:
    """Some modules that all-reduce 64 floats each so many times, in one step."""
    model = nn.Sequential(*(Reducing(reduce, times) for _ in range(_MODULES)))
    workload = Workload(model, (torch.ones(64),), torch.sum)
    world = dist.get_world_size()
    return Program(
        f"{what}, {times} in each module call, {world} process{'es' if world > 1 else ''}{also}",
        "all_reduce",
        workload,
        workload.infer,
        _MODULES * times,
        _LIMITS_US,
    )


def all_reducing(times: Iterable[int]) -> Iterator[Program]:
    """Programs that all-reduce so many times in the forward of each module."""
    for one in times:
        yield _reducing("dist.all_reduce", _in_place, one)
    yield _reducing("functional all_reduce", _functional, 1)


def counting() -> Program:
    """One that is watched without a tracer provider: records are made, and no spans and events."""
    return _reducing("dist.all_reduce", _in_place, 5, ", no spans")


# -- variants -----------------------------------------------------------------------------------


class EmptyDispatchMode(TorchDispatchMode):
    """Sees every operator, and does nothing."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        """Call it."""
        return func(*args, **(kwargs or {}))


def _tracked(program: Program, provider: TracerProvider | None, mode: str, way: str | None) -> Any:
    @contextlib.contextmanager
    def use(model: nn.Module) -> Iterator[Callable[[], object]]:
        intercept.forced_way = way
        try:
            with ModTracker(model, tracer_provider=provider, collectives=mode) as tracker:
                program.around = tracker.step
                yield lambda: None
                still_on()
                seen = tracker.collectives.total
                dist.barrier()
                if tracker.collectives.total - seen != (mode != "off"):
                    raise RuntimeError(f"{mode}, {way}: a collective was seen wrongly")
        finally:
            intercept.forced_way = None
            program.around = contextlib.nullcontext

    return use


def _dispatch_mode(program: Program, make: Callable[[], Any], *, each_step: bool = False) -> Any:
    @contextlib.contextmanager
    def use(_: nn.Module) -> Iterator[Callable[[], object]]:
        if not each_step:
            with make():
                yield lambda: None
            return
        program.around = lambda _: make()
        yield lambda: None
        program.around = contextlib.nullcontext

    return use


def program_variants(program: Program, provider: TracerProvider | None) -> list[Variant]:
    """All of them, in the order of the table."""
    found = [
        Variant(UNTRACKED, untracked),
        Variant(OFF, _tracked(program, provider, "off", None)),
        Variant(AGAIN, _tracked(program, provider, "off", None)),
    ]
    found += [
        Variant(f"ours: {mode}, {way}", _tracked(program, provider, mode, way))
        for mode in ("summed", "each")
        for way in WAYS
    ]
    if program.unit != "call":  # they are not made to watch whole models cheaply
        # Up to torch 2.13, a module called again under one CommDebugMode raises IndexError.
        comm_debug = _dispatch_mode(program, CommDebugMode, each_step="hooks" not in WAYS)
        found += [
            Variant("torch CommDebugMode", comm_debug),
            Variant("empty TorchDispatchMode", _dispatch_mode(program, EmptyDispatchMode)),
        ]
    return found
