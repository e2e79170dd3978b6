"""What programs do: each runs with a tracker over the provider that it is given."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch
from opentelemetry import context as context_api, trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from torch import distributed, nn

from otel_modtrack import ModTracker, Policy, region
from otel_modtrack.demo.model import GPT
from otel_modtrack.demo.train import train

if TYPE_CHECKING:
    from collections.abc import Callable

    from opentelemetry.sdk.trace import TracerProvider

__all__ = ["RUNS"]


def _layers(count: int = 3) -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(2, 2) for _ in range(count)))


def training(provider: TracerProvider) -> None:
    """Steps with an optimizer and recomputation."""
    torch.manual_seed(0)
    model = GPT(20, context=4, dim=8, heads=2, checkpointing=True)
    tokens = torch.arange(100) % 20
    train(model, tokens, steps=2, seed=0, tracer_provider=provider, on_step=lambda *_: None)


def alone(provider: TracerProvider) -> None:
    """No steps: each forward and backward is a unit, and a graph runs backward twice."""
    model = _layers()
    with ModTracker(model, tracer_provider=provider):
        out = model(torch.ones(1, 2)).sum()
        out.backward(retain_graph=True)
        out.backward()
        with torch.no_grad():
            model[0](torch.ones(1, 2))


def shared(provider: TracerProvider) -> None:
    """A module that is called several times, and one inside a named region."""
    layer = nn.Linear(2, 2)
    model = nn.Sequential(layer, nn.GELU(), layer, layer)
    with ModTracker(model, tracer_provider=provider) as tracker:
        for number in range(2):
            with tracker.step(number), region("all of it"):
                model(torch.ones(1, 2)).sum().backward()
                layer(torch.ones(1, 2))


class Curious(nn.Module):
    """Uses the current span as a program may, and starts others below it."""

    def __init__(self, tracer: trace.Tracer) -> None:
        super().__init__()
        self.tracer = tracer
        self.first, self.second = _layers(), nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        span = trace.get_current_span()
        span.set_attributes({"mine": (1, 2), "text": "ü" * 30, "nothing": ""})
        span.add_event("seen", {"at": 0.5})
        x = self.first(x)
        with self.tracer.start_as_current_span("inside", kind=trace.SpanKind.CLIENT) as inside:
            inside.record_exception(ValueError("noted"))
            x = self.second(x)
        span.add_link(inside.get_span_context(), {"why": True})
        return x


def touched(provider: TracerProvider) -> None:
    """A module whose span is the program's business, with others around and below."""
    model = nn.Sequential(nn.Linear(2, 2), Curious(provider.get_tracer("mine", "2")))
    with ModTracker(model, tracer_provider=provider) as tracker, tracker.step(1):
        model(torch.ones(1, 2)).sum().backward()
    with ModTracker(model, tracer_provider=provider):
        model(torch.ones(1, 2)).sum().backward()


def elsewhere(provider: TracerProvider) -> None:
    """Modules below spans of other traces, of a remote parent, and of no trace at all."""
    tracer = provider.get_tracer("mine")
    header = {
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "tracestate": "vendor=value,other=1",
    }

    class Apart(nn.Module):
        def __init__(self, context: Any) -> None:
            super().__init__()
            self.inner = _layers()
            self.context = context

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            token = context_api.attach(self.context)
            try:
                return self.inner(x)
            finally:
                context_api.detach(token)

    remote = TraceContextTextMapPropagator().extract(header)
    other = tracer.start_span("other", context=context_api.Context())
    contexts = [remote, trace.set_span_in_context(other), context_api.Context()]
    model = nn.Sequential(*(Apart(context) for context in contexts))
    token = context_api.attach(remote)
    try:
        with ModTracker(model, tracer_provider=provider) as tracker:
            model(torch.ones(1, 2)).sum().backward()
            with tracker.step(1):
                model(torch.ones(1, 2)).sum().backward()
    finally:
        context_api.detach(token)
    other.end()


def failing(provider: TracerProvider) -> None:
    """A module that raises, with text of all kinds, in a step and outside."""

    class Picky(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise ValueError("no ü, no \n, and 100 %s")

    model = nn.Sequential(nn.Linear(2, 2), Picky())
    with ModTracker(model, tracer_provider=provider) as tracker:
        with contextlib.suppress(ValueError), tracker.step(7):
            model(torch.ones(1, 2))
        with contextlib.suppress(ValueError):
            model(torch.ones(1, 2))


def folding(provider: TracerProvider) -> None:
    """A budget that is too small, and steps that are outliers."""
    model = nn.Sequential(*(_layers() for _ in range(4)))
    for policy in (Policy(budget=7), Policy(every=1, min_duration=0.002), Policy(outliers=1.5)):
        with ModTracker(model, tracer_provider=provider, policy=policy) as tracker:
            for number in range(3):
                with tracker.step(number):
                    model(torch.ones(1, 2)).sum().backward()
            for _ in range(3):
                model(torch.ones(1, 2)).sum().backward()


def ordered(provider: TracerProvider) -> None:
    """Modules in an order that changes from step to step."""
    model = _layers()
    with ModTracker(model, tracer_provider=provider) as tracker:
        for number, order in enumerate(((0, 1, 2), (0, 2, 1), (2,), (0, 1, 2))):
            with tracker.step(number):
                x = torch.ones(1, 2)
                for one in order:
                    x = model[one](x)
                x.sum().backward()


def collecting(provider: TracerProvider) -> None:
    """Modules that all-reduce, summed and each; the same in every step, and others."""

    class Reducing(nn.Module):
        def __init__(self, count: int) -> None:
            super().__init__()
            self.inner, self.count = nn.Linear(2, 2), count

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(self.count):
                distributed.all_reduce(torch.ones(3))
            if self.count > 1:
                distributed.broadcast(torch.ones(4, dtype=torch.int64), 0)
            return self.inner(x)

    store = distributed.HashStore()
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        model = nn.Sequential(Reducing(1), _layers(2), Reducing(3))
        for mode in ("summed", "each"):
            with ModTracker(model, tracer_provider=provider, collectives=mode) as tracker:
                for number in range(3):
                    with tracker.step(number):
                        model(torch.ones(1, 2)).sum().backward()
                model(torch.ones(1, 2))
    finally:
        distributed.destroy_process_group()


RUNS: dict[str, Callable[[TracerProvider], None]] = {
    one.__name__: one
    for one in (
        training,
        alone,
        shared,
        touched,
        elsewhere,
        failing,
        folding,
        ordered,
        collecting,
    )
}
