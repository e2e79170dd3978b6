"""What an order has sequences of, by the names of `Order`'s attributes."""

from __future__ import annotations

from typing import Final

__all__ = ["CALLS", "NAMES", "SEQUENCES"]

CALLS: Final = ("forward", "recompute", "backward")  # of modules, called as the phases are
NAMES: Final = ("parameters", "gradients")  # of parameters
SEQUENCES: Final = (*CALLS, *NAMES)  # in the order in which orders are compared
