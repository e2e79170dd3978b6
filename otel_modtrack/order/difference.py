"""Where orders first differ, told with what is around it."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from otel_modtrack.order.sequences import NAMES, SEQUENCES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from otel_modtrack.order.model import Call, Order

__all__ = ["Difference", "Side", "first_difference"]

_WHAT: Final = {
    "forward": "the forward differs",
    "recompute": "the recomputation differs",
    "backward": "the backward differs",
    "parameters": "parameters are first used in another order",
    "gradients": "gradients arrive in another order",
}
_SHOWN: Final = 3  # of what is before and after
_ORDINAL: Final = re.compile(r"#\d+$")
_END: Final = "(the end)"


@dataclass(frozen=True, slots=True)
class Side:
    """The orders that went the same way where they first differ from others.

    Attributes:
        names: of the orders.
        fqn: what comes there: of a module, or of a parameter; None where nothing comes any more.
        position: where that is in the orders, from 0. It is not the other side's where one of them
            tells of calls that the other did not look at.
        inside: fqns of the modules that it runs in, the outermost first.
        after: what comes after it, at most three.
    """

    names: tuple[str, ...]
    fqn: str | None
    position: int
    inside: tuple[str, ...] = ()
    after: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """What the side is called: ``rank 0``, ``rank 0, rank 2``."""
        return ", ".join(self.names)


@dataclass(frozen=True, slots=True)
class Difference:
    """The first position at which orders differ. ``str`` of it is a report of a few lines.

    Attributes:
        sequence: ``forward``, ``recompute``, ``backward``, ``parameters`` or ``gradients``.
        position: of what differs, from 0, among what all the orders tell of.
        before: what came before it in all of them, at most three, the last one last.
        sides: what comes at that place, two or more; the first is that of the first order.
    """

    sequence: str
    position: int
    before: tuple[str, ...]
    sides: tuple[Side, ...]

    @property
    def inside(self) -> tuple[str, ...]:
        """Fqns of the modules that all sides that go on are in there, the outermost first."""
        levels = zip(*(one.inside for one in self.sides if one.fqn is not None), strict=False)
        return tuple(
            names[0] for names in itertools.takewhile(lambda one: len(set(one)) == 1, levels)
        )

    @property
    def sentence(self) -> str:
        """The report in one line."""
        inside = f", in {self.inside[-1]}" if self.inside else ""
        after = f", after {self.before[-1]}" if self.before else ""
        told = "; ".join(f"{side.name}: {side.fqn or _END}" for side in self.sides)
        return f"{_WHAT[self.sequence]} at position {self.position}{inside}{after}: {told}"

    def as_dict(self) -> dict[str, Any]:
        """The same for scripts."""
        return {
            "sequence": self.sequence,
            "position": self.position,
            "inside": list(self.inside),
            "before": list(self.before),
            "sides": [
                {
                    "names": list(side.names),
                    "fqn": side.fqn,
                    "position": side.position,
                    "inside": list(side.inside),
                    "after": list(side.after),
                }
                for side in self.sides
            ],
        }

    @staticmethod
    def from_dict(found: Mapping[str, Any]) -> Difference:
        """What `as_dict` has made a dict of."""
        return Difference(
            found["sequence"],
            found["position"],
            tuple(found["before"]),
            tuple(
                Side(
                    tuple(side["names"]),
                    side["fqn"],
                    side["position"],
                    tuple(side["inside"]),
                    tuple(side["after"]),
                )
                for side in found["sides"]
            ),
        )

    def __str__(self) -> str:
        """The report: the sentence, and a table of what is around the position."""
        sides, at = self.sides, self.position
        rows = [["", "", *(side.name for side in sides)]]
        for index, fqn in enumerate(self.before, at - len(self.before)):
            rows.append(["", str(index), fqn, *["="] * (len(sides) - 1)])
        rows.append([">", str(at), *(side.fqn or _END for side in sides)])
        later = itertools.zip_longest(*(side.after for side in sides), fillvalue="")
        for index, fqns in enumerate(later, at + 1):
            rows.append(["", str(index), *fqns])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = []
        for mark, number, *cells in rows:
            padded = [cell.ljust(width) for cell, width in zip(cells, widths[2:], strict=True)]
            lines.append(f"{mark:2}{number:>{widths[1]}}  {'  '.join(padded)}".rstrip())
        return "\n".join([self.sentence, "", *lines])


def first_difference(orders: Sequence[Order]) -> Difference | None:
    """Where orders first differ; None if they agree in all that they all know.

    Where one of them did not look into a call (see `Call.leaf`), the others' calls in it are passed
    over, and in which order that module's parameters are first used does not count. The number of
    a root that has no namesake in its order (``Net#2``) does not count either.

    Args:
        orders: one or more.

    Raises:
        ValueError: if there is none.
        TypeError: if one of them is no order.
    """
    if not orders:
        msg = "first_difference(orders): one or more orders are wanted"
        raise ValueError(msg)
    for order in orders:
        if not hasattr(order, "gradients"):
            msg = (
                f"an Order is wanted, not {type(order).__name__}; of a file, read_order() makes one"
            )
            raise TypeError(msg)
    renames = [_without_numbers(order) for order in orders]
    leaves = {
        rename(call.fqn)
        for order, rename in zip(orders, renames, strict=True)
        for call in order.forward or ()
        if call.leaf
    }
    for sequence in SEQUENCES:
        known = [getattr(order, sequence) for order in orders]
        if all(one is not None for one in known):
            read = _of_names if sequence in NAMES else _of_calls
            columns = [
                read(one, rename, leaves) for one, rename in zip(known, renames, strict=True)
            ]
            found = _compare(sequence, [order.name for order in orders], columns)
            if found is not None:
                return found
    return None


@dataclass(frozen=True, slots=True)
class _Entry:
    """What is compared, what is shown of it, and where it stands."""

    key: str
    fqn: str
    position: int
    inside: tuple[str, ...] = ()


def _compare(
    sequence: str, names: Sequence[str], columns: Sequence[Sequence[_Entry]]
) -> Difference | None:
    for at in range(max(map(len, columns))):
        ways: dict[str | None, list[int]] = {}
        for which, column in enumerate(columns):
            ways.setdefault(column[at].key if at < len(column) else None, []).append(which)
        ways.pop("", None)  # what is not known differs from nothing
        if len(ways) > 1:
            before = tuple(one.fqn for one in columns[0][max(at - _SHOWN, 0) : at])
            sides = (
                _side(tuple(names[one] for one in which), columns[which[0]], at)
                for which in ways.values()
            )
            return Difference(sequence, at, before, tuple(sides))
    return None


def _side(names: tuple[str, ...], column: Sequence[_Entry], at: int) -> Side:
    after = tuple(one.fqn for one in column[at + 1 : at + 1 + _SHOWN])
    if at < len(column):
        return Side(names, column[at].fqn, column[at].position, column[at].inside, after)
    return Side(names, None, column[-1].position + 1 if column else 0)


def _of_calls(
    calls: Sequence[Call], rename: Callable[[str], str], leaves: set[str]
) -> list[_Entry]:
    """The calls that are in no leaf."""
    found: list[_Entry] = []
    inside: list[tuple[str, ...]] = []
    hidden: list[bool] = []
    for at, call in enumerate(calls):
        key = rename(call.fqn)
        above = call.parent
        is_hidden = above is not None and (hidden[above] or rename(calls[above].fqn) in leaves)
        around = () if above is None else (*inside[above], calls[above].fqn)
        inside.append(around)
        hidden.append(is_hidden)
        if not is_hidden:
            found.append(_Entry(key, call.fqn, at, around))
    return found


def _of_names(names: Sequence[str], rename: Callable[[str], str], leaves: set[str]) -> list[_Entry]:
    """Parameters; those of one leaf that stand together, in the order of their names."""
    found: list[_Entry] = []
    for leaf, together in itertools.groupby(
        enumerate(names), key=lambda one: _leaf_of(rename(one[1]), leaves)
    ):
        entries = [_Entry(rename(fqn), fqn, at) for at, fqn in together]
        if leaf:
            entries.sort(key=lambda one: one.key)
        found += entries
    return found


def _leaf_of(name: str, leaves: set[str]) -> str:
    """The outermost leaf that a parameter is in, or ""."""
    at = name.find(".")
    while at >= 0:
        if name[:at] in leaves:
            return name[:at]
        at = name.find(".", at + 1)
    return ""


def _without_numbers(order: Order) -> Callable[[str], str]:
    """Leaves out the number of a root, where the order has one root of that class only."""
    fqns: Iterable[str] = itertools.chain(
        (
            call.fqn
            for calls in (order.forward, order.recompute, order.backward)
            for call in calls or ()
        ),
        *(names or () for names in (order.parameters, order.gradients)),
    )
    roots = {fqn.partition(".")[0] for fqn in fqns}
    bare = {root: _ORDINAL.sub("", root) for root in roots}
    counts: dict[str, int] = {}
    for name in bare.values():
        counts[name] = counts.get(name, 0) + 1
    renamed = {root: name for root, name in bare.items() if counts[name] == 1 and root != name}
    if not renamed:
        return lambda fqn: fqn

    def rename(fqn: str) -> str:
        root, dot, rest = fqn.partition(".")
        return renamed.get(root, root) + dot + rest

    return rename
