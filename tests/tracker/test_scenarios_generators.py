"""Regions that generators hold across their yields: dropped, interleaved, stepped by threads.

Whatever they leave behind, what runs next on the thread is seen, and where it belongs.
"""

from __future__ import annotations

import contextvars
import gc
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
import torch
from opentelemetry import context as context_api, trace
from torch import nn

from otel_modtrack import ModTracker, region
from otel_modtrack.testing import Tree

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

NET = nn.Linear(2, 2)


def run() -> None:
    """One call."""
    NET(torch.ones(1, 2))


def holding(steps: int = 4) -> Iterator[int]:
    """Each step is a region that is open while the generator is suspended."""
    for step in range(steps):
        with region("decode_step"):
            run()
            yield step


def releasing(steps: int = 4) -> Iterator[int]:
    """Each step is a region that ends before the yield."""
    for step in range(steps):
        with region("decode_step"):
            run()
        yield step


@pytest.mark.parametrize("end", ["break", "del", "close", "cycle"])
def test_dropped_inside_a_region(
    end: str, provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    """A generator that is a region, dropped while one inside it is open, takes nothing with it."""
    tracer = provider.get_tracer("app")
    with ModTracker(tracer_provider=provider):
        with tracer.start_as_current_span("request"):
            body = region("generate")(holding)()
            if end == "break":
                for _ in body:
                    break
            else:
                next(body)
            if end == "close":
                body.close()
            elif end == "cycle":
                cycle = [body]
                cycle.append(cycle)  # type: ignore[arg-type]
                del cycle
            del body
            gc.collect()
        with tracer.start_as_current_span("later"):
            run()
    Tree(exporter.get_finished_spans()).assert_equals(
        """
        request
          forward generate
            forward decode_step
              forward Linear
        later
          forward Linear
        """
    )


def test_dropped_inside_another_call(
    provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    """Collected in the middle of a module's forward, it ends nothing there."""
    bodies: list[Iterator[int]] = []

    class Outer(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = NET(x)
            bodies.clear()
            gc.collect()
            return NET(x)

    tracer = provider.get_tracer("app")
    with ModTracker(tracer_provider=provider), tracer.start_as_current_span("request"):
        bodies.append(region("generate")(holding)())
        next(bodies[0])
        Outer()(torch.ones(1, 2))
    Tree(exporter.get_finished_spans()).assert_equals(
        """
        request
          forward generate
            forward decode_step
              forward Linear
          forward Outer
            forward Linear
            forward Linear
        """
    )


def test_interleaved(provider: TracerProvider, exporter: InMemorySpanExporter) -> None:
    """Two of them, stepped in turns on one thread: no call is lost, and what follows is clean."""
    tracer = provider.get_tracer("app")
    with ModTracker(tracer_provider=provider):
        with tracer.start_as_current_span("request"):
            for _ in zip(holding(), holding(), strict=True):
                pass
        with tracer.start_as_current_span("later"):
            run()
    spans = exporter.get_finished_spans()
    assert [span.name for span in spans].count("forward decode_step") == 8
    assert [span.name for span in spans].count("forward Linear") == 9
    assert str(Tree(spans)).endswith("later\n  forward Linear")


@pytest.mark.parametrize("is_region", [True, False])
@pytest.mark.parametrize("body", [holding, releasing])
def test_stepped_by_several_threads(
    is_region: bool,
    body: object,
    provider: TracerProvider,
    exporter: InMemorySpanExporter,
) -> None:
    """As a server's thread pool steps a streamed answer; later requests there are whole."""
    tracer = provider.get_tracer("app")
    function = region("generate")(body) if is_region else body  # type: ignore[type-var]
    with (
        ThreadPoolExecutor(1) as one,
        ThreadPoolExecutor(1) as other,
        ModTracker(tracer_provider=provider),
    ):
        with tracer.start_as_current_span("request"):
            context = contextvars.copy_context()
            steps = one.submit(context.copy().run, function).result()  # type: ignore[arg-type]
            turn = 0
            while (one, other)[turn % 2].submit(
                context.copy().run, next, steps, None
            ).result() is not None:
                turn += 1
        with tracer.start_as_current_span("later"):
            for pool in (one, other):
                pool.submit(contextvars.copy_context().run, run).result()
    inside = ["  forward decode_step", "    forward Linear"] * 4
    if is_region:
        inside = ["  forward generate", *(f"  {line}" for line in inside)]
    assert str(Tree(exporter.get_finished_spans())).split("\n") == [
        *("request", *inside),
        *("later", "  forward Linear", "  forward Linear"),
    ]


def test_not_sampled_and_left_elsewhere(
    provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    """A thread whose region of an unsampled request was left by another records the next one."""
    unsampled = provider.get_tracer("app")
    with ThreadPoolExecutor(1) as one, ModTracker(tracer_provider=provider):
        parent = trace.NonRecordingSpan(trace.SpanContext(1, 2, is_remote=False))
        token = context_api.attach(trace.set_span_in_context(parent))
        steps = holding(1)
        context = contextvars.copy_context()
        one.submit(context.copy().run, next, steps).result()
        context_api.detach(token)
        next(steps, None)
        with unsampled.start_as_current_span("later"):
            one.submit(contextvars.copy_context().run, run).result()
    Tree(exporter.get_finished_spans()).assert_equals("later\n  forward Linear")
