"""The running account of one tracker: how many collectives, how large, on which modules."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from otel_modtrack.comm.records import Tally
from otel_modtrack.regions import Kind, Phase

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from otel_modtrack.comm.records import Collective, Operator
    from otel_modtrack.regions import Region, Subject

__all__ = ["GLOBAL", "Called", "Ledger"]

GLOBAL = "Global"
_SETTLE_AT = 256  # records that wait to be counted
_MODULES = (Kind.MODULE, Kind.SCOPE)

# What was launched where: the modules around it, innermost first; phase, operator, group's name.
_Key = tuple[tuple[str, ...], str, "Operator", str]


class Called:
    """A module or named region that ran, and the fqn of the one it first ran in, or `GLOBAL`."""

    __slots__ = ("above", "subject")

    def __init__(self, subject: Subject, above: str) -> None:
        self.subject = subject
        self.above = above


class Ledger:
    """Counts records; they are counted in batches, and not kept.

    Attributes:
        called: by fqn, in the order of the first calls.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._pending: list[Collective] = []
        self._counts: dict[_Key, list[int]] = {}
        self.called: dict[str, Called] = {}

    def add(self, record: Collective) -> None:
        """Count a record, sooner or later."""
        pending = self._pending
        pending.append(record)
        if len(pending) >= _SETTLE_AT:
            self._settle()

    def take_modules(self, regions: Iterable[Region]) -> None:
        """Note what ran."""
        called = self.called
        for region in regions:
            subject = region.subject
            known = called.get(subject.fqn)
            if known is None:
                if subject.kind in _MODULES:
                    called[subject.fqn] = Called(subject, _above(region))
            elif known.subject is not subject and known.subject.ref() is None:
                known.subject = subject  # a new module under the old one's name

    def _settle(self) -> None:
        """Count everything that was added so far."""
        with self._lock:
            pending, self._pending = self._pending, []
            around: dict[Region, tuple[str, ...]] = {}  # for this batch
            counts = self._counts
            for record in pending:
                region = record.region
                if region is None:
                    fqns = record.fqns
                else:
                    fqns = around.get(region)  # type: ignore[assignment]
                    if fqns is None:
                        fqns = around[region] = modules_around(region)
                key = (fqns, record.phase, record.operator, record.group.name)
                entry = counts.get(key)
                if entry is None:
                    counts[key] = [1, record.size]
                else:
                    entry[0] += 1
                    entry[1] += record.size

    def sums(self, of: Callable[[_Key], str]) -> dict[str, Tally]:
        """Counts and bytes by something."""
        found: dict[str, Tally] = {}
        with self._lock:
            self._settle()
            for key, (count, size) in self._counts.items():
                _add(found, of(key), count, size)
        return found

    def modules(self) -> dict[str, dict[str, dict[str, Tally]]]:
        """Counts and bytes by fqn, phase and operation; `GLOBAL` has everything."""
        found: dict[str, dict[str, dict[str, Tally]]] = {}
        with self._lock:
            self._settle()
            for (fqns, phase, operator, _), (count, size) in self._counts.items():
                for fqn in (GLOBAL, *fqns):
                    by_operation = found.setdefault(fqn, {}).setdefault(phase, {})
                    _add(by_operation, operator.operation, count, size)
        return found


def _add(tallies: dict[str, Tally], key: str, count: int, size: int) -> None:
    before = tallies.get(key, _NONE)
    tallies[key] = Tally(before.count + count, before.size + size)


_NONE = Tally(0, 0)


def _above(region: Region) -> str:
    for one in _outward(region):
        if one is not region and one.subject.kind in _MODULES and one.subject.fqn:
            return one.subject.fqn
    return GLOBAL


def modules_around(region: Region) -> tuple[str, ...]:
    """Fqns of the modules, named regions and optimizers that a region is in, each once."""
    return tuple(dict.fromkeys(one.subject.fqn for one in _outward(region) if one.subject.fqn))


def _outward(region: Region) -> Iterator[Region]:
    """The region and the ones it is in.

    A recomputed block lies inside the backward of whichever of its layers asked first for a saved
    tensor. That layer has not launched what the block launches: from a recomputed block it goes
    on with the block's own backward.
    """
    chain = region.chain()
    at = 0
    while at < len(chain):
        one = chain[at]
        yield one
        at += 1
        if one.phase == Phase.RECOMPUTE and at < len(chain) and chain[at].phase != Phase.RECOMPUTE:
            target = one.subject.target
            own = (i for i in range(at, len(chain)) if chain[i].subject.target is target)
            at = next(own, at)
