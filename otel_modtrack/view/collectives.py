"""Spans -> which collectives were launched: by operation, process group and module."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from otel_modtrack import semconv
from otel_modtrack.numerals import plural
from otel_modtrack.sizes import render_size
from otel_modtrack.view.model import read_collectives
from otel_modtrack.view.paint import BOLD, ms, paint, printable, render_table
from otel_modtrack.view.top import name_row, paint_row

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from otel_modtrack.view.model import Event, Node
    from otel_modtrack.view.narrow import Kept


__all__ = ["Launches", "render_collectives", "sum_launches"]

_HEADER: Final = (" count", "      size", "       ms", "operation, group, span")


@dataclass(slots=True)
class Launches:
    """Collectives of one operation in one process group, launched by one kind of module.

    Attributes:
        operation: ``all_reduce``.
        group: What the program, or else torch, calls the group; "" if nothing tells.
        group_size: How many ranks are in it; None if nothing tells.
        name: Of the row of the spans that launched them: ``backward GPT.layers.*``.
        category: Of these spans.
        module: In that name, or "".
        count: How many were launched.
        size_bytes: Payload of the ranks that launched them.
        duration_ns: Of those whose backend tells.
        timed: How many these are.
    """

    operation: str
    group: str
    group_size: int | None
    name: str
    category: str
    module: str
    count: int = 0
    size_bytes: int = 0
    duration_ns: float = 0.0
    timed: int = 0


def sum_launches(roots: Iterable[Node], *, by: str, kept: Kept | None = None) -> list[Launches]:
    """Sum up what each span launched itself, the most bytes first.

    Args:
        roots: The trees.
        by: `top.TEMPLATE` or `top.FQN`.
        kept: What counts; all if None.
    """
    sums: dict[tuple[str, str, int | None, str, str], Launches] = {}
    for root in roots:
        for _, node in root.walk():
            if not node.span.events or (kept is not None and node not in kept.matching):
                continue
            for event in node.span.events:
                found = read_collectives(event)
                if found is None:
                    continue
                name, module = name_row(node.span, by)
                group, size = _read_group(event)
                key = found.operation, group, size, node.span.category, name
                one = sums.get(key)
                if one is None:
                    one = Launches(found.operation, group, size, name, key[3], module)
                    sums[key] = one
                one.count += found.count
                one.size_bytes += found.size_bytes
                duration_s = event.attributes.get(semconv.COLLECTIVE_DURATION)
                if isinstance(duration_s, float | int) and math.isfinite(duration_s):
                    one.duration_ns += duration_s * 1e9
                    one.timed += found.count
    return sorted(sums.values(), key=lambda one: (-one.size_bytes, -one.count, one.name))


def _read_group(event: Event) -> tuple[str, int | None]:
    told = event.attributes.get
    name = told(semconv.COLLECTIVE_GROUP_DESCRIPTION) or told(semconv.COLLECTIVE_GROUP_NAME, "")
    size = told(semconv.COLLECTIVE_GROUP_SIZE)
    return str(name), size if isinstance(size, int) else None


def render_collectives(launches: Sequence[Launches], *, colour: bool = False) -> str:
    """Tabulate launches: each operation and group with its sum, and below it who launched them.

    Args:
        launches: In order.
        colour: Whether to use a terminal's colours.
    """
    groups: dict[tuple[str, str, int | None], list[Launches]] = {}
    for one in launches:
        groups.setdefault((one.operation, one.group, one.group_size), []).append(one)
    by_size = sorted(
        groups.items(),
        key=lambda item: (-sum(one.size_bytes for one in item[1]), -sum(o.count for o in item[1])),
    )
    rows = []
    for (operation, group, size), parts in by_size:
        text = printable(f"{operation}, {_name_group(group, size)}")
        rows.append((*_numbers(parts), paint(text, BOLD, colour=colour)))
        rows += [(*_numbers([one]), f"  {paint_row(one.name, colour=colour)}") for one in parts]
    table = render_table(_HEADER, rows, colour=colour)
    count = sum(one.count for one in launches)
    timed = sum(one.timed for one in launches)
    if 0 < timed < count:
        launches_told = f"{timed:,} of {plural(count, 'launch')}"
        table += f"\n\nThe durations are those of {launches_told}: nothing tells the others'."
    return table


def _numbers(launches: Sequence[Launches]) -> tuple[str, str, str]:
    is_timed = any(one.timed for one in launches)
    return (
        f"{sum(one.count for one in launches):,}",
        render_size(sum(one.size_bytes for one in launches)),
        ms(sum(one.duration_ns for one in launches)) if is_timed else "-",
    )


def _name_group(name: str, size: int | None) -> str:
    named = name or "group without a name"
    return named if size is None else f"{named} of {plural(size, 'rank')}"
