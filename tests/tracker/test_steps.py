"""Training steps that nobody marks: where they begin and end, and how they are numbered."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch
from opentelemetry.sdk.trace import TracerProvider
from torch import nn
from torch.utils.data import DataLoader

from otel_modtrack import ModTracker, region
from otel_modtrack.core import CORE, THREADS
from otel_modtrack.testing import assert_tree_equals
from tests.tracker.stepped import Gan, Training, X, seen

if TYPE_CHECKING:
    from opentelemetry import trace

ONE = ["forward Sequential", "backward", "optimizer_step SGD"]


def test_a_plain_loop() -> None:
    """Each iteration is a step, numbered from 0; nothing is outside."""
    training = Training()
    found = seen(lambda _: training.iterate(3))
    assert found.numbers == [0, 1, 2]
    assert found.inside == [ONE] * 3
    assert found.outside == []
    assert len({step.context.trace_id for step in found.steps}) == 3


def test_optimizers_made_inside() -> None:
    """It does not matter when the optimizer is made."""
    found = seen(lambda _: Training().iterate(2))
    assert found.inside == [ONE] * 2


def test_gradient_accumulation() -> None:
    """A step lasts until the optimizer has stepped."""
    training = Training()

    def program(_: ModTracker) -> None:
        for number in range(6):
            training.backward()
            if number % 3 == 2:
                training.step()

    found = seen(program)
    assert found.numbers == [0, 1]
    assert found.inside == [[*ONE[:2] * 3, ONE[2]]] * 2


def test_evaluation_in_between() -> None:
    """What runs without gradients between steps belongs to none; inside one, to it."""
    training = Training()

    def program(_: ModTracker) -> None:
        training.iterate()
        training.evaluate()
        training.backward()
        training.evaluate()
        training.step()
        training.evaluate()

    found = seen(program)
    assert found.inside == [ONE, [*ONE[:2], ONE[0], ONE[2]]]
    assert found.outside == [ONE[0]] * 2


def test_inference_begins_no_step() -> None:
    """Gradients that nobody wants, or a model that no optimizer has, make no step."""
    other = nn.Linear(4, 4)
    training = Training()

    def program(_: ModTracker) -> None:
        other(X)  # in training mode, with gradients
        training.model.eval()
        training.model(X)

    found = seen(program)
    assert found.numbers == []
    assert found.outside == ["forward Linear", "forward Sequential"]


@pytest.mark.parametrize("made_before", [True, False])
def test_a_gan(made_before: bool) -> None:
    """A step is over when both optimizers have stepped."""
    before = Gan() if made_before else None

    def program(_: ModTracker) -> None:
        gan = before or Gan()
        for _number in range(3):
            gan.train_d()
            gan.train_g()

    found = seen(program)
    assert found.numbers == [0, 1, 2]
    assert [names.count("optimizer_step Adam") for names in found.inside] == [1] * 3
    assert [names[-1] for names in found.inside] == ["optimizer_step SGD"] * 3


def test_an_optimizer_that_steps_less_often() -> None:
    """Where one steps three times as often, each of its steps is one."""
    gan = Gan()

    def program(_: ModTracker) -> None:
        for _number in range(2):
            for _again in range(3):
                gan.train_d()
            gan.train_g()
        gan.train_d()

    found = seen(program)
    steps = [[n for n in names if n.startswith("optimizer")] for names in found.inside]
    adam, sgd = "optimizer_step Adam", "optimizer_step SGD"
    assert steps == [[adam]] * 3 + [[sgd, adam]] + [[adam]] * 2 + [[sgd, adam]]
    assert found.numbers == list(range(7))


@pytest.mark.parametrize("of_it", [True, False])
def test_an_optimizer_that_never_steps(of_it: bool) -> None:
    """One that was made and forgotten holds up nothing: the first step is cut where it ended."""
    training = Training()
    held = training.model.parameters() if of_it else [nn.Parameter(torch.ones(1))]
    idle = torch.optim.Adam(held)
    found = seen(lambda _: training.iterate(3))
    assert found.numbers == [0, 1, 2]
    assert found.inside == [ONE] * 3
    for step, after in zip(found.steps, found.steps[1:], strict=False):
        assert step.end_time <= after.start_time
    del idle


def test_a_gradient_scaler_that_skips() -> None:
    """A step whose gradients are not finite is a step all the same, and says so."""
    training = Training()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)

    def program(_: ModTracker) -> None:
        for factor in (1.0, float("inf"), 1.0):
            scaler.scale(training.model(X).sum() * factor).backward()
            scaler.step(training.optimizer)
            scaler.update()
            training.optimizer.zero_grad()

    found = seen(program)
    assert found.numbers == [0, 1, 2]
    assert found.inside == [ONE, ONE[:2], ONE]
    skipped = [step.attributes.get("modtrack.step.skipped") for step in found.steps]
    assert skipped == [None, True, None]


def test_data_is_loaded_in_the_step() -> None:
    """A step begins with its batch; an evaluation's batches belong to no step."""
    training = Training()
    loader = DataLoader(torch.ones(6, 4), batch_size=2)

    def program(_: ModTracker) -> None:
        for x in loader:
            training.model(x).sum().backward()
            training.step()
        training.model.eval()
        with torch.no_grad():
            for x in loader:
                training.model(x)

    found = seen(program)
    assert found.inside == [["data_load", *ONE]] * 3
    assert found.outside == [ONE[0]] * 3
    for step in found.steps:
        load = next(s for s in found.spans if s.parent and s.parent.span_id == step.context.span_id)
        assert load.start_time == step.start_time


