"""Records as the bytes of OTLP's protobuf, without a message in between.

What spans have in common is packed once (`Template`, `Place`); a span is that, two ids and two
times. Fields stand in the order of their numbers, and what has its default value is left out, as
protobuf's own library does it: the bytes are the same. `agrees` compares them.

Source: opentelemetry-proto, ``opentelemetry/proto/``: ``collector/trace/v1/trace_service.proto``,
``trace/v1/trace.proto``, ``common/v1/common.proto``; Protocol Buffers documentation, *Encoding*.
"""

from __future__ import annotations

import functools
import logging
import struct
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import trace
from opentelemetry.attributes import BoundedAttributes
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk import trace as sdk_trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from otel_modtrack.otlp.groups import Groups
from otel_modtrack.otlp.records import Place, Template, as_readable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from otel_modtrack.otlp.groups import Around
    from otel_modtrack.otlp.records import Record

__all__ = ["agrees", "encode"]

logger = logging.getLogger("otel_modtrack.otlp")

# Wire types. 0 is a varint (int64, uint32, bool, enum), 2 has a length (string, bytes, message).
VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5


class _Request:
    """ExportTraceServiceRequest."""

    RESOURCE_SPANS: Final = 1  # repeated ResourceSpans


class _ResourceSpans:
    RESOURCE: Final = 1  # Resource
    SCOPE_SPANS: Final = 2  # repeated ScopeSpans
    SCHEMA_URL: Final = 3  # string


class _ScopeSpans:
    SCOPE: Final = 1  # InstrumentationScope
    SPANS: Final = 2  # repeated Span
    SCHEMA_URL: Final = 3  # string


class _Span:
    TRACE_ID: Final = 1  # bytes
    SPAN_ID: Final = 2  # bytes
    TRACE_STATE: Final = 3  # string
    PARENT_SPAN_ID: Final = 4  # bytes
    NAME: Final = 5  # string
    KIND: Final = 6  # enum SpanKind
    START_TIME_UNIX_NANO: Final = 7  # fixed64
    END_TIME_UNIX_NANO: Final = 8  # fixed64
    ATTRIBUTES: Final = 9  # repeated KeyValue
    DROPPED_ATTRIBUTES_COUNT: Final = 10  # uint32
    EVENTS: Final = 11  # repeated Event
    # 12, dropped_events_count, and 14, dropped_links_count: 0, ours never have more than fit
    LINKS: Final = 13  # repeated Link
    STATUS: Final = 15  # Status
    FLAGS: Final = 16  # fixed32

    KIND_INTERNAL: Final = 1  # SpanKind.SPAN_KIND_INTERNAL
    HAS_IS_REMOTE: Final = 0x100  # SpanFlags.SPAN_FLAGS_CONTEXT_HAS_IS_REMOTE_MASK
    IS_REMOTE: Final = 0x200  # SpanFlags.SPAN_FLAGS_CONTEXT_IS_REMOTE_MASK


class _Event:
    TIME_UNIX_NANO: Final = 1  # fixed64
    NAME: Final = 2  # string
    ATTRIBUTES: Final = 3  # repeated KeyValue
    DROPPED_ATTRIBUTES_COUNT: Final = 4  # uint32


class _Link:
    TRACE_ID: Final = 1  # bytes
    SPAN_ID: Final = 2  # bytes
    FLAGS: Final = 6  # fixed32; 3 to 5, trace_state and attributes: ours have none


class _Status:
    MESSAGE: Final = 2  # string
    CODE: Final = 3  # enum StatusCode


class _KeyValue:
    KEY: Final = 1  # string
    VALUE: Final = 2  # AnyValue


class _AnyValue:
    """One of these, which is there even if it is empty or 0."""

    STRING_VALUE: Final = 1
    BOOL_VALUE: Final = 2
    INT_VALUE: Final = 3  # int64
    DOUBLE_VALUE: Final = 4
    ARRAY_VALUE: Final = 5  # ArrayValue
    BYTES_VALUE: Final = 7


