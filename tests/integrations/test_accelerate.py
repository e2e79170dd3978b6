"""A loop that is written with Accelerate: its steps, as its gradient accumulation makes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from otel_modtrack import ModTracker, semconv
from tests.integrations.told import (
    Told,
    assert_no_wrappers,
    assert_nothing_is_open,
    phases_of,
)
from tests.same import generators

pytest.importorskip("accelerate")

from accelerate import Accelerator
from accelerate.utils import GradientAccumulationPlugin

from otel_modtrack.integrations.accelerate import steps

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


class Net(nn.Module):
    """Two layers, and the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(4, 8)
        self.out = nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.out(self.hidden(x).relu()) - x.sum(1, keepdim=True)).pow(2).mean()


class Program:
    """A model, its optimizer, a schedule and a loader, prepared by Accelerate.

    Args:
        accumulated: batches a step.
        batches: of an epoch.
        adjusts: whether the last batch of an epoch is a step in any case.
    """

    def __init__(self, accumulated: int = 1, batches: int = 6, *, adjusts: bool = True) -> None:
        torch.manual_seed(0)
        self.accelerator = Accelerator(
            cpu=True,
            gradient_accumulation_plugin=GradientAccumulationPlugin(
                num_steps=accumulated, sync_with_dataloader=adjusts
            ),
        )
        made = torch.Generator().manual_seed(1)
        data = list(torch.randn(batches * 2, 4, generator=made))
        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        self.net, self.optimizer, self.loader, self.schedule = self.accelerator.prepare(
            net, optimizer, torch.utils.data.DataLoader(data, batch_size=2), schedule
        )
        self.losses: list[float] = []

    def train_on(self, batch: torch.Tensor) -> None:
        """One batch, as Accelerate's documentation has it."""
        with self.accelerator.accumulate(self.net):
            loss = self.net(batch)
            self.accelerator.backward(loss)
            self.optimizer.step()
            self.schedule.step()
            self.optimizer.zero_grad()
        self.losses.append(loss.item())

    def weights(self) -> Any:
        """Of the net."""
        return {name: one.tolist() for name, one in self.net.state_dict().items()}


@pytest.fixture(autouse=True)
def no_state() -> Iterator[None]:
    """Accelerate's state is the process's; each test has its own."""
    yield
    Accelerator().free_memory()
    from accelerate.state import AcceleratorState, GradientState  # noqa: PLC0415

    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def forwards(told: Told) -> list[int]:
    """How many batches each step has."""
    return told.counts(told.steps, "forward Net")


def updates(told: Told) -> list[int]:
    """How many steps of the optimizer each step has."""
    return [
        [span.name for span in told.inside(step)].count("optimizer_step SGD") for step in told.steps
    ]


def test_steps_and_epochs(provider: TracerProvider, exporter: InMemorySpanExporter) -> None:
    """Without accumulation a batch is a step; numbers go on over epochs."""
    program = Program()
    first = 0
    with ModTracker(program.net, tracer_provider=provider) as tracker:
        for epoch in range(2):
            batches = steps(program.accelerator, tracker, program.loader, first=first, epoch=epoch)
            for batch in batches:
                program.train_on(batch)
            first = batches.number
    told = Told(exporter)
    assert told.numbers == list(range(12))
    assert told.epochs == [0] * 6 + [1] * 6
    assert forwards(told) == updates(told) == [1] * 12
    assert told.outside() == []
    told.assert_inside_their_parents()
    assert_no_wrappers(told.fqns, "Net")
    assert_nothing_is_open()


