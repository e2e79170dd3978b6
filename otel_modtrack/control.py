"""What a `Policy` decides while the program runs. Knows neither torch nor OpenTelemetry."""

from __future__ import annotations

import bisect
import collections
import enum
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_modtrack.policy import Policy

__all__ = ["Control", "Want"]

_REMEMBERED = 101  # durations that a median is taken of
_NEEDED = 5  # before anything can be called an outlier


class Want(enum.Enum):
    """What is to become of a step."""

    KEEP = "keep"
    JUDGE = "judge"  # keep it if it is an outlier, which is known at its end
    LEAVE = "leave"  # not recorded


class _Median:
    """The median of the last durations, in ns."""

    def __init__(self) -> None:
        self._last: collections.deque[int] = collections.deque()
        self._sorted: list[int] = []

    def exceeded(self, value: int, times: float) -> bool:
        """Whether `value` is more than so many times the median of those before it; add it."""
        ordered = self._sorted
        found = len(ordered) >= _NEEDED and value > times * ordered[len(ordered) // 2]
        if len(self._last) >= _REMEMBERED:
            del ordered[bisect.bisect_left(ordered, self._last.popleft())]
        self._last.append(value)
        bisect.insort(ordered, value)
        return found


class Control:
    """Decides which steps are recorded, and what becomes of them.

    Args:
        policy: that it follows.
        rank: tells the rank of this process.

    Attributes:
        count: how many steps have begun.
    """

    def __init__(self, policy: Policy, rank: Callable[[], int] = lambda: 0) -> None:
        self.policy = policy
        self._rank = rank
        self.count = 0
        self._asked = 0
        self._medians: dict[object, _Median] = {}
        self._lock = threading.Lock()

    def ask(self, steps: int) -> None:
        """Record the next steps. Safe to call from a signal handler."""
        self._asked = max(self._asked, steps)  # no lock: the handler may have interrupted its owner

    def next(self, number: int) -> Want:
        """What the next step would be, if it had this number."""
        policy = self.policy
        if not self.records_rank():
            return Want.LEAVE
        if self._asked:
            return Want.KEEP
        named = policy.wants_step(number, self.count)
        if policy.outliers is None:
            return Want.KEEP if named else Want.LEAVE
        chosen = policy.every is not None or policy.first is not None
        return Want.KEEP if named and chosen else Want.JUDGE

    def begin(self, number: int) -> Want:
        """A step begins."""
        found = self.next(number)
        self.count += 1
        if self._asked and found is Want.KEEP:
            self._asked -= 1
        return found

    def passed(self) -> None:
        """A step is over that was not recorded, and whose beginning was not seen."""
        self.count += 1

    def records_rank(self) -> bool:
        """Whether this process records."""
        return self.policy.ranks == "all" or self.policy.wants_rank(self._rank())

    def records_outside(self) -> bool:
        """Whether what runs in no step is recorded."""
        policy = self.policy
        return (not policy.selects_steps or policy.outliers is not None) and self.records_rank()

    def is_outlier(self, kind: object, duration_ns: int) -> bool:
        """Whether something took longer than the policy allows; it counts for those after it.

        Args:
            kind: of what took so long; its duration is compared with its like.
            duration_ns: how long it took.
        """
        times = self.policy.outliers
        if times is None:
            return False
        with self._lock:
            median = self._medians.get(kind)
            if median is None:
                median = self._medians[kind] = _Median()
            return median.exceeded(duration_ns, times)
