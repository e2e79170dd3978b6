"""What a policy keeps, what it folds, and that the sums stay exact."""

from __future__ import annotations

import os
import signal
import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from opentelemetry import trace
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from torch import nn

from otel_modtrack import ConfigurationError, ModTracker, Policy, regions, spans
from otel_modtrack.core import CORE
from otel_modtrack.saying import span_name
from otel_modtrack.shaping import choose
from otel_modtrack.testing.fixed import fixed
from tests.conftest import patched_state
from tests.tracker.stepped import Seen, Training, X, seen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from otel_modtrack.regions import Region

ONE = ["forward Sequential", "backward", "optimizer_step SGD"]
TORCHS = nn.Module._wrapped_call_impl.__code__


def numbers(policy: Policy, steps: int = 7, **options: Any) -> list[int]:
    """Which steps of a plain loop are recorded."""
    training = Training()
    return seen(lambda _: training.iterate(steps), policy, **options).numbers


def explicit(policy: Policy, steps: int = 7) -> list[int]:
    """The same, of steps that are marked."""
    training = Training()

    def program(tracker: ModTracker) -> None:
        for number in range(steps):
            with tracker.step(number):
                training.iterate()

    return seen(program, policy).numbers


# -- which steps ----------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [numbers, explicit])
@pytest.mark.parametrize(
    ("policy", "recorded"),
    [
        (Policy(), [0, 1, 2, 3, 4, 5, 6]),
        (Policy(every=3), [0, 3, 6]),
        (Policy(every=0), []),
        (Policy(first=2), [0, 1]),
        (Policy(first=2, every=4), [0, 1, 4]),
        (Policy(ranks="first"), [0, 1, 2, 3, 4, 5, 6]),
        (Policy(ranks=[1, 2]), []),
    ],
)
def test_which_steps(
    how: Callable[[Policy], list[int]], policy: Policy, recorded: list[int]
) -> None:
    """Marked or recognised, the same steps are recorded."""
    assert how(policy) == recorded


@pytest.mark.parametrize(
    ("ranks", "recording"),
    [("all", [0, 1, 2, 3]), ("first", [0]), ("every 2", [0, 2]), ([3, 1], [1, 3])],
)
def test_which_ranks(monkeypatch: pytest.MonkeyPatch, ranks: Any, recording: list[int]) -> None:
    """The launcher's rank decides, before torch.distributed is there."""
    found = []
    for rank in range(4):
        monkeypatch.setenv("RANK", str(rank))
        if numbers(Policy(ranks=ranks), 1):
            found.append(rank)
    assert found == recording


def test_on_demand() -> None:
    """`record_next` and a signal ask for the next steps, whatever the policy says."""
    training = Training()
    before = signal.getsignal(signal.SIGUSR2)
    heard: list[int] = []

    def program(tracker: ModTracker) -> None:
        training.iterate(2)
        training.backward()
        tracker.record_next(2)
        training.step()
        training.iterate(4)
        os.kill(os.getpid(), signal.SIGUSR2)
        training.iterate(3)

    signal.signal(signal.SIGUSR2, lambda number, _: heard.append(number))
    try:
        found = seen(program, Policy(every=0, signal="SIGUSR2"))
        assert found.numbers == [3, 4, 8]  # 7 had begun, unseen, when the signal came
        assert found.inside == [ONE] * 3
        assert heard == [signal.SIGUSR2]
    finally:
        signal.signal(signal.SIGUSR2, before)


def test_no_signal_outside_of_the_main_thread(caplog: pytest.LogCaptureFixture) -> None:
    """There handlers cannot be installed, and that is said."""
    policy = Policy(signal="SIGUSR2")
    thread = threading.Thread(target=lambda: numbers(policy, 1))
    thread.start()
    thread.join()
    assert "record_next()" in caplog.text


