"""Each module span's place in the step's order, and the event of a step whose order changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from otel_modtrack import ModTracker, Policy, region
from tests.conftest import spans_of

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

INDEX = "modtrack.order.index"


class Chooses(nn.Module):
    """Two experts; a step runs those that it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
        self.head = nn.Linear(2, 1)

    def forward(self, x: torch.Tensor, chosen: tuple[int, ...]) -> torch.Tensor:
        for one in chosen:
            x = self.experts[one](x)
        with region("loss"):
            return self.head(x).sum()


def steps(
    provider: TracerProvider, choices: list[tuple[int, ...]], policy: Policy | None = None
) -> None:
    """One step for each choice of experts."""
    model = Chooses()
    with ModTracker(model, tracer_provider=provider, policy=policy) as tracker:
        for number, chosen in enumerate(choices):
            with tracker.step(number):
                model(torch.ones(1, 2), chosen).backward()


def events(exporter: InMemorySpanExporter) -> list[list[dict[str, Any]]]:
    """The attributes of each step's events."""
    found = [span for span in spans_of(exporter) if span.name == "train_step"]
    found.sort(key=lambda span: span.attributes["modtrack.step.number"])
    return [
        [dict(e.attributes) for e in step.events if e.name == "modtrack.order_changed"]
        for step in found
    ]


def places(exporter: InMemorySpanExporter, phase: str) -> list[str]:
    """The fqns of a phase by their index; there is no gap."""
    found: dict[int, ReadableSpan] = {}
    for span in spans_of(exporter):
        if span.attributes.get("modtrack.phase") == phase and INDEX in span.attributes:
            assert span.attributes[INDEX] not in found
            found[span.attributes[INDEX]] = span
    assert sorted(found) == list(range(len(found)))
    return [found[at].attributes["modtrack.module.fqn"] for at in sorted(found)]


def test_the_first_position_that_differs_is_named(
    provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    """Against the step before; each step that differs has one event, at its end."""
    steps(provider, [(0,), (0,), (1,), (1, 0), (1,), (1,)])
    forward = {"modtrack.order.sequence": "forward", "modtrack.order.position": 1}
    longer = {"modtrack.order.sequence": "forward", "modtrack.order.position": 2}
    zero, one = "Chooses.experts.0", "Chooses.experts.1"
    before, now = "modtrack.order.previous_fqn", "modtrack.order.fqn"
    assert events(exporter) == [
        [],
        [],
        [{**forward, before: zero, now: one}],
        [{**longer, before: "Chooses.head", now: zero}],
        [{**longer, before: zero, now: "Chooses.head"}],
        [],
    ]


def test_an_order_that_ends_sooner_names_nothing_there(
    provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    """Nor does one that goes on, of the one before."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    with ModTracker(model, tracer_provider=provider) as tracker:
        for number, calls in enumerate((1, 2, 1)):
            with tracker.step(number):
                for _ in range(calls):
                    model(torch.ones(1, 2))
    there = {"modtrack.order.sequence": "forward", "modtrack.order.position": 3}
    assert events(exporter) == [
        [],
        [{**there, "modtrack.order.fqn": "Sequential"}],
        [{**there, "modtrack.order.previous_fqn": "Sequential"}],
    ]


def test_the_backward_may_change_alone(
    provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    """A forward that is the same, of which another part is trained."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    with ModTracker(model, tracer_provider=provider) as tracker:
        for number in range(2):
            model[0].requires_grad_(number == 0)
            with tracker.step(number):
                model(torch.ones(1, 2)).sum().backward()
    assert events(exporter) == [
        [],
        [
            {
                "modtrack.order.sequence": "backward",
                "modtrack.order.position": 2,
                "modtrack.order.previous_fqn": "Sequential.0",
            }
        ],
    ]


def test_a_step_that_raises_is_compared_with_nothing(
    provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    """Its order is cut short; the next one is compared with the one before it."""
    model = Chooses()
    with ModTracker(model, tracer_provider=provider) as tracker:
        for number in range(3):
            try:
                with tracker.step(number):
                    model(torch.ones(1, 2 if number != 1 else 3), (0,)).backward()
            except RuntimeError:
                assert number == 1
    assert events(exporter) == [[], [], []]


def test_steps_that_are_recognised_are_compared(
    provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    """Without `step()`."""
    model = Chooses()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ModTracker(model, tracer_provider=provider):
        for chosen in ((0,), (0,), (1,)):
            model(torch.ones(1, 2), chosen).backward()
            optimizer.step()
    assert [len(one) for one in events(exporter)] == [0, 0, 1]


def test_with_the_step_that_was_recorded_before(
    provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    """Those that a policy leaves out are not known; what it folds is."""
    choices: list[tuple[int, ...]] = [(0,), (1,), (0,), (1,), (1,)]
    steps(provider, choices, Policy(every=2))
    assert [len(one) for one in events(exporter)] == [0, 0, 1]
    exporter.clear()
    steps(provider, [(0,), (1,)], Policy(budget=2))
    assert [len(one) for one in events(exporter)] == [0, 1]


@pytest.mark.parametrize("direct", [True, False])
def test_each_module_span_has_its_index(
    *, direct: bool, provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    """By phase, from 0, on both roads to the provider; named regions have none."""
    if not direct:  # somebody wants to see spans start
        from opentelemetry.sdk.trace import SpanProcessor  # noqa: PLC0415

        class Sees(SpanProcessor):
            def on_start(self, span: Any, parent_context: Any = None) -> None:
                del span, parent_context

        provider.add_span_processor(Sees())

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = checkpoint(self.b, self.a(x), use_reentrant=False)
            with region("twice"):
                return self.a(x)

    model = Net()
    with ModTracker(model, tracer_provider=provider) as tracker, tracker.step(0):
        model(torch.ones(1, 2)).sum().backward()
    assert places(exporter, "forward") == ["Net", "Net.a", "Net.b", "Net.b.0", "Net.a"]
    assert places(exporter, "recompute") == ["Net.b", "Net.b.0"]
    assert places(exporter, "backward") == ["Net", "Net.a", "Net.b", "Net.b.0", "Net.a"]
    others = [s for s in spans_of(exporter) if s.attributes.get("modtrack.module.type") == "region"]
    assert others
    assert all(INDEX not in span.attributes for span in others)


def test_the_index_follows_a_call_that_moves(
    provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    """The same module, the same phase: another place in another step."""
    steps(provider, [(), (0,), (0, 1), ()])
    heads = [
        span.attributes[INDEX] for span in spans_of(exporter) if span.name == "forward Chooses.head"
    ]
    assert heads == [1, 2, 3, 1]
