"""The spans of a request, by what stands around them: for both encoders."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from opentelemetry import trace
from opentelemetry.sdk import trace as sdk_trace

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import TypeAlias

    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

__all__ = ["Around", "Groups"]

_Piece = TypeVar("_Piece", bytes, str)
# What an encoder writes for a resource, and for a scope; both with their schemas.
Around: TypeAlias = "tuple[Any, Any]"

_MOST_KNOWN = 64


class Groups(abc.ABC, Generic[_Piece]):
    """Pieces of a request: encoded spans, or parts of such, one after the other.

    Attributes:
        nothing: a piece that is empty.
        known: the pieces, by what stands around them.
    """

    nothing: _Piece
    # By identity of resource and scope, which are kept; one for each encoder.
    _around_known: dict[tuple[int, int], tuple[Any, Any, Around]]

    def __init__(self) -> None:
        self.known: dict[Any, dict[Any, list[_Piece]]] = {}
        # Spans to be encoded, and where they belong.
        self._left: list[tuple[sdk_trace.ReadableSpan, list[_Piece], int]] = []

    def __init_subclass__(cls) -> None:
        """Each encoder has its own texts or bytes."""
        cls._around_known = {}

    @classmethod
    def around(cls, resource: Resource, scope: InstrumentationScope | None) -> Around:
        """What stands around the spans of a resource and scope, by OpenTelemetry's encoder."""
        known = cls._around_known.get((id(resource), id(scope)))
        if known is not None:
            return known[2]
        sample = sdk_trace.ReadableSpan(
            "",
            trace.SpanContext(1, 1, is_remote=False),
            resource=resource,
            instrumentation_scope=scope,
        )
        found = cls.encode_around(sample)
        if len(cls._around_known) >= _MOST_KNOWN:
            cls._around_known.clear()
        cls._around_known[id(resource), id(scope)] = resource, scope, found
        return found

    def pieces(self, around: Around) -> list[_Piece]:
        """What is in a resource and scope, to be added to."""
        return self.known.setdefault(around[0], {}).setdefault(around[1], [])

    def add(self, span: sdk_trace.ReadableSpan) -> None:
        """A span, for OpenTelemetry's encoder. It keeps its place among the others."""
        pieces = self.pieces(self.around(span.resource, span.instrumentation_scope))
        self._left.append((span, pieces, len(pieces)))
        pieces.append(self.nothing)

    def encode_added(self) -> None:
        """All of them at once, for each time resources and scopes are encoded, too."""
        if not self._left:
            return
        places: dict[tuple[int, int], list[tuple[list[_Piece], int]]] = {}
        for span, pieces, at in self._left:
            context: Any = span.get_span_context()
            places.setdefault((context.trace_id, context.span_id), []).append((pieces, at))
        for ids, encoded in self.encode(span for span, _, _ in self._left):
            pieces, at = places[ids].pop(0)
            pieces[at] = encoded

    @staticmethod
    @abc.abstractmethod
    def encode_around(span: sdk_trace.ReadableSpan) -> Around:
        """What stands around a span."""

    @abc.abstractmethod
    def encode(
        self, spans: Iterable[sdk_trace.ReadableSpan]
    ) -> Iterator[tuple[tuple[int, int], _Piece]]:
        """(trace id, span id) and piece of each span, by OpenTelemetry's encoder."""

    @abc.abstractmethod
    def request(self) -> bytes:
        """All of it."""
