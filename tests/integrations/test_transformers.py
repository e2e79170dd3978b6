"""`transformers.Trainer`: steps, epochs and evaluations, on a small Llama from its config."""

from __future__ import annotations

import contextlib
import gc
import subprocess
import sys
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from opentelemetry.trace import StatusCode
from torch import nn
from tqdm import tqdm

from otel_modtrack import ModTracker, semconv
from otel_modtrack.policy import Policy
from tests.distributed.harness import result
from tests.integrations.told import (
    Told,
    assert_no_wrappers,
    assert_nothing_is_open,
    phases_of,
)
from tests.same import generators

pytest.importorskip("transformers")
pytest.importorskip("accelerate")  # Trainer wants it

from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

from otel_modtrack.integrations.transformers import ModTrackCallback

if TYPE_CHECKING:
    from collections.abc import Callable

    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

WORKER = Path(__file__).parent / "worker_transformers.py"

# torch's: a loader in the main process on a machine without an accelerator has nothing to pin.
pytestmark = pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true:UserWarning")


@pytest.fixture(autouse=True)
def no_thread_of_tqdm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Progress bars, which Trainer has for what it saves, leave a thread running."""
    monkeypatch.setattr(tqdm, "monitor_interval", 0)


def llama() -> nn.Module:
    """A Llama of two layers; the same weights each time."""
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=32,
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            max_position_embeddings=16,
        )
    )


def sentences(count: int) -> list[dict[str, torch.Tensor]]:
    """Random ones, the same each time."""
    made = torch.Generator().manual_seed(1)
    tokens = [torch.randint(0, 32, (8,), generator=made) for _ in range(count)]
    return [{"input_ids": one, "labels": one} for one in tokens]


def make_trainer(
    folder: Path,
    *callbacks: Any,
    kind: type[Trainer] = Trainer,
    model: nn.Module | None = None,
    eval_dataset: Any = None,
    **arguments: Any,
) -> Trainer:
    """A Trainer of 12 sentences, 2 a batch, for 2 epochs."""
    chosen = {
        "per_device_train_batch_size": 2,
        "per_device_eval_batch_size": 2,
        "num_train_epochs": 2,
        "logging_steps": 1,
        "learning_rate": 0.01,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": True,
        **arguments,
    }
    return kind(
        model=llama() if model is None else model,
        args=TrainingArguments(output_dir=str(folder), **chosen),
        train_dataset=sentences(12),
        eval_dataset=sentences(4) if eval_dataset is None else eval_dataset,
        callbacks=list(callbacks),
    )


def losses(trainer: Trainer) -> list[tuple[int, float, float]]:
    """What Trainer logged: the step that it had done, the loss, the learning rate."""
    return [
        (line["step"], line["loss"], line["learning_rate"])
        for line in trainer.state.log_history
        if "loss" in line
    ]


class RaisesAt(TrainerCallback):
    """Raises where it is told to."""

    def __init__(self, event: str, step: int) -> None:
        def hook(args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == step:
                raise ValueError("the user's own")

        setattr(self, event, hook)


class RaisingModel(nn.Module):
    """Runs out of memory in its third call."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = llama()
        self.calls = 0

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> Any:
        self.calls += 1
        if self.calls == 3:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB")
        return self.inner(input_ids=input_ids, labels=labels)


# -- steps and epochs -----------------------------------------------------------------------------


