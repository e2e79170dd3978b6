"""A bounded queue, a thread that sends what is in it, and the count of what became of everything.

`put` and `put_all` are called by the thread that trains: an append and three comparisons. They take
no lock on their usual way, and those that are there may be taken again by the same thread: a signal
handler that interrupts anything here may wait for the queue.
"""

from __future__ import annotations

import logging
import os
import queue
import random
import threading
import time
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from opentelemetry import context as context_api

from otel_modtrack.carrier import SUPPRESS_KEY
from otel_modtrack.otlp.counts import Counts
from otel_modtrack.otlp.transport import Fate, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Delivery", "Limits", "Sender"]

logger = logging.getLogger("otel_modtrack.otlp")

_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.25, 10.0
_SHORTEST_WAIT_S = 0.1  # where a server says to come again at once
_AT_EXIT_WAIT_S = 0.25  # between attempts, once nothing is left to wait for but the deadline
_POLL_S = 0.002
_TOO_LATE = "ended after the exit"
_KEPT_S = 300.0  # how long one batch is tried before what is behind it gets its turn
_QUIET_S = 60.0  # between two lines about the same trouble


class Sender(Protocol):
    """Knows how a batch is sent.

    Attributes:
        shown: where it goes, fit to be printed.
        mend: what may help where it is refused, as the end of a sentence, or "".
        takes_records: whether a batch may have records in it beside spans; see `records`.
    """

    shown: str
    mend: str
    takes_records: bool

    def prepare(self, batch: Sequence[Any]) -> Any:
        """Encode a batch; may raise."""

    def send(self, prepared: Any, timeout_s: float) -> Outcome:
        """Send it. Never raises."""

    def after_fork(self) -> None:
        """In a forked child: leave what is the parent's alone."""

    def close(self) -> None:
        """Close what is open."""


class Limits(NamedTuple):
    """How much waits, how long, and how much goes at once.

    Attributes:
        waiting: most items that wait; what comes then is lost.
        batch: most items of one request.
        delay_s: longest time before what waits is sent.
        timeout_s: for one request.
    """

    waiting: int
    batch: int
    delay_s: float
    timeout_s: float


