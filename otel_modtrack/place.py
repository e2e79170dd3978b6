"""Where the outermost regions of a unit hang: in which trace, and below what."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opentelemetry import trace

from otel_modtrack.carrier import parent_in

if TYPE_CHECKING:
    from collections.abc import Mapping

    from opentelemetry.context.context import Context
    from opentelemetry.util.types import AttributeValue

__all__ = ["Scope", "while_it_lasts"]


class Scope:
    """Where a unit's outermost regions hang.

    Attributes:
        context: the context that was active when the unit began.
        parent: the span context in it, or None.
        trace_id: the trace that parentless regions belong to; 0 to begin one.
        flags, state: what their span contexts carry.
        joined: a span of the trace to join, where there is no parent.
        extra: attributes that the sampler adds to the unit's first region.
        early: the span of the unit's first region, started to ask the provider about it.
        outer: of a step's unit: the context that the step hangs under.
        around: of a step whose span nobody made current: the span that was, or None.
    """

    __slots__ = (
        "around",
        "context",
        "early",
        "extra",
        "flags",
        "joined",
        "outer",
        "parent",
        "state",
        "trace_id",
    )

    def __init__(self, context: Context, parent: trace.SpanContext | None) -> None:
        self.context = context
        self.parent = parent
        self.trace_id = parent.trace_id if parent is not None else 0
        self.flags = parent.trace_flags if parent is not None else trace.TraceFlags(1)
        self.state = parent.trace_state if parent is not None else None
        self.joined: trace.SpanContext | None = None
        self.extra: Mapping[str, AttributeValue] | None = None
        self.early: trace.Span | None = None
        self.outer: Context = context
        self.around: trace.SpanContext | None = None

    def beside(self) -> Scope:
        """Where what belongs beside a step hangs, if this is the step's own."""
        found = Scope(self.outer, parent_in(self.outer))
        found.joined = step = self.parent
        found.trace_id, found.flags, found.state = step.trace_id, step.trace_flags, step.trace_state  # type: ignore[union-attr]
        return found


def while_it_lasts(scope: Scope) -> Scope:
    """The same place in the same trace; without the parent, if that has ended meanwhile."""
    parent = scope.parent
    if parent is None or parent.is_remote or trace.get_current_span(scope.context).is_recording():
        return Scope(scope.context, parent)
    return Scope(trace.set_span_in_context(trace.INVALID_SPAN, scope.context), None)
