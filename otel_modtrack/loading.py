"""Sees batches come out of a DataLoader: spans ``data_load``."""

from __future__ import annotations

from typing import Any

from torch.utils.data import dataloader

from otel_modtrack import calls
from otel_modtrack.core import CORE, THREADS
from otel_modtrack.regions import Kind, Phase, Region, Subject, Unit
from otel_modtrack.swap import AroundSwap, original_body

__all__ = ["LoadSwap", "loaded"]

_LOAD = Subject(Kind.LOAD, "", "", "")


def loaded(unit: Unit, begun_ns: int, ended_ns: int) -> Region:
    """The region of a batch that was loaded."""
    region = Region(_LOAD, None, Phase.FORWARD, begun_ns, unit)
    region.end_ns = ended_ns
    unit.regions.append(region)
    return region


def begin_load() -> int:
    """A batch is about to be asked for. Never raises."""
    return calls.clock()


def end_load(begun_ns: int) -> None:
    """It is there. Never raises."""
    try:
        if CORE.on:
            _note(begun_ns, calls.clock())
    except Exception as error:  # noqa: BLE001 - nothing of ours may reach the user
        CORE.fault("the loading of a batch", error)


def _note(begun_ns: int, ended_ns: int) -> None:
    state = THREADS.state
    CORE.settle(state)
    unit, running = state.unit, state.running
    if running is not None or (unit is not None and unit.opener is not None):
        return  # a part of what runs
    if unit is not None:
        region = loaded(unit, begun_ns, ended_ns)
        if unit.sink.var is not None:
            region.context = unit.sink.below_step(region, unit.sink.var.get())
    elif state.progress.evaluating:
        unit = CORE.begin(state, _LOAD)
        if unit is not None:
            unit.opener = loaded(unit, begun_ns, ended_ns)
            CORE.flush(unit)
    elif not state.skip:
        state.progress.add_load(begun_ns, ended_ns)


def _around() -> Any:
    """What is put around the body of torch's ``_BaseDataLoaderIter.__next__``, in its own frame."""
    begin_load: Any = "modtrack:begin_load"
    end_load: Any = "modtrack:end_load"
    begun_ns = begin_load()
    try:
        original_body()
    except BaseException:
        begun_ns = 0
        raise
    finally:
        if begun_ns:
            end_load(begun_ns)


class LoadSwap(AroundSwap):
    """Puts our code into the DataLoader's iterators and takes it out again.

    Raises:
        TypeError: if the function is not a plain one whose source is there.
    """

    def __init__(self) -> None:
        target = dataloader._BaseDataLoaderIter.__next__  # noqa: SLF001
        super().__init__(target, _around, begin_load, end_load)
