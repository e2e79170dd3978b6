"""Whether the times of spans fit together."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opentelemetry.sdk.trace import ReadableSpan

__all__ = ["check_intervals"]


def check_intervals(spans: Sequence[ReadableSpan]) -> None:
    """Every interval lies inside its parent's, none is negative, and no span is there twice."""
    by_id = {span.context.span_id: span for span in spans}
    assert len(by_id) == len(spans), "a span was reported twice"
    for span in spans:
        assert span.start_time <= span.end_time, span.name
        above = by_id.get(span.parent.span_id) if span.parent is not None else None
        if above is not None:
            assert above.start_time <= span.start_time, (above.name, span.name)
            assert span.end_time <= above.end_time, (above.name, span.name)
