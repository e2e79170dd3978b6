"""What a viewer shows of a file, whichever road the file was read by."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Mark", "Shown", "Slice", "flatten"]


class Slice(NamedTuple):
    """A span. Times in ns after the start of the file."""

    process: str
    lane: str
    name: str
    category: str
    start_ns: int
    end_ns: int
    around: str  # id of the span that it is drawn in, "" for none


class Mark(NamedTuple):
    """An event, with the id of the span that it is drawn on."""

    on: str
    name: str
    category: str
    time_ns: int


@dataclass
class Shown:
    """What is in a file.

    Attributes:
        slices: By span id.
        attributes: Of the slices, by span id.
        marks: The attributes of each event.
        flows: Pairs of span ids.
        counters: (time in ns, value) by process.
    """

    slices: dict[str, Slice] = field(default_factory=dict)
    attributes: dict[str, dict[str, Any]] = field(default_factory=dict)
    marks: dict[Mark, dict[str, Any]] = field(default_factory=dict)
    flows: set[tuple[str, str]] = field(default_factory=set)
    counters: dict[str, list[tuple[int, float]]] = field(default_factory=dict)


def flatten(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return attributes in one level, named as SQL names them, and underscores for dots."""
    found: dict[str, Any] = {}
    waiting: list[tuple[str, Any]] = list(values.items())
    while waiting:
        name, value = waiting.pop()
        if isinstance(value, list | tuple):
            waiting += [(f"{name}[{index}]", item) for index, item in enumerate(value)]
        elif isinstance(value, dict):
            waiting += [(f"{name}.{key}", item) for key, item in value.items()]
        else:
            found[name.replace(".", "_")] = value
    return found
