"""Small training programs, and what a tracker sees of their steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from torch import nn

from otel_modtrack import ModTracker, Policy
from otel_modtrack.testing.tree import Tree

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from opentelemetry.sdk.trace import ReadableSpan

__all__ = ["Gan", "Seen", "Training", "seen"]

X = torch.ones(2, 4)


class Training:
    """A model in training."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def backward(self) -> None:
        self.model(X).sum().backward()

    def step(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()

    def iterate(self, times: int = 1) -> None:
        for _ in range(times):
            self.backward()
            self.step()

    def evaluate(self) -> None:
        self.model.eval()
        with torch.no_grad():
            self.model(X)
        self.model.train()


class Gan:
    """Two models, two optimizers."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.g, self.d = nn.Linear(4, 4), nn.Linear(4, 1)
        self.of_g = torch.optim.SGD(self.g.parameters(), lr=0.1)
        self.of_d = torch.optim.Adam(self.d.parameters(), lr=0.1)

    def train_d(self) -> None:
        with torch.no_grad():
            fake = self.g(X)
        self.d(fake).sum().backward()
        self.of_d.step()
        self.of_d.zero_grad()

    def train_g(self) -> None:
        self.d(self.g(X)).sum().backward()
        self.of_g.step()
        self.of_g.zero_grad()

    def iterate(self) -> None:
        self.train_d()
        self.train_g()


class Seen:
    """What came out.

    Attributes:
        spans: in the order in which they began.
    """

    def __init__(self, spans: Sequence[ReadableSpan]) -> None:
        self.spans = sorted(spans, key=lambda span: (span.start_time, -span.end_time))

    @property
    def steps(self) -> list[ReadableSpan]:
        return [span for span in self.spans if span.name == "train_step"]

    @property
    def numbers(self) -> list[int]:
        return [span.attributes["modtrack.step.number"] for span in self.steps]

    def below(self, span: ReadableSpan) -> list[str]:
        """Names of the spans directly below one."""
        return [
            one.name
            for one in self.spans
            if one.parent is not None and one.parent.span_id == span.context.span_id
        ]

    @property
    def inside(self) -> list[list[str]]:
        """Names of what is directly in each step."""
        return [self.below(step) for step in self.steps]

    @property
    def outside(self) -> list[str]:
        """Names of the roots that are no steps."""
        return [one.name for one in self.spans if one.parent is None and one.name != "train_step"]

    @property
    def tree(self) -> str:
        return str(Tree(self.spans))

    def sums(self) -> dict[tuple[str, str], tuple[int, int, int]]:
        """Count, total and longest (ns) by span name and phase; of spans, and of what was folded.

        The total of what is folded is in seconds, and exact to the nanosecond.
        """
        found: dict[tuple[str, str], list[int]] = {}

        def add(
            attributes: Mapping[str, Any], name: str, count: int, total: int, most: int
        ) -> None:
            one = found.setdefault((name, attributes.get("modtrack.phase", "")), [0, 0, 0])
            one[0] += count
            one[1] += total
            one[2] = max(one[2], most)

        for span in self.spans:
            took = span.end_time - span.start_time
            if span.name != "train_step":
                add(span.attributes, span.name, 1, took, took)
            for event in span.events:
                if event.name == "modtrack.folded":
                    told = event.attributes
                    total = round(told["modtrack.folded.duration.total"] * 1e9)
                    most = round(told["modtrack.folded.duration.longest"] * 1e9)
                    name = told["modtrack.folded.name"]
                    add(told, name, told["modtrack.folded.count"], total, most)
        return {key: (one[0], one[1], one[2]) for key, one in found.items()}


def seen(
    program: Callable[[ModTracker], object], policy: Policy | None = None, **options: Any
) -> Seen:
    """Run a program under a tracker."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with ModTracker(tracer_provider=provider, policy=policy or Policy(), **options) as tracker:
        program(tracker)
    return Seen(exporter.get_finished_spans())
