"""What is encoded from records is what OpenTelemetry's own encoder makes of the same spans."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings, strategies as st
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from otel_modtrack.otlp import encoding
from otel_modtrack.otlp.encoding import agrees, encode
from otel_modtrack.otlp.records import Place, Template, as_readable
from tests.direct.decoded import from_json, from_request
from tests.direct.made_up import records
from tests.direct.roads import HAS_JSON, roads
from tests.direct.runs import RUNS

if TYPE_CHECKING:
    from pathlib import Path

    from opentelemetry.sdk.trace import ReadableSpan

    from otel_modtrack.otlp.records import Record

PLACE = Place(
    2**127,
    trace.TraceFlags(1),
    None,
    Resource({"service.name": "tests"}),
    InstrumentationScope("otel_modtrack", "1"),
)


def stock(spans: list[ReadableSpan]) -> bytes:
    """By OpenTelemetry's encoder alone."""
    return encode_spans(spans).SerializeToString()


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    """OpenTelemetry's encoder logs each attribute that does not fit."""
    caplog.set_level(logging.CRITICAL)


def test_it_agrees() -> None:
    """The installed encoder is one that ours is the same as."""
    assert agrees()


@settings(max_examples=150)
@given(records(), st.sets(st.integers(0, 7)))
def test_any_records(made: list[Record], real: set[int]) -> None:
    """Whatever is in them, also where some of the batch are spans: nothing is missing or other."""
    spans = [as_readable(one) for one in made]
    mixed = [span if at in real else made[at] for at, span in enumerate(spans)]
    assert from_request(encode(mixed)) == from_request(stock(spans))


@pytest.mark.skipif(not HAS_JSON, reason="the JSON encoder is not installed")
@settings(max_examples=150)
@given(records(), st.sets(st.integers(0, 7)))
def test_any_records_as_json(made: list[Record], real: set[int]) -> None:
    """The same for OTLP JSON; what looks like a stand-in, or a format, is a text like any other."""
    from opentelemetry.exporter.otlp.json.common.trace_encoder import (  # noqa: PLC0415
        encode_spans as stock_json,
    )

    from otel_modtrack.otlp.encoding_json import encode_json  # noqa: PLC0415 - as above

    tricky = Template("f6" * 8, {"%s": "%(span)s", "f5" * 16: 7_777_777_777_777_777_771})
    place = made[0][0]
    made.append((place, tricky, b"unlikely", b"" if not place.remote else b"p" * 8, 1, 2, None, ()))
    spans = [as_readable(one) for one in made]
    mixed = [span if at in real else made[at] for at, span in enumerate(spans)]
    assert from_json(encode_json(mixed)) == from_json(json.dumps(stock_json(spans).to_dict()))


@settings(max_examples=100)
@given(st.lists(st.booleans(), min_size=1, max_size=300))
def test_the_same_bytes(linked: list[bool]) -> None:
    """Spans of one place are not only decoded alike: lengths of one, two and three bytes."""
    template = Template("forward " + "x" * 90, {"modtrack.phase": "forward"})
    made: list[Record] = [
        (
            PLACE,
            template,
            (at + 1).to_bytes(8, "big"),
            at.to_bytes(8, "big") if at else b"",
            10**18 + at,
            10**18 + 2 * at,
            b"abcdefgh" if link else None,
            (),
        )
        for at, link in enumerate(linked)
    ]
    assert encode(made) == stock([as_readable(one) for one in made])


def test_what_cannot_be_encoded() -> None:
    """A name that is no text raises what OpenTelemetry's encoder raises: the delivery counts it."""
    bad: Record = (PLACE, Template("\ud800", {}), b"12345678", b"", 1, 2, None, ())
    with pytest.raises(UnicodeEncodeError):
        encode([bad])
    with pytest.raises(UnicodeEncodeError):
        stock([as_readable(bad)])


def test_an_attribute_that_cannot_be_encoded() -> None:
    """It is left out, and the span is there."""
    attributes = {"bad": "\ud800", "good": 1}
    record: Record = (PLACE, Template("name", attributes), b"12345678", b"", 1, 2, None, ())
    expected = from_request(stock([as_readable(record)]))
    assert from_request(encode([record])) == expected
    [span] = expected.values()
    assert [one["key"] for one in span["span"]["attributes"]] == ["good"]


def test_another_encoder(
    monkeypatch: pytest.MonkeyPatch,
    environment: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One that says something else of spans is noticed, said, and left all of them."""
    caplog.set_level(logging.WARNING)

    def other(spans: list[ReadableSpan]) -> object:
        found = encode_spans(spans)
        found.resource_spans[0].scope_spans[0].spans[0].flags |= 1
        return found

    monkeypatch.setattr(encoding, "encode_spans", other)
    agrees.cache_clear()
    try:
        assert not agrees()
        with roads(environment, tmp_path) as made:
            RUNS["alone"](made.provider)
            made.check(records=False)
    finally:
        agrees.cache_clear()
    assert "does not know" in caplog.text
