"""What is recorded of a unit is what a straightforward computation gives."""

from __future__ import annotations

import bisect
import math
import threading
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings, strategies

from otel_modtrack import metrics, semconv
from otel_modtrack.regions import Kind, Phase
from tests.metrics.making import (
    Call,
    by_attributes,
    collected,
    launched,
    points,
    provider_of,
    span,
    unit_of,
)

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

CALLS = strategies.builds(
    Call,
    fqn=strategies.sampled_from(["Net.layers.0", "Net.layers.1", "Net.layers.17"]),
    phase=strategies.sampled_from([Phase.FORWARD, Phase.BACKWARD, Phase.RECOMPUTE]),
    duration_ns=strategies.one_of(
        strategies.integers(0, 20_000_000_000),
        strategies.sampled_from([round(bound * 1e9) for bound in metrics.MODULE_BOUNDS_S]),
    ),
    template=strategies.sampled_from(["Net", "Net.layers.*", "Net.head"]),
    type=strategies.sampled_from(["Linear", "Block"]),
    kind=strategies.sampled_from(list(Kind)),
)
UNITS = strategies.lists(strategies.lists(CALLS, max_size=12), min_size=1, max_size=4)


def expected(units: list[list[Call]]) -> dict[tuple[str, str, str], dict[str, Any]]:
    """By template, type and phase."""
    values: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for calls in units:
        for call in calls:
            if call.kind in (Kind.MODULE, Kind.SCOPE):
                values[call.template, call.type, call.phase].append(call.duration_ns / 1e9)
    found = {}
    for key, some in values.items():
        counts = [0] * (len(metrics.MODULE_BOUNDS_S) + 1)
        for value in some:
            counts[bisect.bisect_left(metrics.MODULE_BOUNDS_S, value)] += 1
        found[key] = {
            "count": len(some),
            "sum": pytest.approx(math.fsum(some), rel=1e-12, abs=1e-15),
            "bucket_counts": tuple(counts),
            "min": min(some),
            "max": max(some),
        }
    return found


def told(reader: InMemoryMetricReader) -> dict[tuple[Any, ...], dict[str, Any]]:
    """The same, of what was collected."""
    metric = collected(reader).get(semconv.MODULE_DURATION)
    if metric is None:
        return {}
    names = ("count", "sum", "bucket_counts", "min", "max")
    return {
        key: {name: getattr(point, name) for name in names}
        for key, point in by_attributes(metric).items()
    }


@settings(max_examples=60)
@given(units=UNITS, traced=strategies.booleans())
def test_durations_are_exact(units: list[list[Call]], traced: bool) -> None:
    """Counts, sums, buckets, least and most, for a cumulative and a delta reader at once."""
    provider, (cumulative, delta) = provider_of("cumulative", "delta")
    meter = metrics.Meter(provider, "1")
    for at, calls in enumerate(units):
        unit = unit_of(calls)
        meter.take(unit, unit.regions, (lambda _: span(1)) if traced else None)
        assert told(delta) == expected([calls])
        if at % 2:
            assert told(cumulative) == expected(units[: at + 1])
    assert told(cumulative) == expected(units)


def test_units_of_several_threads_while_another_collects() -> None:
    """Nothing is lost, and nothing is counted twice."""
    provider, (cumulative, delta) = provider_of("cumulative", "delta")
    meter = metrics.Meter(provider, "1")
    unit = unit_of([Call("Net.layers.0", Phase.FORWARD, 1_000_000)] * 5)
    counts: list[int] = []
    over = threading.Event()

    def work() -> None:
        for _ in range(300):
            meter.take(unit, unit.regions, lambda _: span(1))

    def collect() -> None:
        while not over.is_set():
            counts.extend(one["count"] for one in told(delta).values())
            told(cumulative)

    workers = [threading.Thread(target=work) for _ in range(3)]
    collector = threading.Thread(target=collect)
    for thread in (collector, *workers):
        thread.start()
    for thread in workers:
        thread.join()
    over.set()
    collector.join()
    counts.extend(one["count"] for one in told(delta).values())
    total = 3 * 300 * 5
    assert sum(counts) == total
    assert [one["count"] for one in told(cumulative).values()] == [total]