@pytest.mark.parametrize("how", ["auto", "explicit"])
def test_unrecorded_steps_run_torchs_own_code(how: str) -> None:
    """Between recorded steps the wrapper is off, not idle; in them it is on."""
    training = Training()
    ran: list[bool] = []
    training.model[0].register_forward_hook(
        lambda *_: ran.append(nn.Module._wrapped_call_impl.__code__ is TORCHS)
    )

    def program(tracker: ModTracker) -> None:
        for number in range(5):
            if how == "auto":
                training.iterate()
            else:
                with tracker.step(number):
                    training.iterate()
            training.evaluate()

    found = seen(program, Policy(every=2), steps=how)
    assert found.numbers == [0, 2, 4]
    assert not found.outside
    steps, evaluations = ran[::2], ran[1::2]
    assert steps == [False, True] * 2 + [False]
    if how == "explicit":
        assert evaluations == [True] * 5
    else:
        assert evaluations == [True, False] * 2 + [True]


def test_what_needs_every_call_keeps_it_on() -> None:
    """Hooks of the user's are called in steps that are not recorded, too."""
    training = Training()
    called: list[Any] = []

    def program(tracker: ModTracker) -> None:
        tracker.register_user_hooks(pre_fw_hook=lambda module, _: called.append(module))
        training.iterate(3)
        tracker.clear_user_hooks()

    assert seen(program, Policy(every=2)).numbers == [0, 2]
    assert called.count(training.model) == 3


def test_a_second_tracker_sees_everything() -> None:
    """While another tracker is on, nothing rests."""
    training = Training()
    names: list[set[str]] = []
    training.model[0].register_forward_hook(lambda *_: names.append(second.parents))
    second = ModTracker()

    def program(_: ModTracker) -> None:
        training.iterate()
        with second:
            assert CORE.on
            training.iterate(2)

    assert seen(program, Policy(every=0)).numbers == []
    assert names[-1] == {"Global", "Sequential", "Sequential.0"}


# -- which modules --------------------------------------------------------------------------------


class Block(nn.Module):
    """Two children, one of them with children."""

    def __init__(self) -> None:
        super().__init__()
        self.attn, self.mlp = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.mlp(self.attn(x))


