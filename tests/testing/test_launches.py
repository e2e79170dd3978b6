"""Assertions on collectives."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore

from otel_modtrack import ModTracker
from otel_modtrack.usage import UsageError
from tests.testing.models import Net, Reducing, X, train

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_modtrack.testing import Capture


@pytest.fixture
def group() -> Iterator[None]:
    """Two ranks, of which only this one is there; nothing is sent."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield
    dist.destroy_process_group()


@pytest.fixture
def reduced(modtrack: Capture, group: None) -> Capture:
    """A forward and a backward of `Reducing`, and a barrier outside of it."""
    model = Reducing()
    with modtrack.track(model):
        train(model)
        dist.barrier()
    return modtrack


def test_counts_and_bytes(reduced: Capture) -> None:
    """Twice 32 bytes and 16 are reduced; 4 are broadcast in the backward; a barrier has none."""
    found = reduced.collectives
    assert (found.total, found.size) == (5, 84)
    assert found.by_operation() == {"all_reduce": (3, 80), "broadcast": (1, 4), "barrier": (1, 0)}
    found.assert_count(5)
    found.assert_at_most(5)
    found.assert_size(84)
    found.select(operation="all_reduce").assert_size(80)
    found.select(phase="backward").assert_count(1)
    found.select(phase="outside").assert_count(1)
    found.select(group="0").assert_count(5)


def test_modules(reduced: Capture) -> None:
    """What runs inside a module counts for it, too; patterns fit as for spans."""
    found = reduced.collectives
    assert found.select("Reducing", phase="forward").size == 80
    assert found.select("Reducing.inner", phase="forward").size == 16
    assert found.select("Reducing.*", operation="all_reduce").total == 1
    assert found.select("Reducing").select(operation="broadcast").total == 1
    assert found.select("Net").total == 0


def test_failures_say_where(reduced: Capture) -> None:
    """Operation, count, bytes, phase and module."""
    with pytest.raises(AssertionError) as raised:
        reduced.collectives.select(phase="forward").assert_count(0)
    assert str(raised.value) == (
        "expected 0, found <3 collectives: all_reduce x2 64 B in forward Reducing,"
        " all_reduce 16 B in forward Reducing.inner>"
    )
    with pytest.raises(AssertionError, match=r"^expected 1 at most, found <3 collectives: all_r"):
        reduced.collectives.select(phase="forward").assert_at_most(1)
    with pytest.raises(AssertionError) as sized:
        reduced.collectives.select(operation="barrier").assert_size(8)
    assert str(sized.value) == ("expected 8 bytes, found 0: <1 collective: barrier 0 B in outside>")


def test_budget(reduced: Capture) -> None:
    """Collectives and bytes, in a phase and in a module, all that is over it at once."""
    reduced.assert_budget(collectives=5, size_bytes=84)
    reduced.assert_budget("Reducing.inner", phase="forward", collectives=1, size_bytes=16)
    with pytest.raises(AssertionError) as raised:
        reduced.assert_budget(
            "Reducing.inner", phase="forward", spans=1, collectives=0, size_bytes=15
        )
    assert str(raised.value) == (
        "over the budget in forward of Reducing.inner:"
        " spans=1, found <2 spans: forward Reducing.inner, forward Reducing.inner.layer>;"
        " collectives=0, found <1 collective: all_reduce 16 B in forward Reducing.inner>;"
        " size_bytes=15, found 16: <1 collective: all_reduce 16 B in forward Reducing.inner>"
    )


def test_in_the_tree(reduced: Capture) -> None:
    """On demand a line ends with what its span launched."""
    reduced.select(phase="forward").tree.assert_equals(
        """
        forward Reducing  all_reduce x2 64 B
          forward Reducing.inner  all_reduce 16 B
            forward Reducing.inner.layer
        """,
        collectives=True,
    )


