"""Spans reach any provider, none where none are wanted, and under the right parent."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch
from opentelemetry import context as context_api, trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import (
    ReadableSpan,
    SpanLimits,
    SpanProcessor,
    TracerProvider,
    id_generator,
    sampling,
)
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.util._decorator import _agnosticcontextmanager
from torch import nn

from otel_modtrack import ModTracker, region, semconv
from otel_modtrack.testing import Tree
from otel_modtrack.version import __version__
from tests.conftest import spans_of
from tests.intervals import check_intervals

if TYPE_CHECKING:
    from collections.abc import Iterator


def train(tracker: ModTracker, model: nn.Module, *, stepping: bool = True) -> None:
    """One small training step."""
    optimizer = torch.optim.AdamW(model.parameters())

    def body() -> None:
        with region("loss"):
            loss = model(torch.ones(1, 2)).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    if stepping:
        with tracker.step(7):
            body()
    else:
        body()


WANTED = """
    train_step
      forward loss
        forward Sequential
          forward Sequential.0
          forward Sequential.1
      backward
        backward loss
          backward Sequential
            backward Sequential.1
            backward Sequential.0
      optimizer_step AdamW
    """


def two_layers() -> nn.Sequential:
    """Two linear layers."""
    return nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))


# -- another implementation of the API -----------------------------------------------------------


class OtherSpan(trace.Span):
    """A span of a provider that is not the SDK's; it writes down what it is told."""

    def __init__(self, name: str, parent: trace.SpanContext, **given: Any) -> None:
        self.name = name
        self.parent = parent if parent.is_valid else None
        self.start_time: int = given["start_time"]
        self.end_time: int | None = None
        self.attributes: dict[str, Any] = dict(given.get("attributes") or {})
        self.links = given.get("links") or ()
        self.events: list[tuple[str, Any, int | None]] = []
        self.status = trace.Status()
        OtherSpan.count += 1
        trace_id = parent.trace_id if parent.is_valid else OtherSpan.count
        self.context = trace.SpanContext(
            trace_id, OtherSpan.count, is_remote=False, trace_flags=trace.TraceFlags(1)
        )

    count = 0

    def end(self, end_time: int | None = None) -> None:
        assert self.end_time is None
        self.end_time = end_time

    def get_span_context(self) -> trace.SpanContext:
        return self.context

    def set_attributes(self, attributes: Any) -> None:
        self.attributes.update(attributes)

    def set_attribute(self, key: str, value: Any) -> None:
        self.attributes[key] = value

    def add_event(self, name: str, attributes: Any = None, timestamp: int | None = None) -> None:
        self.events.append((name, attributes, timestamp))

    def update_name(self, name: str) -> None:
        self.name = name

    def is_recording(self) -> bool:
        return self.end_time is None

    def set_status(self, status: Any, description: str | None = None) -> None:
        self.status = status

    def record_exception(self, *_: Any, **__: Any) -> None:
        raise AssertionError

    def readable(self) -> ReadableSpan:
        """As the SDK would have exported it, without events and links."""
        return ReadableSpan(
            self.name,
            self.context,
            self.parent,
            attributes=self.attributes,
            status=self.status,
            start_time=self.start_time,
            end_time=self.end_time,
        )


class OtherTracer(trace.Tracer):
    """Makes `OtherSpan`s."""

    def __init__(self, spans: list[OtherSpan]) -> None:
        self.spans = spans

    def start_span(self, name: str, context: Any = None, *_: Any, **given: Any) -> trace.Span:
        parent = trace.get_current_span(context).get_span_context()
        span = OtherSpan(name, parent, **given)
        self.spans.append(span)
        return span

    @_agnosticcontextmanager
    def start_as_current_span(self, name: str, *_: Any, **given: Any) -> Iterator[trace.Span]:
        raise NotImplementedError


class OtherProvider(trace.TracerProvider):
    """A provider that is not the SDK's."""

    def __init__(self) -> None:
        self.spans: list[OtherSpan] = []

    def get_tracer(self, *_: Any, **__: Any) -> trace.Tracer:
        return OtherTracer(self.spans)


