"""How much there may be of what was captured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from otel_modtrack.testing.asked import check_number, check_text
from otel_modtrack.usage import UsageError

if TYPE_CHECKING:
    from otel_modtrack.testing.capturing import Capture

__all__ = ["Limits"]

_PHASES: Final = ("forward", "backward", "recompute", "optimizer")


class Limits(NamedTuple):
    """At most so much; None for any amount.

    Attributes:
        spans: how many.
        collectives: how many.
        size_bytes: of all collectives together, on this rank.
    """

    spans: int | None
    collectives: int | None
    size_bytes: int | None

    def check(self, captured: Capture, fqn: str | None, phase: str | None) -> None:
        """Compare with what there is, in all or in some modules or in a phase.

        Raises:
            AssertionError: if there is more. The message says of what, and where.
            UsageError: if there is no limit, or no such phase or module.
        """
        __tracebackhide__ = True
        self._check_asked(fqn, phase)
        over = []
        found = captured.select(within=fqn, phase=phase)
        if self.spans is not None and len(found) > self.spans:
            over.append(f"spans={self.spans}, found {found!r}")
        if self.collectives is not None or self.size_bytes is not None:
            launched = captured.collectives.select(fqn, phase=phase)
            if self.collectives is not None and launched.total > self.collectives:
                over.append(f"collectives={self.collectives}, found {launched!r}")
            if self.size_bytes is not None and launched.size > self.size_bytes:
                over.append(f"size_bytes={self.size_bytes}, found {launched.size}: {launched!r}")
        if over:
            where = (f" in {phase}" if phase else "") + (f" of {fqn}" if fqn else "")
            raise AssertionError(f"over the budget{where}: {'; '.join(over)}")

    def _check_asked(self, fqn: str | None, phase: str | None) -> None:
        __tracebackhide__ = True
        if all(limit is None for limit in self):
            raise UsageError("assert_budget() wants a limit: spans=, collectives= or size_bytes=")
        for name, limit in self._asdict().items():
            if limit is not None:
                check_number(f"assert_budget({name}=...) is a whole number", limit)
        if fqn is not None:
            check_text("fqn", fqn)
        if phase is not None and phase not in _PHASES:
            raise UsageError(f"phase={phase!r}: a budget is for {', '.join(_PHASES)}, or for all")