class _ArrayValue:
    VALUES: Final = 1  # repeated AnyValue


_MORE: Final = 0x80


# -- Protocol Buffers -------------------------------------------------------------------------


def _varint(number: int) -> bytes:
    """Seven bits a byte, the lowest first; the highest bit says that another byte follows."""
    found = bytearray()
    while number >= _MORE:
        found.append(number % _MORE | _MORE)
        number >>= 7
    found.append(number)
    return bytes(found)


def _tag(field: int, wire_type: int) -> bytes:
    return _varint(field << 3 | wire_type)


def _sized(field: int, content: bytes) -> bytes:
    """Bytes, a string or a message, also an empty one."""
    return _tag(field, LENGTH) + _varint(len(content)) + content


def _text(field: int, text: str) -> bytes:
    return _sized(field, text.encode()) if text else b""


def _number(field: int, number: int) -> bytes:
    return _tag(field, VARINT) + _varint(number) if number else b""


def _fixed32(field: int, number: int) -> bytes:
    return _tag(field, FIXED32) + struct.pack("<I", number) if number else b""


def _fixed64(field: int, number: int) -> bytes:
    return _tag(field, FIXED64) + struct.pack("<Q", number) if number else b""


# -- messages -----------------------------------------------------------------------------------


def _any_value(value: Any) -> bytes:
    """An AnyValue.

    Raises:
        TypeError: for what is seldom, and left to the general encoder.
        ValueError: likewise (a text that is no UTF-8).
        struct.error: likewise (a number of more than 64 bits).
    """
    if isinstance(value, bool):
        return _tag(_AnyValue.BOOL_VALUE, VARINT) + _varint(value)
    if isinstance(value, str):
        return _sized(_AnyValue.STRING_VALUE, value.encode())
    if isinstance(value, int):
        (unsigned,) = struct.unpack("<Q", struct.pack("<q", value))  # a negative one has 10 bytes
        return _tag(_AnyValue.INT_VALUE, VARINT) + _varint(unsigned)
    if isinstance(value, float):
        return _tag(_AnyValue.DOUBLE_VALUE, FIXED64) + struct.pack("<d", value)
    if isinstance(value, bytes):
        return _sized(_AnyValue.BYTES_VALUE, value)
    if isinstance(value, Sequence):
        values = b"".join(_sized(_ArrayValue.VALUES, _any_value(one)) for one in value)
        return _sized(_AnyValue.ARRAY_VALUE, values)
    raise TypeError(type(value).__name__)


def _attributes(field: int, attributes: Mapping[str, Any] | None) -> bytes:
    return b"".join(
        _sized(field, _text(_KeyValue.KEY, key) + _sized(_KeyValue.VALUE, _any_value(value)))
        for key, value in (attributes or {}).items()
    )


def _event(event: sdk_trace.Event) -> bytes:
    """A field of the span."""
    return _sized(
        _Span.EVENTS,
        _fixed64(_Event.TIME_UNIX_NANO, event.timestamp)
        + _text(_Event.NAME, event.name)
        + _attributes(_Event.ATTRIBUTES, event.attributes)
        + _number(_Event.DROPPED_ATTRIBUTES_COUNT, event.dropped_attributes),
    )


def _status(status: trace.Status) -> bytes:
    """A field of the span, there also if it says nothing."""
    return _sized(
        _Span.STATUS,
        _text(_Status.MESSAGE, status.description or "")
        + _number(_Status.CODE, status.status_code.value),
    )


def _pack_template(template: Template) -> tuple[bytes, bytes, bytes, int]:
    """What stands before the times, behind them, at the end, and how long all that is."""
    before = (
        _text(_Span.NAME, template.name)
        + _number(_Span.KIND, _Span.KIND_INTERNAL)
        + _tag(_Span.START_TIME_UNIX_NANO, FIXED64)
    )
    behind = _attributes(_Span.ATTRIBUTES, template.attributes) + _number(
        _Span.DROPPED_ATTRIBUTES_COUNT, template.dropped()
    )
    status = _status(template.status)
    size = len(before) + len(behind) + len(status)
    template.packed = found = before, behind, status, size
    return found


