"""Metrics of a real model, next to its spans."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import torch
from torch import nn

from otel_modtrack import ModTracker, semconv
from tests.conftest import spans_of
from tests.metrics.making import by_attributes, collected, points, provider_of

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


def test_as_many_as_spans(provider: TracerProvider, exporter: InMemorySpanExporter) -> None:
    """Each call's span is counted by phase, template and type; exemplars are among the spans."""
    meters, (reader,) = provider_of()
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    with ModTracker(model, tracer_provider=provider, metrics=True, meter_provider=meters) as it:
        for number in range(3):
            with it.step(number):
                model(torch.ones(2, 4)).sum().backward()
    spans = spans_of(exporter)
    names = (semconv.MODULE_TEMPLATE, semconv.MODULE_TYPE, semconv.PHASE)
    expected = Counter(
        tuple(span.attributes[name] for name in names)
        for span in spans
        if span.attributes and semconv.PHASE in span.attributes
    )
    found = collected(reader)
    durations = by_attributes(found[semconv.MODULE_DURATION])
    assert {key: point.count for key, point in durations.items()} == expected
    by_ids = {(span.context.trace_id, span.context.span_id): span for span in spans if span.context}
    for key, point in durations.items():
        assert point.exemplars
        for one in point.exemplars:
            span = by_ids[one.trace_id, one.span_id]
            assert span.attributes is not None
            assert tuple(span.attributes[name] for name in names) == key
            assert span.end_time is not None
            assert span.start_time is not None
            assert round(one.value * 1e9) == span.end_time - span.start_time
    (steps,) = found[semconv.STEP_DURATION].data.data_points
    assert steps.count == 3
    assert {by_ids[one.trace_id, one.span_id].name for one in steps.exemplars} == {"train_step"}
    assert points(reader)[semconv.SPANS_DROPPED][0].value == 0


def test_off_by_default(provider: TracerProvider) -> None:
    """Without `metrics=True` there are none."""
    meters, (reader,) = provider_of()
    model = nn.Linear(4, 4)
    with ModTracker(model, tracer_provider=provider, meter_provider=meters):
        model(torch.ones(2, 4))
    assert not collected(reader)