def test_gradient_accumulation(provider: TracerProvider, exporter: InMemorySpanExporter) -> None:
    """A step ends with the batch that the optimizer steps for; the last of an epoch does so."""
    program = Program(accumulated=4)
    number = 0
    with ModTracker(program.net, tracer_provider=provider) as tracker:
        for _ in range(2):
            with steps(program.accelerator, tracker, program.loader, first=number) as batches:
                for batch in batches:
                    program.train_on(batch)
            number = batches.number
    told = Told(exporter)
    assert told.numbers == [0, 1, 2, 3]
    assert told.epochs == [None] * 4
    assert forwards(told) == [4, 2, 4, 2]
    assert updates(told) == [1, 1, 1, 1]


def test_an_accumulation_that_is_not_finished_at_the_end(
    provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    """It is closed with the epoch; where epochs are chained to one loop, it goes on."""
    program = Program(accumulated=4, adjusts=False)
    with ModTracker(program.net, tracer_provider=provider) as tracker:
        batches = steps(program.accelerator, tracker, program.loader)
        for batch in batches:
            program.train_on(batch)
        assert batches.number == 1  # the optimizer has stepped once
    told = Told(exporter)
    assert told.numbers == [0, 1]
    assert forwards(told) == [4, 2]
    assert updates(told) == [1, 0]
    exporter.clear()
    program = Program(accumulated=4, adjusts=False)
    chained = (batch for _ in range(2) for batch in program.loader)
    with ModTracker(program.net, tracer_provider=provider) as tracker:
        for batch in steps(program.accelerator, tracker, chained):
            program.train_on(batch)
    told = Told(exporter)
    assert forwards(told) == [4, 4, 4]
    assert updates(told) == [1, 1, 1]


def test_loss_and_learning_rate(provider: TracerProvider, exporter: InMemorySpanExporter) -> None:
    """They are what the loop tells."""
    program = Program()
    rates = []
    with ModTracker(program.net, tracer_provider=provider) as tracker:
        batches = steps(program.accelerator, tracker, program.loader)
        for batch in batches:
            rates.append(program.schedule.get_last_lr()[0])
            program.train_on(batch)
            batches.tell(loss=program.losses[-1], learning_rate=rates[-1])
    told = Told(exporter)
    assert told.of_steps(semconv.LOSS) == program.losses
    assert told.of_steps(semconv.LEARNING_RATE) == rates
    assert len(set(rates)) == 6


def test_resume(provider: TracerProvider, exporter: InMemorySpanExporter, tmp_path: Path) -> None:
    """From a checkpoint in the middle of an epoch: the number goes on, and the batches do."""
    program = Program(accumulated=2)
    with ModTracker(program.net, tracer_provider=provider) as tracker:
        with steps(program.accelerator, tracker, program.loader) as batches:
            for at, batch in enumerate(batches):
                program.train_on(batch)
                if at == 3:
                    program.accelerator.save_state(str(tmp_path))
                    break
        assert batches.number == 2
        assert_no_span_is_current()
        program.accelerator.load_state(str(tmp_path))
        left = program.accelerator.skip_first_batches(program.loader, 4)
        for batch in steps(program.accelerator, tracker, left, first=2):
            program.train_on(batch)
    told = Told(exporter)
    assert told.numbers == [0, 1, 2]
    assert forwards(told) == [2, 2, 2]
    assert_nothing_is_open()


def assert_no_span_is_current() -> None:
    """The step is over, while the tracker is on."""
    from opentelemetry import trace  # noqa: PLC0415

    assert not trace.get_current_span().get_span_context().is_valid


def test_an_evaluation_between_epochs(
    provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    """It is the tracker's, and has its calls; the steps have none of them."""
    program = Program()
    with ModTracker(program.net, tracer_provider=provider) as tracker:
        number = 0
        for epoch in range(2):
            batches = steps(program.accelerator, tracker, program.loader, first=number, epoch=epoch)
            for batch in batches:
                program.train_on(batch)
            number = batches.number
            with tracker.evaluation(), torch.no_grad():
                for batch in program.loader:
                    program.net(batch)
    told = Told(exporter)
    assert told.order == [*range(6), None, *range(6, 12), None]
    for evaluation in told.evaluations:
        inside = told.inside(evaluation)
        assert [span.name for span in inside].count("forward Net") == 6
        assert phases_of(inside) == {"forward"}
    assert forwards(told) == [1] * 12
    assert told.outside() == []


def test_an_exception_in_the_loop(provider: TracerProvider, exporter: InMemorySpanExporter) -> None:
    """The step ends when the loop is left; inside a `with` it tells what left it."""
    program = Program(accumulated=2)

    def raises(at: int) -> None:
        if at == 3:
            raise ValueError("the user's own")

    with ModTracker(program.net, tracer_provider=provider) as tracker:
        with pytest.raises(ValueError, match="the user's own"):  # noqa: PT012 - in the loop
            for at, batch in enumerate(steps(program.accelerator, tracker, program.loader)):
                program.train_on(batch)
                raises(at)
        assert_no_span_is_current()
        with (  # noqa: PT012 - what is raised in the loop
            pytest.raises(ValueError, match="the user's own"),
            steps(program.accelerator, tracker, program.loader) as batches,
        ):
            for at, batch in enumerate(batches):
                program.train_on(batch)
                raises(at)
        assert_no_span_is_current()
    told = Told(exporter)
    assert told.numbers == [0, 1, 0, 1]
    errors = [span.attributes.get("error.type") for span in told.steps]
    assert errors == [None, None, None, "ValueError"]
    assert_nothing_is_open()


def test_an_exception_of_the_loader(
    provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    """It reaches the loop, and is told on the step that waited for the batch."""
    program = Program(accumulated=4)

    def loader() -> Iterator[Any]:
        for at, batch in enumerate(program.loader):
            if at == 2:
                raise OSError("no such file")
            yield batch

    with ModTracker(program.net, tracer_provider=provider) as tracker:
        with pytest.raises(OSError, match="no such file"):  # noqa: PT012 - in the loop
            for batch in steps(program.accelerator, tracker, loader()):
                program.train_on(batch)
        assert_no_span_is_current()
    told = Told(exporter)
    assert [span.attributes.get("error.type") for span in told.steps] == ["OSError"]


def test_a_tracker_that_is_left_in_the_loop(
    provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    """The batches go on, untracked."""
    program = Program()
    tracker = ModTracker(program.net, tracer_provider=provider)
    tracker.__enter__()
    for at, batch in enumerate(steps(program.accelerator, tracker, program.loader)):
        program.train_on(batch)
        if at == 1:
            tracker.__exit__(None, None, None)
    assert len(program.losses) == 6
    assert Told(exporter).numbers == [0, 1]
    assert_nothing_is_open()


def test_what_cannot_be_used_is_refused_at_once() -> None:
    """When `steps` is called, not in the loop."""
    program = Program()
    tracker = ModTracker()
    with pytest.raises(RuntimeError, match="with ModTracker"):
        steps(program.accelerator, tracker, program.loader)
    with tracker:
        with pytest.raises(TypeError, match="an Accelerator is wanted"):
            steps(program.net, tracker, program.loader)
        with pytest.raises(TypeError, match="a ModTracker is wanted"):
            steps(program.accelerator, None, program.loader)
        with pytest.raises(TypeError, match="an integer is wanted"):
            steps(program.accelerator, tracker, program.loader, first="0")


def test_the_same_results_bit_for_bit(provider: TracerProvider) -> None:
    """Losses, parameters and random numbers are those of the loop without it."""

    def outcome(tracker: ModTracker | None) -> Any:
        program = Program(accumulated=4)
        loader = program.loader
        for _ in range(2):
            batches = loader if tracker is None else steps(program.accelerator, tracker, loader)
            for batch in batches:
                program.train_on(batch)
        return program.losses, program.weights(), generators()

    with ModTracker(tracer_provider=provider) as tracker:
        tracked = outcome(tracker)
    assert tracked == outcome(None)