def test_steps_and_epochs(
    tmp_path: Path, provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    """Each update is a step with its epoch, a trace of its own, and all of it is in it."""
    trainer = make_trainer(tmp_path, ModTrackCallback(tracer_provider=provider))
    trainer.train()
    told = Told(exporter)
    assert told.numbers == list(range(12))
    assert told.epochs == [0] * 6 + [1] * 6
    assert told.outside() == []
    assert len({span.context.trace_id for span in told.steps}) == 12
    for step in told.steps:
        inside = told.inside(step)
        assert [span.name for span in inside].count("forward LlamaForCausalLM") == 1
        assert [span.name for span in inside].count("backward LlamaForCausalLM") == 1
        assert any(span.name.startswith("optimizer_step") for span in inside)
    told.assert_inside_their_parents()
    assert_no_wrappers(told.fqns, "LlamaForCausalLM")
    assert_nothing_is_open()


def test_neither_loss_nor_learning_rate_unless_asked_for(
    tmp_path: Path, provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    """They are told if they are asked for."""
    make_trainer(tmp_path, ModTrackCallback(tracer_provider=provider), max_steps=2).train()
    told = Told(exporter)
    assert told.of_steps(semconv.LOSS) == [None, None]
    assert told.of_steps(semconv.LEARNING_RATE) == [None, None]


def test_loss_and_learning_rate_are_what_trainer_logs(
    tmp_path: Path, provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    """To the last bit, while the learning rate changes from step to step."""
    callback = ModTrackCallback(tracer_provider=provider, loss=True, learning_rate=True)
    trainer = make_trainer(tmp_path, callback, warmup_steps=3)
    trainer.train()
    told = Told(exporter)
    wanted = losses(trainer)
    assert len(wanted) == 12
    assert told.of_steps(semconv.LOSS) == [loss for _, loss, _ in wanted]
    assert told.of_steps(semconv.LEARNING_RATE) == [rate for _, _, rate in wanted]
    assert len({rate for _, _, rate in wanted}) > 6


def test_loss_where_trainer_logs_only_now_and_then(
    tmp_path: Path, provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    """It is on the step after which Trainer logs, also where an evaluation follows, or an epoch."""
    callback = ModTrackCallback(tracer_provider=provider, loss=True, learning_rate=True)
    trainer = make_trainer(tmp_path, callback, logging_steps=4, eval_strategy="steps", eval_steps=4)
    trainer.train()
    told = Told(exporter)
    logged = {done - 1: loss for done, loss, _ in losses(trainer)}
    assert sorted(logged) == [3, 7, 11]
    assert told.of_steps(semconv.LOSS) == [logged.get(number) for number in range(12)]
    assert None not in told.of_steps(semconv.LEARNING_RATE)


def test_loss_where_trainer_logs_at_the_end_of_an_epoch(
    tmp_path: Path, provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    """It is on the last step of the epoch, which was over when it was logged."""
    callback = ModTrackCallback(tracer_provider=provider, loss=True)
    trainer = make_trainer(
        tmp_path, callback, logging_strategy="epoch", eval_strategy="epoch", save_strategy="no"
    )
    trainer.train()
    told = Told(exporter)
    logged = {done - 1: loss for done, loss, _ in losses(trainer)}
    assert sorted(logged) == [5, 11]
    assert told.of_steps(semconv.LOSS) == [logged.get(number) for number in range(12)]
    assert told.order == [*range(6), "validation", *range(6, 12), "validation"]


def test_gradient_accumulation(
    tmp_path: Path, provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    """A step is all batches that are accumulated; the last one of an epoch has fewer."""
    callback = ModTrackCallback(tracer_provider=provider, loss=True, learning_rate=True)
    trainer = make_trainer(tmp_path, callback, gradient_accumulation_steps=4)
    trainer.train()
    told = Told(exporter)
    assert told.numbers == [0, 1, 2, 3]
    assert told.epochs == [0, 0, 1, 1]
    for phase in ("forward", "backward"):
        assert told.counts(told.steps, f"{phase} LlamaForCausalLM") == [4, 2, 4, 2]
    names = [[span.name for span in told.inside(step)] for step in told.steps]
    assert [sum(name.startswith("optimizer_step") for name in one) for one in names] == [1] * 4
    assert told.of_steps(semconv.LOSS) == [loss for _, loss, _ in losses(trainer)]
    assert told.of_steps(semconv.LEARNING_RATE) == [rate for _, _, rate in losses(trainer)]
    assert told.outside() == []


def test_training_that_is_stopped_between_two_updates(
    tmp_path: Path, provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    """The step that was under way ends with the epoch, before the evaluation that follows."""

    class Stops(TrainerCallback):
        def on_substep_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
            control.should_training_stop = state.global_step == 1
            return control

    trainer = make_trainer(
        tmp_path,
        Stops(),
        ModTrackCallback(tracer_provider=provider),
        gradient_accumulation_steps=2,
        eval_strategy="epoch",
    )
    trainer.train()
    told = Told(exporter)
    assert told.order == [0, 1, "validation"]
    assert trainer.state.global_step == 1
    assert told.evaluations[0].parent is None
    assert_nothing_is_open()


def test_resume_continues_the_numbers(
    tmp_path: Path, provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    """After a checkpoint at step 4 the next is number 4, in the epoch that it was in."""
    saving = {"save_strategy": "steps", "save_steps": 4}
    first = make_trainer(
        tmp_path,
        ModTrackCallback(tracer_provider=provider, loss=True),
        RaisesAt("on_save", 8),
        **saving,
    )
    with pytest.raises(ValueError, match="the user's own"):
        first.train()
    del first
    assert Told(exporter).numbers == list(range(8))
    exporter.clear()
    second = make_trainer(tmp_path, ModTrackCallback(tracer_provider=provider, loss=True), **saving)
    second.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    told = Told(exporter)
    assert told.numbers == list(range(4, 12))
    assert told.epochs == [0] * 2 + [1] * 6
    assert told.of_steps(semconv.LOSS) == [loss for done, loss, _ in losses(second) if done > 4]


# -- evaluations ----------------------------------------------------------------------------------


def test_evaluations_have_their_calls_and_no_others(
    tmp_path: Path, provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    """Evaluations come where Trainer has them, with forwards alone; the steps have none of them."""
    trainer = make_trainer(
        tmp_path,
        ModTrackCallback(tracer_provider=provider, loss=True),
        eval_strategy="steps",
        eval_steps=4,
        eval_on_start=True,
    )
    trainer.train()
    told = Told(exporter)
    four = [[*range(first, first + 4), "validation"] for first in (0, 4, 8)]
    assert told.order == ["validation", *four[0], *four[1], *four[2]]
    for evaluation in told.evaluations:
        assert phases_of(told.inside(evaluation)) == {"forward"}
    assert set(told.counts(told.evaluations, "forward LlamaForCausalLM")) == {2}
    assert set(told.counts(told.steps, "forward LlamaForCausalLM")) == {1}
    assert told.outside() == []
    told.assert_inside_their_parents()


def test_a_step_does_not_wait_for_the_evaluation_after_it(
    tmp_path: Path, provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    """It is exported with its loss before the first batch of the evaluation is done."""
    seen = []

    class Looks(TrainerCallback):
        def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            seen.append(Told(exporter).of_steps(semconv.LOSS))

    callback = ModTrackCallback(tracer_provider=provider, loss=True)
    trainer = make_trainer(
        tmp_path, callback, Looks(), max_steps=2, eval_strategy="steps", eval_steps=2
    )
    trainer.train()
    assert seen == [[loss for _, loss, _ in losses(trainer)]] * 2


def test_several_datasets_are_an_evaluation_each(
    tmp_path: Path, provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    """Trainer evaluates them one after the other, and tells at the end of each."""
    trainer = make_trainer(
        tmp_path,
        ModTrackCallback(tracer_provider=provider),
        eval_strategy="epoch",
        eval_dataset={"long": sentences(6), "short": sentences(2)},
    )
    trainer.train()
    told = Told(exporter)
    assert told.order == [*range(6), *["validation"] * 2, *range(6, 12), *["validation"] * 2]
    assert told.counts(told.evaluations, "forward LlamaForCausalLM") == [3, 1, 3, 1]
    assert told.outside() == []


def test_evaluation_by_itself(
    tmp_path: Path, provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    """`evaluate()` and `predict()` outside of a training are what the tracker says they are."""
    model = llama()
    with ModTracker(model, tracer_provider=provider) as tracker:
        trainer = make_trainer(tmp_path, ModTrackCallback(tracker), model=model)
        with tracker.evaluation(attributes={semconv.EVALUATION_KIND: "validation"}):
            trainer.evaluate()
        with tracker.evaluation(attributes={semconv.EVALUATION_KIND: "test"}):
            trainer.predict(sentences(2))
        trainer.train()
    told = Told(exporter)
    assert told.order == ["validation", "test", *range(12)]
    assert told.outside() == []


# -- trackers -------------------------------------------------------------------------------------


def test_a_tracker_that_is_on_stays_on(
    tmp_path: Path, provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    """It is the user's: the callback makes its steps, and leaves it as it was."""
    model = llama()
    with ModTracker(model, tracer_provider=provider) as tracker:
        callback = ModTrackCallback(tracker)
        make_trainer(tmp_path, callback, model=model, max_steps=2).train()
        assert tracker.is_on
        assert callback.tracker is tracker
        model(**{key: value[None] for key, value in sentences(1)[0].items()})
    told = Told(exporter)
    assert told.numbers == [0, 1]
    assert told.outside() == ["forward LlamaForCausalLM"]


def test_a_tracker_that_is_off_is_entered_and_left(
    tmp_path: Path, provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    """For as long as the training lasts."""
    tracker = ModTracker(tracer_provider=provider)
    make_trainer(tmp_path, ModTrackCallback(tracker), max_steps=2).train()
    assert not tracker.is_on
    assert Told(exporter).numbers == [0, 1]


def test_a_callback_used_twice(
    tmp_path: Path, provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    """For two trainings of one Trainer, and for another Trainer."""
    callback = ModTrackCallback(tracer_provider=provider, loss=True)
    trainer = make_trainer(tmp_path, callback, max_steps=2)
    trainer.train()
    trainer.train()
    make_trainer(tmp_path, callback, max_steps=3).train()
    told = Told(exporter)
    assert told.numbers == [0, 1, 0, 1, 0, 1, 2]
    assert told.outside() == []
    assert_nothing_is_open()


def test_a_class_without_arguments(tmp_path: Path) -> None:
    """Trainer makes one of a class; without a provider nothing is told, and nothing is wrong."""
    trainer = make_trainer(tmp_path, ModTrackCallback, max_steps=2)
    trainer.train()
    assert trainer.state.global_step == 2
    assert_nothing_is_open()


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: ModTrackCallback(ModTracker(), collectives="off"), TypeError, "collectives"),
        (lambda: ModTrackCallback(llama()), TypeError, "a ModTracker is wanted"),
        (lambda: ModTrackCallback(model=llama()), TypeError, "the framework's"),
        (lambda: ModTrackCallback(tracer_provider=1), TypeError, "tracer_provider"),
        (lambda: ModTrackCallback(collectives="some"), ValueError, "some"),
    ],
)
def test_what_cannot_be_used_is_refused_at_once(
    make: Callable[[], object], error: type[Exception], words: str
) -> None:
    """When the callback is made, not in the training."""
    with pytest.raises(error, match=words):
        make()


def test_a_policy(tmp_path: Path, provider: TracerProvider, exporter: InMemorySpanExporter) -> None:
    """Steps that it leaves out have no spans; the others tell what they would without it."""
    callback = ModTrackCallback(
        tracer_provider=provider, policy=Policy(every=5), loss=True, learning_rate=True
    )
    trainer = make_trainer(tmp_path, callback)
    trainer.train()
    told = Told(exporter)
    assert told.numbers == [0, 5, 10]
    logged = losses(trainer)
    assert told.of_steps(semconv.LOSS) == [logged[number][1] for number in told.numbers]
    assert told.of_steps(semconv.LEARNING_RATE) == [logged[number][2] for number in told.numbers]
    assert_nothing_is_open()


# -- harm -----------------------------------------------------------------------------------------


def test_a_fault_of_ours_does_not_reach_trainer(
    tmp_path: Path,
    provider: TracerProvider,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is said once, tracking goes off, and the training goes on."""

    def broken(*args: Any) -> None:
        raise RuntimeError("ours")

    monkeypatch.setattr(ModTracker, "step", broken)
    trainer = make_trainer(tmp_path, ModTrackCallback(tracer_provider=provider), max_steps=3)
    trainer.train()
    assert trainer.state.global_step == 3
    assert "tracking is now off" in caplog.messages[0]
    assert_nothing_is_open()


def test_a_tracker_that_cannot_be_entered_does_not_reach_trainer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is said, and the training goes on untracked."""
    callback = ModTrackCallback()
    monkeypatch.setenv("OTEL_PYTHON_MODTRACK_EVERY", "sometimes")
    trainer = make_trainer(tmp_path, callback, max_steps=3)
    trainer.train()
    assert trainer.state.global_step == 3
    assert len(caplog.messages) == 1
    assert "your program is not affected" in caplog.messages[0]


def test_the_same_results_bit_for_bit(tmp_path: Path, provider: TracerProvider) -> None:
    """Losses, parameters and random numbers are those of the training without the callback."""

    def outcome(*callbacks: Any) -> Any:
        trainer = make_trainer(
            tmp_path, *callbacks, gradient_accumulation_steps=2, eval_strategy="epoch"
        )
        trainer.train()
        history = [
            {
                key: value
                for key, value in line.items()
                if "runtime" not in key and "per_" not in key
            }
            for line in trainer.state.log_history
        ]
        weights = {name: one.tolist() for name, one in trainer.model.state_dict().items()}
        return history, weights, generators()

    callback = ModTrackCallback(tracer_provider=provider, loss=True, learning_rate=True)
    assert outcome(callback) == outcome()


def test_an_exception_leaves_nothing_behind(
    tmp_path: Path, provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    """What ends the training reaches the user; the step that it left has failed, and is told."""
    trainer = make_trainer(
        tmp_path, ModTrackCallback(tracer_provider=provider), model=RaisingModel()
    )
    try:
        trainer.train()
    except torch.OutOfMemoryError:
        pass
    else:
        pytest.fail("nothing was raised")
    assert_nothing_is_open()
    told = Told(exporter)
    assert told.numbers == [0, 1, 2]
    assert [span.status.status_code for span in told.steps] == [
        *[StatusCode.UNSET] * 2,
        StatusCode.ERROR,
    ]
    (failed,) = [s for s in told.inside(told.steps[2]) if s.name == "forward RaisingModel"]
    assert failed.attributes["error.type"] == "torch.OutOfMemoryError"


def test_an_exception_in_an_evaluation_leaves_nothing_behind(
    tmp_path: Path, provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    """The evaluation has failed; the step before it has not."""
    trainer = make_trainer(
        tmp_path,
        ModTrackCallback(tracer_provider=provider, loss=True),
        RaisesAt("on_prediction_step", 6),
        eval_strategy="epoch",
    )
    with contextlib.suppress(ValueError):
        trainer.train()
    assert_nothing_is_open()
    told = Told(exporter)
    assert told.order == [*range(6), "validation"]
    assert told.evaluations[0].status.status_code is StatusCode.ERROR
    assert told.steps[-1].status.status_code is StatusCode.UNSET


def test_with_the_callback_the_step_tells_the_exception(
    tmp_path: Path, provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    """What leaves the block ends the step; also while its traceback is kept."""
    callback = ModTrackCallback(tracer_provider=provider)
    trainer = make_trainer(tmp_path, callback, RaisesAt("on_pre_optimizer_step", 1))
    with pytest.raises(ValueError, match="the user's own"), callback:
        trainer.train()
    assert_nothing_is_open()
    told = Told(exporter)
    assert told.numbers == [0, 1]
    assert told.steps[1].attributes["error.type"] == "ValueError"


def test_an_exception_whose_traceback_is_kept(
    tmp_path: Path, provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    """As in a notebook: the next training begins with a clean slate, and ends as it should."""
    callback = ModTrackCallback(tracer_provider=provider)
    raises = RaisesAt("on_pre_optimizer_step", 1)
    trainer = make_trainer(tmp_path, callback, raises, max_steps=2)
    kept = None
    try:
        trainer.train()
    except ValueError as error:
        kept = error
    assert kept is not None
    assert callback.tracker.is_on
    trainer.remove_callback(raises)
    trainer.train()
    assert_nothing_is_open()
    told = Told(exporter)
    assert told.numbers == [0, 1, 0, 1]
    assert told.outside() == []


def test_an_exception_with_a_tracker_of_the_users(
    tmp_path: Path, provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    """The tracker is left first, by the user's block; the step ends after it."""
    model = llama()
    try:
        with ModTracker(model, tracer_provider=provider) as tracker:
            make_trainer(
                tmp_path,
                ModTrackCallback(tracker),
                RaisesAt("on_pre_optimizer_step", 1),
                model=model,
            ).train()
    except ValueError:
        pass
    assert_nothing_is_open()
    told = Told(exporter)
    assert told.numbers == [0, 1]
    assert "forward LlamaForCausalLM" in [span.name for span in told.inside(told.steps[1])]


def test_an_exception_with_a_span_of_the_users_around(
    tmp_path: Path, provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    """The span ends before the step that is in it, and is not the current one after that."""
    trainer = make_trainer(
        tmp_path,
        ModTrackCallback(tracer_provider=provider, loss=True),
        RaisesAt("on_prediction_step", 6),
        eval_strategy="epoch",
    )
    tracer = provider.get_tracer("the user's")
    for event, order in (("evaluation", [*range(6), "validation"]), ("step", [0, 1])):
        with contextlib.suppress(ValueError), tracer.start_as_current_span("job"):
            trainer.train()
        assert_nothing_is_open()
        told = Told(exporter)
        assert told.order == order, event
        assert {told.top_of(span).name for span in told.spans} == {"job"}
        exporter.clear()
        trainer.add_callback(RaisesAt("on_pre_optimizer_step", 1))


def test_a_training_that_is_noticed_late(
    tmp_path: Path, provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    """What runs on the thread by then is not disturbed."""
    callback = ModTrackCallback(tracer_provider=provider)
    trainer = make_trainer(tmp_path, callback, RaisesAt("on_pre_optimizer_step", 1))
    kept: list[BaseException] = []
    try:
        trainer.train()
    except ValueError as error:
        kept.append(error)
    net = nn.Linear(2, 2)
    with ModTracker(net, tracer_provider=provider) as tracker:
        with tracker.step(100):
            kept.clear()  # the traceback goes, and with it the frame of the training
            net(torch.ones(1, 2))
        with tracker.step(101):
            net(torch.ones(1, 2))
    with callback:
        pass
    assert_nothing_is_open()
    told = Told(exporter)
    for number in (100, 101):
        (step,) = [s for s in told.steps if s.attributes[semconv.STEP_NUMBER] == number]
        assert [s.name for s in told.spans if s.parent == step.context] == ["forward Linear"]


def test_a_smaller_batch_after_an_exception(
    tmp_path: Path, provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    """`auto_find_batch_size` begins anew: the step that was too large has failed."""
    trainer = make_trainer(
        tmp_path,
        ModTrackCallback(tracer_provider=provider),
        model=RaisingModel(),
        auto_find_batch_size=True,
        max_steps=3,
    )
    trainer.train()
    told = Told(exporter)
    assert told.numbers == [0, 1, 2, 0, 1, 2]
    assert told.steps[2].status.status_code is StatusCode.ERROR
    assert_nothing_is_open()


def test_the_trainer_goes_when_it_is_deleted(tmp_path: Path, provider: TracerProvider) -> None:
    """Nothing of the callback holds the model or the Trainer."""
    callback = ModTrackCallback(tracer_provider=provider)
    trainer = make_trainer(tmp_path, callback, max_steps=1)
    trainer.train()
    model = weakref.ref(trainer.model.model.layers[0])
    del trainer
    gc.collect()  # Trainer is in cycles of its own
    assert model() is None


# -- processes ------------------------------------------------------------------------------------


def test_the_step_that_ends_the_process_is_told(tmp_path: Path) -> None:
    """An exception that nobody handles: its step is exported, with the exception, at the exit."""
    program = tmp_path / "program.py"
    program.write_text(
        "import sys\n"
        "from pathlib import Path\n"
        "from opentelemetry.sdk.trace import TracerProvider\n"
        "from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter\n"
        "from tests.integrations.test_transformers import *\n"
        "provider = TracerProvider()\n"
        "line = lambda span: f'{span.name} {span.attributes.get(\"error.type\")}\\n'\n"
        "provider.add_span_processor(BatchSpanProcessor(ConsoleSpanExporter(formatter=line)))\n"
        "callback = ModTrackCallback(tracer_provider=provider)\n"
        "raises = RaisesAt('on_pre_optimizer_step', 1)\n"
        "make_trainer(Path(sys.argv[1]), callback, raises).train()\n"
    )
    done = subprocess.run(  # noqa: S603
        [sys.executable, str(program), str(tmp_path)],
        env={"PYTHONPATH": str(Path(__file__).parents[2]), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert "the user's own" in done.stderr
    steps = [line for line in done.stdout.splitlines() if line.startswith("train_step")]
    assert steps == ["train_step None", "train_step ValueError"], done.stdout


def test_two_ranks() -> None:
    """Under DDP each rank tells the same steps, and the wrapper is in no name."""
    first, second = result(str(WORKER), 2, "trained_by_trainer")
    assert first["numbers"] == second["numbers"] == list(range(4))
    assert first["epochs"] == second["epochs"] == [0, 0, 1, 1]
    assert first["order"] == [0, 1, "validation", 2, 3, "validation"]
    assert first["losses"] == second["losses"] == first["logged"]
    assert first["ranks"] == [0] * 4
    assert second["ranks"] == [1] * 4
    assert first["wrappers"] == ["DistributedDataParallel"]
    assert first["outside"] == second["outside"] == []
    assert min(first["collectives"]) > 0
    assert first["same"]
    assert second["same"]
    for one in (first, second):
        assert_no_wrappers(one["fqns"], "LlamaForCausalLM")
    assert first["fqns"] == second["fqns"]
