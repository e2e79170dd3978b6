"""Choosing spans, and what can be asserted of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

import otel_modtrack
from otel_modtrack.usage import UsageError
from tests.testing.models import Net, train

if TYPE_CHECKING:
    from otel_modtrack.testing import Capture, Spans


def names(spans: Spans) -> list[str]:
    """Phase and fqn of each."""
    return [
        f"{s.attributes['modtrack.phase']} {s.attributes['modtrack.module.fqn']}" for s in spans
    ]


@pytest.fixture
def trained(modtrack: Capture) -> Capture:
    """Two steps of `Net`, with an optimizer and a span of the user's own in each."""
    net = Net()
    optimizer = torch.optim.SGD(net.parameters())
    tracer = modtrack.provider.get_tracer("mine")
    with modtrack.track(net) as tracker:
        for number in (4, 5):
            with tracker.step(number):
                train(net)
                optimizer.step()
                with tracer.start_as_current_span("log"):
                    pass
    return modtrack


def test_by_fqn(trained: Capture) -> None:
    """Exactly, or by a pattern, in which a star stands for anything."""
    one_step = trained.select(step=4)
    assert names(one_step.select("Net.head")) == ["forward Net.head", "backward Net.head"]
    assert names(one_step.select("Net.encoder.*", phase="forward")) == [
        "forward Net.encoder.0",
        "forward Net.encoder.1",
    ]
    assert len(one_step.select("Net*")) == 10
    assert not one_step.select("encoder")


def test_a_star_alone(trained: Capture) -> None:
    """It is everything that has an fqn, not steps, optimizers, runs of the engine, own spans."""
    assert len(trained.select("*")) == 20
    trained.assert_budget("*", spans=20)
    trained.select(phase="other").select("*").assert_count(0)


def test_an_fqn_that_looks_like_a_pattern(modtrack: Capture) -> None:
    """It is found under its own name."""
    with modtrack.track(), otel_modtrack.region("loss[0]"), otel_modtrack.region("part?"):
        pass
    modtrack.select("loss[[]0]").assert_count(1)
    modtrack.select("loss[0]").assert_count(1)
    modtrack.assert_budget("loss[0]", spans=2)


@pytest.mark.parametrize(
    ("phase", "count"),
    [
        ("forward", 5),
        ("backward", 6),
        ("recompute", 0),
        ("optimizer", 1),
        ("step", 1),
        ("other", 1),
    ],
)
def test_by_phase(trained: Capture, phase: str, count: int) -> None:
    """Five modules; their backwards and the engine's run; one optimizer, step and own span."""
    trained.select(phase=phase, step=5).assert_count(count)


def test_by_template_type_and_name(trained: Capture) -> None:
    """A template is the layers alone; a type is a class; a name is any span's."""
    trained.select(template="Net.encoder.*").assert_count(8)
    trained.select(type="Linear", phase="forward", step=4).assert_count(3)
    trained.select(name="optimizer_step SGD").assert_count(2)
    assert trained.select(name="log", step=5).one().name == "log"


def test_within_a_module(trained: Capture) -> None:
    """The module and all that is in it."""
    trained.select(within="Net.encoder", phase="backward", step=4).tree.assert_equals("""
        backward Net.encoder
          backward Net.encoder.1
          backward Net.encoder.0
    """)


def test_sequence(trained: Capture) -> None:
    """Spans are the SDK's, oldest first; a slice is spans again."""
    found = trained.select("Net.head")
    assert found[0].start_time < found[1].start_time < found[-1].start_time
    assert names(found[1:3]) == ["backward Net.head", "forward Net.head"]
    assert found[1:3].select(phase="forward").one() is found[2]
    assert found.durations_ns == [span.end_time - span.start_time for span in found]
    assert all(duration > 0 for duration in found.durations_ns)


def test_one(trained: Capture) -> None:
    """Where there are several, or none, all are named."""
    with pytest.raises(AssertionError) as raised:
        trained.select("Net.head").one()
    assert str(raised.value) == (
        "expected 1, found <4 spans: forward Net.head x2, backward Net.head x2>"
    )
    with pytest.raises(AssertionError, match=r"^expected 1, found <0 spans>$"):
        trained.select("Net.tail").one()


