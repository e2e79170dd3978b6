"""What many spans have in common, kept once, and how it is written for the page."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from otel_modtrack.view.model import rank_order
from otel_modtrack.view.plain import plain

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from otel_modtrack.view.model import Process, Span

__all__ = ["Texts", "describe_process", "number_processes", "to_json"]


class Texts:
    """Texts by number, from 0; each is kept once."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def add(self, text: str) -> int:
        """Return the text's number."""
        return self._numbers.setdefault(text, len(self._numbers))

    def in_order(self) -> list[str]:
        """The texts, in the order of their numbers."""
        return list(self._numbers)


def number_processes(spans: Sequence[Span]) -> dict[Process, int]:
    """Number the processes as the page shows them: by rank, then those without, as they began."""
    found = list(dict.fromkeys(span.process for span in spans))
    found.sort(key=lambda process: rank_order(process.rank))
    return {process: number for number, process in enumerate(found)}


def describe_process(process: Process) -> dict[str, Any]:
    """Return what the page shows of a process."""
    return {
        "label": process.label or "spans",
        "service": process.service,
        "rank": process.rank,
        "world_size": process.world_size,
        "source": process.source,
        "attributes": plain(process.attributes),
    }


def to_json(content: Mapping[str, Any]) -> str:
    """Write what a browser reads as it was: also large integers, NaN and infinity, as texts."""
    return json.dumps(plain(content), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
