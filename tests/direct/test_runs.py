"""Whole runs: a receiver decodes what the stock exporter would have sent it, field by field."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import (
    ConcurrentMultiSpanProcessor,
    SpanLimits,
    SpanProcessor,
    id_generator,
    sampling,
)

from otel_modtrack.sdk import SdkSink
from tests.direct.roads import PROTOCOLS, Counted, roads
from tests.direct.runs import RUNS

if TYPE_CHECKING:
    from pathlib import Path

    from opentelemetry.sdk.trace import ReadableSpan

every_run = pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)


@every_run
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_same(environment: pytest.MonkeyPatch, tmp_path: Path, protocol: str, run: Any) -> None:
    """Whatever runs, by whatever protocol."""
    with roads(environment, tmp_path, protocol) as made:
        run(made.provider)
        made.check()


@every_run
@pytest.mark.parametrize(
    "limits",
    [
        {"max_span_attributes": 2, "max_event_attributes": 1},
        {"max_span_attribute_length": 4},
        {"max_span_attributes": 0, "max_events": 1, "max_links": 1},
    ],
    ids=["few", "short", "none"],
)
def test_limits(
    environment: pytest.MonkeyPatch, tmp_path: Path, limits: dict[str, int], run: Any
) -> None:
    """What the limits cut off is cut off, and counted as dropped."""
    with roads(environment, tmp_path, span_limits=SpanLimits(**limits)) as made:
        run(made.provider)
        found = made.check()
    if "max_span_attributes" in limits:
        assert any("droppedAttributesCount" in one["span"] for one in found.values())


class Adding(sampling.Sampler):
    """Samples, and adds attributes and a trace state."""

    def should_sample(self, *arguments: Any, **others: Any) -> sampling.SamplingResult:
        return sampling.SamplingResult(
            sampling.Decision.RECORD_AND_SAMPLE,
            {"sampler": (1.5, 2.5), "large": 2**62},
            trace.TraceState([("sampled", "by-us")]),
        )

    def get_description(self) -> str:
        return "adding"


class RecordOnly(Adding):
    """Records, and samples nothing."""

    def should_sample(self, *arguments: Any, **others: Any) -> sampling.SamplingResult:
        return sampling.SamplingResult(sampling.Decision.RECORD_ONLY)


@every_run
@pytest.mark.parametrize(
    ("sampler", "records"),
    [
        (sampling.ParentBased(Adding()), True),
        (sampling.ParentBasedTraceIdRatio(0.5), None),
        (sampling.TraceIdRatioBased(0.5), None),
        (sampling.ParentBased(RecordOnly()), None),
        (Adding(), False),
    ],
    ids=["adding", "half, by the parent", "half", "not sampled", "span by span"],
)
def test_samplers(
    environment: pytest.MonkeyPatch, tmp_path: Path, sampler: Any, records: bool | None, run: Any
) -> None:
    """What is sampled is sent, and says what the sampler has added."""
    with roads(environment, tmp_path, sampler=sampler) as made:
        run(made.provider)
        made.check(records=bool(made.ours.records) if records is None else records)


class Counting(id_generator.IdGenerator):
    """Ids one after the other."""

    def __init__(self) -> None:
        self.last = 0

    def generate_span_id(self) -> int:
        self.last += 1
        return self.last

    def generate_trace_id(self) -> int:
        self.last += 1
        return self.last


@every_run
def test_ids_of_its_own(environment: pytest.MonkeyPatch, tmp_path: Path, run: Any) -> None:
    """The provider's ids are used."""
    with roads(environment, tmp_path, id_generator=Counting()) as made:
        run(made.provider)
        found = made.check()
    assert len(found) <= made.provider.id_generator.last


# -- processors of the user's ---------------------------------------------------------------------


class Renaming(SpanProcessor):
    """Changes what is behind it in the row."""

    def on_end(self, span: ReadableSpan) -> None:
        span._name = f"my {span.name}"


class Starting(SpanProcessor):
    """Wants to see spans start."""

    def __init__(self) -> None:
        self.started = 0

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        self.started += 1
        span.set_attribute("number", self.started)


@every_run
def test_one_that_sees_starts(environment: pytest.MonkeyPatch, tmp_path: Path, run: Any) -> None:
    """Spans are started for it, and sent with what it has set."""
    with roads(environment, tmp_path) as made:
        starting = Starting()
        made.provider.add_span_processor(starting)
        run(made.provider)
        found = made.check(records=False)
    assert starting.started == len(found)


def test_one_before_ours(environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What it makes of a span is what is sent."""
    with roads(environment, tmp_path) as made:
        processors = made.provider._active_span_processor
        processors._span_processors = (Renaming(), *processors._span_processors)
        RUNS["alone"](made.provider)
        found = made.check(records=False)
    assert all(one["span"]["name"].startswith("my ") for one in found.values())


def test_one_behind_ours(environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It gets every span, and what it makes of them is no business of ours."""
    with roads(environment, tmp_path) as made:
        made.provider.add_span_processor(Renaming())
        RUNS["touched"](made.provider)
        assert made.delivery.flush(10)
        assert made.ours.records
        assert all(span.name.startswith("my ") for span in made.memory.get_finished_spans())


def test_in_threads(environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Processors that are called in threads of the SDK's get spans."""
    processors = ConcurrentMultiSpanProcessor()
    with roads(environment, tmp_path, active_span_processor=processors) as made:
        RUNS["training"](made.provider)
        made.check(records=False)
        processors._executor.shutdown()


class Choosy(Counted):
    """Ours, with a filter."""

    def on_end(self, span: ReadableSpan) -> None:
        if "backward" not in span.name:
            super().on_end(span)


def test_one_made_of_ours(environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A class that overrides `on_end` is given spans by it."""
    with roads(environment, tmp_path) as made:
        choosy = Choosy(made.delivery)
        made.provider._active_span_processor._span_processors = (choosy,)
        RUNS["alone"](made.provider)
        assert made.delivery.flush(10)
        assert choosy.records == 0
        assert made.delivery.counts.delivered == 5


def test_no_spans_are_made(
    environment: pytest.MonkeyPatch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nobody else wants them. That is the point of it all."""
    made_spans = []
    monkeypatch.setattr(SdkSink, "_readable", made_spans.append)
    with roads(environment, tmp_path) as made:
        made.provider._active_span_processor._span_processors = (made.ours,)
        RUNS["alone"](made.provider)
        assert made.delivery.flush(10)
        assert made.delivery.counts.delivered == made.ours.records == 15
    assert not made_spans