class _PackedPlace:
    """What is the same in all spans of a unit.

    Attributes:
        group: of the request.
        before: what stands before the span id.
        between, between_parent: what stands behind it, without a parent and with one.
        end: the last field.
        size: of all that without a parent, with the span id and the times.
        link: what stands before the span id of a link in the same trace.
    """

    __slots__ = ("before", "between", "between_parent", "end", "group", "link", "size")

    def __init__(self, place: Place) -> None:
        trace_id = _sized(_Span.TRACE_ID, place.trace_id.to_bytes(16, "big"))
        state = ""
        if place.state is not None:
            state = ",".join(f"{key}={value}" for key, value in place.state.items())
        flags = _Span.HAS_IS_REMOTE | (_Span.IS_REMOTE if place.remote else 0)
        self.group = _Groups.around(place.resource, place.scope)
        self.before = trace_id + _tag(_Span.SPAN_ID, LENGTH) + _varint(_ID_BYTES)
        self.between = _text(_Span.TRACE_STATE, state)
        self.between_parent = self.between + _PARENT_TAG
        self.end = _fixed32(_Span.FLAGS, flags)
        self.size = len(self.before + self.between + self.end) + _ID_BYTES + _TIMES.size
        self.link = _link_head(place.trace_id.to_bytes(16, "big"))


_ID_BYTES: Final = 8
# The first time, whose tag the template has; the tag of the second; the second.
_TIMES: Final = struct.Struct("<QBQ")
(_END_TAG,) = _tag(_Span.END_TIME_UNIX_NANO, FIXED64)
_PARENT_TAG: Final = _tag(_Span.PARENT_SPAN_ID, LENGTH) + _varint(_ID_BYTES)
_PARENT_SIZE: Final = len(_PARENT_TAG) + _ID_BYTES
_LINK_FLAGS: Final = _fixed32(_Link.FLAGS, _Span.HAS_IS_REMOTE)


def _link_head(trace_id: bytes) -> bytes:
    """A link, a field of the span, up to its span id; that and `_LINK_FLAGS` follow."""
    trace_field = _sized(_Link.TRACE_ID, trace_id)
    span_field = _tag(_Link.SPAN_ID, LENGTH) + _varint(_ID_BYTES)
    size = len(trace_field) + len(span_field) + _ID_BYTES + len(_LINK_FLAGS)
    return _tag(_Span.LINKS, LENGTH) + _varint(size) + trace_field + span_field


def _head(size: int) -> bytes:
    """What stands before a span of this size in a ScopeSpans."""
    found = _tag(_ScopeSpans.SPANS, LENGTH) + _varint(size)
    if size < _MOST_HEADS:
        _HEADS[size] = found
    return found


_HEADS: dict[int, bytes] = {}  # by size
_MOST_HEADS = 4096


# -- requests -----------------------------------------------------------------------------------


class _Groups(Groups[bytes]):
    """Fields of ScopeSpans. Around them are resource and scope, each with its schema."""

    nothing = b""

    @staticmethod
    def encode_around(span: sdk_trace.ReadableSpan) -> Around:
        """See `Groups.encode_around`."""
        (of_resource,) = encode_spans([span]).resource_spans
        (of_scope,) = of_resource.scope_spans
        return (
            (
                _sized(_ResourceSpans.RESOURCE, of_resource.resource.SerializeToString()),
                _text(_ResourceSpans.SCHEMA_URL, of_resource.schema_url),
            ),
            (
                _sized(_ScopeSpans.SCOPE, of_scope.scope.SerializeToString()),
                _text(_ScopeSpans.SCHEMA_URL, of_scope.schema_url),
            ),
        )

    def encode(
        self, spans: Iterable[sdk_trace.ReadableSpan]
    ) -> Iterator[tuple[tuple[int, int], bytes]]:
        """See `Groups.encode`."""
        for of_resource in encode_spans(list(spans)).resource_spans:
            for of_scope in of_resource.scope_spans:
                for one in of_scope.spans:
                    ids = int.from_bytes(one.trace_id, "big"), int.from_bytes(one.span_id, "big")
                    yield ids, _sized(_ScopeSpans.SPANS, one.SerializeToString())

    def request(self) -> bytes:
        """See `Groups.request`."""
        return b"".join(
            _sized(
                _Request.RESOURCE_SPANS,
                resource
                + b"".join(
                    _sized(_ResourceSpans.SCOPE_SPANS, scope + b"".join(pieces) + scope_schema)
                    for (scope, scope_schema), pieces in scopes.items()
                )
                + schema,
            )
            for (resource, schema), scopes in self.known.items()
        )


