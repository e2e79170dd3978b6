"""Units made by hand, and what a meter provider collected."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, NamedTuple

from opentelemetry import trace
from opentelemetry.sdk.metrics import Counter, Histogram, MeterProvider
from opentelemetry.sdk.metrics.export import AggregationTemporality, InMemoryMetricReader
from opentelemetry.sdk.resources import Resource

from otel_modtrack.comm.records import Collective, Group, Launch, Operator
from otel_modtrack.regions import Kind, Region, Sink, Subject, Unit

if TYPE_CHECKING:
    from collections.abc import Iterable

_DELTA = dict.fromkeys((Counter, Histogram), AggregationTemporality.DELTA)


class Call(NamedTuple):
    """One region to be: what it is of, and how long it takes."""

    fqn: str
    phase: str
    duration_ns: int
    template: str = "Net.layers.*"
    type: str = "Linear"
    kind: Kind = Kind.MODULE


def unit_of(calls: Iterable[Call]) -> Unit:
    """Its regions, one after the other."""
    unit = Unit(Sink())
    now_ns = 1_000_000
    for call in calls:
        subject = Subject(call.kind, call.fqn, call.template, call.type)
        region = Region(subject, None, call.phase, now_ns, unit)
        region.end_ns = now_ns = now_ns + call.duration_ns
        unit.regions.append(region)
    return unit


def launched(
    operation: str, group: str, size: int, region: Region | None = None, name: str = ""
) -> Collective:
    """A collective."""
    launch = Launch(
        operator=Operator(name or f"c10d.{operation}_", operation),
        group=Group(group, 2, ""),
        size=size,
        dtype="float32",
        backend="gloo",
        asynchronous=False,
    )
    return Collective(launch, region, 1)


def span(number: int, *, sampled: bool = True) -> trace.SpanContext:
    """The span of that number: 7 is span 7 in trace 1007."""
    flags = trace.TraceFlags(int(sampled))
    return trace.SpanContext(1000 + number, number, is_remote=False, trace_flags=flags)


def provider_of(
    *temporalities: str, **settings: Any
) -> tuple[MeterProvider, list[InMemoryMetricReader]]:
    """A provider of the SDK's with a reader for each temporality."""
    readers = [
        InMemoryMetricReader(preferred_temporality=_DELTA if one == "delta" else None)
        for one in temporalities or ("cumulative",)
    ]
    provider = MeterProvider(readers, Resource.get_empty(), shutdown_on_exit=False, **settings)
    return provider, readers


def collected(reader: InMemoryMetricReader) -> dict[str, Any]:
    """Each metric by its name."""
    data = reader.get_metrics_data()
    return {
        metric.name: metric
        for resource in (data.resource_metrics if data else ())
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }


def points(reader: InMemoryMetricReader) -> dict[str, list[Any]]:
    """The points of each metric, without what depends on the clock."""
    return {
        name: [
            dataclasses.replace(
                point,
                start_time_unix_nano=0,
                time_unix_nano=0,
                exemplars=[dataclasses.replace(one, time_unix_nano=0) for one in point.exemplars],
            )
            for point in metric.data.data_points
        ]
        for name, metric in collected(reader).items()
    }


def by_attributes(metric: Any) -> dict[tuple[Any, ...], Any]:
    """The points of a metric by the values of their attributes, in the order of their names."""
    return {
        tuple(value for _, value in sorted(point.attributes.items())): point
        for point in metric.data.data_points
    }
