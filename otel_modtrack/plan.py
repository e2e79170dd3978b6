"""Whose nodes will run: the log of the forward laid beside the order of the backward.

Numbers tell nodes apart within the thread that made them. As long as one thread made everything,
a number is all that is needed. Where logs of several threads meet in one graph, they are told apart
by the output nodes that they hang on, and nodes by themselves.
"""

from __future__ import annotations

import bisect
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from otel_modtrack import engine
from otel_modtrack.core import CORE, METADATA_KEY, real
from otel_modtrack.engine import ACCUMULATE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_modtrack.core import Stretch, ThreadState
    from otel_modtrack.regions import Region

__all__ = ["Plan"]


class Plan:
    """Who owns which of the nodes that will run, and which of them to arm.

    Args:
        order: the nodes that will run, in order.
        state: of the thread that launched the run.

    Attributes:
        owners: the innermost call that made each armed node, by `key`.
        by_node: whether nodes are told apart by themselves rather than by number.
        captured: keys of nodes whose gradient is taken but that do not run themselves.
    """

    def __init__(self, order: Sequence[Any], inputs: Sequence[Any], state: ThreadState) -> None:
        self._open = state.stretch
        self.owners: dict[Any, Region | None] = {}
        self.by_node = False
        self._labels: dict[Any, Stretch] = {}
        self._order: Sequence[Any] = order
        self._numbers: Sequence[int] = [node._sequence_nr() for node in order]  # noqa: SLF001
        self._stretches = self._find(state)
        self.captured = {self.key(node) for node in engine.only_captured(order, inputs)}

    def arm(self, running: Any, dummy: Any) -> None:
        """Arm each node whose owner is another than that of the node before.

        A retained graph is planned again and again: what is armed already stays so. Never
        the node that is running its hooks (torch crashes).
        """
        if self.by_node:
            self._arm_by_node(running, dummy)
        elif self._stretches:
            self._arm_by_number(running, dummy)
        self._order = self._numbers = ()  # let go of the nodes

    def _arm_by_number(self, running: Any, dummy: Any) -> None:
        # Most nodes to arm lie further down in the log that the one before is in. Where logs do not
        # overlap, one walks there: `at` is the place, `first` the log's first number, or out of
        # reach.
        apart = all(
            older.numbers[-1] <= newer.numbers[0] for newer, older in pairwise(self._stretches)
        )
        owners, captured, floor, ceiling = self.owners, self.captured, 1, 0
        stretch = self._stretches[0]
        numbers, armed, first, at = stretch.numbers, stretch.armed, ACCUMULATE, 0
        again = bool(armed)
        for node, number in zip(self._order, self._numbers, strict=True):
            if floor <= number < ceiling or number >= ACCUMULATE or number in captured:
                continue
            if first <= number < floor:
                while number < floor:
                    at -= 1
                    floor, ceiling = numbers[at], floor
                owner = stretch.calls[at]
                if owner is not None and owner.subject.special:
                    owner = real(owner)
                owners[number] = owner
            else:
                owners[number], floor, ceiling, stretch = self._interval(number)
                numbers, first = stretch.numbers, ACCUMULATE
                if armed is not stretch.armed:
                    armed = stretch.armed
                    again = bool(armed)
                if apart and numbers[0] <= number < numbers[-1]:
                    first, at = numbers[0], bisect.bisect_right(numbers, number) - 1
            if node is not running and not (again and number in armed):
                node._register_hook_dict(dummy)  # noqa: SLF001
                armed.add(number)

    def _arm_by_node(self, running: Any, dummy: Any) -> None:
        # Every node: of two with the same number, either may come first.
        for node, number in zip(self._order, self._numbers, strict=True):
            if number >= ACCUMULATE or node in self.captured:
                continue
            stretch = self._labels.get(node)
            self.owners[node] = stretch.owner(number) if stretch is not None else None
            armed = (stretch or self._stretches[-1]).armed
            if number not in armed and node is not running:
                node._register_hook_dict(dummy)  # noqa: SLF001
                armed.add(number)

    def key(self, node: Any) -> Any:
        """What an event says of the node that is about to run."""
        return node if self.by_node else node._sequence_nr()  # noqa: SLF001

    def owner(self, key: Any) -> Region | None:
        """The innermost call that made a node; None if it was made outside of any."""
        if key in self.owners:
            return self.owners[key]
        if not self.by_node:
            return self._interval(key)[0] if self._stretches else None
        stretch = self._labels.get(key)
        return stretch.owner(key._sequence_nr()) if stretch is not None else None  # noqa: SLF001

    def newest(self) -> Region | None:
        """The owner of the first node that has one."""
        return next((owner for owner in self.owners.values() if owner is not None), None)

    def _interval(self, number: int) -> tuple[Region | None, int, int, Stretch]:
        """Who made node `number`, and from which to below which number the answer is the same."""
        below, above = 0, ACCUMULATE
        for stretch in self._stretches:  # newest first
            numbers = stretch.numbers
            if number < numbers[0]:
                above = min(above, numbers[0])
            elif number >= numbers[-1] and stretch is not self._open:
                below = max(below, numbers[-1])  # made after it, maybe in one that began before
            else:
                at = bisect.bisect_right(numbers, number)
                end = numbers[at] if at < len(numbers) else above
                owner = real(stretch.calls[at - 1])
                return owner, max(below, numbers[at - 1]), min(above, end), stretch
        return None, below, above, self._stretches[-1]

    def _find(self, state: ThreadState) -> list[Stretch]:
        """The logs that can have these nodes, newest first."""
        high = next((n for n in self._numbers if n < ACCUMULATE), -1)
        low = next((n for n in reversed(self._numbers) if n < ACCUMULATE), high + 1)
        found = CORE.living()
        if self._open is not None:
            found.append(self._open)
        if any(stretch.thread != state.thread for stretch in found):
            found = self._of_several_threads(state, found)
        else:  # one thread's numbers go down all the way
            found = [
                s
                for s in found
                if s.numbers[0] <= high and (s.numbers[-1] > low or s is self._open)
            ]
        found.sort(key=lambda stretch: -stretch.numbers[0])
        return found

    def _of_several_threads(self, state: ThreadState, living: list[Stretch]) -> list[Stretch]:
        """A log counts if it hangs on a node that will run; else if it is this thread's own."""
        numbers = [number for number in self._numbers if number < ACCUMULATE]
        if not numbers:
            return []
        low, high = min(numbers), max(numbers)
        near = [s for s in living if s.numbers[0] <= high and s.numbers[-1] >= low]
        hung_on = set().union(*(stretch.hung for stretch in near))
        ends = [
            (node, stretch)
            for node, number in zip(self._order, self._numbers, strict=True)
            if number in hung_on and (stretch := node.metadata.get(METADATA_KEY)) in near
        ]
        threads = {stretch.thread for _, stretch in ends}
        if len(threads) <= 1:
            thread = threads.pop() if threads else state.thread
            return [stretch for stretch in near if stretch.thread == thread]
        self.by_node = True
        self._label(ends)
        return near

    def _label(self, ends: list[tuple[Any, Stretch]]) -> None:
        """Follow the graph down from where each log hangs, to where its numbers or another end."""
        borders = dict(ends)
        for end, stretch in ends:
            first, last = stretch.numbers[0], stretch.numbers[-1]
            todo = [end]
            while todo:
                node = todo.pop()
                if node in self._labels or borders.get(node, stretch) is not stretch:
                    continue
                if first <= node._sequence_nr() < last:  # noqa: SLF001
                    self._labels[node] = stretch
                    todo.extend(below for below, _ in node.next_functions if below is not None)