def encode(
    batch: Iterable[Record | sdk_trace.ReadableSpan],
) -> bytes:
    """An ExportTraceServiceRequest with the spans of a batch.

    What is no record, or has something in it that is seldom, is left to OpenTelemetry's encoder.

    Raises:
        Exception: whatever that raises of a span that cannot be encoded.
    """
    groups = _Groups()
    times, heads = _TIMES.pack, _HEADS
    last, pieces = None, []
    for one in batch:
        if type(one) is not tuple:
            groups.add(one)  # type: ignore[arg-type]
            continue
        place, template, span_id, parent_id, start_ns, end_ns, link, events = one
        try:
            packed = place.packed
            if packed is None:
                packed = place.packed = _PackedPlace(place)
            named, attributes, status, size = template.packed or _pack_template(template)
            both = times(start_ns, _END_TAG, end_ns)
            inner = b"".join(map(_event, events)) if events else b""
        except (TypeError, ValueError, struct.error):
            groups.add(as_readable(one))
            continue
        size += packed.size
        between = packed.between
        if parent_id:
            between = packed.between_parent
            size += _PARENT_SIZE
        if link is not None:
            if len(link) == _ID_BYTES:
                inner += packed.link + link + _LINK_FLAGS
            else:
                inner += _link_head(link[:-_ID_BYTES]) + link[-_ID_BYTES:] + _LINK_FLAGS
        size += len(inner)
        if packed.group is not last:
            last = packed.group
            pieces = groups.pieces(last)
        pieces += (
            heads.get(size) or _head(size),
            packed.before,
            span_id,
            between,
            parent_id,
            named,
            both,
            attributes,
            inner,
            status,
            packed.end,
        )
    groups.encode_added()
    return groups.request()


@functools.cache
def agrees() -> bool:
    """Whether a span with everything in it has the same bytes by OpenTelemetry's encoder.

    Another version of it may encode something that this one leaves out. Then all is left to it.
    """
    attributes = BoundedAttributes(
        attributes={"a": "ü", "b": True, "c": -1, "d": 0.5, "e": (1, 2), "f": 2**40, "g": ""}
    )
    attributes.dropped = 1
    event = sdk_trace.Event("event", attributes, 3)
    error = trace.Status(trace.StatusCode.ERROR, "why")
    scope = InstrumentationScope("name", "version", "schema")
    for remote in (False, True):
        state = trace.TraceState([("key", "value")]) if remote else None
        place = Place(
            2**127 + 1,
            trace.TraceFlags(1),
            state,
            Resource({"key": 1}),
            scope,
            remote=remote,
        )
        parent = b"87654321" if remote else b""
        full = Template("n", attributes, error)
        records: list[Record] = [
            (place, Template("n", {}), b"12345678", parent, 1, 2**63, None, ()),
            (place, full, b"12345678", b"87654321", 1, 2, b"abcdefgh", (event,)),
            (place, Template("n", {}), b"12345678", parent, 1, 2, bytes(range(24)), ()),
        ]
        expected = encode_spans([as_readable(one) for one in records]).SerializeToString()
        if encode(records) != expected:
            logger.warning(
                "this version of opentelemetry-exporter-otlp-proto-common encodes spans in a way"
                " that otel_modtrack does not know: it encodes all of them, which is slower"
            )
            return False
    return True
