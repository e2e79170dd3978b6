"""What is added to the SDK's sums in one go is what `record` gives, whatever the views are."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings, strategies
from opentelemetry.sdk.metrics import (
    AlwaysOffExemplarFilter,
    AlwaysOnExemplarFilter,
    ExemplarFilter,
    TraceBasedExemplarFilter,
)
from opentelemetry.sdk.metrics.view import (
    DropAggregation,
    ExplicitBucketHistogramAggregation,
    ExponentialBucketHistogramAggregation,
    SumAggregation,
    View,
)

from otel_modtrack import metrics, sdk_metrics, semconv
from otel_modtrack.regions import Phase
from tests.metrics.making import Call, points, provider_of, span, unit_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_modtrack.regions import Region

TEMPLATE = {semconv.MODULE_TEMPLATE}


def view(**settings: Any) -> View:
    """A view of all instruments."""
    return View(instrument_name="modtrack.module.*", **settings)


VIEWS: dict[str, list[View]] = {
    "none": [],
    "renamed": [View(instrument_name=semconv.MODULE_DURATION, name="mine")],
    "fewer attributes": [view(attribute_keys=TEMPLATE)],
    "no attributes": [view(attribute_keys=set())],
    "other buckets": [view(aggregation=ExplicitBucketHistogramAggregation((0.1, 1.0)))],
    "no least and most": [
        view(aggregation=ExplicitBucketHistogramAggregation(record_min_max=False))
    ],
    "exponential": [view(aggregation=ExponentialBucketHistogramAggregation())],
    "sum": [view(aggregation=SumAggregation())],
    "dropped": [view(aggregation=DropAggregation())],
    "two at once": [
        View(instrument_name=semconv.MODULE_DURATION, name="a", attribute_keys=TEMPLATE),
        View(
            instrument_name=semconv.MODULE_DURATION,
            name="b",
            aggregation=ExponentialBucketHistogramAggregation(),
        ),
    ],
}
CALLS = strategies.builds(
    Call,
    fqn=strategies.just("Net.layers.0"),
    phase=strategies.sampled_from([Phase.FORWARD, Phase.BACKWARD]),
    duration_ns=strategies.integers(0, 12_000_000_000),
    template=strategies.sampled_from(["Net", "Net.layers.*"]),
    type=strategies.sampled_from(["Linear", "Block"]),
)
UNITS = strategies.lists(strategies.lists(CALLS, max_size=8), min_size=1, max_size=4)


def some_traced(region: Region) -> Any:
    """The spans of regions that are not too long: so the longest often has none."""
    duration_ns = region.end_ns - region.start_ns
    return span(duration_ns % 1000 + 1) if duration_ns < 6_000_000_000 else None


def run(
    units: list[list[Call]],
    views: list[View],
    chooser: ExemplarFilter,
    context_of: Callable[[Region], Any] | None,
) -> list[Any]:
    """What a cumulative and a delta reader collected after each unit."""
    random.seed(0)  # some reservoirs draw which exemplars they keep
    provider, readers = provider_of("cumulative", "delta", views=views, exemplar_filter=chooser)
    meter = metrics.Meter(provider, "1")
    found = []
    for calls in units:
        unit = unit_of(calls)
        meter.take(unit, unit.regions, context_of)
        found += [points(reader) for reader in readers]
    meter.take(unit, unit.regions, context_of)
    return [*found, *(points(reader) for reader in readers)]


@pytest.mark.parametrize("views", VIEWS)
@settings(max_examples=15)
@given(
    units=UNITS,
    chooser=strategies.sampled_from(
        [TraceBasedExemplarFilter, AlwaysOffExemplarFilter, AlwaysOnExemplarFilter]
    ),
    context_of=strategies.sampled_from([some_traced, lambda _: span(1, sampled=False), None]),
)
def test_the_same(views: str, units: list[list[Call]], chooser: Any, context_of: Any) -> None:
    """To the last bit, exemplars included."""
    fast = run(units, VIEWS[views], chooser(), context_of)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sdk_metrics, "_sdk", lambda: None)
        slow = run(units, VIEWS[views], chooser(), context_of)
    assert fast == slow


@pytest.mark.parametrize("views", ["none", "fewer attributes", "exponential"])
def test_record_is_not_called(views: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that it is known that the two are not the same because they are one."""
    provider, (reader,) = provider_of(views=VIEWS[views])
    meter = metrics.Meter(provider, "1")
    called: list[Any] = []
    assert sdk_metrics._sdk() is not None
    monkeypatch.setattr(sdk_metrics, "record", lambda *_: called.append(1))
    unit = unit_of([Call("Net.layers.0", Phase.FORWARD, 5)] * 10)
    meter.take(unit, unit.regions, None)
    assert not called
    assert points(reader)


def test_more_series_than_the_sdk_keeps() -> None:
    """What is over its limit goes where the SDK puts it; the sum is whole."""
    provider, readers = provider_of("cumulative", "delta")
    meter = metrics.Meter(provider, "1")
    calls = [Call("r", Phase.FORWARD, 1000, f"r{i}") for i in range(2100)]
    for _ in range(2):
        unit = unit_of(calls)
        meter.take(unit, unit.regions, lambda _: span(1))
    for reader in readers:
        found = points(reader)[semconv.MODULE_DURATION]
        assert sum(point.count for point in found) == 4200


def test_an_sdk_that_keeps_its_sums_otherwise(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is found out, said, and `record` is used."""
    caplog.set_level("INFO", logger="otel_modtrack")
    sdk_metrics._sdk.cache_clear()
    monkeypatch.setattr(sdk_metrics, "_add", lambda *_: None)
    try:
        assert sdk_metrics._sdk() is None
        assert "each duration is recorded by itself" in caplog.text
        provider, (reader,) = provider_of()
        unit = unit_of([Call("Net.layers.0", Phase.FORWARD, 5)] * 10)
        metrics.Meter(provider, "1").take(unit, unit.regions, None)
        (point,) = points(reader)[semconv.MODULE_DURATION]
        assert point.count == 10
    finally:
        sdk_metrics._sdk.cache_clear()


def test_this_sdk_is_known() -> None:
    """The one that the tests run with takes the fast road."""
    assert sdk_metrics._sdk() is not None
