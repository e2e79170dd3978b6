"""Values under equal attributes, and what an exemplar of them points at; recorded by the API."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from opentelemetry import trace
from opentelemetry.context import Context

__all__ = ["NOWHERE", "NO_MARK", "Mark", "Series", "around", "record"]

# Of no span. An empty context would be taken for none given, and the current one be used.
NOWHERE: Final = trace.set_span_in_context(trace.INVALID_SPAN, Context())


class Series:
    """What is measured under equal attributes, and the key by which the SDK finds its sums."""

    __slots__ = ("attributes", "key")

    def __init__(self, attributes: dict[str, str]) -> None:
        self.attributes = attributes
        self.key: object = None


class Mark(NamedTuple):
    """Which of some values has an exemplar (-1: none), and the context that holds its span."""

    at: int
    context: Context


NO_MARK: Final = Mark(-1, NOWHERE)


def around(span_context: trace.SpanContext | None) -> Context:
    """The context whose exemplar is that span; NOWHERE if there is none or it is not sampled."""
    if span_context is None or not span_context.trace_flags & trace.TraceFlags.SAMPLED:
        return NOWHERE
    return trace.set_span_in_context(trace.NonRecordingSpan(span_context), Context())


def record(histogram: Any, series: Series, values: list[float], mark: Mark) -> None:
    """Through the API, to any provider's histogram."""
    for at, value in enumerate(values):
        context = mark.context if at == mark.at else NOWHERE
        histogram.record(value, series.attributes, context)
