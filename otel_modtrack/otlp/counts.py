"""What became of the spans: numbers that can be read at any time."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any

__all__ = ["Counts"]

logger = logging.getLogger("otel_modtrack")


class Counts:
    """What became of the spans, in this process.

    Attributes:
        delivered: spans that the backend took.
        lost_by_reason: spans that it will never get, by why: ``queue full``, ``exit``,
            ``HTTP 400``, ``rejected`` (taken with a request, and refused), ...
    """

    def __init__(self) -> None:
        self.delivered = 0
        self.lost_by_reason: Counter[str] = Counter()
        self._waiting: Any = lambda: 0
        self._is_told = False

    def start_anew(self) -> None:
        """Nothing has become of anything yet: in a forked child."""
        self.delivered = 0
        self.lost_by_reason.clear()
        self._is_told = False

    @property
    def lost(self) -> int:
        """How many spans are lost."""
        return sum(self.lost_by_reason.values())

    @property
    def waiting(self) -> int:
        """How many spans wait, or are under way."""
        found: int = self._waiting()
        return found

    def tell_lost(self) -> None:
        """Say in one line of the log what was lost, if anything was. Once."""
        if self.lost and not self._is_told:
            self._is_told = True
            reasons = ", ".join(f"{n:,} {why}" for why, n in self.lost_by_reason.most_common())
            logger.warning(
                "%s of %s spans were lost: %s",
                f"{self.lost:,}",
                f"{self.lost + self.delivered:,}",
                reasons,
            )

    def __repr__(self) -> str:
        lost = "".join(f", {why}: {n}" for why, n in self.lost_by_reason.items())
        return f"<Counts delivered={self.delivered} lost={self.lost}{lost} waiting={self.waiting}>"
