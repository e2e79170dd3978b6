"""Worker of `test_comm_mode`: torch's CommDebugMode and our tracker, side by side."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from frameworks import PROGRAMS, Marks
from harness import case, main
from torch.distributed.tensor.debug import CommDebugMode
from witness import fqns_of

from otel_modtrack import ModTracker
from otel_modtrack.comm import intercept

if TYPE_CHECKING:
    from collections.abc import Iterator

    from frameworks import Program
    from torch import nn

WARM = 3  # until DDP's buckets are what they will be, and pipelines know the shapes
# Under any TorchDispatchMode, torch compiles nothing.
COMPILED = ("compiled_ddp",)
TWICE = ("ddp_no_sync", "gpipe", "one_forward_one_backward")


def can_call_twice() -> bool:
    """Whether CommDebugMode survives a module that is called twice: not before torch 2.14."""
    module = torch.nn.Linear(1, 1)
    try:
        with CommDebugMode():
            module(module(torch.ones(1)))
    except IndexError:
        return False
    return True


@case
def survives(world: int) -> bool:
    """Whether CommDebugMode survives a module that is called twice."""
    return can_call_twice()


def _their_names(model: nn.Module) -> dict[str, str]:
    """What we call the modules that CommDebugMode has names for."""
    ours, root = fqns_of(model), type(model).__name__
    return {
        ".".join([root, *filter(None, path.split("."))]): ours[id(module)]
        for path, module in model.named_modules()
    }


def theirs(mode: CommDebugMode, model: nn.Module) -> dict[str, Any]:
    """What CommDebugMode has counted, under our names."""
    names = {"Global": "Global", **_their_names(model)}
    modules: dict[str, Any] = {}
    for fqn, phases in mode.comm_module_counts.items():
        for phase, counts in phases.items():
            for operator, count in counts.items():
                place = modules.setdefault(names[fqn], {}).setdefault(phase, {})
                place[str(operator)] = max(place.get(str(operator), 0), count)
    return {
        "total": mode.get_total_counts(),
        "operators": {str(key): count for key, count in mode.get_comm_counts().items()},
        "modules": modules,
        "parameters": {
            names[fqn]: list(parameters) for fqn, parameters in mode.get_parameter_info().items()
        },
        "placements": {
            f"{names[key.rpartition('.')[0]]}.{key.rpartition('.')[2]}": str(value)
            for key, value in mode.get_sharding_info().items()
        },
    }


def ours(tracker: ModTracker) -> dict[str, Any]:
    """What the tracker has counted, in the same form."""
    answers = tracker.collectives
    modules: dict[str, Any] = {}
    for fqn, phases in answers.by_module().items():
        for phase, counts in phases.items():
            backward = phase in {"backward", "recompute"}
            place = modules.setdefault(fqn, {}).setdefault(
                "backward" if backward else "forward", {}
            )
            for operation, tally in counts.items():
                place[operation] = place.get(operation, 0) + tally.count
    return {
        "total": answers.total,
        "operators": {key: tally.count for key, tally in answers.by_operator().items()},
        "modules": modules,
        "parameters": {fqn: list(own) for fqn, own in answers.parameters().items()},
        "placements": {key: str(value) for key, value in answers.placements().items()},
    }


def _alone(program: Program) -> tuple[Any, Any]:
    mode, tracker = CommDebugMode(), ModTracker(program.model)
    with mode:
        program.step(Marks())
    with tracker:
        program.step(Marks())
    return mode, tracker


def _ours_outside(program: Program) -> tuple[Any, Any]:
    mode, tracker = CommDebugMode(), ModTracker(program.model)
    with tracker, mode:
        program.step(Marks())
    return mode, tracker


def _ours_inside(program: Program) -> tuple[Any, Any]:
    mode, tracker = CommDebugMode(), ModTracker(program.model)
    with mode, tracker:
        program.step(Marks())
    return mode, tracker


@case
def programs(world: int) -> dict[str, Any]:
    """Each program, by way, name and arrangement."""
    return {way: _programs(world) for way in _ways()}


def _ways() -> Iterator[str]:
    """Each way of seeing collectives, in turn: one start of the processes serves both."""
    hooks = hasattr(dist.ProcessGroup, "register_pre_hook")
    for way in ("hooks", "kernels") if hooks else ("kernels",):
        intercept.forced_way = way
        yield way
    intercept.forced_way = None


def _programs(world: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in PROGRAMS:
        if name in COMPILED or (name in TWICE and not can_call_twice()):
            continue
        program = PROGRAMS[name](world)
        for _ in range(WARM):
            program.step(Marks())
        found[name] = {}
        for arrange in (_alone, _ours_outside, _ours_inside):
            mode, tracker = arrange(program)
            found[name][arrange.__name__] = {
                "theirs": theirs(mode, program.model),
                "ours": ours(tracker),
            }
    return found


def _recv_from_anyone() -> None:
    if dist.get_rank():
        dist.send(torch.ones(3), 0)
    else:
        dist.recv(torch.empty(3))


def _both_ways() -> None:
    other = 1 - dist.get_rank()
    for work in (dist.isend(torch.ones(3), other), dist.irecv(torch.empty(3), other)):
        work.wait()


def _batched() -> None:
    other = 1 - dist.get_rank()
    sent = dist.P2POp(dist.isend, torch.ones(3), other)
    received = dist.P2POp(dist.irecv, torch.empty(3), other)
    for work in dist.batch_isend_irecv([sent, received]):
        work.wait()


def _objects() -> None:
    if dist.get_rank():
        dist.send_object_list([1], 0)
    else:
        dist.recv_object_list([None], 1)


def _on_another_thread() -> None:
    thread = threading.Thread(target=dist.all_reduce, args=(torch.ones(3),))
    thread.start()
    thread.join()


@case
def missed(world: int) -> dict[str, Any]:
    """What CommDebugMode does not see, by way and launch: [its total, our counts and bytes]."""
    return {way: _missed() for way in _ways()}


def _missed() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for launch in (
        dist.barrier,
        dist.monitored_barrier,
        _recv_from_anyone,
        _both_ways,
        _batched,
        _objects,
        _on_another_thread,
    ):
        mode, tracker = CommDebugMode(), ModTracker()
        with tracker, mode:
            launch()
        found[launch.__name__] = [mode.get_total_counts(), tracker.collectives.by_operator()]
    return found


if __name__ == "__main__":
    main()