def test_data_beside_explicit_steps() -> None:
    """What is loaded before a step that is marked is a span of its own, in the step's trace."""
    training = Training()
    loader = DataLoader(torch.ones(4, 4), batch_size=2)

    def program(tracker: ModTracker) -> None:
        for number, x in enumerate(loader):
            with tracker.step(number):
                training.model(x).sum().backward()
                training.step()

    found = seen(program)
    assert found.inside == [ONE] * 2
    assert found.outside == ["data_load"] * 2
    loads = [span for span in found.spans if span.name == "data_load"]
    for load, step in zip(loads, found.steps, strict=True):
        assert load.context.trace_id == step.context.trace_id
        assert load.end_time <= step.start_time


def test_explicit_steps_win() -> None:
    """As soon as one is marked, none is recognised any more."""
    training = Training()

    def program(tracker: ModTracker) -> None:
        training.iterate()
        training.backward()
        with tracker.step(70):
            training.iterate()
        training.iterate()

    found = seen(program)
    assert found.numbers == [0, 1, 70]
    assert found.inside == [ONE, ONE[:2], ONE]
    assert found.outside == ONE


def test_no_steps_where_none_are_wanted() -> None:
    """With steps="explicit" there are those that are marked."""
    found = seen(lambda _: Training().iterate(), steps="explicit")
    assert found.numbers == []
    assert found.outside == ONE


def test_an_evaluation_that_is_marked() -> None:
    """What runs in it hangs under its span, with its batches, and ends no step."""
    training = Training()

    def program(tracker: ModTracker) -> None:
        training.backward()
        with tracker.evaluation(attributes={"modtrack.evaluation.kind": "test"}):
            training.model(X)
            for _ in DataLoader(torch.ones(1, 4)):
                training.evaluate()
        training.step()

    found = seen(program)
    assert_tree_equals(
        found.tree,
        """
        train_step
          forward Sequential
            forward Sequential.0
            forward Sequential.1
            forward Sequential.2
          backward
            backward Sequential
              backward Sequential.2
              backward Sequential.1
              backward Sequential.0
          optimizer_step SGD
        evaluation
          forward Sequential
            forward Sequential.0
            forward Sequential.1
            forward Sequential.2
          data_load
          forward Sequential
            forward Sequential.0
            forward Sequential.1
            forward Sequential.2
        """,
    )


