"""Span trees as text, for tests: one span a line, two spaces a level, in order of start.

A line is ``phase fqn`` for a module or named region, and the span's name for all else.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from opentelemetry.sdk.trace import ReadableSpan

__all__ = ["check_intervals", "tree"]


def label(span: ReadableSpan) -> str:
    """What a span's line says."""
    attributes = span.attributes or {}
    fqn = attributes.get("modtrack.module.fqn")
    text = f"{attributes['modtrack.phase']} {fqn}" if fqn else span.name
    return text + ("!" if span.status.status_code.name == "ERROR" else "")


def tree(spans: Iterable[ReadableSpan]) -> str:
    """The forest of `spans`; a span whose parent is not among them is a root. "!" marks errors."""
    spans = sorted(spans, key=lambda span: (span.start_time, -span.end_time))
    ids = {span.context.span_id for span in spans}
    children: dict[int | None, list[ReadableSpan]] = {}
    for span in spans:
        above = span.parent.span_id if span.parent is not None else None
        children.setdefault(above if above in ids else None, []).append(span)
    lines: list[str] = []

    def show(above: int | None, depth: int) -> None:
        for span in children.get(above, ()):
            lines.append("  " * depth + label(span))
            show(span.context.span_id, depth + 1)

    show(None, 0)
    return "\n".join(lines)


def expected(text: str) -> str:
    """`text` as written in a test, without its indentation."""
    return inspect.cleandoc(text)


def check_intervals(spans: Sequence[ReadableSpan]) -> None:
    """Every interval lies inside its parent's, none is negative, and no span is there twice."""
    by_id = {span.context.span_id: span for span in spans}
    assert len(by_id) == len(spans), "a span was reported twice"
    for span in spans:
        assert span.start_time <= span.end_time, label(span)
        above = by_id.get(span.parent.span_id) if span.parent is not None else None
        if above is not None:
            assert above.start_time <= span.start_time, (label(above), label(span))
            assert span.end_time <= above.end_time, (label(above), label(span))
