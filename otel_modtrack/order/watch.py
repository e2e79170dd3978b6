"""Finds out, while ranks hang, which of them went where: before the collective's own timeout.

A thread of each rank looks now and then whether something has begun or ended. Where nothing has,
it asks the other ranks' threads, through the store that the process group was made with, and on a
connection of its own: the group itself hangs, and so may the program's connection.

One round of asking: a rank that stands still opens it, each rank puts down where it is, and the one
that has opened it says what that means. It costs a few messages a rank, however many there are.
"""

from __future__ import annotations

import atexit
import itertools
import logging
import math
import os
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch

from otel_modtrack.core import CORE
from otel_modtrack.order.judging import cut_off, judge
from otel_modtrack.order.meeting import Talk
from otel_modtrack.order.positions import Kinds, Position, Report
from otel_modtrack.order.view import View

if TYPE_CHECKING:
    import types
    from collections.abc import Callable

    from typing_extensions import Self

__all__ = ["OrderWatch"]

logger = logging.getLogger("otel_modtrack")

_uses = itertools.count()

_LOOKS: Final = 4  # how often it is looked in the time that is waited for something
_TOLD_KEPT: Final = 8
_ROUND_LOOK_S: Final = 0.1  # while a round is under way
_DISTRIBUTED: Final = torch.distributed.is_available()


class OrderWatch:
    """Says which rank went where, while ranks wait for each other.

    A context manager, for each rank to be in, while a `ModTracker` is on. Where nothing begins and
    nothing ends for `after` seconds in a step or call that is open, the ranks tell each other where
    they are, and each logs the same report, once:

    - as an error, if they went different ways and wait for each other, or if one has failed. Of
      those that went different ways, the step's span has an event ``modtrack.order_diverged``.
    - as a warning, if a rank is slow, or does not answer. On a rank that goes on it is only "info".

    It launches no collective, and never runs on the program's threads. Without a process group, or
    with one rank alone, it does nothing.

    Args:
        after: how long nothing begins and nothing ends before the others are asked, in seconds. The
            process group's own timeout should be at least twice as long.
        answer: how long the others have to answer, in seconds.
        on_difference: called with each `Report` of different ways, on a thread of ours.

    Attributes:
        reports: what was found so far, the oldest first.

    Raises:
        TypeError: if an argument is of the wrong type.
        ValueError: if a time is not a positive number.

    Example:
        >>> with ModTracker(model) as tracker, OrderWatch(after=30.0):
        ...     train()

    Limits:
        Off in forked children. Modules that a policy leaves out are not seen; steps are, at the
        price of tracking their calls. On a device the program runs
        ahead of what is computed: a rank may have gone on to a later module than the one whose
        collective waits. A process that is killed at the timeout exports no span: the log has it.
    """

    def __init__(
        self,
        after: float = 10.0,
        *,
        answer: float = 5.0,
        on_difference: Callable[[Report], object] | None = None,
    ) -> None:
        for name, value in (("after", after), ("answer", answer)):
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                msg = f"OrderWatch({name}=...): seconds are wanted, not {type(value).__name__}"
                raise TypeError(msg)
            if not (math.isfinite(value) and value > 0):
                msg = f"OrderWatch({name}={value}): a positive number of seconds is wanted"
                raise ValueError(msg)
        if on_difference is not None and not callable(on_difference):
            msg = (
                "OrderWatch(on_difference=...): a function is wanted, not"
                f" {type(on_difference).__name__}"
            )
            raise TypeError(msg)
        self.reports: list[Report] = []
        self._after_s = float(after)
        self._answer_s = float(answer)
        self._on_difference = on_difference
        self._watcher: _Watcher | None = None

    @property
    def is_on(self) -> bool:
        """Whether its block is entered, and not left."""
        return self._watcher is not None

    def __enter__(self) -> Self:
        """Begin to watch."""
        if self._watcher is None and _DISTRIBUTED:
            self._watcher = watcher = _Watcher(
                self._after_s, self._answer_s, self.reports, self._on_difference
            )
            try:
                watcher.start()
            except RuntimeError as error:  # there may be no more threads
                logger.warning("the order is not watched: %s", error)
                self._watcher = None
                return self
            CORE.watches += 1  # what a policy leaves out is seen, too
            CORE.wake()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace_: types.TracebackType | None,
    ) -> None:
        """End it: no thread is left, and nothing in the store once the last rank has left."""
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            CORE.watches = max(CORE.watches - 1, 0)
            watcher.stop(kind.__qualname__ if kind is not None else "")


