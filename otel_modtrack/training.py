"""What is remembered of a thread's training from step to step: what `stepping` works on."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from otel_modtrack.regions import Subject

__all__ = ["Progress"]

_LOADS_KEPT = 16


class Progress:
    """How far a thread's training is: what is remembered from step to step.

    Attributes:
        open: the step that was recognised and is under way, or None.
        due: it is over, as soon as the backward is that runs now.
        stepped: the optimizers that have stepped since the last step, by ``id``, the last one last,
            and where that was: (how many regions there were, clock in ns).
        nested: the optimizer steps that run now, outermost first: (``id``, frame).
        split: the one of `stepped` at which the step turned out to be two, or None.
        concerned: optimizers that have a parameter of a module that was called in a step.
        irregular: those of them that do not step once in every step.
        suspended: how many things are set aside by `ThreadState.suspend`.
        loads: when the batches were loaded that belong to the next step.
        evaluating: whether an explicit evaluation is under way.
        order: the modules that the last recorded step called, by phase and in order.
    """

    __slots__ = (
        "_concerned",
        "_irregular",
        "due",
        "evaluating",
        "loads",
        "nested",
        "open",
        "order",
        "split",
        "stepped",
        "suspended",
    )

    def __init__(self) -> None:
        self.open: Any = None
        self.nested: list[tuple[int, Any]] = []
        self._concerned: weakref.WeakSet[Any] | None = None  # most threads train nothing
        self._irregular: weakref.WeakSet[Any] | None = None
        self.suspended = 0
        self.loads: list[tuple[int, int]] = []
        self.evaluating = False
        self.order: dict[str, list[Subject]] | None = None
        self.start_anew()

    @property
    def concerned(self) -> weakref.WeakSet[Any]:
        """See the class."""
        if self._concerned is None:
            self._concerned = weakref.WeakSet()
        return self._concerned

    @property
    def irregular(self) -> weakref.WeakSet[Any]:
        """See the class."""
        if self._irregular is None:
            self._irregular = weakref.WeakSet()
        return self._irregular

    def start_anew(self) -> None:
        """No optimizer has stepped since the last step."""
        self.due = False
        self.split: tuple[int, int] | None = None
        self.stepped: dict[int, tuple[int, int]] = {}

    def add_load(self, begun_ns: int, ended_ns: int) -> None:
        """A batch was loaded while no step was open; the last few are kept."""
        self.loads.append((begun_ns, ended_ns))
        del self.loads[:-_LOADS_KEPT]

    def take_loads(self) -> list[tuple[int, int]]:
        """The batches that belong to the step that begins now."""
        found, self.loads = self.loads, []
        return found