@pytest.mark.parametrize("asking", [False, True])
def test_another_implementation(asking: bool) -> None:
    """A provider that is not the SDK's gets the same tree, times, links and attributes."""
    provider = OtherProvider()
    model = two_layers()
    seen = []
    if asking:
        model[1].register_forward_hook(lambda *_: seen.append(trace.get_current_span()))
    with ModTracker(model, tracer_provider=provider) as tracker:
        train(tracker, model)
    spans: Any = provider.spans
    Tree([span.readable() for span in spans]).assert_equals(WANTED)
    check_intervals(spans)
    assert all(span.end_time is not None for span in spans)
    by_name = {span.name: span for span in spans}
    (link,) = by_name["backward Sequential.*"].links
    assert link.context.trace_id == by_name["train_step"].context.trace_id
    assert all(span.name == "forward Sequential.*" for span in seen)
    assert len(seen) == asking


def test_another_implementation_without_steps() -> None:
    """Without a step the backward joins the trace of its forward there, too."""
    provider = OtherProvider()
    model = two_layers()
    with ModTracker(model, tracer_provider=provider):
        model(torch.ones(1, 2)).sum().backward()
    assert len({span.context.trace_id for span in provider.spans}) == 1
    assert [span.name for span in provider.spans if span.name == "backward"] == ["backward"]


