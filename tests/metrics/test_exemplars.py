"""Exemplars point at the spans that were recorded, and at no others."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry import context as context_api, trace

from otel_modtrack import metrics, sdk_metrics, semconv
from otel_modtrack.regions import Phase
from tests.metrics.making import (
    Call,
    by_attributes,
    collected,
    launched,
    provider_of,
    span,
    unit_of,
)

MS = 1_000_000


@pytest.fixture(params=["fast", "record"], autouse=True)
def road(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways to record."""
    if request.param == "record":
        monkeypatch.setattr(sdk_metrics, "_sdk", lambda: None)


def ids(point: Any) -> list[tuple[float, int, int]]:
    """Value, trace and span of each exemplar."""
    return [(one.value, one.trace_id, one.span_id) for one in point.exemplars]


@pytest.mark.parametrize("temporality", ["cumulative", "delta"])
def test_the_longest_call_of_each_template(temporality: str) -> None:
    """In each unit; the reservoir keeps the last of each bucket."""
    provider, (reader,) = provider_of(temporality)
    meter = metrics.Meter(provider, "1")
    for first, durations in ((1, (3, 9, 4)), (11, (8, 30, 2)), (21, (7, 8, 1))):
        calls = [Call(f"Net.layers.{i}", Phase.FORWARD, d * MS) for i, d in enumerate(durations)]
        unit = unit_of([*calls, Call("Net", Phase.FORWARD, 200 * MS, "Net", "Net")])
        spans = {region: span(first + i) for i, region in enumerate(unit.regions)}
        meter.take(unit, unit.regions, spans.get)
    found = by_attributes(collected(reader)[semconv.MODULE_DURATION])
    layers, net = found["Net.layers.*", "Linear", "forward"], found["Net", "Net", "forward"]
    assert ids(layers) == [(0.008, 1022, 22), (0.03, 1012, 12)]
    assert ids(net) == [(0.2, 1024, 24)]


def test_the_longest_that_has_a_span() -> None:
    """Where the longest has none."""
    provider, (reader,) = provider_of()
    unit = unit_of([Call(f"Net.layers.{i}", Phase.FORWARD, i * MS) for i in range(1, 9)])
    spans = {unit.regions[2]: span(2), unit.regions[4]: span(4)}
    metrics.Meter(provider, "1").take(unit, unit.regions, spans.get)
    (point,) = collected(reader)[semconv.MODULE_DURATION].data.data_points
    assert ids(point) == [(0.005, 1004, 4)]
    assert point.count == 8


@pytest.mark.parametrize("context_of", [None, lambda _: None, lambda _: span(3, sampled=False)])
def test_no_span_no_exemplar(context_of: Any) -> None:
    """Not even of a span of the user's that is current as the unit ends."""
    provider, (reader,) = provider_of()
    current = trace.set_span_in_context(trace.NonRecordingSpan(span(99)))
    token = context_api.attach(current)
    try:
        meter = metrics.Meter(provider, "1")
        unit = unit_of([Call("Net.layers.0", Phase.FORWARD, MS)] * 3)
        unit.collectives.append(launched("all_reduce", "0", 4))
        meter.take(unit, unit.regions, context_of)
        meter.step(1.0, span(4, sampled=False))
        meter.outside(launched("all_reduce", "0", 4))
    finally:
        context_api.detach(token)
    for metric in collected(reader).values():
        assert [ids(point) for point in metric.data.data_points] == [[]]


def test_steps_and_collectives() -> None:
    """A step's exemplar is its span; a collective's, that of the region that launched it."""
    provider, (reader,) = provider_of()
    meter = metrics.Meter(provider, "1")
    unit = unit_of([Call("Net.layers.0", Phase.FORWARD, MS)])
    unit.collectives.append(launched("all_reduce", "0", 40, unit.regions[0]))
    meter.take(unit, unit.regions, lambda _: span(5))
    meter.step(0.5, span(6))
    found = {
        name: [ids(point) for point in metric.data.data_points]
        for name, metric in collected(reader).items()
    }
    assert found[semconv.STEP_DURATION] == [[(0.5, 1006, 6)]]
    assert found[semconv.COLLECTIVE_COUNT] == [[(1, 1005, 5)]]
    assert found[semconv.COLLECTIVE_SIZE] == [[(40, 1005, 5)]]