def test_of_several_trackers(modtrack: Capture, group: None) -> None:
    """A collective counts once, however many trackers are on."""
    with modtrack.track(), modtrack.track():
        dist.all_reduce(torch.ones(2))
    with modtrack.track():
        dist.all_reduce(torch.ones(2))
    assert modtrack.collectives.size == 16
    modtrack.clear()
    with modtrack.track():
        dist.all_reduce(torch.ones(2))
    assert modtrack.collectives.size == 8


def test_an_unknown_phase(reduced: Capture) -> None:
    """It is named, with those that there are."""
    with pytest.raises(UsageError) as raised:
        reduced.collectives.select(phase="forwards")
    assert str(raised.value) == (
        "phase='forwards': the phases are forward, backward, recompute, optimizer, outside"
    )


def test_not_looked_at(modtrack: Capture) -> None:
    """No collectives where nobody looked would be a test that always passes."""
    with modtrack.track(collectives="off"):
        nn.Linear(2, 2)(X)
    with pytest.raises(UsageError) as raised:
        modtrack.collectives.assert_count(0)
    assert str(raised.value) == (
        "modtrack.collectives: they were not looked at; leave collectives='off' out of the tracker"
    )


def test_not_looked_at_by_the_users_tracker(modtrack: Capture) -> None:
    """Whoever entered it; one that looks is enough."""
    with ModTracker(tracer_provider=modtrack.provider, collectives="off"):
        nn.Linear(2, 2)(X)
    with pytest.raises(UsageError, match=r"they were not looked at"):
        modtrack.collectives.assert_count(0)
    with ModTracker(tracer_provider=modtrack.provider):
        nn.Linear(2, 2)(X)
    modtrack.collectives.assert_count(0)


def test_no_module_ran(modtrack: Capture, group: None) -> None:
    """What the user's tracker saw outside of modules is counted."""
    with ModTracker(tracer_provider=modtrack.provider) as tracker:
        dist.all_reduce(torch.ones(2))
        modtrack.collectives.assert_size(8)
        modtrack.clear()
        with tracker.step(0):
            pass
        modtrack.collectives.assert_count(0)


def test_no_tracker_was_on(modtrack: Capture) -> None:
    """A span of the user's own is none of a tracker's: nobody has looked."""
    with modtrack.provider.get_tracer("mine").start_as_current_span("request"):
        nn.Linear(2, 2)(X)
    modtrack.tree.assert_equals("request")
    with pytest.raises(UsageError, match=r"^modtrack\.collectives: nothing was tracked yet"):
        modtrack.collectives.assert_count(0)
    with pytest.raises(UsageError, match=r"^modtrack\.collectives: nothing was tracked yet"):
        modtrack.assert_budget(phase="forward", collectives=0)


def test_while_a_step_is_open(modtrack: Capture, group: None) -> None:
    """Launches are counted at once, unlike spans."""
    with modtrack.track() as tracker, tracker.step(0):
        dist.all_reduce(torch.ones(2))
        assert modtrack.collectives.size == 8


@pytest.mark.parametrize("what", ["assert_count", "assert_at_most", "assert_size"])
@pytest.mark.parametrize("number", ["1", -1, 1.5])
def test_what_is_no_number(modtrack: Capture, what: str, number: object) -> None:
    """It is refused, and not compared."""
    with modtrack.track():
        pass
    with pytest.raises(UsageError) as raised:
        getattr(modtrack.collectives, what)(number)
    assert str(raised.value) == f"{what}() wants a whole number, 0 or more, not {number!r}"


def test_none(modtrack: Capture) -> None:
    """There are none where there is no process group."""
    with modtrack.track():
        train(Net())
    assert modtrack.collectives.total == 0
    assert repr(modtrack.collectives) == "<0 collectives>"
    assert "Net" in modtrack.collectives.table(parameters=True)


def test_many_places(modtrack: Capture, group: None) -> None:
    """A message names six places and counts the rest."""
    model = nn.Sequential(*[Reducing() for _ in range(4)])
    with modtrack.track(model):
        model(X)
    assert repr(modtrack.collectives).endswith(
        ", all_reduce 16 B in forward Sequential.2.inner, and 2 more>"
    )
