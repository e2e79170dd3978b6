"""The span of the running region is the current span."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from inspect import cleandoc
from typing import TYPE_CHECKING, Any

import pytest
import torch
from opentelemetry import baggage, context as context_api, trace
from torch import nn
from torch.utils.checkpoint import checkpoint

from otel_modtrack import ModTracker, region
from otel_modtrack.testing import Tree
from tests.conftest import spans_of
from tests.intervals import check_intervals

if TYPE_CHECKING:
    from collections.abc import Callable

    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


class Probe(nn.Module):
    """Calls `inside` in its forward and `behind` in its backward; `child` runs in between."""

    def __init__(
        self,
        inside: Callable[[], Any] = lambda: None,
        behind: Callable[[], Any] = lambda: None,
        child: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.inside, self.behind, self.child = inside, behind, child

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.inside()
        x = x * 2
        x.register_hook(lambda _: self.behind())
        return self.child(x) if self.child is not None else x


class Net(nn.Module):
    """A probe after a layer."""

    def __init__(self, probe: nn.Module) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.probe = probe

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.probe(self.layer(x))


def named(exporter: InMemorySpanExporter, name: str) -> ReadableSpan:
    """The one span of that name."""
    (found,) = [span for span in exporter.get_finished_spans() if span.name == name]
    return found


def test_attributes_and_events_are_exported(
    provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    """What user code sets on the current span, in forward and backward, is on the module's span."""

    def mark(text: str) -> None:
        span = trace.get_current_span()
        assert span.is_recording()
        span.set_attribute("mine", text)
        span.add_event(f"event {text}")
        span.record_exception(ValueError(text))

    model = Net(Probe(lambda: mark("forward"), lambda: mark("backward")))
    with ModTracker(model, tracer_provider=provider) as tracker, tracker.step(0):
        model(torch.ones(1, 2)).sum().backward()
    for phase in ("forward", "backward"):
        span = named(exporter, f"{phase} Net.probe")
        assert span.attributes["mine"] == phase
        assert span.attributes["modtrack.module.fqn"] == "Net.probe"
        assert [event.name for event in span.events] == [f"event {phase}", "exception"]
        assert "mine" not in named(exporter, f"{phase} Net").attributes
    Tree(exporter.get_finished_spans()).assert_equals(
        """
        train_step
          forward Net
            forward Net.layer
            forward Net.probe
          backward
            backward Net
              backward Net.probe
              backward Net.layer
        """
    )
    check_intervals(spans_of(exporter))


@pytest.mark.parametrize("stepping", [True, False])
def test_spans_started_inside_are_children(
    provider: TracerProvider, exporter: InMemorySpanExporter, stepping: bool
) -> None:
    """A span started in a module is its child; a module called in that span is the span's child."""
    tracer = provider.get_tracer("user")

    class Mine(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(2, 2), Probe(behind=start))
            self.after = nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with tracer.start_as_current_span("attention"):
                x = self.inner(x)
            return self.after(x)

    def start() -> None:
        with tracer.start_as_current_span("in backward"):
            pass

    model = Mine()
    with ModTracker(model, tracer_provider=provider) as tracker:
        if stepping:
            with tracker.step(1):
                model(torch.ones(1, 2)).sum().backward()
        else:
            model(torch.ones(1, 2)).sum().backward()
    body = """
        forward Mine
          attention
            forward Mine.inner
              forward Mine.inner.0
              forward Mine.inner.1
          forward Mine.after
        backward
          backward Mine
            backward Mine.after
            backward Mine.inner
              backward Mine.inner.1
                in backward
              backward Mine.inner.0
        """
    want = cleandoc(body)
    if stepping:
        want = "train_step\n" + "\n".join(f"  {line}" for line in want.splitlines())
    Tree(exporter.get_finished_spans()).assert_equals(want)
    check_intervals(spans_of(exporter))


