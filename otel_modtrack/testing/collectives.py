"""What a test's models launched, and what can be asserted of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_modtrack.collectives import PHASES, Collectives
from otel_modtrack.sizes import render_size
from otel_modtrack.testing.asked import check_number, check_text, fits, name_some
from otel_modtrack.usage import UsageError

if TYPE_CHECKING:
    from otel_modtrack.comm.ledger import Key

__all__ = ["CapturedCollectives"]

_NAMED = 6  # lines that a message has


class CapturedCollectives(Collectives):
    """All collectives that were launched while a tracker was on; see `Collectives`."""

    def select(
        self,
        fqn: str | None = None,
        *,
        operation: str | None = None,
        phase: str | None = None,
        group: str | None = None,
    ) -> CapturedCollectives:
        """Those that fit all that is given.

        Args:
            fqn: of a module, named region or optimizer that they were launched in, or in what runs
                inside it; or a pattern as a shell's: ``GPT.layers.*``.
            operation: ``all_reduce``, ``all_gather``, ``send``.
            phase: ``forward``, ``backward``, ``recompute``, ``optimizer``, or ``outside`` for what
                was launched in no module, backward or optimizer step.
            group: name of the process group.

        Raises:
            UsageError: if there is no such phase.
        """
        __tracebackhide__ = True
        if fqn is not None:
            check_text("fqn", fqn)
        if phase is not None and phase not in PHASES:
            raise UsageError(f"phase={phase!r}: the phases are {', '.join(PHASES)}")

        def keep(key: Key) -> bool:
            fqns, in_phase, (operator, name) = key
            return (
                (fqn is None or any(fits(one, fqn) for one in fqns))
                and (phase is None or in_phase == phase)
                and (operation is None or operator.operation == operation)
                and (group is None or name == group)
            )

        return CapturedCollectives(self.ledger.only(keep))

    def assert_count(self, count: int) -> None:
        """Assert how many there are.

        Raises:
            AssertionError: if there are more or fewer. The message says where they were launched.
        """
        __tracebackhide__ = True
        check_number("assert_count() wants a whole number", count)
        if self.total != count:
            raise AssertionError(f"expected {count}, found {self!r}")

    def assert_at_most(self, count: int) -> None:
        """Assert how many there are at most.

        Raises:
            AssertionError: if there are more. The message says where they were launched.
        """
        __tracebackhide__ = True
        check_number("assert_at_most() wants a whole number", count)
        if self.total > count:
            raise AssertionError(f"expected {count} at most, found {self!r}")

    def assert_size(self, size_bytes: int) -> None:
        """Assert their payload together, on this rank.

        Raises:
            AssertionError: if it is another. The message says where they were launched.
        """
        __tracebackhide__ = True
        check_number("assert_size() wants a whole number", size_bytes)
        if self.size != size_bytes:
            raise AssertionError(f"expected {size_bytes} bytes, found {self.size}: {self!r}")

    def __repr__(self) -> str:
        what = f"{self.total} collective{'s' if self.total != 1 else ''}"
        places = self.ledger.sums(_place)
        named = [
            f"{operation}{f' x{tally.count}' if tally.count > 1 else ''}"
            f" {render_size(tally.size)} in {place}"
            for (operation, place), tally in places.items()
        ]
        return f"<{what}: {name_some(named, _NAMED)}>" if named else f"<{what}>"


def _place(key: Key) -> tuple[str, str]:
    """Operation, and the innermost region that launched it: ``backward Net.head``."""
    fqns, phase, (operator, _) = key
    return operator.operation, " ".join([phase, *fqns[:1]])