def test_counts(trained: Capture) -> None:
    """Exactly, or at most; of many spans the first six are named."""
    trained.select("Net.head").assert_count(4)
    trained.select("Net.head").assert_at_most(4)
    with pytest.raises(AssertionError) as raised:
        trained.select(step=4).assert_at_most(3)
    assert str(raised.value) == (
        "expected 3 at most, found <14 spans: train_step 4, forward Net, forward Net.encoder,"
        " forward Net.encoder.0, forward Net.encoder.1, forward Net.head, and 8 more>"
    )


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (
            {"phase": "forwards"},
            "phase='forwards': the phases are forward, backward, recompute, optimizer, step, other",
        ),
        ({"step": 6}, "step=6: the steps there are 4, 5"),
        (
            {"within": "tail"},
            "no module that ran fits 'tail': there are Net, Net.encoder, Net.encoder.*, Net.head",
        ),
    ],
)
def test_what_there_is_not(trained: Capture, how: dict[str, object], message: str) -> None:
    """A misspelt phase, step or module would make an assertion pass: it says what there is."""
    with pytest.raises(UsageError) as raised:
        trained.select(**how)
    assert str(raised.value) == message


def test_no_steps_and_no_modules(modtrack: Capture) -> None:
    """Nor is there anything to name then."""
    with modtrack.track():
        pass
    with pytest.raises(UsageError, match=r"^step=0: the steps there are none$"):
        modtrack.select(step=0)
    with pytest.raises(UsageError, match=r"^no module that ran fits 'Net': there are none$"):
        modtrack.assert_budget("Net", spans=1)


def test_budget(trained: Capture) -> None:
    """What is within it passes; what is over it is named."""
    trained.assert_budget(spans=28)
    trained.assert_budget("Net.encoder", phase="forward", spans=6, collectives=0, size_bytes=0)
    with pytest.raises(AssertionError) as raised:
        trained.assert_budget("Net.head", phase="forward", spans=1)
    assert str(raised.value) == (
        "over the budget in forward of Net.head: spans=1, found <2 spans: forward Net.head x2>"
    )
    with pytest.raises(UsageError) as refused:
        trained.assert_budget("Net.head")
    assert str(refused.value) == (
        "assert_budget() wants a limit: spans=, collectives= or size_bytes="
    )


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"spans": "3"}, "assert_budget(spans=...) is a whole number, 0 or more, not '3'"),
        ({"spans": -1}, "assert_budget(spans=...) is a whole number, 0 or more, not -1"),
        (
            {"size_bytes": 0.5},
            "assert_budget(size_bytes=...) is a whole number, 0 or more, not 0.5",
        ),
        (
            {"phase": "step", "collectives": 0},
            "phase='step': a budget is for forward, backward, recompute, optimizer, or for all",
        ),
        ({"fqn": nn.ReLU(), "spans": 0}, "fqn is a text, not ReLU"),
    ],
)
def test_a_budget_that_is_none(trained: Capture, how: dict[str, Any], message: str) -> None:
    """One sentence says what a budget is."""
    with pytest.raises(UsageError) as raised:
        trained.assert_budget(**how)
    assert str(raised.value) == message


@pytest.mark.parametrize("number", ["3", -1, None])
def test_a_count_that_is_none(trained: Capture, number: Any) -> None:
    """It is refused, and not compared."""
    for use in (trained.spans.assert_count, trained.spans.assert_at_most):
        with pytest.raises(UsageError) as raised:
            use(number)
        assert str(raised.value) == (
            f"{use.__name__}() wants a whole number, 0 or more, not {number!r}"
        )


def test_a_module_in_place_of_its_name(trained: Capture) -> None:
    """Names are wanted."""
    for use in (trained.select, trained.collectives.select):
        with pytest.raises(UsageError, match=r"^fqn is a text, not ReLU$"):
            use(nn.ReLU())


def test_many_steps(modtrack: Capture) -> None:
    """A message names twenty of them."""
    with modtrack.track() as tracker:
        for number in range(22):
            with tracker.step(number):
                pass
    with pytest.raises(UsageError, match=r"the steps there are 0, 1, .*, 19, and 2 more$"):
        modtrack.select(step=22)


def test_two_models(modtrack: Capture) -> None:
    """Models that are tracked one in the other have trees of their own."""
    first, second = nn.Linear(2, 2), Net()
    with modtrack.track(first), modtrack.track(second):
        train(first)
        train(second)
    modtrack.select("Linear").assert_count(2)
    modtrack.select("Net").assert_count(2)
    with modtrack.track(first):
        train(first)
    modtrack.select("Linear").assert_count(4)