class Net(nn.Module):
    """Two blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x

    def generate(self, x: torch.Tensor) -> torch.Tensor:
        """An entry point that is not ``__call__``."""
        return self(self(x))


@pytest.mark.parametrize(
    ("policy", "names"),
    [
        (Policy(depth=1), {"Net"}),
        (Policy(depth=3), {"Net", "Net.layers.0", "Net.layers.1"}),
        (Policy(modules=["*.attn"]), {"Net", "Net.layers.0.attn", "Net.layers.1.attn"}),
        (Policy(modules=["Net.layers.1*"], exclude=["*.mlp.*"]), {
            "Net", "Net.layers.1", "Net.layers.1.attn", "Net.layers.1.mlp",
        }),
        (Policy(types=["ReLU"]), {"Net", "Net.layers.0.mlp.1", "Net.layers.1.mlp.1"}),
    ],
)  # fmt: skip
def test_which_modules(policy: Policy, names: set[str]) -> None:
    """Modules that are left out are a part of what they run in, forward and backward."""
    net = Net()
    found = seen(lambda _: net(X).sum().backward(), policy)
    for phase in ("forward", "backward"):
        told = {
            span.attributes["modtrack.module.fqn"]
            for span in found.spans
            if span.attributes.get("modtrack.phase") == phase
        }
        assert told == names
    (root,) = (span for span in found.spans if span.name == "forward Net")
    assert all(
        span.parent is not None or span in (root, found.spans[-1]) or span.name == "backward"
        for span in found.spans
    )


def test_methods_are_regions() -> None:
    """Of classes that are there before the tracker, and of those made while it is on."""
    net = Net()
    original = Net.generate

    class Later(Net):
        def generate(self, x: torch.Tensor) -> torch.Tensor:
            return super().generate(x)

    def program(_: ModTracker) -> None:
        net(X)
        net.generate(X)
        Later().generate(X)

    found = seen(program, Policy(methods=["generate"], depth=1))
    names = [span.name for span in found.spans if span.parent is None]
    assert names == ["forward Net", "forward Net.generate", "forward Later.generate"]
    assert Net.generate is original
    assert "forward Net.generate" not in found.below(found.spans[-1])


def test_a_method_of_one_class() -> None:
    """``Net.generate`` is not ``Other.generate``."""

    class Other(Net):
        def generate(self, x: torch.Tensor) -> torch.Tensor:
            return self(x)

    found = seen(lambda _: Other().generate(X), Policy(methods=["Block.generate"], depth=1))
    assert [span.name for span in found.spans] == ["forward Other"]


# -- how many spans -------------------------------------------------------------------------------


def test_outliers() -> None:
    """A step that took long, or raised, is kept whole; of the others the step's span alone.

    The clock goes on by readings: a busy machine makes no step an outlier.
    """
    training = Training()

    def slow(*_: Any) -> None:
        for _ in range(1000):
            regions.clock()

    def fails(*_: Any) -> None:
        raise KeyError

    def program(tracker: ModTracker) -> None:
        for number in range(10):
            with tracker.step(number):
                if number == 7:
                    handle = training.model[0].register_forward_hook(slow)
                training.iterate()
                if number == 7:
                    handle.remove()
        training.model[0].register_forward_hook(fails)
        with pytest.raises(KeyError), tracker.step(10):
            training.iterate()

    with fixed([]):
        found = seen(program, Policy(outliers=20.0))
    assert found.numbers == list(range(11))
    assert [bool(names) for names in found.inside] == [n in (7, 10) for n in range(11)]
    outlier = [step.attributes.get("modtrack.step.outlier") for step in found.steps]
    assert outlier == [None] * 7 + [True] + [None] * 3
    assert found.steps[0].attributes["modtrack.spans.folded"] == 4 + (1 + 4) + 1


def test_outliers_beside_chosen_steps() -> None:
    """Steps that are named are kept whole, whatever they took."""
    training = Training()
    found = seen(lambda _: training.iterate(5), Policy(outliers=1000.0, every=2))
    assert [bool(names) for names in found.inside] == [True, False, True, False, True]


def test_what_the_program_has_seen_is_kept() -> None:
    """A span that attributes were set on is exported, with those around it."""
    training = Training()
    training.model[2].register_forward_hook(
        lambda *_: trace.get_current_span().set_attribute("mine", 1)
    )
    found = seen(lambda _: training.iterate(), Policy(outliers=5.0))
    (mine,) = (span for span in found.spans if "mine" in span.attributes)
    assert mine.name == "forward Sequential.*"
    assert found.inside == [["forward Sequential"]]
    assert found.steps[0].attributes["modtrack.spans.folded"] == (4 - 2) + (1 + 4) + 1


def test_links_lead_to_what_stands_for_it() -> None:
    """The forward that a backward belongs to may have been folded."""
    net = Net()

    def program(tracker: ModTracker) -> None:
        with tracker.step(0):
            net(X).sum().backward()

    found = seen(program, Policy(budget=16))
    ids = {span.context.span_id for span in found.spans}
    links = [link for span in found.spans for link in span.links]
    assert links
    assert all(link.context.span_id in ids for link in links)


def test_a_budget_is_a_traces() -> None:
    """Several calls in one trace share it; what is outermost is kept."""
    net = Net()
    provider = TracerProvider(shutdown_on_exit=False)
    exporter = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with (
        ModTracker(net, tracer_provider=provider, policy=Policy(budget=14)),
        provider.get_tracer("mine").start_as_current_span("request"),
        torch.no_grad(),
    ):
        for _ in range(4):
            net(X)
    found = Seen(exporter.get_finished_spans())
    (request,) = (span for span in found.spans if span.name == "request")
    calls = [span for span in found.spans if span.name == "forward Net"]
    assert found.below(request) == ["forward Net"] * 4
    folded = [call.attributes.get("modtrack.spans.folded", 0) for call in calls]
    assert folded == [0, 8, 10, 10]  # of 11 each: 14 are the first, and three of the second
    assert found.sums()["forward Net.layers.*.attn", "forward"][0] == 8


def test_the_deepest_and_shortest_go_first() -> None:
    """Nothing is folded while something deeper is left."""
    net = Net()
    found = seen(lambda _: net(X), Policy(budget=7))
    # Net, two blocks, attn and mlp in each: 7; the four below the mlps are folded.
    assert len(found.spans) == 7
    folded = [s for s in found.spans if "modtrack.spans.folded" in s.attributes]
    assert {s.name for s in folded} == {
        "forward Net",
        "forward Net.layers.*",
        "forward Net.layers.*.mlp",
    }


def test_events_find_room() -> None:
    """A provider with few events gets few summaries, and the sums all the same."""
    provider = TracerProvider(span_limits=SpanLimits(max_events=4), shutdown_on_exit=False)
    exporter = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    policy = Policy(outliers=9.0)
    with ModTracker(tracer_provider=provider, policy=policy) as tracker, tracker.step(0):
        net(X).sum().backward()
        optimizer.step()
    (step,) = exporter.get_finished_spans()
    events = [event.attributes for event in step.events]
    assert len(events) == 2
    assert step.dropped_events == 0
    assert "modtrack.folded.name" not in events[1] or "modtrack.folded.name" not in events[0]
    assert sum(event["modtrack.folded.count"] for event in events) == 11 + 1 + 11 + 1
    assert step.attributes["modtrack.spans.folded"] == 24


@pytest.fixture
def whole(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Region]]:
    """All regions that there were, before anything was folded."""
    regions: list[Region] = []

    def watched(unit: Any, some: list[Region], *rest: Any) -> list[Region]:
        regions.extend(some)
        return choose(unit, some, *rest)

    monkeypatch.setattr(spans, "choose", watched)
    return regions


def sums(regions: list[Region]) -> dict[tuple[str, str], tuple[int, int, int]]:
    """Count, total and longest by span name and phase; the straightforward way."""
    found: dict[tuple[str, str], tuple[int, int, int]] = {}
    for region in regions:
        name = span_name(region.subject, region.phase)
        phase = region.phase if " " in name and not name.startswith("optimizer") else ""
        count, total, most = found.get((name, phase), (0, 0, 0))
        took = region.end_ns - region.start_ns
        found[name, phase] = (count + 1, total + took, max(most, took))
    return found


POLICIES = st.builds(
    Policy,
    every=st.one_of(st.none(), st.integers(0, 3)),
    min_duration=st.sampled_from([0.0, 2e-5, 1e-4, 1.0]),
    outliers=st.one_of(st.none(), st.floats(1.0, 3.0)),
    budget=st.integers(0, 40),
    depth=st.one_of(st.none(), st.integers(1, 4)),
)


@settings(max_examples=60)
@given(policy=POLICIES, calls=st.lists(st.integers(1, 3), min_size=1, max_size=6), data=st.data())
def test_the_sums_stay_exact(
    whole: list[Region], policy: Policy, calls: list[int], data: st.DataObject
) -> None:
    """Count, total and longest duration per template, to the nanosecond, whatever is folded."""
    whole.clear()
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    marked = data.draw(st.booleans())
    asked = data.draw(st.sampled_from(["", "layers.0.attn", "layers.1"]))
    if asked:
        net.get_submodule(asked).register_forward_hook(
            lambda *_: trace.get_current_span().set_attribute("mine", 1)
        )

    def program(tracker: ModTracker) -> None:
        for number, times in enumerate(calls):
            if marked:
                with tracker.step(number):
                    iterate(times)
            else:
                iterate(times)
            with torch.no_grad():
                net(X)

    def iterate(times: int) -> None:
        for _ in range(times):
            net(X).sum().backward()
        optimizer.step()

    found = seen(program, policy)
    expected = sums(whole)
    assert found.sums() == expected
    inside = sum(
        span.attributes.get("modtrack.spans.folded", 0)
        for span in found.spans
        if span.name == "train_step" or (span.parent is None)
    )
    if marked or not policy.budget:
        recorded = sum(1 for span in found.spans if span.name != "train_step")
        assert inside + recorded == len(whole)
    ids = {span.context.span_id for span in found.spans}
    for span in found.spans:
        assert span.parent is None or span.parent.span_id in ids
        assert all(link.context.span_id in ids for link in span.links)


# -- what cannot be used --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"every": -1}, ValueError, "Policy(every=-1): a whole number of 0 or more is wanted"),
        ({"every": 1.5}, TypeError, "Policy(every=...): a whole number is wanted, not float"),
        ({"depth": 0}, ValueError, "Policy(depth=0): a whole number of 1 or more is wanted"),
        ({"outliers": 0.5}, ValueError, "Policy(outliers=0.5): a number of 1 or more is wanted"),
        ({"min_duration": "1"}, TypeError, "Policy(min_duration=...): a number is wanted, not str"),
        ({"modules": "attn"}, TypeError, ("Policy(modules=...): a list of strings"
         " is wanted, not 'attn'")),
        ({"methods": ["a b"]}, ValueError, ("Policy(methods=...): 'a b' is no name"
         " of a method, such as 'generate'")),
        ({"ranks": "some"}, ValueError, ("Policy(ranks='some'): ranks is 'all', 'first',"
         " 'every N' or a list of ranks")),
        ({"ranks": [-1]}, ValueError, ("Policy(ranks=...): ranks is 'all', 'first',"
         " 'every N' or a list of ranks; -1 is no rank")),
        ({"signal": "SIGNONE"}, ValueError, ("Policy(signal=...): 'SIGNONE' is no"
         " signal here; name one, as 'SIGUSR2'")),
    ],
)  # fmt: skip
def test_arguments_that_cannot_be_used(
    options: dict[str, Any], kind: type[Exception], message: str
) -> None:
    """One sentence that names the argument."""
    with pytest.raises(kind) as raised:
        Policy(**options)
    assert str(raised.value) == message


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("EVERY", "often"), ("FIRST", "-1"), ("RANKS", "0,x"), ("RANKS", "some"), ("DEPTH", "0"),
        ("METHODS", "a b"), ("MIN_DURATION", "-1"), ("OUTLIERS", "0.5"), ("BUDGET", "x"),
        ("SIGNAL", "SIGNONE"), ("SIGNAL_STEPS", "0"), ("STEPS", "maybe"), ("METRICS", "1"),
        ("COLLECTIVES", "all"),
    ],
)  # fmt: skip
def test_variables_that_cannot_be_used(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    """One sentence that names the variable and the mend."""
    name = f"OTEL_PYTHON_MODTRACK_{variable}"
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigurationError) as raised:
        ModTracker()
    assert str(raised.value).startswith(f"{name}={value} cannot be used; set it to ")
    assert str(raised.value).endswith(", or unset it")


def test_arguments_win_over_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment speaks where no argument does."""
    monkeypatch.setenv("OTEL_PYTHON_MODTRACK_EVERY", "3")
    training = Training()
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    for policy, recorded in ((None, [0, 3]), (Policy(every=2), [0, 2])):
        exporter.clear()
        with ModTracker(tracer_provider=provider, policy=policy):
            training.iterate(4)
        assert Seen(exporter.get_finished_spans()).numbers == recorded


def test_record_next_takes_a_number() -> None:
    """One sentence that names it."""
    tracker = ModTracker()
    with pytest.raises(TypeError, match=r"record_next\(steps\): an integer is wanted, not str"):
        tracker.record_next("2")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"record_next\(0\): 1 or more steps are wanted"):
        tracker.record_next(0)


def test_nothing_is_left_of_a_rest() -> None:
    """A tracker that is left while it rests leaves nothing."""
    before = patched_state()
    provider = TracerProvider(shutdown_on_exit=False)
    with ModTracker(tracer_provider=provider, policy=Policy(every=0), steps="explicit"):
        assert CORE.resting
        assert not CORE.on
    assert patched_state() == before
    assert not CORE.resting