class _Watcher:
    """The thread of one `with` block, and what it knows."""

    def __init__(
        self,
        after_s: float,
        answer_s: float,
        reports: list[Report],
        on_difference: Callable[[Report], object] | None,
    ) -> None:
        self._after_s = after_s
        self._answer_s = answer_s
        self._reports = reports
        self._on_difference = on_difference
        self._use = next(_uses)
        self._groups = itertools.count()
        self._pid = os.getpid()
        self._stop = threading.Event()
        self._error = ""
        self._view = View()
        self._talk: Talk | None = None
        self._lost: _Lost | None = None
        self._next_ask_s = 0.0
        self._told: list[tuple[int, set[tuple[int, int]]]] = []
        self._thread = threading.Thread(target=self._run, name="otel_modtrack watch", daemon=True)

    def start(self) -> None:
        """Begin.

        Raises:
            RuntimeError: if no thread can be started.
        """
        self._thread.start()
        CORE.ledgers = (*CORE.ledgers, self._view.seen)
        # A daemon thread that comes back from torch while the interpreter ends aborts the process.
        atexit.register(self.stop)

    def stop(self, error: str = "") -> None:
        """End; waits for the thread no longer than others have to answer. Never raises.

        Args:
            error: class of the exception that has ended it.
        """
        atexit.unregister(self.stop)
        CORE.ledgers = tuple(one for one in CORE.ledgers if one is not self._view.seen)
        if os.getpid() == self._pid:
            self._error = error
            self._stop.set()
            if threading.current_thread() is not self._thread:
                self._thread.join(self._answer_s)

    def _run(self) -> None:
        wait_s = min(self._after_s, self._answer_s) / _LOOKS
        try:
            while True:
                self._look()
                if self._stop.wait(wait_s):
                    break
            if self._talk is not None:
                self._part(self._talk)
        except Exception:  # nothing of ours may reach the user
            logger.warning("the order is not watched any more", exc_info=True)
        finally:
            self._talk = None

    def _look(self) -> None:
        """What is done now and then."""
        self._view.look()
        talk = self._find_talk()
        waits = self._view.still_s() >= self._after_s and time.monotonic() >= self._next_ask_s
        if talk is None:
            if waits and self._lost is not None and self._lost.group() is _default_group():
                here = self._view.position(self._lost.rank)
                self._hear(cut_off(here, self._after_s, self._lost.why), here)
            return
        try:
            current = talk.round()
            if current != talk.answered:
                self._answer(talk, current)
            elif waits and (opened := talk.open_round()) is not None:
                self._ask(talk, opened)
        except RuntimeError as error:
            self._lost = _Lost(talk.group, talk.rank, _first_line(error))
            self._talk = None

    # -- the others ------------------------------------------------------------------------------

    def _find_talk(self) -> Talk | None:
        """A connection for the default process group there is now; None if there is none."""
        group = _default_group()
        talk = self._talk
        if talk is not None and talk.group() is not group:
            self._talk = None
            self._part(talk)
            talk = None
        if group is None or (self._lost is not None and self._lost.group() is group):
            return None
        if talk is None:
            try:
                self._talk = talk = Talk(group, self._name(), self._answer_s)
            except (RuntimeError, ValueError, KeyError, NotImplementedError) as error:
                if _default_group() is group:  # else it has just gone
                    why = _first_line(error)
                    self._lost = _Lost(weakref.ref(group), torch.distributed.get_rank(), why)
                return None
        return talk if talk.world > 1 else None

    def _name(self) -> str:
        """What the watches of all ranks call this one, while there is one process group."""
        return f"{self._use}.{next(self._groups)}"

    def _ask(self, talk: Talk, current: int) -> None:
        """Open a round: wait for the others, and say what it means."""
        here = self._view.position(talk.rank)
        talk.answered = current
        found = {talk.rank: here}
        until_s = time.monotonic() + self._answer_s
        while True:
            for rank in range(talk.world):
                if rank not in found and (position := talk.position(current, rank)) is not None:
                    found[rank] = position
            if len(found) == talk.world or time.monotonic() >= until_s:
                break
            if self._stop.wait(_ROUND_LOOK_S):
                return
        silent = [rank for rank in range(talk.world) if rank not in found]
        unwatched = [rank for rank in silent if not talk.has_come(rank)]
        report = judge(found, talk.world, self._after_s, unwatched)
        talk.tell(current, report)
        self._hear(report, here)

    def _answer(self, talk: Talk, current: int) -> None:
        """Someone has opened a round: tell where this rank is, and hear what it means."""
        here = self._view.position(talk.rank)
        talk.answered = current
        talk.put(current, here)
        until_s = time.monotonic() + 2 * self._answer_s
        while not talk.is_told(current):
            if self._stop.wait(_ROUND_LOOK_S) or time.monotonic() >= until_s:
                return  # whoever has opened it has ended
        self._hear(talk.told(current), here)

    def _hear(self, report: Report | None, here: Position) -> None:
        """What a round has come to: log it, unless it was told of the same standstill before."""
        wait_s = self._after_s if report is not None else self._after_s / _LOOKS
        self._next_ask_s = time.monotonic() + wait_s
        if report is None:
            return
        weight, stuck = Kinds.ALL.index(report.kind), set(report.stuck)
        if any(weight <= before and stuck & of for before, of in self._told):
            return
        self._told = [*self._told[-_TOLD_KEPT:], (weight, stuck)]
        self._reports.append(report)
        goes_on = here.now is None or here.still_s < self._after_s
        slow = goes_on and report.level < logging.ERROR  # the others wait, maybe for this one
        logger.log(logging.INFO if slow else report.level, "%s", report.text)
        if report.kind == Kinds.DIVERGED:
            self._view.tell_span(report, here)
            if self._on_difference is not None:
                try:
                    self._on_difference(report)
                except Exception:
                    logger.exception("on_difference has raised")

    def _part(self, talk: Talk) -> None:
        """Tell the others that this rank is watched no more."""
        here = self._view.position(talk.rank)
        here.now, here.left, here.error = None, True, self._error
        try:
            talk.leave(here)
        except RuntimeError:
            return


class _Lost(NamedTuple):
    """A process group, weakly, whose store does not answer; the rank in it; why."""

    group: weakref.ref[Any]
    rank: int
    why: str


def _default_group() -> Any:
    dist = torch.distributed
    return dist.group.WORLD if dist.is_initialized() else None


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
