"""Lightning's Trainer: steps, epochs and evaluations, on small modules, of either package."""

from __future__ import annotations

import csv
import importlib
import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from opentelemetry.trace import StatusCode
from torch import nn

from otel_modtrack import ModTracker, semconv
from tests.integrations.told import (
    Told,
    assert_no_wrappers,
    assert_nothing_is_open,
    phases_of,
)
from tests.same import generators

pytest.importorskip("lightning")

import lightning.pytorch as pl
from lightning.pytorch.callbacks import LearningRateMonitor

from otel_modtrack.integrations.lightning import ModTrackCallback

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

pytestmark = [
    # Lightning 2.6 with torch 2.15: it uses a class that torch has renamed.
    pytest.mark.filterwarnings(r"ignore:`isinstance\(treespec, LeafSpec\)`:FutureWarning"),
    # Lightning's advice on what these tests do on purpose: no workers, and no validation.
    pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no"),
]


class Net(nn.Module):
    """Two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(4, 8)
        self.out = nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.hidden(x).relu())


class Module(pl.LightningModule):
    """Trains the net with a learning rate that changes with each step.

    Args:
        raises_at: the batch of an epoch in which training_step raises.
        validates: whether validation_step does.
    """

    def __init__(self, raises_at: int | None = None, *, validates: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = Net()
        self.raises_at = raises_at
        self.validates = validates
        self.seen: list[tuple[int, int, float]] = []  # global_step, epoch, loss of each batch

    def loss(self, x: torch.Tensor) -> torch.Tensor:
        return (self.net(x) - x.sum(1, keepdim=True)).pow(2).mean()

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        loss = self.loss(batch)
        if batch_idx == self.raises_at:
            raise ValueError("the user's own")
        self.seen.append((self.global_step, self.current_epoch, loss.item()))
        self.log("loss", loss, on_step=True)
        return loss

    def validation_step(self, batch: torch.Tensor, batch_idx: int) -> None:
        if not self.validates:
            raise ValueError("the user's own")
        self.log("val_loss", self.loss(batch))

    def test_step(self, batch: torch.Tensor, batch_idx: int) -> None:
        self.log("test_loss", self.loss(batch))

    def predict_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        return self.net(batch)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.05)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }


class TwoOptimizers(Module):
    """Steps each of two optimizers for each batch, as a GAN does."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> dict[str, torch.Tensor]:
        for optimizer in self.optimizers():
            loss = self.loss(batch)
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
        return {"loss": loss}

    def configure_optimizers(self) -> Any:
        return [
            torch.optim.SGD(part.parameters(), lr=rate)
            for part, rate in ((self.net.hidden, 0.01), (self.net.out, 0.02))
        ]


class OwnAccumulation(Module):
    """Steps its optimizer for every third batch, over the end of an epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.batches = 0

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> None:
        self.manual_backward(self.loss(batch))
        self.batches += 1
        if self.batches % 3 == 0:
            self.optimizers().step()
            self.optimizers().zero_grad()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.01)


class UncountedOptimizer(OwnAccumulation):
    """Steps an optimizer that Lightning does not count."""

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> None:
        self.manual_backward(self.loss(batch))
        self.optimizers(use_pl_optimizer=False).step()


class SkipsEpoch(Module):
    """Refuses the third batch of the first epoch, and with it the rest."""

    def on_train_batch_start(self, batch: torch.Tensor, batch_idx: int) -> int | None:
        return -1 if self.current_epoch == 0 and batch_idx == 2 else None


def batches(count: int = 6) -> Any:
    """A loader of so many batches, the same each time."""
    made = torch.Generator().manual_seed(1)
    data = list(torch.randn(count * 2, 4, generator=made))
    return torch.utils.data.DataLoader(data, batch_size=2)


def make_trainer(folder: Path, *callbacks: Any, package: Any = pl, **options: Any) -> Any:
    """A Trainer of 2 epochs, which shows nothing."""
    return package.Trainer(
        **{
            "max_epochs": 2,
            "accelerator": "cpu",
            "logger": False,
            "enable_checkpointing": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "default_root_dir": folder,
            "callbacks": list(callbacks),
            "num_sanity_val_steps": 0,
            **options,
        }
    )


# -- steps and epochs -----------------------------------------------------------------------------


def test_steps_and_epochs(
    tmp_path: Path, provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    """Each step of the optimizer is a step with its epoch, a trace of its own, and all is in it."""
    module = Module()
    trainer = make_trainer(tmp_path, ModTrackCallback(tracer_provider=provider))
    trainer.fit(module, batches())
    told = Told(exporter)
    assert told.numbers == list(range(12)) == [number for number, _, _ in module.seen]
    assert told.epochs == [0] * 6 + [1] * 6 == [epoch for _, epoch, _ in module.seen]
    assert told.outside() == []
    for name in ("forward Module.net", "backward Module.net", "optimizer_step SGD"):
        assert told.counts(told.steps, name) == [1] * 12
    told.assert_inside_their_parents()
    assert_no_wrappers(told.fqns, "Module")
    assert_nothing_is_open()


def test_loss_and_learning_rate(
    tmp_path: Path, provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    """They are those of training_step, and of Lightning's own monitor, to the last bit."""
    module, monitor = Module(), LearningRateMonitor(logging_interval="step")
    logger = pl.loggers.CSVLogger(tmp_path)
    trainer = make_trainer(
        tmp_path,
        ModTrackCallback(tracer_provider=provider, loss=True, learning_rate=True),
        monitor,
        logger=logger,
        log_every_n_steps=1,
    )
    trainer.fit(module, batches())
    told = Told(exporter)
    assert told.of_steps(semconv.LOSS) == [loss for _, _, loss in module.seen]
    with (Path(logger.log_dir) / "metrics.csv").open() as written:
        logged = [float(line["loss"]) for line in csv.DictReader(written) if line["loss"]]
    assert told.of_steps(semconv.LOSS) == logged
    assert told.of_steps(semconv.LEARNING_RATE) == monitor.lrs["lr-SGD"]
    assert len(set(monitor.lrs["lr-SGD"])) == 12