def test_log_records_carry_the_ids(
    provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    """A log record written in forward and in backward gets the module's trace and span id."""
    seen: list[trace.SpanContext] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append(trace.get_current_span().get_span_context())

    logger = logging.getLogger("test_current")
    handler = Handler()
    logger.addHandler(handler)
    try:
        say = lambda: logger.warning("here")  # noqa: E731
        model = Net(Probe(say, say))
        with ModTracker(model, tracer_provider=provider) as tracker, tracker.step(0):
            model(torch.ones(1, 2)).sum().backward()
    finally:
        logger.removeHandler(handler)
    assert seen == [
        named(exporter, "forward Net.probe").context,
        named(exporter, "backward Net.probe").context,
    ]


def test_a_captured_context_names_the_span_of_its_moment(
    provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    """A context captured unread in one place names that place's span when it is read elsewhere."""
    captured: dict[str, Any] = {}
    model = Net(
        nn.Sequential(
            Probe(
                lambda: captured.update(first=context_api.get_current()),
                lambda: captured.update(first_back=context_api.get_current()),
            ),
            Probe(
                lambda: captured.update(
                    second=context_api.get_current(), copied=contextvars.copy_context()
                ),
                lambda: captured.update(second_back=context_api.get_current()),
            ),
        )
    )
    with ModTracker(model, tracer_provider=provider) as tracker, tracker.step(0):
        model(torch.ones(1, 2)).sum().backward()
        early = trace.get_current_span(captured["first"]).get_span_context()
        in_thread: list[trace.SpanContext] = []
        thread = threading.Thread(
            target=captured["copied"].run,
            args=(lambda: in_thread.append(trace.get_current_span().get_span_context()),),
        )
        thread.start()
        thread.join()
    fqns = {
        span.context.span_id: (
            span.attributes["modtrack.phase"],
            span.attributes["modtrack.module.fqn"],
        )
        for span in exporter.get_finished_spans()
        if "modtrack.phase" in span.attributes
    }
    late = {
        name: fqns[trace.get_current_span(context).get_span_context().span_id]
        for name, context in captured.items()
        if name != "copied"
    }
    assert fqns[early.span_id] == ("forward", "Net.probe.0")
    assert [fqns[context.span_id] for context in in_thread] == [("forward", "Net.probe.1")]
    assert late == {
        "first": ("forward", "Net.probe.0"),
        "second": ("forward", "Net.probe.1"),
        "second_back": ("backward", "Net.probe.1"),
        "first_back": ("backward", "Net.probe.0"),
    }


def test_current_in_recomputation(provider: TracerProvider, exporter: InMemorySpanExporter) -> None:
    """In a recomputed forward the current span is the recomputation's."""
    seen: list[trace.SpanContext] = []
    probe = Probe(lambda: seen.append(trace.get_current_span().get_span_context()))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.probe = probe

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return checkpoint(self.probe, x, use_reentrant=False).exp()

    model = Model()
    with ModTracker(model, tracer_provider=provider) as tracker, tracker.step(0):
        model(torch.ones(2, requires_grad=True)).sum().backward()
    assert seen[0] == named(exporter, "forward Model.probe").context
    # The multiplication saves nothing, so nothing asks for the recomputation.
    assert len(seen) == 1
    seen.clear()
    exporter.clear()
    probe.child = nn.Linear(2, 2)
    with ModTracker(model, tracer_provider=provider) as tracker, tracker.step(0):
        model(torch.ones(2, requires_grad=True)).sum().backward()
    assert seen == [
        named(exporter, "forward Model.probe").context,
        named(exporter, "recompute Model.probe").context,
    ]
    check_intervals(spans_of(exporter))


def test_hooks_of_plain_modules(provider: TracerProvider, exporter: InMemorySpanExporter) -> None:
    """In a forward hook on a module of torch's own, that module's span is current."""
    seen: list[trace.SpanContext] = []
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    model[1].register_forward_hook(
        lambda *_: seen.append(trace.get_current_span().get_span_context())
    )
    with ModTracker(model, tracer_provider=provider):
        model(torch.ones(1, 2))
    (hooked,) = [
        span
        for span in exporter.get_finished_spans()
        if span.attributes["modtrack.module.fqn"] == "Sequential.1"
    ]
    assert seen == [hooked.context]


def test_parameter_gradient_hook(provider: TracerProvider, exporter: InMemorySpanExporter) -> None:
    """In a hook on a parameter's gradient, the module that owns the parameter is current."""
    seen: list[str] = []
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2))
    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(
            lambda _, name=name: seen.append(
                f"{name} {trace.get_current_span().attributes['modtrack.module.fqn']}"
            )
        )
    with ModTracker(model, tracer_provider=provider) as tracker, tracker.step(0):
        model(torch.ones(1, 2)).sum().backward()
    assert sorted(seen) == [
        f"{layer}.{kind} Sequential.{layer}" for layer in range(3) for kind in ("bias", "weight")
    ]


def test_baggage_and_other_values_are_the_users(provider: TracerProvider) -> None:
    """Values in the user's context are seen inside, and ours is a context as any other."""
    seen: list[Any] = []

    def look() -> None:
        current = context_api.get_current()
        seen.append((baggage.get_baggage("tenant"), "nothing" in current, current.get("none", 3)))
        token = context_api.attach(baggage.set_baggage("tenant", "inner"))
        seen.append((baggage.get_baggage("tenant"), trace.get_current_span().is_recording()))
        context_api.detach(token)

    token = context_api.attach(baggage.set_baggage("tenant", "outer"))
    try:
        model = Net(Probe(look, look))
        with ModTracker(model, tracer_provider=provider):
            model(torch.ones(1, 2)).sum().backward()
    finally:
        context_api.detach(token)
    assert seen == [("outer", False, 3), ("inner", True)] * 2


def test_current_in_named_region(provider: TracerProvider, exporter: InMemorySpanExporter) -> None:
    """A named region's span is current in its body, and the step's around it."""
    with ModTracker(tracer_provider=provider) as tracker, tracker.step(4) as step:
        assert trace.get_current_span() is step
        with region("loss"):
            trace.get_current_span().set_attribute("mine", 1)
        assert trace.get_current_span() is step
    assert named(exporter, "forward loss").attributes["mine"] == 1
    assert named(exporter, "train_step").attributes["modtrack.step.number"] == 4


def test_async_forward(provider: TracerProvider, exporter: InMemorySpanExporter) -> None:
    """Concurrent coroutine forwards have their own spans current, across awaits."""
    seen: dict[str, set[int]] = {}

    class Async(nn.Module):
        async def forward(self, name: str, gate: asyncio.Event, other: asyncio.Event) -> str:
            for _ in range(3):
                seen.setdefault(name, set()).add(
                    trace.get_current_span().get_span_context().span_id
                )
                other.set()
                await gate.wait()
                gate.clear()
            other.set()
            return name

    async def main() -> list[str]:
        model = Async()
        a, b = asyncio.Event(), asyncio.Event()
        return await asyncio.gather(model("a", a, b), model("b", b, a))

    with ModTracker(tracer_provider=provider):
        assert asyncio.run(main()) == ["a", "b"]
    spans = exporter.get_finished_spans()
    assert [span.name for span in spans] == ["forward Async", "forward Async"]
    assert {frozenset(ids) for ids in seen.values()} == {
        frozenset({span.context.span_id}) for span in spans
    }
