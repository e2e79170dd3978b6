"""Which rank recorded a span.

The resource tells where `configure` built the provider. A provider of the user's own knows nothing
of ranks: then the outermost spans of otel_modtrack's carry it, and what is below them, or in their
process, is of the same rank. Several ranks may share such a resource, which is then split.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from otel_modtrack import semconv

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from otel_modtrack.view.model import Process, Span

__all__ = ["read_ranks", "tell_ranks"]

_Ranks = tuple[int, int]


def tell_ranks(spans: Sequence[Span]) -> list[Span]:
    """Return the spans, in order, each with a process that knows its rank if anything tells it."""
    split = _Split(spans)
    return [split.placed(span) for span in spans]


class _Split:
    """The processes of a file's spans, split by rank where several share one.

    Args:
        spans: Of all files.
    """

    def __init__(self, spans: Sequence[Span]) -> None:
        self._own = {span.key: ranks for span in spans if (ranks := read_ranks(span.attributes))}
        self._parents: dict[tuple[str, str], tuple[str, str]] = {}
        if self._own:
            self._parents = {span.key: (span.trace_id, span.parent_id) for span in spans}
        self._seen: dict[Process, set[_Ranks]] = {}
        for span in spans:
            found = self._seen.setdefault(span.process, set())
            if own := self._own.get(span.key):
                found.add(own)
        self._made: dict[tuple[Process, _Ranks], Process] = {}

    def placed(self, span: Span) -> Span:
        """The span, with a process that knows its rank."""
        seen = self._seen[span.process]
        if not seen or span.process.rank is not None:
            return span
        told = next(iter(seen)) if len(seen) == 1 else self._above(span)
        if told is None:
            return span
        key = span.process, told
        if key not in self._made:
            self._made[key] = replace(span.process, rank=told[0], world_size=told[1])
        return replace(span, process=self._made[key])

    def _above(self, span: Span) -> _Ranks | None:
        """What the span, or the nearest one around it, says."""
        at = span.key
        passed = {at}
        while at not in self._own:
            above = self._parents.get(at)
            if above is None or above in passed:
                return None
            at = above
            passed.add(at)
        return self._own[at]


def read_ranks(attributes: Mapping[str, Any]) -> _Ranks | None:
    """Return (rank, world size) of what a span or a resource says, if it says both."""
    rank = attributes.get(semconv.RANK)
    world_size = attributes.get(semconv.WORLD_SIZE)
    if isinstance(rank, int) and isinstance(world_size, int):
        return rank, world_size
    return None