def test_optimizers_and_engine_runs_have_no_metric() -> None:
    """Only what is called has a duration: modules and named regions, a region's type "region"."""
    provider, (reader,) = provider_of()
    unit = unit_of(
        [
            Call("loss", Phase.FORWARD, 1000, "loss", "region", Kind.SCOPE),
            Call("AdamW", Phase.FORWARD, 1000, "AdamW", "AdamW", Kind.OPTIMIZER),
            Call("", Phase.BACKWARD, 1000, "", "", Kind.BACKWARD),
        ]
    )
    metrics.Meter(provider, "1").take(unit, unit.regions, None)
    assert set(told(reader)) == {("loss", "region", "forward")}


def test_steps() -> None:
    """A histogram without attributes, with buckets for steps of minutes."""
    provider, (reader,) = provider_of()
    meter = metrics.Meter(provider, "1")
    meter.step(0.004, None)
    meter.step(70.0, None)
    metric = collected(reader)[semconv.STEP_DURATION]
    (point,) = metric.data.data_points
    assert (metric.unit, point.attributes) == ("s", {})
    assert (point.count, point.min, point.max) == (2, 0.004, 70.0)
    assert point.explicit_bounds == metrics.STEP_BOUNDS_S


def test_collectives() -> None:
    """Counts and bytes by operation and group, those outside of units too; and no more labels."""
    provider, (reader,) = provider_of()
    meter = metrics.Meter(provider, "1")
    unit = unit_of([Call("Net.layers.0", Phase.FORWARD, 1000)])
    unit.collectives += [
        launched("all_reduce", "0", 100),
        launched("all_reduce", "0", 50, unit.regions[0], "c10d_functional.all_reduce"),
        launched("all_reduce", "tp", 7),
        launched("barrier", "0", 0),
    ]
    meter.take(unit, unit.regions, None)
    meter.outside(launched("all_reduce", "0", 1))
    found = collected(reader)
    expected = {
        semconv.COLLECTIVE_COUNT: ("{collective}", 3, 1, 1),
        semconv.COLLECTIVE_SIZE: ("By", 151, 7, 0),
    }
    for name, (unit_name, *values) in expected.items():
        assert found[name].unit == unit_name
        assert found[name].data.is_monotonic
        assert {key: point.value for key, point in by_attributes(found[name]).items()} == {
            ("0", "all_reduce"): values[0],
            ("tp", "all_reduce"): values[1],
            ("0", "barrier"): values[2],
        }
        assert all(
            set(point.attributes) == {semconv.COLLECTIVE_OPERATION, semconv.COLLECTIVE_GROUP_NAME}
            for point in found[name].data.data_points
        )


def test_dropped_spans() -> None:
    """A counter that is there from the beginning, and goes on with the next tracker's sink."""
    provider, (reader,) = provider_of()
    unit = unit_of([])
    for before, after, total in ((0, 3, 3), (0, 2, 5), (4, 4, 9)):
        meter = metrics.Meter(provider, "1")
        lost = [before]
        meter.watch_dropped(lambda lost=lost: lost[0])  # type: ignore[misc]
        lost[0] = after
        meter.take(unit, [], None)
        meter.step(1.0, None)
        (point,) = collected(reader)[semconv.SPANS_DROPPED].data.data_points
        assert (point.value, point.attributes) == (total, {})


def test_nothing_is_labelled_by_fqn() -> None:
    """Not a value of any attribute of any point or exemplar tells a single module."""
    provider, (reader,) = provider_of()
    meter = metrics.Meter(provider, "1")
    unit = unit_of([Call(f"Net.layers.{i}", Phase.FORWARD, 1000 * i) for i in range(1, 9)])
    unit.collectives.append(launched("send", "pp", 4, unit.regions[3]))
    meter.take(unit, unit.regions, lambda _: span(1))
    meter.step(1.0, span(2))
    text = repr(points(reader))
    assert "Net.layers.*" in text
    assert semconv.MODULE_FQN not in text
    assert not any(f"layers.{i}" in text for i in range(9))


def test_many_names_are_not_kept_for_ever() -> None:
    """A region whose name varies, against all advice, does not make the meter grow."""
    provider, _ = provider_of()
    meter = metrics.Meter(provider, "1")
    for i in range(metrics._KEPT + 10):
        unit = unit_of([Call("r", Phase.FORWARD, 1, f"request-{i}", "region", Kind.SCOPE)])
        meter.take(unit, unit.regions, None)
    assert len(meter._series) <= metrics._KEPT
