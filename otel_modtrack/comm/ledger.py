"""The running account of one tracker: how many collectives, how large, on which modules."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, TypeVar

from otel_modtrack.comm.records import Phases, Tally
from otel_modtrack.regions import CALLS, Kind, Phase

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from otel_modtrack.comm.records import Collective, Operator
    from otel_modtrack.regions import Region, Subject

__all__ = ["GLOBAL", "Called", "Key", "Ledger"]

GLOBAL = "Global"
_SETTLE_AT = 256  # records that wait to be counted

# The modules around, innermost first; the phase; the operator and the group's name.
Key = tuple[tuple[str, ...], str, tuple["Operator", str]]
_Of = TypeVar("_Of")


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
        self._counts: dict[Key, list[int]] = {}
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
                if subject.kind in CALLS:
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
                region, launch = record.region, record.launch
                if region is None:
                    fqns, phase = record.elsewhere
                else:
                    fqns = around.get(region) or _fqns_around(region, around)
                    phase = region.phase
                    if region.subject.kind is Kind.OPTIMIZER:
                        phase = Phases.OPTIMIZER
                key = (fqns, phase, launch.kind)
                entry = counts.get(key)
                if entry is None:
                    counts[key] = [1, launch.size]
                else:
                    entry[0] += 1
                    entry[1] += launch.size

    def sums(self, of: Callable[[Key], _Of]) -> dict[_Of, Tally]:
        """Counts and bytes by something."""
        found: dict[_Of, Tally] = {}
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
            for (fqns, phase, (operator, _)), (count, size) in self._counts.items():
                for fqn in (GLOBAL, *fqns):
                    by_operation = found.setdefault(fqn, {}).setdefault(phase, {})
                    _add(by_operation, operator.operation, count, size)
        return found

    def only(self, keep: Callable[[Key], bool]) -> Ledger:
        """A ledger of its own with what was counted so far, as far as it is kept."""
        found = Ledger()
        with self._lock:
            self._settle()
            for key, entry in self._counts.items():
                if keep(key):
                    found._counts[key] = list(entry)
            found.called = dict(self.called)
        return found


def _add(tallies: dict[_Of, Tally], key: _Of, count: int, size: int) -> None:
    before = tallies.get(key, _NONE)
    tallies[key] = Tally(before.count + count, before.size + size)


_NONE = Tally(0, 0)


def _above(region: Region) -> str:
    for one in _outward(region):
        if one is not region and one.subject.kind in CALLS and one.subject.fqn:
            return one.subject.fqn
    return GLOBAL


def _fqns_around(region: Region, known: dict[Region, tuple[str, ...]]) -> tuple[str, ...]:
    """Fqns of the modules, named regions and optimizers around, innermost first, each once.

    Args:
        region: that it is asked for.
        known: the answers so far; regions next to each other have most of theirs in common.
    """
    pending = []
    one: Region | None = region
    fqns: tuple[str, ...] = ()
    while one is not None and one not in known:
        if one.phase == Phase.RECOMPUTE:
            fqns = tuple(dict.fromkeys(o.subject.fqn for o in _outward(one) if o.subject.fqn))
            known[one] = fqns
            break
        pending.append(one)
        one = one.parent
    else:
        fqns = known[one] if one is not None else ()
    while pending:
        one = pending.pop()
        fqn = one.subject.fqn
        if fqn and fqn not in fqns:
            fqns = (fqn, *fqns)
        known[one] = fqns
    return fqns


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