class Delivery:
    """Sends what is put in, in order, until it is there or lost.

    Args:
        sender: how.
        limits: how much.
        what: things in the plural, for the log.
        on_start: called when the thread is started, also in a forked child.

    Attributes:
        counts: what became of everything.
        takes_records: as the sender does.
        since_ns: when this process was forked, nanoseconds since the epoch; 0 if it was not.
    """

    def __init__(
        self,
        sender: Sender,
        limits: Limits,
        *,
        what: str = "spans",
        on_start: Callable[[], None] | None = None,
    ) -> None:
        self.counts = Counts()
        self.takes_records = getattr(sender, "takes_records", False)
        self._sender = sender
        self._limits = limits
        self._what = what
        self._on_start = on_start
        self._told_at_s = float("-inf")
        self.since_ns = 0
        self._renew()
        own = weakref.WeakMethod(self._after_fork)

        def after_fork() -> None:
            method = own()
            if method is not None:
                method()

        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=after_fork)

    def _renew(self) -> None:
        self._lock = threading.RLock()  # of the counts, and of the thread's start
        self._queue: deque[Any] = deque()
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()  # its put may interrupt itself
        self._woken = False
        self._taken = 0  # items that left the queue
        self._finished = 0  # items whose fate is known
        self._wanted = 0  # up to here somebody waits
        self._deadline_s = float("inf")
        self._closed = False
        self._is_down = False
        self._thread: threading.Thread | None = None
        self.counts._waiting = self._count_waiting  # noqa: SLF001 - made for this

    def _after_fork(self) -> None:
        """The parent delivers what was there; a child begins with nothing, and without a thread."""
        self._renew()
        self.since_ns = time.time_ns()
        self.counts.start_anew()
        self._sender.after_fork()

    def _count_waiting(self) -> int:
        return len(self._queue) + self._taken - self._finished

    # -- what the program's threads call ---------------------------------------------------------

    def put(self, item: Any) -> None:
        """Have one item sent, sooner or later. Never blocks, never raises."""
        waiting = self._queue
        if self._closed or len(waiting) >= self._limits.waiting:
            with self._lock:
                reason = _TOO_LATE if self._closed else "queue full"
                self.counts.lost_by_reason[reason] += 1
            return
        waiting.append(item)
        self._has_more(waiting)

    def put_all(self, items: Sequence[Any]) -> None:
        """Have several sent, as `put` does with one; the last ones are lost if there is no room."""
        waiting = self._queue
        room = self._limits.waiting - len(waiting)
        if self._closed or len(items) > room:
            kept = 0 if self._closed else max(room, 0)
            with self._lock:
                reason = _TOO_LATE if self._closed else "queue full"
                self.counts.lost_by_reason[reason] += len(items) - kept
            items = items[:kept]
            if not items:
                return
        waiting.extend(items)  # of a list: not interrupted, as an append is not
        self._has_more(waiting)

    def _has_more(self, waiting: deque[Any]) -> None:
        if self._thread is None:
            self.start()
        if len(waiting) >= self._limits.batch and not self._woken:
            self._woken = True
            self._wake.put(None)

    def start(self) -> None:
        """Have the thread ready: when the interpreter ends, none can be started any more."""
        with self._lock:
            if self._thread is not None:
                return
            name = f"otel_modtrack {self._what}"
            thread = threading.Thread(target=self._run, name=name, daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the interpreter ends, or there are too many threads
                return
            self._thread = thread
        if self._on_start is not None:
            self._on_start()

    def flush(self, timeout_s: float) -> bool:
        """Wait until what was put in before is delivered or lost.

        Returns:
            Whether that came to pass in time.
        """
        end_s = time.monotonic() + timeout_s
        wanted = self._taken + len(self._queue)
        self._wanted = max(self._wanted, wanted)
        self._wake.put(None)
        while self._finished < wanted and self._count_waiting():
            if time.monotonic() >= end_s or self._thread is None:
                return False
            time.sleep(_POLL_S)  # an event's lock may be held by what a signal interrupted
        return True

    def shutdown(self, timeout_s: float) -> bool:
        """Take nothing more, deliver what is there, and count what could not be as lost.

        Called again, also by a signal handler in the middle of it, it waits for the same end; a
        shorter time counts.

        Returns:
            Whether everything was delivered or lost before the time was up.
        """
        self._deadline_s = min(self._deadline_s, time.monotonic() + timeout_s)
        is_first, self._closed = not self._closed, True
        self._wake.put(None)
        thread = self._thread
        if thread is not None:
            while thread.is_alive() and time.monotonic() < self._deadline_s:
                time.sleep(_POLL_S)
        elif is_first:
            self._run()  # nothing was put in, or the interpreter did not let it start
        in_time = thread is None or not thread.is_alive()
        with self._lock:
            left = self._count_waiting()
            if left:  # what comes back from a request now is not counted again
                self._taken += len(self._queue)
                self._queue.clear()
                self._finished = self._taken
                # In time, these are of threads that were just putting them in.
                self.counts.lost_by_reason[_TOO_LATE if in_time else "exit"] += left
        return in_time or not left

    # -- the thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        # What sends is not traced itself.
        token = context_api.attach(context_api.set_value(SUPPRESS_KEY, True))
        try:
            while True:
                self._woken = False
                if not self._is_due():
                    self._sleep(self._limits.delay_s)
                closed = self._closed  # first: then what is due is all that there will be
                due = self._taken + len(self._queue)
                while self._taken < due and time.monotonic() < self._deadline_s:
                    self._send(self._take())
                if closed:
                    self._sender.close()
                    return
        finally:
            context_api.detach(token)

    def _is_due(self) -> bool:
        return len(self._queue) >= self._limits.batch or self._taken < self._wanted or self._closed

    def _take(self) -> list[Any]:
        waiting = self._queue
        with self._lock:
            count = min(len(waiting), self._limits.batch)
            self._taken += count  # first: what waits never looks like less than it is
            return [waiting.popleft() for _ in range(count)]

    def _send(self, batch: list[Any]) -> None:
        """Until each of them is delivered or lost, or time is up."""
        pending: list[tuple[list[Any], Any]] = [(batch, None)]
        give_up_s, wait_s = time.monotonic() + _KEPT_S, _FIRST_WAIT_S
        while pending:
            items, prepared = pending.pop()
            if prepared is None:
                try:
                    prepared = self._sender.prepare(items)
                except Exception as error:  # noqa: BLE001 - an attribute that cannot be encoded
                    self._split(items, f"encoding ({type(error).__name__})", pending)
                    continue
            left_s = self._deadline_s - time.monotonic()
            if left_s <= 0:
                return  # `shutdown` counts them
            outcome = self._sender.send(prepared, min(self._limits.timeout_s, left_s))
            if outcome.fate is Fate.DELIVERED:
                rejected = min(max(outcome.rejected, 0), len(items))
                self._settle(len(items), outcome.reason, rejected)
                self._is_down, wait_s = False, _FIRST_WAIT_S
            elif outcome.fate is Fate.TOO_LARGE:
                self._split(items, outcome.reason, pending)
            elif outcome.fate is Fate.TRY_AGAIN and self._may_try_again(outcome, give_up_s):
                pending.append((items, prepared))
                self._pause(outcome, wait_s)
                wait_s = min(wait_s * 2, _LONGEST_WAIT_S)
            else:
                self._lose(items, outcome.reason)

    def _settle(self, count: int, reason: str, lost: int) -> None:
        with self._lock:
            if self._finished + count <= self._taken:  # else `shutdown` has counted them
                self._finished += count
                self.counts.delivered += count - lost
                if lost:
                    self.counts.lost_by_reason[reason] += lost

    def _lose(self, items: list[Any], reason: str) -> None:
        self._settle(len(items), reason, len(items))
        mend = f"; {self._sender.mend}" if self._sender.mend else ""
        self._say(
            f"{len(items)} {self._what} are lost: {self._sender.shown} said {reason}{mend}"
            if not reason.startswith("encoding")
            else f"{len(items)} {self._what} are lost: {reason}"
        )

    def _split(self, items: list[Any], reason: str, pending: list[tuple[list[Any], Any]]) -> None:
        """Half of it may be small enough, and all but one may be well."""
        if len(items) == 1:
            self._lose(items, reason)
            return
        half = len(items) // 2
        pending.append((items[half:], None))
        pending.append((items[:half], None))

    # -- waiting for a backend -------------------------------------------------------------------

    def _may_try_again(self, outcome: Outcome, give_up_s: float) -> bool:
        now_s = time.monotonic()
        if not self._closed:
            return now_s < give_up_s
        if not outcome.answered and not self.counts.delivered:
            return False  # it was never there: not worth the whole deadline
        return now_s + (outcome.wait_s or _AT_EXIT_WAIT_S) < self._deadline_s

    def _pause(self, outcome: Outcome, wait_s: float) -> None:
        if not self._is_down:
            self._is_down = True
            self._say(
                f"{self._what} cannot be delivered to {self._sender.shown} now:"
                f" {outcome.reason}; up to {self._limits.waiting:,} are kept, and tried again"
            )
        if outcome.wait_s is not None:
            wait_s = min(max(outcome.wait_s, _SHORTEST_WAIT_S), _KEPT_S)
        elif self._closed:
            wait_s = _AT_EXIT_WAIT_S
        else:
            wait_s *= random.uniform(0.8, 1.2)  # noqa: S311 - ranks should not come all at once
        closed, wanted, end_s = self._closed, self._wanted, time.monotonic() + wait_s
        while self._sleep(end_s - time.monotonic()):
            if self._closed is not closed or self._wanted != wanted:
                return  # somebody leaves, or flushes; a full batch is no news here

    def _sleep(self, seconds: float) -> bool:
        """Sleep so long, or until somebody wants something. Returns whether somebody does."""
        seconds = min(seconds, self._deadline_s - time.monotonic())
        if seconds <= 0:
            return False
        try:
            self._wake.get(timeout=seconds)
        except queue.Empty:
            return False
        return True

    def _say(self, line: str) -> None:
        """One line about trouble, and none soon after it: the counts tell the rest."""
        now_s = time.monotonic()
        if now_s - self._told_at_s >= _QUIET_S and not self._closed:
            self._told_at_s = now_s
            logger.warning("%s", line)
