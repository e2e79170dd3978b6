"""Trace files -> orders of names.

A module's span says which of the module calls of its phase it is (`semconv.ORDER_INDEX`), so the
order does not depend on clocks, and a call that was folded into another's span leaves a gap. The
spans that stand for folded calls say how many they are, and so where in the order those belong.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from otel_modtrack import semconv
from otel_modtrack.order.model import Order
from otel_modtrack.order.sequences import CALLS
from otel_modtrack.order.show.placing import MOST_CALLS, Seen, place_by_index, place_by_time
from otel_modtrack.view.tree import describe_part

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from otel_modtrack.order.model import Call
    from otel_modtrack.view.model import Node, Span

__all__ = ["Changed", "Part", "read_part"]

_REGION: Final = "region"  # what a named region has in place of a module's class


@dataclass(frozen=True, slots=True)
class Changed:
    """Where the order of a step is not that of the step before. None is what was not told.

    Attributes:
        sequence: ``forward``, or another.
        position: in it.
        fqn: what comes there.
        previous_fqn: what came there before.
    """

    sequence: Any
    position: Any
    fqn: Any
    previous_fqn: Any


@dataclass(frozen=True, slots=True)
class Part:
    """An order, and where it is from.

    Attributes:
        order: of a step or trace of one rank; or as it was saved.
        source: the file.
        what: what a headline calls it: ``Step 19 of trainer, rank 0 of 2``.
        unit: ``step 19``, or ``trace 5f0c...``; "" for an order that was saved.
        service: of the process; "" where it has no name.
        world_size: how many ranks there are; None where nothing tells.
        trace_id: of the spans; None for an order that was saved.
        changed: where it is not the order of the step before, if that was told.
        diverged: what is said of ranks that went different ways, or "".
        by_time: whether the calls could be ordered by their start alone.
    """

    order: Order
    source: str
    what: str
    unit: str = ""
    service: str = ""
    world_size: int | None = None
    trace_id: str | None = None
    changed: Changed | None = None
    diverged: str = ""
    by_time: bool = False


def read_part(roots: Sequence[Node]) -> Part:
    """The order of a step or trace of one rank, of its module calls alone.

    Args:
        roots: its outermost spans.
    """
    first = roots[0].span
    reading = _Reading(first.process.rank, in_step=any(one.span.step is not None for one in roots))
    reading.read(roots)
    what, service, ranks = describe_part(roots)
    unit = what[:1].lower() + what[1:]
    steps = [root.span for root in roots if root.span.step is not None]
    orders: dict[str, Any] = {phase: reading.calls(phase) for phase in CALLS}
    return Part(
        Order(
            unit,
            **orders,
            step=steps[0].step if len(steps) == 1 else None,
            rank=first.process.rank,
        ),
        source=first.process.source,
        what=what
        + (f" of {service}" if service else "")
        + ("" if ranks is None else ", rank {} of {}".format(*ranks)),
        unit=unit,
        service=first.process.service,
        world_size=first.process.world_size,
        trace_id=first.trace_id,
        changed=_changed(steps),
        diverged=reading.diverged,
        by_time=reading.by_time,
    )


def _changed(steps: Sequence[Span]) -> Changed | None:
    """What the last event says that tells of another order."""
    for step in reversed(steps):
        for event in reversed(step.events):
            if event.name == semconv.ORDER_CHANGED_EVENT:
                told = event.attributes
                return Changed(
                    told.get(semconv.ORDER_SEQUENCE),
                    told.get(semconv.ORDER_POSITION),
                    told.get(semconv.ORDER_FQN),
                    told.get(semconv.ORDER_PREVIOUS_FQN),
                )
    return None


@dataclass(slots=True)
class _Reading:
    """What spans say of the module calls of one rank.

    Attributes:
        rank: spans of others, below these, are passed over.
        in_step: whether it is a step; an evaluation in one has an order of its own.
        by_time: whether calls are ordered by their start alone: their indices are missing, or
            malformed.
        diverged: what is said of ranks that went different ways, or "".
    """

    rank: int | None
    in_step: bool
    by_time: bool = False
    diverged: str = ""
    _is_indexed: bool = True
    # By phase, and there by the outermost call that they are in, which has one count of its own or
    # goes on with that of another.
    _seen: dict[str, dict[int, list[Seen]]] = field(
        default_factory=lambda: {phase: {} for phase in CALLS}
    )
    _outside: dict[str, int] = field(default_factory=lambda: dict.fromkeys(CALLS, 0))

    def read(self, roots: Sequence[Node]) -> None:
        """Look at all spans."""
        tops = 0
        waiting: list[tuple[Node, dict[str, Seen], int]] = [
            (root, {}, 0) for root in reversed(roots)
        ]
        while waiting:
            node, around, top = waiting.pop()
            span = node.span
            if span.process.rank not in {None, self.rank} or (
                self.in_step and _is_evaluation(span)
            ):
                continue
            phase = span.phase
            if not top and phase is not None:
                tops += 1
                top = tops
            if phase in self._seen and span.fqn is not None and span.module_type != _REGION:
                one = Seen(span, _index(span), around.get(phase))
                self._seen[phase].setdefault(top, []).append(one)
                self._is_indexed &= one.index >= 0
                around = {**around, phase: one}
            for event in span.events:
                if event.name == semconv.ORDER_DIVERGED_EVENT:
                    self.diverged = str(event.attributes.get(semconv.ORDER_REPORT, ""))
            for told, count in _folded(span):
                if told in around:
                    around[told].folded += count
                else:
                    self._outside[told] += count
            waiting += [(child, around, top) for child in reversed(node.children)]

    def calls(self, phase: str) -> list[Call]:
        """The calls of a phase, in order."""
        groups = list(self._seen[phase].values())
        seen = [one for group in groups for one in group]
        found = place_by_index(groups, self._outside[phase]) if self._is_indexed else None
        if found is None:
            self.by_time = True
            found = place_by_time(seen)
        if phase == "forward":  # calls of what was compiled into one piece are not looked into
            called = {call.parent for call in found}
            for one in seen:
                at = one.position
                if one.span.attributes.get(semconv.COMPILED) is True and at not in called:
                    found[at] = replace(found[at], leaf=True)
        return found


def _is_evaluation(span: Span) -> bool:
    return span.name == semconv.EVALUATION_SPAN and span.scope in {"", semconv.SCOPE_NAME}


def _index(span: Span) -> int:
    value = span.attributes.get(semconv.ORDER_INDEX)
    return value if isinstance(value, int) and 0 <= value < MOST_CALLS else -1


def _folded(span: Span) -> Iterator[tuple[str, int]]:
    """How many module calls of each phase the span stands for beside its own; at most."""
    for event in span.events:
        if event.name != semconv.FOLDED_EVENT:
            continue
        told = event.attributes
        count, phase = told.get(semconv.FOLDED_COUNT), told.get(semconv.PHASE)
        if not isinstance(count, int) or count <= 0 or told.get(semconv.MODULE_TYPE) == _REGION:
            continue
        if semconv.FOLDED_NAME not in told:  # of all kinds
            for each in CALLS:
                yield each, count
        elif phase in CALLS:
            yield phase, count
