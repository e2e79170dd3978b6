"""Execution order: recorded, traced symbolically, and where two orders first differ."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_modtrack.lazily import lazily
from otel_modtrack.order.difference import Difference, Side, first_difference
from otel_modtrack.order.model import Call, Order, read_order

if TYPE_CHECKING:
    from otel_modtrack.order.across import compare_ranks
    from otel_modtrack.order.execution import ExecutionOrder, ParamUsage
    from otel_modtrack.order.fx_error import OrderError
    from otel_modtrack.order.symbolic import TracingConfig, trace_execution_order

__all__ = [
    "Call",
    "Difference",
    "ExecutionOrder",
    "Order",
    "OrderError",
    "ParamUsage",
    "Side",
    "TracingConfig",
    "compare_ranks",
    "first_difference",
    "read_order",
    "trace_execution_order",
]

# torch is loaded where an order is made: files of orders are compared without it.
__getattr__ = lazily(
    __name__,
    {
        "ExecutionOrder": "execution",
        "OrderError": "fx_error",
        "ParamUsage": "execution",
        "TracingConfig": "symbolic",
        "compare_ranks": "across",
        "trace_execution_order": "symbolic",
    },
)
