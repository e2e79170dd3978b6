"""Which spans are meant: those of a step, of a trace, of a rank, or what stands for all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from otel_modtrack.numerals import plural
from otel_modtrack.usage import UsageError
from otel_modtrack.view.model import rank_order
from otel_modtrack.view.paint import join_some, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from otel_modtrack.view.model import Node


__all__ = ["Selection", "Units", "choose_parts", "choose_units", "select"]

_ID_SHOWN: Final = 8


@dataclass(frozen=True, slots=True)
class Selection:
    """What the user chose. What is None chooses nothing.

    Attributes:
        step: Number of a training step.
        trace: Id of a trace, or how it begins.
        rank: Of a process.
    """

    step: int | None = None
    trace: str | None = None
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class Units:
    """What is summed up, and what it is divided by for a mean.

    Attributes:
        what: ``step``, or ``trace`` where there are no steps.
        roots: The steps, or the traces' outermost spans, in order of start.
        outside: How many spans are left out because they are in no step.
    """

    what: str
    roots: list[Node]
    outside: int

    @property
    def parts(self) -> list[list[Node]]:
        """The outermost spans of each step or trace."""
        if self.what == "step":
            return [[root] for root in self.roots]
        found: dict[tuple[str, int | None], list[Node]] = {}
        for root in self.roots:
            found.setdefault((root.span.trace_id, root.span.process.rank), []).append(root)
        return list(found.values())

    @property
    def count(self) -> int:
        """How many steps or traces there are."""
        return len(self.parts)

    @property
    def duration_ns(self) -> int:
        """Of all together."""
        return sum(root.span.duration_ns for root in self.roots)

    @property
    def spans(self) -> int:
        """How many there are."""
        return sum(1 for root in self.roots for _ in root.walk())

    @property
    def ranks(self) -> list[int]:
        """The ranks that they are of, in order; none where no span tells."""
        return sorted({rank for root in self.roots if (rank := root.span.process.rank) is not None})


def select(trees: Sequence[Node], selection: Selection, source: str) -> list[Node]:
    """Return the outermost spans of what was chosen, in order of start; all if nothing was.

    A step that a rank has several times, as after a restart, is the last of them.

    Args:
        trees: Of all files.
        selection: What was chosen.
        source: What the files are called in a message.

    Raises:
        UsageError: If there is no such step, trace or rank. The message says which there are.
    """
    found = list(trees)
    where = f"in {source}"
    if selection.trace is not None:
        found = _of_trace(found, selection.trace.lower(), where)
        where = f"in trace {printable(found[0].span.trace_id)}"
    if selection.rank is not None:
        found = _of_rank(found, selection.rank, where)
        where = f"of rank {selection.rank} {where}"
    if selection.step is not None:
        found = _of_step(found, selection.step, where)
    return found


def choose_parts(trees: Sequence[Node], selection: Selection, source: str) -> list[list[Node]]:
    """Return what is drawn as a tree: for each rank the outermost spans of one step or trace.

    What was not chosen is the last step that all ranks have, or, without steps, the last trace.

    Args:
        trees: Of all files; not empty.
        selection: What was chosen.
        source: What the files are called in a message.

    Returns:
        The ranks in order, and last what is of none.

    Raises:
        UsageError: As `select` does.
    """
    found = select(trees, selection, source)
    if selection.step is not None or selection.trace is not None:
        return list(_by_rank(found).values())
    steps = _by_rank(_outermost(found, _is_step))
    if steps:
        return [[step] for step in _last_common(list(steps.values()))]
    parts = []
    for roots in _by_rank(found).values():
        last = roots[-1].span.trace_id
        parts.append([root for root in roots if root.span.trace_id == last])
    return parts


def choose_units(trees: Sequence[Node], selection: Selection, source: str) -> Units:
    """Return what is summed up: all chosen steps, or all traces where there are no steps.

    Raises:
        UsageError: As `select` does.
    """
    found = select(trees, selection, source)
    steps = _outermost(found, _is_step)
    if steps:
        inside = sum(1 for step in steps for _ in step.walk())
        spans = sum(1 for root in found for _ in root.walk())
        return Units("step", steps, spans - inside)
    return Units("trace", found, 0)


def _of_trace(trees: Sequence[Node], prefix: str, where: str) -> list[Node]:
    # In order of start, each once.
    ids = list(dict.fromkeys(tree.span.trace_id for tree in trees))
    matching = [one for one in ids if one.startswith(prefix)]
    if not matching:
        last = ", ".join(printable(one) for one in ids[:-4:-1])
        raise UsageError(
            f"there is no trace {prefix} {where}: the last of {plural(len(ids), 'trace')}: {last}"
        )
    if len(matching) > 1 and prefix not in matching:
        shortened = [one[: max(_ID_SHOWN, len(prefix) + 4)] for one in matching]
        raise UsageError(
            f"{plural(len(matching), 'trace')} {where} begin with {prefix}: give more of "
            f"{join_some(shortened, shown=3)}"
        )
    chosen = prefix if prefix in matching else matching[0]
    return [tree for tree in trees if tree.span.trace_id == chosen]


def _of_rank(trees: Sequence[Node], rank: int, where: str) -> list[Node]:
    found = _outermost(trees, lambda node: node.span.process.rank == rank)
    if found:
        return found
    all_ranks = {node.span.process.rank for tree in trees for _, node in tree.walk()}
    ranks = sorted(one for one in all_ranks if one is not None)
    if not ranks:
        raise UsageError(f"there is no rank {rank} {where}: no span tells its rank, leave it out")
    raise UsageError(f"there is no rank {rank} {where}: {_which('rank', ranks)}")


def _of_step(trees: Sequence[Node], number: int, where: str) -> list[Node]:
    steps = _outermost(trees, _is_step)
    matching = [node for node in steps if node.span.step == number]
    if matching:
        return sorted(
            (of_rank[-1] for of_rank in _by_rank(matching).values()),
            key=lambda node: node.span.start_ns,
        )
    numbers = sorted({node.span.step for node in steps if node.span.step is not None})
    if not numbers:
        raise UsageError(f"there is no step {number} {where}: no span is a step, leave it out")
    raise UsageError(f"there is no step {number} {where}: {_which('step', numbers)}")


def _which(what: str, numbers: Sequence[int]) -> str:
    if len(numbers) == 1:
        return f"the only {what} is {numbers[0]}"
    return f"the {what}s run from {numbers[0]} to {numbers[-1]}"


def _is_step(node: Node) -> bool:
    return node.span.step is not None


def _outermost(trees: Iterable[Node], is_one: Callable[[Node], bool]) -> list[Node]:
    """Return the nodes of which it is true and that are below no other such, by start."""
    found = []
    waiting = list(trees)
    while waiting:
        node = waiting.pop()
        if is_one(node):
            found.append(node)
        else:
            waiting.extend(node.children)
    return sorted(found, key=lambda node: node.span.start_ns)


def _by_rank(nodes: Iterable[Node]) -> dict[int | None, list[Node]]:
    """Return the nodes of each rank, in order of rank; last, under None, what is of none."""
    found: dict[int | None, list[Node]] = {}
    for node in nodes:
        found.setdefault(node.span.process.rank, []).append(node)
    return dict(sorted(found.items(), key=lambda item: rank_order(item[0])))


def _last_common(ranks: Sequence[Sequence[Node]]) -> list[Node]:
    """Return the last step of each rank whose number all of them have, or else each one's last."""
    common = set.intersection(*({step.span.step for step in steps} for steps in ranks))
    if not common:
        return [steps[-1] for steps in ranks]
    number = next(step.span.step for step in reversed(ranks[0]) if step.span.step in common)
    return [[step for step in steps if step.span.step == number][-1] for steps in ranks]