def test_neither_unless_asked_for(
    tmp_path: Path, provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    """Reading a loss waits for the device."""
    make_trainer(tmp_path, ModTrackCallback(tracer_provider=provider)).fit(Module(), batches())
    told = Told(exporter)
    assert set(told.of_steps(semconv.LOSS)) == {None}
    assert set(told.of_steps(semconv.LEARNING_RATE)) == {None}


def test_gradient_accumulation(
    tmp_path: Path, provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    """A step is all batches that are accumulated; the last of an epoch has what is left."""
    module = Module()
    trainer = make_trainer(
        tmp_path,
        ModTrackCallback(tracer_provider=provider, loss=True, learning_rate=True),
        accumulate_grad_batches=4,
    )
    trainer.fit(module, batches())
    told = Told(exporter)
    assert told.numbers == [0, 1, 2, 3]
    assert told.epochs == [0, 0, 1, 1]
    assert told.counts(told.steps, "forward Module.net") == [4, 2, 4, 2]
    assert told.counts(told.steps, "optimizer_step SGD") == [1] * 4
    by_step = [[loss / 4 for number, _, loss in module.seen if number == at] for at in range(4)]
    assert told.of_steps(semconv.LOSS) == pytest.approx([sum(one) for one in by_step])
    assert told.outside() == []


def test_two_optimizers(
    tmp_path: Path, provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    """The number is Lightning's global_step, which counts both; the rate is the first's."""
    trainer = make_trainer(
        tmp_path,
        ModTrackCallback(tracer_provider=provider, loss=True, learning_rate=True),
        max_epochs=1,
    )
    trainer.fit(TwoOptimizers(), batches())
    told = Told(exporter)
    assert told.numbers == [0, 2, 4, 6, 8, 10]
    for step in told.steps:
        assert [span.name for span in told.inside(step)].count("optimizer_step SGD") == 2
    assert told.of_steps(semconv.LEARNING_RATE) == [0.01] * 6
    assert None not in told.of_steps(semconv.LOSS)


def test_accumulation_by_hand_over_the_end_of_an_epoch(
    tmp_path: Path, provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    """The step goes on until an optimizer steps; what is left at the end is a step, too."""
    trainer = make_trainer(
        tmp_path, ModTrackCallback(tracer_provider=provider), limit_val_batches=0
    )
    trainer.fit(OwnAccumulation(), batches(4))
    told = Told(exporter)
    assert told.numbers == [0, 1, 2]
    assert told.epochs == [0, 0, 1]
    assert told.counts(told.steps, "forward OwnAccumulation.net") == [3, 3, 2]
    assert told.counts(told.steps, "optimizer_step SGD") == [1, 1, 0]


def test_an_optimizer_that_lightning_does_not_count(
    tmp_path: Path, provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    """What is recorded does not grow for ever: a step ends after 64 batches."""
    trainer = make_trainer(tmp_path, ModTrackCallback(tracer_provider=provider), max_epochs=1)
    trainer.fit(UncountedOptimizer(), batches(70))
    told = Told(exporter)
    assert told.numbers == [0, 0]
    names = [[span.name for span in told.inside(step)] for step in told.steps]
    assert [one.count("optimizer_step SGD") for one in names] == [64, 6]


def test_a_refused_batch_is_no_step(
    tmp_path: Path, provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    """The module's on_train_batch_start ends the epoch after the callback's has begun a step."""
    trainer = make_trainer(tmp_path, ModTrackCallback(tracer_provider=provider))
    trainer.fit(SkipsEpoch(), batches(4))
    told = Told(exporter)
    assert told.numbers == [0, 1, 2, 3, 4, 5]
    assert told.epochs == [0, 0, 1, 1, 1, 1]
    assert_nothing_is_open()


def test_resume_continues_the_numbers(
    tmp_path: Path, provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    """A checkpoint after 6 steps: the next is number 6, in the second epoch."""
    first = make_trainer(tmp_path, ModTrackCallback(tracer_provider=provider), max_epochs=1)
    first.fit(Module(), batches())
    path = tmp_path / "last.ckpt"
    first.save_checkpoint(path)
    exporter.clear()
    second = make_trainer(tmp_path, ModTrackCallback(tracer_provider=provider))
    second.fit(Module(), batches(), ckpt_path=path)
    told = Told(exporter)
    assert told.numbers == list(range(6, 12))
    assert told.epochs == [1] * 6


# -- evaluations ----------------------------------------------------------------------------------


def test_evaluations_have_their_calls_and_no_others(
    tmp_path: Path, provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    """Sanity check, validation in the middle of an epoch and at its end, each with its forwards."""
    trainer = make_trainer(
        tmp_path,
        ModTrackCallback(tracer_provider=provider, loss=True),
        num_sanity_val_steps=1,
        val_check_interval=3,
    )
    trainer.fit(Module(), batches(), batches(2))
    told = Told(exporter)
    each = [0, 1, 2, "validation", 3, 4, 5, "validation"]
    assert told.order == [
        "sanity_check",
        *each,
        *[one if isinstance(one, str) else one + 6 for one in each],
    ]
    for evaluation in told.evaluations:
        assert phases_of(told.inside(evaluation)) == {"forward"}
    assert told.counts(told.evaluations, "forward Module.net") == [1, 2, 2, 2, 2]
    assert set(told.counts(told.steps, "forward Module.net")) == {1}
    assert told.outside() == []
    told.assert_inside_their_parents()


def test_a_validation_between_two_batches_of_a_step(
    tmp_path: Path, provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    """It is in the step, and the step goes on after it."""
    trainer = make_trainer(
        tmp_path,
        ModTrackCallback(tracer_provider=provider),
        accumulate_grad_batches=4,
        val_check_interval=2,
        max_epochs=1,
    )
    trainer.fit(Module(), batches(4), batches(1))
    told = Told(exporter)
    assert told.numbers == [0]
    first, second = told.evaluations
    assert told.top_of(first) is told.steps[0]
    assert told.top_of(second) is second
    inside = [span.name for span in told.inside(told.steps[0])]
    assert inside.count("optimizer_step SGD") == 1
    assert inside.count("forward Module.net") == 5


def test_each_of_the_trainers_entry_points(
    tmp_path: Path, provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    """Validate, test and predict by themselves are evaluations with their kind."""
    module = Module()
    trainer = make_trainer(tmp_path, ModTrackCallback(tracer_provider=provider))
    trainer.validate(module, batches(2), verbose=False)
    trainer.test(module, batches(2), verbose=False)
    trainer.predict(module, batches(2))
    trainer.fit(module, batches(1))
    told = Told(exporter)
    assert told.order == ["validation", "test", "predict", 0, 1]
    assert told.outside() == []
    assert_nothing_is_open()


# -- packages and trackers ------------------------------------------------------------------------


def test_the_other_package(
    tmp_path: Path, provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    """A Trainer of pytorch_lightning takes the callback as well, in a list."""
    other = pytest.importorskip("pytorch_lightning")

    class OtherModule(other.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()

        def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
            return self.net(batch).sum()

        validation_step = training_step

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    callback = ModTrackCallback(tracer_provider=provider, loss=True)
    assert not isinstance(callback, other.Callback)
    trainer = make_trainer(tmp_path, callback, package=other, max_epochs=1)
    trainer.fit(OtherModule(), batches(2), batches(1))
    trainer.save_checkpoint(tmp_path / "any.ckpt")
    told = Told(exporter)
    assert told.order == [0, 1, "validation"]
    assert None not in told.of_steps(semconv.LOSS)


def test_only_the_hooks_that_are_needed() -> None:
    """The callback saves no state, and is asked about nothing that it has no answer to."""
    own = {name for name in vars(ModTrackCallback) if not name.startswith("_")}
    assert own == {
        *("tracker", "on_fit_start", "on_exception", "teardown"),
        *("on_train_batch_start", "on_train_batch_end", "on_train_epoch_end", "on_train_end"),
        *(f"on_{kind}_start" for kind in ("validation", "test", "predict")),
        *(f"on_{kind}_end" for kind in ("validation", "test", "predict")),
    }
    module = importlib.import_module("lightning.pytorch.callbacks.callback")
    assert own - {"tracker"} <= set(vars(module.Callback))
    assert ModTrackCallback.state_dict is module.Callback.state_dict


def test_it_can_be_pickled(tmp_path: Path) -> None:
    """Strategies that spawn their processes send their callbacks there, also for a second fit."""
    callback = ModTrackCallback(loss=True)
    make_trainer(tmp_path, callback, max_epochs=1).fit(Module(), batches(1))
    assert callback.tracker is not None
    sent = pickle.loads(pickle.dumps(callback))  # noqa: S301 - our own
    assert sent.tracker is None
    make_trainer(tmp_path, sent, max_epochs=1).fit(Module(), batches(1))
    assert_nothing_is_open()


def test_a_tracker_that_is_on_stays_on(
    tmp_path: Path, provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    """It is the user's: the callback makes its steps, and leaves it as it was."""
    module = Module()
    with ModTracker(module, tracer_provider=provider) as tracker:
        callback = ModTrackCallback(tracker)
        make_trainer(tmp_path, callback).fit(module, batches(1))
        assert tracker.is_on
        assert callback.tracker is tracker
        module.net(torch.ones(1, 4))
    told = Told(exporter)
    assert told.numbers == [0, 1]
    assert told.outside() == ["forward Module.net"]


def test_a_callback_used_twice(
    tmp_path: Path, provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    """By two Trainers, one after the other."""
    callback = ModTrackCallback(tracer_provider=provider, loss=True)
    for _ in range(2):
        make_trainer(tmp_path, callback, max_epochs=1).fit(Module(), batches(2))
    assert Told(exporter).numbers == [0, 1, 0, 1]
    assert_nothing_is_open()


# -- harm -----------------------------------------------------------------------------------------


def test_the_same_results_bit_for_bit(tmp_path: Path, provider: TracerProvider) -> None:
    """Losses, parameters and random numbers are those of the training without the callback."""

    def outcome(*callbacks: Any) -> Any:
        module = Module()
        trainer = make_trainer(tmp_path, *callbacks, accumulate_grad_batches=2)
        trainer.fit(module, batches(), batches(2))
        weights = {name: one.tolist() for name, one in module.state_dict().items()}
        return module.seen, weights, trainer.callback_metrics, generators()

    callback = ModTrackCallback(tracer_provider=provider, loss=True, learning_rate=True)
    assert outcome(callback) == outcome()


def test_an_exception_leaves_nothing_behind(
    tmp_path: Path, provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    """What ends the training reaches the user, and is told on the step that it left."""
    callback = ModTrackCallback(tracer_provider=provider, loss=True)
    trainer = make_trainer(tmp_path, callback)
    with pytest.raises(ValueError, match="the user's own"):
        trainer.fit(Module(raises_at=2), batches())
    assert_nothing_is_open()
    told = Told(exporter)
    assert told.numbers == [0, 1, 2]
    assert [span.attributes.get("error.type") for span in told.steps] == [None, None, "ValueError"]
    make_trainer(tmp_path, callback, max_epochs=1).fit(Module(), batches(1))
    assert Told(exporter).numbers == [0, 1, 2, 0]


def test_an_exception_in_an_evaluation_leaves_nothing_behind(
    tmp_path: Path, provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    """It is told on the evaluation."""
    trainer = make_trainer(tmp_path, ModTrackCallback(tracer_provider=provider))
    with pytest.raises(ValueError, match="the user's own"):
        trainer.fit(Module(validates=False), batches(2), batches(1))
    assert_nothing_is_open()
    told = Told(exporter)
    assert told.order == [0, 1, "validation"]
    assert told.evaluations[0].attributes["error.type"] == "ValueError"
    assert told.steps[1].status.status_code is StatusCode.UNSET
