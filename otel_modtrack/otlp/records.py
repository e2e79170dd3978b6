"""Spans that are no objects yet: what is left of one when all that it shares is said once.

A record is a plain tuple, for it is made on the thread that trains:
``(place, template, span_id, parent_id, start_ns, end_ns, link, events)``, where

- ``span_id`` and ``parent_id`` are 8 bytes as they go on the wire; ``b""`` without a parent,
- ``start_ns`` and ``end_ns`` are nanoseconds since the epoch,
- ``link`` is the span that it is linked to: 8 bytes in the same trace, 24 (trace, span) in another,
  None without one,
- ``events`` are the SDK's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opentelemetry import trace
from opentelemetry.sdk import trace as sdk_trace
from opentelemetry.sdk.resources import Resource

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import TypeAlias

    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.util.types import AttributeValue

__all__ = ["UNSET", "Place", "Record", "Template", "as_readable"]

Record: TypeAlias = (
    "tuple[Place, Template, bytes, bytes, int, int, bytes | None, tuple[sdk_trace.Event, ...]]"
)

UNSET = trace.Status(trace.StatusCode.UNSET)
_SPAN_ID_BYTES = 8
_INTERNAL = trace.SpanKind.INTERNAL


class Template:
    """What all spans of one kind say: most often those of a module's calls in one phase.

    Attributes:
        name, attributes, status: theirs; the kind is always INTERNAL.
        packed: what an encoder made of it; None until then. Owned by the encoder.
        text: likewise, as JSON.
    """

    __slots__ = ("attributes", "name", "packed", "status", "text")

    def __init__(
        self,
        name: str,
        attributes: Mapping[str, AttributeValue],
        status: trace.Status = UNSET,
    ) -> None:
        self.name = name
        self.attributes = attributes
        self.status = status
        self.packed: Any = None
        self.text: Any = None

    def dropped(self) -> int:
        """How many attributes found no room."""
        return sdk_trace.ReadableSpan(
            self.name, resource=_NOTHING, attributes=self.attributes
        ).dropped_attributes


class Place:
    """Where spans of a unit are: in which trace, and from which resource and scope.

    Attributes:
        trace_id, flags, state: of their contexts.
        remote: whether their parent, which they all have then, is in another process.
        resource, scope: where they come from.
        packed: what an encoder made of it; None until then. Owned by the encoder.
    """

    __slots__ = ("flags", "packed", "remote", "resource", "scope", "state", "trace_id")

    def __init__(  # noqa: PLR0913 - a record
        self,
        trace_id: int,
        flags: trace.TraceFlags,
        state: trace.TraceState | None,
        resource: Resource,
        scope: InstrumentationScope | None,
        *,
        remote: bool = False,
    ) -> None:
        self.trace_id = trace_id
        self.flags = flags
        self.state = state
        self.resource = resource
        self.scope = scope
        self.remote = remote
        self.packed: Any = None


def as_readable(record: Record) -> sdk_trace.ReadableSpan:
    """The same span as the SDK has it, for whoever wants that."""
    place, template, span_id, parent_id, start_ns, end_ns, link, events = record

    def context(span: bytes, trace_id: int, *, remote: bool = False) -> trace.SpanContext:
        number = int.from_bytes(span, "big")
        return trace.SpanContext(trace_id, number, remote, place.flags, place.state)

    links: tuple[trace.Link, ...] = ()
    if link is not None:
        other = int.from_bytes(link[:-_SPAN_ID_BYTES], "big") or place.trace_id
        links = (trace.Link(context(link[-_SPAN_ID_BYTES:], other)),)
    parent = context(parent_id, place.trace_id, remote=place.remote) if parent_id else None
    return sdk_trace.ReadableSpan(
        template.name,
        context(span_id, place.trace_id),
        parent,
        place.resource,
        template.attributes,
        events,
        links,
        _INTERNAL,
        None,
        template.status,
        start_ns,
        end_ns,
        place.scope,
    )


_NOTHING = Resource({})