def test_another_implementation_sees_errors() -> None:
    """Errors get there as status, attribute and event."""
    provider = OtherProvider()

    class Bad(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise ValueError(x.shape)

    with ModTracker(tracer_provider=provider), pytest.raises(ValueError, match="Size"):
        Bad()(torch.ones(3))
    (span,) = provider.spans
    assert span.attributes["error.type"] == "ValueError"
    assert span.status.status_code is trace.StatusCode.ERROR
    assert span.events[0][0] == "exception"
    assert "Traceback" in span.events[0][1]["exception.stacktrace"]


# -- the SDK's -----------------------------------------------------------------------------------


def test_the_sdks_provider(provider: TracerProvider, exporter: InMemorySpanExporter) -> None:
    """Tree, attributes, links, scope and resource of one training step."""
    model = two_layers()
    with ModTracker(model, tracer_provider=provider) as tracker:
        train(tracker, model)
    spans = spans_of(exporter)
    Tree(spans).assert_equals(WANTED)
    check_intervals(spans)
    by_fqn = {
        (span.attributes["modtrack.phase"], span.attributes["modtrack.module.fqn"]): span
        for span in spans
        if "modtrack.phase" in span.attributes
    }
    forward, backward = by_fqn["forward", "Sequential.0"], by_fqn["backward", "Sequential.0"]
    assert dict(forward.attributes) == {
        "modtrack.phase": "forward",
        "modtrack.module.fqn": "Sequential.0",
        "modtrack.module.template": "Sequential.*",
        "modtrack.module.type": "Linear",
        "modtrack.order.index": 1,
    }
    assert forward.name == "forward Sequential.*"
    assert forward.kind is trace.SpanKind.INTERNAL
    assert forward.status.status_code is trace.StatusCode.UNSET
    assert forward.links == ()
    assert [link.context for link in backward.links] == [forward.context]
    assert backward.instrumentation_scope.name == "otel_modtrack"
    assert backward.instrumentation_scope.version == __version__
    assert all(span.resource is provider.resource for span in spans)
    assert by_fqn["forward", "loss"].attributes["modtrack.module.type"] == "region"


UNDER_THE_USERS = """
    train_step
      my forward
        forward Sequential
          forward Sequential.0
          forward Sequential.1
        forward loss
      my backward
        backward
          backward loss
          backward Sequential
            backward Sequential.1
            backward Sequential.0
      my update
        optimizer_step SGD
      forward Sequential
        forward Sequential.0
        forward Sequential.1
"""


@pytest.mark.parametrize("started", [False, True])
def test_spans_of_the_users_inside_a_step(
    started: bool, provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    """What runs in a span of the user's hangs there, in a step too, with both ways to make spans.

    A span of another trace is not the step's, and nothing of the step goes there.
    """

    class Starts(SpanProcessor):
        """Wants to see each span start, which is what finished spans never do."""

        def on_start(self, span: Any, parent_context: Any = None) -> None:
            span.set_attribute("app.started", True)

    if started:
        provider.add_span_processor(Starts())
    model = two_layers()
    optimizer = torch.optim.SGD(model.parameters())
    user = provider.get_tracer("user")
    with ModTracker(model, tracer_provider=provider) as tracker, tracker.step(0):
        with user.start_as_current_span("my forward"):
            out = model(torch.ones(1, 2))
            with region("loss"):
                loss = out.sum()
        with user.start_as_current_span("my backward"):
            loss.backward()
        with user.start_as_current_span("my update"):
            optimizer.step()
        with user.start_as_current_span("elsewhere", context=context_api.Context()):
            model(torch.ones(1, 2))
    spans = spans_of(exporter)
    ours = [span for span in spans if span.name != "elsewhere"]
    Tree(ours).assert_equals(UNDER_THE_USERS)
    check_intervals(ours)
    assert len({span.context.trace_id for span in ours}) == 1
    assert len(spans) == len(ours) + 1


def test_a_closure_inside_a_step_and_a_span_of_the_users(
    provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    """What an optimizer's closure runs is in the optimizer's step, not beside it."""
    model = two_layers()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=1)
    user = provider.get_tracer("user")

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(torch.ones(1, 2)).sum()
        loss.backward()
        return loss

    with (
        ModTracker(model, tracer_provider=provider) as tracker,
        tracker.step(0),
        user.start_as_current_span("my update"),
    ):
        optimizer.step(closure)
    spans = spans_of(exporter)
    Tree(spans).assert_equals("""
        train_step
          my update
            optimizer_step LBFGS
              forward Sequential
                forward Sequential.0
                forward Sequential.1
              backward
                backward Sequential
                  backward Sequential.1
                  backward Sequential.0
    """)
    check_intervals(spans)


def test_call_index_of_shared_modules(
    provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    """What is called more than once in a step is numbered, its backward like its forward."""

    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(self.layer(x))

    model = Shared()
    with ModTracker(model, tracer_provider=provider) as tracker, tracker.step(0):
        model(torch.ones(1, 2)).sum().backward()
    indices = [
        (span.attributes["modtrack.phase"], span.attributes.get("modtrack.module.call_index"))
        for span in spans_of(exporter)
        if span.attributes.get("modtrack.module.fqn") == "Shared.layer"
    ]
    assert indices == [("forward", 0), ("forward", 1), ("backward", 1), ("backward", 0)]
    assert "modtrack.module.call_index" not in spans_of(exporter)[1].attributes


def test_processors_that_want_to_see_spans_start() -> None:
    """A processor with an `on_start` gets real spans, with their parents, before they end."""
    events: list[tuple[str, str]] = []

    class Watching(SpanProcessor):
        def on_start(self, span: Any, parent_context: Any = None) -> None:
            span.set_attribute("stamped", True)
            events.append(("start", span.name))

        def on_end(self, span: Any) -> None:
            assert span.attributes["stamped"]
            events.append(("end", span.name))

    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(Watching())
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    model = two_layers()
    with ModTracker(model, tracer_provider=provider) as tracker:
        train(tracker, model)
    Tree(exporter.get_finished_spans()).assert_equals(WANTED)
    check_intervals(spans_of(exporter))
    starts = sorted(name for kind, name in events if kind == "start")
    assert starts == sorted(name for kind, name in events if kind == "end")


@pytest.mark.parametrize("kind", [SimpleSpanProcessor, BatchSpanProcessor])
def test_stock_processors_get_finished_spans(
    kind: type[SpanProcessor], exporter: InMemorySpanExporter
) -> None:
    """With the SDK's own processors no span is started: that is the fast road."""
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(kind(exporter))  # type: ignore[call-arg]
    model = two_layers()
    with ModTracker(model, tracer_provider=provider):
        model(torch.ones(1, 2)).sum().backward()
    provider.shutdown()
    assert {type(span) for span in exporter.get_finished_spans()} == {ReadableSpan}


def test_limits_are_kept() -> None:
    """The provider's limits on attributes hold."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(
        span_limits=SpanLimits(max_span_attributes=2, max_span_attribute_length=6),
        shutdown_on_exit=False,
    )
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with ModTracker(tracer_provider=provider):
        nn.Linear(2, 2)(torch.ones(1, 2))
    (span,) = exporter.get_finished_spans()
    assert len(span.attributes) == 2
    assert span.dropped_attributes == 3
    assert all(len(str(value)) <= 6 for value in span.attributes.values())


@pytest.mark.parametrize("stepping", [True, False])
def test_ids_leave_the_users_random_numbers_alone(
    provider: TracerProvider, exporter: InMemorySpanExporter, stepping: bool
) -> None:
    """No id is drawn from the global generator, and two runs with one seed have other ids."""
    ids = []
    for _ in range(2):
        random.seed(1)
        model = two_layers()
        seen = []
        model[0].register_forward_hook(lambda *_: trace.get_current_span().set_attribute("a", 1))
        with ModTracker(model, tracer_provider=provider) as tracker:
            train(tracker, model, stepping=stepping)
        seen.append(random.random())  # noqa: S311
        random.seed(1)
        assert seen == [random.random()]  # noqa: S311
        ids.append({span.context.span_id for span in exporter.get_finished_spans()})
        exporter.clear()
    assert ids[0].isdisjoint(ids[1])


def test_a_generator_of_the_users_is_heeded() -> None:
    """Ids come from the provider's own generator if it is not the SDK's stock one."""

    class Counting(id_generator.IdGenerator):
        count = 0

        def generate_span_id(self) -> int:
            self.count += 1
            return self.count

        def generate_trace_id(self) -> int:
            return 77

    exporter = InMemorySpanExporter()
    provider = TracerProvider(id_generator=Counting(), shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    model = two_layers()
    with ModTracker(model, tracer_provider=provider):
        model(torch.ones(1, 2)).sum().backward()
    assert {span.context.trace_id for span in exporter.get_finished_spans()} == {77}
    assert str(Tree(exporter.get_finished_spans())).startswith("forward Sequential\n")


# -- whose child, and whether at all -------------------------------------------------------------


def test_under_the_active_span(provider: TracerProvider, exporter: InMemorySpanExporter) -> None:
    """A forward hangs under the active span, its backward too, in one trace."""
    tracer = provider.get_tracer("service")
    model = two_layers()
    with (
        ModTracker(model, tracer_provider=provider),
        tracer.start_as_current_span("POST /train"),
    ):
        model(torch.ones(1, 2)).sum().backward()
    Tree(exporter.get_finished_spans()).assert_equals(
        """
        POST /train
          forward Sequential
            forward Sequential.0
            forward Sequential.1
          backward
            backward Sequential
              backward Sequential.1
              backward Sequential.0
        """
    )
    check_intervals(spans_of(exporter))


def test_backward_joins_the_trace_of_its_forward(
    provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    """Where nothing is active, or another trace is, the backward goes to its forward's trace."""
    tracer = provider.get_tracer("service")
    model = two_layers()
    with ModTracker(model, tracer_provider=provider):
        loss = model(torch.ones(1, 2)).sum()
        with tracer.start_as_current_span("elsewhere"):
            loss.backward()
        with tracer.start_as_current_span("request") as request:
            loss = model(torch.ones(1, 2)).sum()
        loss.backward()
    first, second = [span for span in spans_of(exporter) if span.name == "forward Sequential"]
    one, two = [span for span in spans_of(exporter) if span.name == "backward"]
    assert one.context.trace_id == first.context.trace_id
    assert one.parent is None
    assert two.context.trace_id == second.context.trace_id == request.get_span_context().trace_id
    assert two.parent is None  # the request is over


def test_backward_under_the_request_that_goes_on(
    provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    """A backward on another thread hangs under its forward's request, if that is still open."""
    tracer = provider.get_tracer("service")
    model = two_layers()
    with (
        ModTracker(model, tracer_provider=provider),
        tracer.start_as_current_span("request") as request,
    ):
        loss = model(torch.ones(1, 2)).sum()
        thread = threading.Thread(target=loss.backward)
        thread.start()
        thread.join()
    (backward,) = [span for span in spans_of(exporter) if span.name == "backward"]
    assert backward.parent == request.get_span_context()
    check_intervals(spans_of(exporter))


def test_a_remote_parent(provider: TracerProvider, exporter: InMemorySpanExporter) -> None:
    """A span context that came over the wire is a parent like any other."""
    remote = trace.SpanContext(5, 6, is_remote=True, trace_flags=trace.TraceFlags(1))
    token = context_api.attach(trace.set_span_in_context(trace.NonRecordingSpan(remote)))
    try:
        with ModTracker(tracer_provider=provider):
            two_layers()(torch.ones(1, 2)).sum().backward()
    finally:
        context_api.detach(token)
    roots = [span for span in exporter.get_finished_spans() if span.parent == remote]
    assert sorted(span.name for span in roots) == ["backward", "forward Sequential"]
    assert {span.context.trace_id for span in exporter.get_finished_spans()} == {5}


class CountingIds(id_generator.RandomIdGenerator):
    """Counts what is drawn."""

    drawn = 0

    def generate_span_id(self) -> int:
        self.drawn += 1
        return super().generate_span_id()

    def generate_trace_id(self) -> int:
        self.drawn += 1
        return super().generate_trace_id()


def test_a_parent_that_is_not_sampled() -> None:
    """No spans, no ids drawn, nothing recorded; `parents` still tells the forward."""
    exporter = InMemorySpanExporter()
    ids = CountingIds()
    provider = TracerProvider(id_generator=ids, shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    model = two_layers()
    parents: list[set[str]] = []
    unsampled = trace.SpanContext(5, 6, is_remote=True, trace_flags=trace.TraceFlags(0))
    with ModTracker(model, tracer_provider=provider) as tracker:
        model[1].register_forward_hook(lambda *_: parents.append(tracker.parents))
        token = context_api.attach(trace.set_span_in_context(trace.NonRecordingSpan(unsampled)))
        model(torch.ones(1, 2)).sum().backward()
        train(tracker, model, stepping=False)
        context_api.detach(token)
        assert exporter.get_finished_spans() == ()
        assert ids.drawn == 0
        assert parents == [{"Global", "Sequential", "Sequential.1"}] * 2
        model(torch.ones(1, 2))
    assert [span.name for span in spans_of(exporter)] == [
        "forward Sequential",
        "forward Sequential.*",
        "forward Sequential.*",
    ]


@pytest.mark.parametrize(
    ("sampler", "count"),
    [
        (sampling.ALWAYS_OFF, 0),
        (sampling.ParentBased(sampling.ALWAYS_OFF), 0),
        (sampling.TraceIdRatioBased(0.0), 0),
        (sampling.TraceIdRatioBased(1.0), 11),
        (sampling.ALWAYS_ON, 11),
    ],
)
@pytest.mark.parametrize("stepping", [True, False])
def test_the_providers_sampler_decides(
    sampler: sampling.Sampler, count: int, stepping: bool
) -> None:
    """All spans of a step or none, as the sampler says."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(sampler=sampler, shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    model = two_layers()
    with ModTracker(model, tracer_provider=provider) as tracker:
        train(tracker, model, stepping=stepping)
    assert len(exporter.get_finished_spans()) == count


def test_a_sampler_that_decides_by_name() -> None:
    """A sampler of the user's is asked for every span."""

    class NoLinear(sampling.Sampler):
        def should_sample(self, parent_context: Any, trace_id: int, name: str, *_: Any) -> Any:
            keep = "*" not in name
            decision = sampling.Decision.RECORD_AND_SAMPLE if keep else sampling.Decision.DROP
            return sampling.SamplingResult(decision)

        def get_description(self) -> str:
            return "NoLinear"

    exporter = InMemorySpanExporter()
    provider = TracerProvider(sampler=NoLinear(), shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    model = two_layers()
    with ModTracker(model, tracer_provider=provider):
        model(torch.ones(1, 2)).sum().backward()
    assert [span.name for span in spans_of(exporter)] == [
        "forward Sequential",
        "backward",
        "backward Sequential",
    ]


def test_what_the_sampler_adds() -> None:
    """Attributes that the sampler adds are on the root."""

    class Adding(sampling.Sampler):
        def should_sample(self, *_: Any, attributes: Any = None, **__: Any) -> Any:
            return sampling.SamplingResult(
                sampling.Decision.RECORD_AND_SAMPLE, {**attributes, "rule": "mine"}
            )

        def get_description(self) -> str:
            return "Adding"

    exporter = InMemorySpanExporter()
    provider = TracerProvider(sampler=sampling.ParentBased(Adding()), shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with ModTracker(tracer_provider=provider):
        two_layers()(torch.ones(1, 2))
    root, *others = spans_of(exporter)
    assert root.attributes["rule"] == "mine"
    assert root.attributes["modtrack.module.fqn"] == "Sequential"
    assert all("rule" not in span.attributes for span in others)


def test_suppressed_instrumentation(
    provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    """Under `suppress_instrumentation` nothing is made."""
    key = context_api._SUPPRESS_INSTRUMENTATION_KEY
    token = context_api.attach(context_api.set_value(key, True))
    try:
        model = two_layers()
        with ModTracker(model, tracer_provider=provider) as tracker:
            train(tracker, model)
            train(tracker, model, stepping=False)
    finally:
        context_api.detach(token)
    assert exporter.get_finished_spans() == ()


NO_PROVIDER = """
import sys
import torch
from torch import nn
from otel_modtrack import ModTracker, region
from otel_modtrack.core import CORE
model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
seen = []
with ModTracker(model) as tracker:
    model[1].register_forward_hook(lambda *_: seen.append(sorted(tracker.parents)))
    with tracker.step(0) as span, region("loss"):
        assert not span.is_recording()
        loss = model(torch.ones(1, 2)).sum()
        loss.grad_fn.register_prehook(lambda *_: seen.append(dict(CORE.runs)))
        loss.backward()
assert seen == [["Global", "Sequential", "Sequential.1", "loss"], {}], seen
assert "opentelemetry.sdk.trace" not in sys.modules
print("well")
"""


def test_no_provider() -> None:
    """Without a provider nothing is planned, armed or exported, and the SDK is not even loaded."""
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-W", "error", "-c", NO_PROVIDER],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("well\n", "")


def test_resource_and_times(exporter: InMemorySpanExporter) -> None:
    """Times are wall clock, in nanoseconds; the resource is the provider's."""
    import time  # noqa: PLC0415

    provider = TracerProvider(
        resource=Resource.create({"service.name": "here"}), shutdown_on_exit=False
    )
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    before = time.time_ns()
    with ModTracker(tracer_provider=provider):
        nn.Linear(2, 2)(torch.ones(1, 2))
    (span,) = exporter.get_finished_spans()
    assert before <= span.start_time < span.end_time <= time.time_ns() + 1_000_000
    assert span.resource.attributes["service.name"] == "here"


def test_everything_emitted_is_registered(
    provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    """Every attribute that is emitted stands in `semconv`, and no key is also a namespace."""

    class Bad(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise ValueError("bad")

    model = two_layers()
    with ModTracker(model, tracer_provider=provider) as tracker:
        train(tracker, model)
        train(tracker, nn.Sequential(model[0], model[0]))
        with pytest.raises(ValueError, match=r"^bad$"), tracker.step(1):
            Bad()(torch.ones(1))
    keys = set()
    for span in exporter.get_finished_spans():
        keys |= set(span.attributes)
        for event in span.events:
            assert event.name in (semconv.EXCEPTION_EVENT, semconv.ORDER_CHANGED_EVENT)
            keys |= set(event.attributes)
    assert keys <= set(semconv.ATTRIBUTES)
    for key in semconv.ATTRIBUTES:
        assert not any(other.startswith(f"{key}.") for other in semconv.ATTRIBUTES)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (lambda: ModTracker("model"), "a torch.nn.Module is wanted, not str"),
        (lambda: ModTracker(tracer_provider=3), "TracerProvider is wanted, not int"),
        (lambda: region(3), "takes a name"),
        (lambda: ModTracker().step(1), "inside `with ModTracker"),
    ],
)
def test_bad_arguments(wrong: Any, sentence: str) -> None:
    """Bad input gets one clear sentence."""
    with pytest.raises((TypeError, RuntimeError), match=sentence):
        wrong()


def test_bad_step_number() -> None:
    """A step's number is an integer, a numpy or torch one too."""
    with ModTracker() as tracker:
        with pytest.raises(TypeError, match="an integer is wanted, not str"):
            tracker.step("1")
        with tracker.step(torch.tensor(3)):
            pass
    with pytest.raises(ValueError, match="not empty"):
        region("")
