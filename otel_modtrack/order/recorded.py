"""Regions -> an order of names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_modtrack.order.model import Call, Order
from otel_modtrack.regions import Kind, Phase

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from otel_modtrack.regions import Region

__all__ = ["calls_of", "order_of"]


def calls_of(regions: Sequence[Region], phase: str) -> tuple[list[Region], list[Call]]:
    """The module calls of a phase, in order.

    Args:
        regions: in the order in which they began.
        phase: whose calls are wanted.

    Returns:
        Their regions, and the calls.
    """
    found: list[Region] = []
    calls: list[Call] = []
    positions: dict[Region, int] = {}
    for region in regions:
        if region.phase != phase or region.subject.kind is not Kind.MODULE:
            continue
        above = region.parent
        while above is not None and above not in positions:
            above = above.parent
        positions[region] = len(found)
        found.append(region)
        calls.append(Call(region.subject.fqn, positions[above] if above is not None else None))
    return found, calls


def order_of(regions: Iterable[Region], name: str) -> Order:
    """The order of what has begun, of modules alone.

    Args:
        regions: in the order in which they began; some may still run.
        name: of the order.
    """
    known = list(regions)
    return Order(
        name,
        forward=calls_of(known, Phase.FORWARD)[1],
        recompute=calls_of(known, Phase.RECOMPUTE)[1],
        backward=calls_of(known, Phase.BACKWARD)[1],
    )
