"""How the watches of several ranks speak with each other: through the store."""

from __future__ import annotations

import datetime as dt
import re
import select
import weakref
from typing import Any, Final

import torch

from otel_modtrack.order.positions import Position, Report

__all__ = ["Talk"]

_CONNECTION: Final = re.compile(r"\bSocketImpl\(fd=(\d+)")


class Talk:
    """Speaks with the watches of the other ranks, through the store of a process group.

    Args:
        group: the default process group.
        name: that the watches have in common, and no other has in this store.
        timeout_s: for each message, in seconds.

    Attributes:
        group: weakly.
        rank, world: of this process in the group.
        answered: the round that this rank has taken part in last.
    """

    def __init__(self, group: Any, name: str, timeout_s: float) -> None:
        dist: Any = torch.distributed
        self.group = weakref.ref(group)
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.answered = 0
        if self.world == 1:
            return
        own = dist.distributed_c10d._get_default_store().clone()  # noqa: SLF001
        own.set_timeout(dt.timedelta(seconds=timeout_s))
        self._store: Any = dist.PrefixStore(f"otel_modtrack/watch/{name}", own)
        self._round = self._store.compare_set("round", "", "0:").decode()
        self.answered = self.round()
        self._store.set(f"here/{self.rank}", "")

    def has_come(self, rank: int) -> bool:
        """Whether a rank has begun to watch."""
        return bool(self._store.check([f"here/{rank}"]))

    def round(self) -> int:
        """The number of the last round that was opened."""
        if not self._is_served():
            msg = "the connection was closed"
            raise RuntimeError(msg)
        self._round = self._store.get("round").decode()
        return int(self._round.partition(":")[0])

    def open_round(self) -> int | None:
        """Open the next round; None if another rank was faster."""
        ours = f"{self.answered + 1}:{self.rank}"
        found = self._store.compare_set("round", self._round, ours).decode()
        if found != ours:
            return None
        if self.answered:  # nobody asks for that any more
            self._forget(self.answered)
        return self.answered + 1

    def put(self, current: int, position: Position) -> None:
        """Say where this rank is."""
        self._store.set(f"{current}/{self.rank}", position.to_bytes())

    def position(self, current: int, rank: int) -> Position | None:
        """Where a rank is, if it has said so or has left."""
        for key in (f"{current}/{rank}", f"left/{rank}"):
            if self._store.check([key]):
                return Position.from_bytes(self._store.get(key))
        return None

    def tell(self, current: int, report: Report | None) -> None:
        """Say what a round has come to."""
        self._store.set(f"{current}/told", report.to_bytes() if report is not None else b"-")

    def is_told(self, current: int) -> bool:
        """Whether that was said."""
        return bool(self._store.check([f"{current}/told"]))

    def told(self, current: int) -> Report | None:
        """What was said."""
        found = self._store.get(f"{current}/told")
        return Report.from_bytes(found) if found != b"-" else None

    def leave(self, position: Position) -> None:
        """Say that this rank is watched no more; the last one clears up."""
        if self.world == 1 or not self._is_served():
            return
        self._store.set(f"left/{self.rank}", position.to_bytes())
        if self._store.add("gone", 1) == self.world:
            self._forget(self.round())
            for rank in range(self.world):
                self._store.delete_key(f"here/{rank}")
                self._store.delete_key(f"left/{rank}")
            self._store.delete_key("round")
            self._store.delete_key("gone")

    def _forget(self, current: int) -> None:
        for what in ("told", *range(self.world)):
            self._store.delete_key(f"{current}/{what}")

    def _is_served(self) -> bool:
        """Whether the store is there still: torch prints a stack if one is written to in vain.

        Nothing comes by the connection of a TCPStore that was not asked for, but its end.
        """
        told = _CONNECTION.search(repr(self._store._underlying_non_prefix_store))  # noqa: SLF001
        if told is None or not hasattr(select, "poll"):
            return True
        poll = select.poll()
        poll.register(int(told[1]), select.POLLIN)
        return not poll.poll(0)
