"""Records as OTLP JSON, from texts that OpenTelemetry's own encoder made with stand-ins for ids.

Other than in protobuf nothing is laid out here by hand: a template is encoded once with ids and
times that stand for any, and these are replaced. Whatever does not fit is left to the encoder.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import trace
from opentelemetry.exporter.otlp.json.common.trace_encoder import encode_spans
from opentelemetry.sdk.resources import Resource

from otel_modtrack.otlp.groups import Groups
from otel_modtrack.otlp.records import Place, Template, as_readable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from opentelemetry.sdk import trace as sdk_trace

    from otel_modtrack.otlp.groups import Around
    from otel_modtrack.otlp.records import Record

__all__ = ["encode_json"]

_SPAN_ID_BYTES = 8
# What stands for the span's trace, itself, its parent, the link's trace and span; start and end.
_TRACE, _SPAN, _PARENT = bytes.fromhex("f5" * 16), bytes.fromhex("f6" * 8), bytes.fromhex("f7" * 8)
_LINK_TRACE, _LINK_SPAN = bytes.fromhex("f8" * 16), bytes.fromhex("f9" * 8)
_START_NS, _END_NS = 7_777_777_777_777_777_771, 7_777_777_777_777_777_772
_STAND_INS: Final = {
    _TRACE.hex(): "trace",
    _SPAN.hex(): "span",
    _PARENT.hex(): "parent",
    _LINK_TRACE.hex(): "link_trace",
    _LINK_SPAN.hex(): "link",
    str(_START_NS): "start",
    str(_END_NS): "end",
}
_ANY_STAND_IN: Final = re.compile("|".join(_STAND_INS))


class _Groups(Groups[str]):
    """Texts of spans. Around them are those of their resource and scope."""

    nothing = ""

    @staticmethod
    def encode_around(span: sdk_trace.ReadableSpan) -> Around:
        """See `Groups.encode_around`."""
        (of_resource,) = encode_spans([span]).to_dict()["resourceSpans"]
        (of_scope,) = of_resource.pop("scopeSpans")
        del of_scope["spans"]
        return _dump(of_resource), _dump(of_scope)

    def encode(
        self, spans: Iterable[sdk_trace.ReadableSpan]
    ) -> Iterator[tuple[tuple[int, int], str]]:
        """See `Groups.encode`."""
        for of_resource in encode_spans(list(spans)).to_dict()["resourceSpans"]:
            for of_scope in of_resource["scopeSpans"]:
                for one in of_scope["spans"]:
                    yield (int(one["traceId"], 16), int(one["spanId"], 16)), _dump(one)

    def request(self) -> bytes:
        """See `Groups.request`."""
        text = ",".join(
            _with(
                resource,
                "scopeSpans",
                ",".join(_with(scope, "spans", ",".join(spans)) for scope, spans in scopes.items()),
            )
            for resource, scopes in self.known.items()
        )
        return f'{{"resourceSpans":[{text}]}}'.encode()


def _dump(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _with(text: str, key: str, items: str) -> str:
    """An object's text, with one key more."""
    return f'{text[:-1]}{"," if len(text) > 2 else ""}"{key}":[{items}]}}'  # noqa: PLR2004 - {}


def _text(template: Template, shape: tuple[bool, bool, bool]) -> str:
    """The text of a span with or without a remote parent, a parent, and a link; "" if unknown."""
    remote, has_parent, has_link = shape
    place = Place(
        int.from_bytes(_TRACE, "big"), trace.TraceFlags(1), None, _NOTHING, None, remote=remote
    )
    parent, link = _PARENT if has_parent else b"", _LINK_TRACE + _LINK_SPAN if has_link else None
    sample: Record = (place, template, _SPAN, parent, _START_NS, _END_NS, link, ())
    found = encode_spans([as_readable(sample)]).to_dict()
    text = _dump(found["resourceSpans"][0]["scopeSpans"][0]["spans"][0])
    text = text.replace("%", "%%")
    expected = sorted(
        name
        for name in _STAND_INS.values()
        if (has_parent or name != "parent") and (has_link or not name.startswith("link"))
    )
    if sorted(_STAND_INS[one] for one in _ANY_STAND_IN.findall(text)) != expected:
        return ""
    return _ANY_STAND_IN.sub(lambda one: f"%({_STAND_INS[one.group()]})s", text)


_NOTHING = Resource({})


def encode_json(batch: Iterable[Record | sdk_trace.ReadableSpan]) -> bytes:
    """An ExportTraceServiceRequest with the spans of a batch, as JSON.

    Raises:
        Exception: whatever OpenTelemetry's encoder raises of a span that cannot be encoded.
    """
    groups = _Groups()
    for one in batch:
        if type(one) is not tuple:
            groups.add(one)  # type: ignore[arg-type]
            continue
        place, template, span_id, parent_id, start_ns, end_ns, link, events = one
        shape = place.remote, bool(parent_id), link is not None
        texts: Any = template.text
        if texts is None:
            texts = template.text = {}
        text = texts.get(shape)
        if text is None:
            text = texts[shape] = _text(template, shape)
        if events or place.state or not text or not start_ns or not end_ns:
            groups.add(as_readable(one))
            continue
        trace_id = f"{place.trace_id:032x}"
        groups.pieces(groups.around(place.resource, place.scope)).append(
            text
            % {
                "trace": trace_id,
                "span": span_id.hex(),
                "parent": parent_id.hex(),
                "start": start_ns,
                "end": end_ns,
                "link_trace": (link or b"")[:-_SPAN_ID_BYTES].hex() or trace_id,
                "link": (link or b"")[-_SPAN_ID_BYTES:].hex(),
            }
        )
    groups.encode_added()
    return groups.request()