def test_closures() -> None:
    """Where the optimizer calls the model, the step begins with the optimizer."""
    training = Training()
    lbfgs = torch.optim.LBFGS(training.model.parameters(), max_iter=1)

    def closure() -> Any:
        lbfgs.zero_grad()
        loss = training.model(X).square().sum()
        loss.backward()
        return loss.detach()

    del training.optimizer
    found = seen(lambda _: [lbfgs.step(closure) for _ in range(2)])
    assert found.numbers == [0, 1]
    assert found.inside == [["optimizer_step LBFGS"]] * 2


def test_optimizers_in_the_backward() -> None:
    """One optimizer per parameter, stepped by hooks: the step ends after the backward."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    held, handles = [], []
    for parameter in model.parameters():
        optimizer = torch.optim.SGD([parameter], lr=0.1)
        held.append(optimizer)

        def hook(_: Any, optimizer: Any = optimizer) -> None:
            optimizer.step()
            optimizer.zero_grad()

        handles.append(parameter.register_post_accumulate_grad_hook(hook))
    found = seen(lambda _: [model(X).sum().backward() for _ in range(3)])
    for handle in handles:  # the optimizers would live for ever
        handle.remove()
    assert found.numbers == [0, 1, 2]
    assert found.inside == [ONE[:2]] * 3
    assert found.tree.count("optimizer_step SGD") == 12


def test_users_spans() -> None:
    """A step hangs under the span that is active; a span opened in the step holds what is in it."""
    training = Training()
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("mine")
    spans: list[trace.Span] = []

    def program(_: ModTracker) -> None:
        with tracer.start_as_current_span("job") as job:
            training.iterate()
            training.backward()
            with tracer.start_as_current_span("inner") as inner, region("more"):
                training.model(X)
            training.step()
        spans.extend([job, inner])

    found = seen(program)
    job, inner = (span.get_span_context() for span in spans)
    assert [step.parent.span_id for step in found.steps] == [job.span_id] * 2
    assert found.inside == [ONE, ONE]
    (more,) = (span for span in found.spans if span.name == "forward more")
    assert more.parent.span_id == inner.span_id


def test_threads_have_their_own_steps() -> None:
    """Two trainings at once do not mix."""
    turn = threading.Barrier(2, timeout=30)

    def train() -> None:
        training = Training()
        for _ in range(2):
            turn.wait()
            training.backward()
            turn.wait()
            training.step()

    def program(_: ModTracker) -> None:
        threads = [threading.Thread(target=train) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    found = seen(program)
    for names in found.inside:
        assert names.count("backward") <= 2
    assert sum(names.count(ONE[2]) for names in found.inside) == 4
    assert not found.outside


def test_a_step_that_raised() -> None:
    """The exception is on what it left; the step goes on, for the program may try again."""
    training = Training()

    def program(_: ModTracker) -> None:
        with pytest.raises(RuntimeError):
            training.model(torch.ones(1, 3))
        training.iterate(2)

    found = seen(program)
    assert found.inside == [[ONE[0], *ONE], ONE]
    assert "forward Sequential!" in found.tree


def test_the_last_step_is_told_at_the_end() -> None:
    """A step that is under way when the tracker is left ends with it."""
    training = Training()

    def program(_: ModTracker) -> None:
        training.iterate()
        training.backward()

    found = seen(program)
    assert found.inside == [ONE, ONE[:2]]
    assert THREADS.state.progress.open is None
    assert CORE.steps is None


def test_a_loop_without_optimizers_is_bounded(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An optimizer that is not seen to step (a compiled one) makes no endless step."""
    monkeypatch.setattr("otel_modtrack.stepping._MOST_REGIONS", 20)
    training = Training()

    def program(_: ModTracker) -> None:
        for _number in range(10):
            training.backward()
        training.step()
        training.iterate()

    found = seen(program)
    assert found.inside[0] == ONE[:2] * 3
    assert found.inside[-1] == ONE
    assert found.outside.count(ONE[0]) == 7
    assert "use tracker.step()" in caplog.text
