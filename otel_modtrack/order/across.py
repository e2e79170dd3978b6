"""Compares the orders of several ranks, over their process group."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import torch

from otel_modtrack.comm.faults import FIRING
from otel_modtrack.order.difference import Difference, first_difference
from otel_modtrack.order.model import Order

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch.distributed import ProcessGroup

__all__ = ["compare_ranks"]


def compare_ranks(order: Order, group: ProcessGroup | None = None) -> Difference | None:
    """Where the orders of several ranks first differ; None if they agree in all that they know.

    It is collective: each rank of the group calls it with its own order, and gets the same answer,
    in which the orders are called ``rank 0``, ``rank 1``. Equal orders cost a digest each. What it
    sends is counted on no module and is on no span.

    Args:
        order: of this rank. It is not changed.
        group: whose ranks are compared; all ranks if None.

    Raises:
        TypeError: if `order` is none.
        RuntimeError: if there is no process group.
        ValueError: if this rank is not in `group`.
    """
    if not isinstance(order, Order):
        msg = f"compare_ranks(order): an Order is wanted, not {type(order).__name__}"
        raise TypeError(msg)
    dist = torch.distributed
    if not (dist.is_available() and dist.is_initialized()):
        msg = (
            "compare_ranks() asks the other ranks, and there is no process group: call"
            " torch.distributed.init_process_group() first"
        )
        raise RuntimeError(msg)
    if dist.get_rank(group) < 0:
        msg = (
            f"compare_ranks(group=...): rank {dist.get_rank()} is not in that group; call it on"
            " the ranks of the group alone"
        )
        raise ValueError(msg)
    size = dist.get_world_size(group)
    if size == 1:
        return None
    told = order.as_dict()
    FIRING.unseen = True
    try:
        digests: list[Any] = [None] * size
        dist.all_gather_object(digests, _digest_of_all(told), group)
        if len(set(digests)) == 1:
            return None
        found: list[Any] = [None] * size
        dist.all_gather_object(found, told, group)
    finally:
        FIRING.unseen = False
    orders = [Order.from_dict(one) for one in found]
    for one, rank in zip(orders, dist.get_process_group_ranks(group), strict=True):
        one.name = f"rank {rank}"
    return first_difference(orders)


def _digest_of_all(told: Mapping[str, Any]) -> bytes:
    """Equal for orders that differ in name, step and rank alone."""
    same = {key: value for key, value in told.items() if key not in ("name", "step", "rank")}
    return hashlib.sha256(json.dumps(same).encode()).digest()
