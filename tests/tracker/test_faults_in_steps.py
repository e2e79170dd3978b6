"""What goes wrong around steps and policies: faults of ours, signals, misuse, odd training loops."""  # noqa: E501

# ruff: noqa: D101, D103, D106 - the names of small programs say what they are

from __future__ import annotations

import copy
import gc
import inspect
import itertools
import os
import pickle
import signal
import threading
import traceback
import tracemalloc
import weakref
from typing import TYPE_CHECKING, Any

import pytest
import torch
from opentelemetry import context as context_api
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset, dataloader

from otel_modtrack import ModTracker, Policy, semconv
from otel_modtrack.core import CORE, THREADS
from otel_modtrack.testing.fixed import fixed
from tests.conftest import keep_from_collections, patched_state
from tests.heap import traced_bytes
from tests.tracker.stepped import Gan, Seen, Training, X, seen
from tests.tracker.test_faults import Injection, Interrupt, Late, clean_up, plain_handler

if TYPE_CHECKING:
    import logging
    import pathlib
    import types
    from collections.abc import Callable, Iterator

ONE = ["forward Sequential", "backward", "optimizer_step SGD"]
LOADED = ["data_load", *ONE]


def everything() -> dict[str, object]:
    """All that a tracker touches while it is on, with what sees steps."""
    codes = {
        function.__qualname__: function.__code__
        for function in (
            torch.optim.Optimizer.__init__,
            GradScaler.step,
            dataloader._BaseDataLoaderIter.__next__,
            nn.Module.__init__,
        )
    }
    return patched_state() | codes


@pytest.fixture(autouse=True, scope="module")
def quick_collections() -> None:
    """After a program that makes torch import what it imports late."""
    with ModTracker() as tracker:
        Whole().run(tracker)
    keep_from_collections()


@pytest.fixture(autouse=True)
def nothing_open() -> Iterator[None]:
    """After each test nothing is on or open; the next test is spared if something is."""
    context, before = context_api.get_current(), everything()
    gc.collect()  # the optimizers of other tests
    yield
    state = THREADS.state
    left = (state.running, state.stretch, state.unit, state.optimizer, state.progress.open)
    was_on, after = CORE.on or CORE.resting, everything()
    if was_on or left != (None,) * 5:
        clean_up()
        context_api.attach(context)
    assert left == (None,) * 5
    assert not was_on
    assert after == before


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Callable[[], list[logging.LogRecord]]:
    """What we have logged so far."""
    return lambda: [one for one in caplog.records if one.name == "otel_modtrack"]


def check_whole(found: Seen) -> None:
    """No span is without its parent, or linked to one that is missing; none ends before it began.

    Where no span of the test's own is active.
    """
    there = {span.context.span_id for span in found.spans}
    for span in found.spans:
        assert span.parent is None or span.parent.span_id in there, span.name
        assert all(link.context.span_id in there for link in span.links), span.name
        assert span.start_time <= span.end_time, span.name


# -- faults of ours -------------------------------------------------------------------------------


class Whole:
    """Everything that steps are made of: batches, scalers, two optimizers, evaluations, methods."""

    class Model(nn.Sequential):
        def extra(self, x: torch.Tensor) -> torch.Tensor:
            return self(x)  # type: ignore[no-any-return]

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = self.Model(nn.Linear(4, 4), nn.Linear(4, 1))
        self.often = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.seldom = torch.optim.SGD(self.model[0].parameters(), lr=0.01)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0)

    def run(self, tracker: ModTracker | None = None) -> list[Any]:
        """Six steps, evaluations, a step that is marked; all that is to be compared of it."""
        found: list[Any] = []
        for number in range(6):
            for x in DataLoader(torch.ones(2, 4), batch_size=2):
                loss = self.model.extra(x).sum()  # noqa: S610
                self.scaler.scale(loss).backward()
                self.scaler.step(self.often)
                if number % 3 == 0:
                    self.scaler.step(self.seldom)
                self.scaler.update()
                self.often.zero_grad()
            if tracker is not None and number % 2 == 0:
                with tracker.evaluation():
                    found.append(self.model(x).sum().item())
            else:
                found.append(self.model(x).sum().item())
        if tracker is None:
            self.last()
        else:
            with tracker.step(9):
                self.last()
        return [*found, *(one.tolist() for one in self.model.parameters())]

    def last(self) -> None:
        self.model(X).sum().backward()
        self.often.step()
        self.often.zero_grad()


POLICIES = {
    "folding": Policy(budget=4, methods=["extra"]),
    "resting": Policy(every=2, methods=["extra"]),
    "outliers": Policy(outliers=1.0),
}

INJECTED = [
    ("stepping.Stepper.includes", 0, "folding"),
    ("stepping.Stepper.includes", 3, "folding"),
    ("stepping.Stepper._begin", 0, "folding"),
    ("stepping.Stepper._begin", 1, "resting"),
    ("stepping.Stepper._trains", 0, "folding"),
    ("known_optimizers.KnownOptimizers.add", 0, "folding"),
    ("known_optimizers.KnownOptimizers._find", 0, "folding"),
    ("stepping.Stepper.optimizer_begins", 0, "folding"),
    ("stepping.Stepper.optimizer_begins", 3, "resting"),
    ("stepping.Stepper.optimizer_stepped", 0, "folding"),
    ("stepping.Stepper.optimizer_stepped", 1, "resting"),
    ("stepping.Stepper._learn", 0, "folding"),
    ("stepping.Stepper._split", 0, "folding"),
    ("stepping._taken_out", 0, "folding"),
    ("stepping.Stepper.settle", 0, "folding"),
    ("stepping.Stepper.settle", 3, "resting"),
    ("stepping.Stepper._finish", 0, "folding"),
    ("stepping.Stepper._finish", 1, "outliers"),
    ("stepping.Stepper._count", 0, "resting"),
    ("stepping.Stepper.give_way", 0, "folding"),
    ("steps.OpenStep.begin", 0, "folding"),
    ("steps.OpenStep.stop", 0, "outliers"),
    ("steps.OpenStep.end", 0, "folding"),
    ("steps.OpenStep.load", 0, "folding"),
    ("steps.Step._begin", 0, "folding"),
    ("steps.Evaluation._begin", 0, "folding"),
    ("loading._note", 0, "folding"),
    ("loading._note", 2, "resting"),
    ("loading.loaded", 0, "folding"),
    ("training.Progress.take_loads", 0, "folding"),
    ("training.Progress.add_load", 0, "folding"),
    ("core.ThreadState.suspend", 0, "folding"),
    ("core.ThreadState.resume", 0, "folding"),
    ("shaping.fold", 0, "folding"),
    ("spans.choose", 0, "folding"),
    ("spans.choose", 1, "outliers"),
    ("spans.SpanSink.tell_inner", 0, "outliers"),
    ("control.Control.begin", 0, "folding"),
    ("control.Control.begin", 1, "resting"),
    ("control.Control.is_outlier", 2, "outliers"),
    ("control.Control.passed", 0, "resting"),
    ("methods.MethodSwap._wrap", 0, "folding"),
    ("activation.Activation.rest", 1, "resting"),
    ("activation.Activation.wake", 1, "resting"),
    ("activation.Activation._see_calls", 1, "resting"),
]


@pytest.mark.parametrize(("where", "after", "policy"), INJECTED)
def test_our_faults_are_ours(  # noqa: PLR0913, PLR0917 - fixtures
    where: str,
    after: int,
    policy: str,
    monkeypatch: pytest.MonkeyPatch,
    provider: TracerProvider,
    exporter: InMemorySpanExporter,
    logged: Callable[[], list[logging.LogRecord]],
) -> None:
    """A fault of ours is logged once and switches tracking off; the results are the same."""
    untracked = Whole().run()
    before = everything()
    methods = everything().keys() - {
        nn.Module.__init__.__qualname__
    }  # the tracker's own, until it is left
    with monkeypatch.context() as patch:
        injection = Injection(patch, where, after)
        with ModTracker(tracer_provider=provider, policy=POLICIES[policy]) as tracker:
            assert Whole().run(tracker) == untracked
            assert injection.calls > after
            assert not CORE.on
            assert not CORE.resting
            now = everything()
            assert {key: now[key] for key in methods} == {key: before[key] for key in methods}
            (record,) = logged()
            assert "internal error" in record.getMessage()
            exporter.clear()
            injection.on = False
            assert Whole().run(tracker) == untracked
            assert not exporter.get_finished_spans()
    assert everything() == before
    assert seen(lambda _: Training().iterate(2)).inside == [ONE] * 2


@pytest.mark.parametrize(
    "where", ["stepping.Stepper.close", "steps.OpenStep.stop", "spans.SpanSink.flush"]
)
def test_our_faults_while_it_is_left(
    where: str,
    monkeypatch: pytest.MonkeyPatch,
    logged: Callable[[], list[logging.LogRecord]],
) -> None:
    """A step that is open when the tracker is left cannot be told: all is taken away all the same.

    Nothing is raised.
    """
    training = Training()
    before = everything()
    with monkeypatch.context() as patch:
        Injection(patch, where, 0)
        seen(lambda _: training.backward())
        assert everything() == before
        (record,) = logged()
    assert "internal error" in record.getMessage()


# -- signals --------------------------------------------------------------------------------------

_OF_STEPS = (
    "/activation.py",
    "/control.py",
    "/core.py",
    "/fold.py",
    "/loading.py",
    "/shaping.py",
    "/stepping.py",
    "/steps.py",
    "/watching.py",
)


class InterruptInSteps(Interrupt):
    """As `Interrupt`, in the files alone that are about steps."""

    def __call__(self, frame: types.FrameType, event: str, argument: Any) -> None:
        if frame.f_code.co_filename.endswith(_OF_STEPS):
            super().__call__(frame, event, argument)


class Batches:
    """Two steps an iteration, with a scaler; the weights stay as they are."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.0)
        self.start()

    def start(self) -> None:
        self.optimizer.zero_grad()
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0)

    def iterate(self) -> None:
        for x in DataLoader(torch.ones(4, 4), batch_size=2):
            self.scaler.scale(self.model(x).sum()).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.optimizer.zero_grad()


@pytest.mark.parametrize(
    ("kind", "policy", "stride"),
    [
        (Late, Policy(), 5),
        (KeyboardInterrupt, Policy(every=2), 5),
        (RuntimeError, Policy(min_duration=1e6), 11),
    ],
)
def test_interrupted_at_any_moment(
    kind: type[BaseException],
    policy: Policy,
    stride: int,
    provider: TracerProvider,
    exporter: InMemorySpanExporter,
) -> None:
    """A signal's exception reaches the user; the next iteration but one is clean, and the leaving.

    What was interrupted may be half told.
    """
    what = signal.SIGALRM
    before_all, before = signal.getsignal(what), everything()
    with ModTracker(tracer_provider=provider, policy=policy):
        Batches().iterate()
    clean = Seen(exporter.get_finished_spans()).inside[0]
    training, broken, hit, number = Batches(), [], 0, 1
    try:
        while True:
            error, caught = kind("late", 7), None
            with ModTracker(tracer_provider=provider, policy=policy):
                signal.signal(what, plain_handler(error))
                try:
                    with InterruptInSteps(what, number) as interrupt:
                        training.iterate()
                except kind as one:
                    caught, one.__traceback__ = one, None
                if interrupt.where is None:
                    break
                hit += 1
                training.start()
                training.iterate()
                exporter.clear()
                training.iterate()
                faults = ["off"] * (not CORE.on and not CORE.resting)
            found = Seen(exporter.get_finished_spans())
            state = THREADS.state
            left = (state.running, state.unit, state.optimizer, state.stretch, state.progress.open)
            faults += [
                *["swallowed"] * (caught is not error),
                *["not clean"] * (not found.inside or found.inside[-1] != clean),
                *["outside"] * bool(found.outside),
                *["open"] * (left != (None,) * 5),
                *["left"] * (everything() != before),
            ]
            if faults:
                broken.append((number, *interrupt.where, *faults))
                clean_up()
                training = Batches()
            number += stride
    finally:
        signal.signal(what, before_all)
    assert not broken, f"{len(broken)} of {hit}: {broken}"
    assert hit * stride > 80


# -- numbers --------------------------------------------------------------------------------------


def gan() -> Any:
    both = Gan()
    for _ in range(7):
        both.iterate()
    return both.g


def accumulation() -> Any:
    training = Training()
    for number in range(21):
        training.backward()
        if number % 3 == 2:
            training.step()
    return training.model


def skipping_scaler() -> Any:
    training, scaler = Training(), torch.amp.GradScaler("cpu", init_scale=2.0)
    for number in range(7):
        loss = training.model(X).sum() * (float("inf") if number % 4 == 1 else 1.0)
        scaler.scale(loss).backward()
        scaler.step(training.optimizer)
        scaler.update()
        training.optimizer.zero_grad()
    return training.model


def new_optimizer() -> Any:
    training = Training()
    training.iterate(3)
    training.optimizer = torch.optim.SGD(training.model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(training.optimizer, 2)
    for _ in range(4):
        training.iterate()
        schedule.step()
    return training.model


def back_to_back() -> Any:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    nn.init.ones_(model[0].weight)
    optimizers = [torch.optim.SGD([one], lr=0.1) for one in model.parameters()]
    for _ in range(7):
        model(X).sum().backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    return nn.Identity()


def lbfgs() -> Any:
    training = Training()
    optimizer = torch.optim.LBFGS(training.model.parameters(), max_iter=2)
    training.optimizer = None  # type: ignore[assignment]

    def closure() -> Any:
        optimizer.zero_grad()
        loss = training.model(X).square().sum()
        loss.backward()
        return loss.detach()

    for _ in range(7):
        optimizer.step(closure)
    return training.model


def in_the_backward() -> Any:
    training, handles = Training(), []
    for parameter in training.model.parameters():

        def hook(_: Any, optimizer: Any = torch.optim.SGD([parameter], lr=0.1)) -> None:  # noqa: B008
            optimizer.step()
            optimizer.zero_grad()

        handles.append(parameter.register_post_accumulate_grad_hook(hook))
    training.optimizer = None  # type: ignore[assignment]
    for _ in range(7):
        training.backward()
    for handle in handles:
        handle.remove()
    return training.model


def alternating() -> Any:
    one, other = Training(), Training()
    for _ in range(7):
        one.iterate()
        other.iterate()
    return one.model


def one_after_the_other() -> Any:
    Training().iterate(4)
    gc.collect()
    training = Training()
    training.iterate(3)
    return training.model


def copied() -> Any:
    training = Training()
    training.iterate(3)
    training.model, training.optimizer = copy.deepcopy((training.model, training.optimizer))
    training.iterate(4)
    return training.model


def unpickled() -> Any:
    training = Training()
    training.iterate(3)
    as_bytes = pickle.dumps((training.model, training.optimizer))
    training.model, training.optimizer = pickle.loads(as_bytes)  # noqa: S301
    training.iterate(4)
    return training.model


def scheduled() -> Any:
    training = Training()
    schedule = torch.optim.lr_scheduler.OneCycleLR(training.optimizer, 0.1, total_steps=8)
    for _ in range(7):
        training.iterate()
        schedule.step()
    return training.model


def checkpointed() -> Any:
    training = Training()
    for _ in range(7):
        checkpoint(training.model, X, use_reentrant=False).sum().backward()
        training.step()
    return training.model


def wrapped_optimizer() -> Any:
    class Outer(torch.optim.Optimizer):
        def __init__(self, inner: torch.optim.Optimizer) -> None:
            super().__init__(inner.param_groups, {})
            self.inner = inner

        def step(self, closure: Any = None) -> Any:
            return self.inner.step(closure)

    training = Training()
    training.optimizer = Outer(training.optimizer)  # type: ignore[assignment]
    training.iterate(7)
    return training.model


class Derived(torch.optim.SGD):
    """One that has a step of its own, around its base's: torch's hooks run twice."""

    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


def derived_optimizer() -> Any:
    training = Training()  # its optimizer has torch prepare SGD.step, too
    training.optimizer = Derived(training.model.parameters(), lr=0.1)
    training.iterate(7)
    return training.model


def zero_redundancy() -> Any:
    from torch.distributed.optim import ZeroRedundancyOptimizer  # noqa: PLC0415
    from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: PLC0415

    torch.distributed.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    try:
        training = Training()
        training.optimizer = ZeroRedundancyOptimizer(
            training.model.parameters(), optimizer_class=torch.optim.SGD, lr=0.1
        )
        training.iterate(7)
    finally:
        torch.distributed.destroy_process_group()
    return training.model


PROGRAMS = [
    gan,
    accumulation,
    skipping_scaler,
    new_optimizer,
    back_to_back,
    lbfgs,
    in_the_backward,
    alternating,
    one_after_the_other,
    copied,
    unpickled,
    scheduled,
    checkpointed,
    wrapped_optimizer,
    derived_optimizer,
    zero_redundancy,
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda one: one.__name__)
def test_numbers_do_not_depend_on_what_is_recorded(program: Callable[[], nn.Module]) -> None:
    """Seven iterations are seven steps, recorded or not; and the results are the same."""
    bare = [one.tolist() for one in program().parameters()]
    found = {}
    for every in (1, 3):
        gc.collect()
        models: list[nn.Module] = []
        found[every] = seen(lambda _, models=models: models.append(program()), Policy(every=every))
        assert [one.tolist() for one in models[0].parameters()] == bare
        check_whole(found[every])
    steps = 8 if program is alternating else 7  # its first is cut
    assert found[1].numbers == list(range(steps))
    assert found[3].numbers == list(range(0, steps, 3))
    assert found[3].inside == found[1].inside[::3]
    assert not found[3].outside


def test_two_optimizers_on_demand() -> None:
    """What is asked for is the step that it would be if all were recorded."""

    def program(tracker: ModTracker) -> None:
        both = Gan()
        for number in range(6):
            if number == 3:
                tracker.record_next(2)
            both.iterate()

    whole, asked = seen(program), seen(program, Policy(every=0))
    assert whole.numbers == list(range(6))
    # Whether the fourth has begun is not known at rest: it is counted, and the next are recorded.
    assert asked.numbers == [4, 5]
    assert asked.inside == whole.inside[4:6]


@pytest.mark.parametrize("every", [1, 3])
def test_training_in_an_evaluation(every: int) -> None:
    """It is a part of the evaluation, and no step: test-time training, a probe that is fitted."""
    training, probe = Training(), Training()

    def program(tracker: ModTracker) -> None:
        for _ in range(4):
            training.iterate()
            with tracker.evaluation():
                probe.iterate(2)

    found = seen(program, Policy(every=every))
    assert found.numbers == list(range(0, 4, every))
    assert found.inside == [ONE] * len(found.numbers)
    check_whole(found)


class Deep(torch.autograd.Function):
    """Runs something in its backward, so many engine runs deep; from 60 on in another thread."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, depth: int, run: Callable[[], None]) -> torch.Tensor:
        ctx.depth, ctx.run = depth, run
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        with torch.enable_grad():
            if ctx.depth:
                below = torch.ones(1, requires_grad=True)
                Deep.apply(below, ctx.depth - 1, ctx.run).sum().backward()
            else:
                ctx.run()
        return grad, None, None


def test_optimizers_in_a_backward_of_another_thread() -> None:
    """The engine runs hooks in a thread of its own, as for a GPU: the step ends all the same."""
    training, threads, handles = Training(), set(), []
    for parameter in training.model.parameters():

        def hook(_: Any, optimizer: Any = torch.optim.SGD([parameter], lr=0.1)) -> None:  # noqa: B008
            threads.add(threading.get_ident())
            optimizer.step()
            optimizer.zero_grad()

        handles.append(parameter.register_post_accumulate_grad_hook(hook))
    training.optimizer = None  # type: ignore[assignment]

    def program(_: ModTracker) -> None:
        for _number in range(3):
            loss = training.model(X).sum()
            top = torch.ones(1, requires_grad=True)
            Deep.apply(top, 65, loss.backward).sum().backward()

    found = seen(program)
    for handle in handles:
        handle.remove()
    assert threading.get_ident() not in threads
    assert found.numbers == [0, 1, 2]
    check_whole(found)


# -- exceptions of the user's ---------------------------------------------------------------------


class Broken(Dataset[Any]):
    def __len__(self) -> int:
        return 2

    def __getitem__(self, at: int) -> Any:
        raise KeyError(at)


class Misnamed(nn.Module):
    """Whose making fails in ``nn.Module.__init__``."""

    def __init__(self) -> None:
        super().__init__(1, key=2)

    def extra(self) -> None:
        """A region."""


def load() -> None:
    next(iter(DataLoader(Broken())))


def no_parameters() -> None:
    torch.optim.SGD([], lr=0.1)


def twice_scaled() -> None:
    training, scaler = Training(), torch.amp.GradScaler("cpu")
    scaler.scale(training.model(X).sum()).backward()
    scaler.step(training.optimizer)
    scaler.step(training.optimizer)


def failing_optimizer() -> None:
    training, scaler = Training(), torch.amp.GradScaler("cpu")
    scaler.scale(training.model(X).sum()).backward()
    training.optimizer.param_groups[0]["lr"] = "x"
    scaler.step(training.optimizer)


@pytest.mark.parametrize(
    "program",
    [load, no_parameters, twice_scaled, failing_optimizer, Misnamed],
    ids=lambda one: one.__name__,
)
@pytest.mark.parametrize("policy", POLICIES)
def test_tracebacks_are_as_ever(program: Callable[[], object], policy: str) -> None:
    """An error in torch's own functions that we stand in has the traceback that it always had."""

    def shown() -> list[Any]:
        with pytest.raises(Exception) as caught:  # noqa: PT011 - of several kinds
            program()
        error: BaseException | None = caught.value
        found: list[Any] = []
        while error is not None:
            found.append(
                (
                    type(error),
                    str(error),
                    str(
                        traceback.StackSummary.extract(
                            traceback.walk_tb(error.__traceback__)
                        ).format()
                    ),
                )
            )
            error = error.__cause__ or error.__context__
        return found

    bare, tracked = shown(), []
    seen(lambda _: tracked.extend(shown()), POLICIES[policy])
    assert tracked == bare


# -- steps and trackers that are nested oddly -----------------------------------------------------


def test_a_step_in_an_evaluation_in_a_step() -> None:
    """The inner ones end, the outer step is recorded to its end."""
    training = Training()

    def program(tracker: ModTracker) -> None:
        for number in range(4):
            with tracker.step(number):
                training.backward()
                with tracker.evaluation(), tracker.step(100 + number):
                    training.evaluate()
                training.step()

    found = seen(program, Policy(every=3))
    check_whole(found)
    outer = [names for names, n in zip(found.inside, found.numbers, strict=True) if n < 100]
    assert [[name for name in names if name in ONE] for names in outer] == [ONE] * 2


def test_steps_that_end_in_another_order() -> None:
    """What runs after two that were stopped in the order in which they began is told as ever."""
    training = Training()

    def program(tracker: ModTracker) -> None:
        context = context_api.get_current()
        one, other = tracker.step(0), tracker.step(1)
        with one, other:
            training.iterate()
            one.stop()
            other.stop()
        token = context_api.attach(context)  # which of the two is current is the user's affair
        training.iterate()
        context_api.detach(token)
        assert THREADS.state.unit is None

    token = context_api.attach(context_api.get_current())
    found = seen(program)
    context_api.detach(token)
    assert found.outside.count(ONE[0]) + sum(one.count(ONE[0]) for one in found.inside) == 2


@pytest.mark.parametrize("first_out", [0, 1])
@pytest.mark.parametrize(("every", "of_second"), [(1, 2), (2, 1), (0, 3)])
def test_two_trackers_in_any_order(first_out: int, every: int, of_second: int) -> None:
    """Each step is whole that is told as one, whoever is left first; nothing stays."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trackers = [
        ModTracker(tracer_provider=provider, policy=Policy(every=n)) for n in (every, of_second)
    ]
    training = Training()
    for tracker in trackers:
        tracker.__enter__()
        training.iterate(3)
        training.backward()
    for tracker in (trackers[first_out], trackers[1 - first_out]):
        tracker.__exit__(None, None, None)
        training.step()
        training.iterate(3)
    found = Seen(exporter.get_finished_spans())
    check_whole(found)
    assert not found.outside
    assert all(names[:2] == ONE[:2] or names == ONE[2:] for names in found.inside)


def test_a_tracker_in_an_open_step_of_another() -> None:
    """The step goes on, as the first tracker wants; the second takes over when that is left."""
    training = Training()
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with ModTracker(tracer_provider=provider) as _:
        training.backward()
        with ModTracker(tracer_provider=provider, policy=Policy(every=0), steps="explicit"):
            training.step()
            training.backward()
        training.step()
    found = Seen(exporter.get_finished_spans())
    assert found.numbers == [0, 1]
    assert found.inside == [ONE] * 2


def test_left_while_another_thread_runs() -> None:
    """A forward that is under way in another thread when the tracker is left ends in peace."""
    inside, go = threading.Event(), threading.Event()
    ended: list[str] = []

    class Slow(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            inside.set()
            go.wait(30)
            return x

    training = Training()
    training.model.append(Slow())

    def work() -> None:
        training.iterate()
        ended.append("ended")

    thread = threading.Thread(target=work)

    def program(_: ModTracker) -> None:
        thread.start()
        inside.wait(30)

    seen(program, Policy(every=2))
    go.set()
    thread.join()
    assert ended == ["ended"]
    assert seen(lambda _: training.iterate(), Policy(every=2)).numbers == [0]


def test_asked_for_from_other_threads() -> None:
    """Requests and signals in quick succession, with trainings in three threads."""
    over = threading.Event()
    errors: list[BaseException] = []
    before = signal.signal(signal.SIGUSR2, signal.SIG_IGN)

    def program(tracker: ModTracker) -> None:
        def ask() -> None:
            while not over.wait(0.0005):
                tracker.record_next(1)
                os.kill(os.getpid(), signal.SIGUSR2)

        def train() -> None:
            try:
                training = Training()
                for _ in range(25):
                    training.iterate()
                    training.evaluate()
            except BaseException as error:  # noqa: BLE001 - told in the main thread
                errors.append(error)

        asking = threading.Thread(target=ask)
        asking.start()
        threads = [threading.Thread(target=train) for _ in range(2)]
        for thread in threads:
            thread.start()
        train()
        for thread in threads:
            thread.join()
        over.set()
        asking.join()
        assert CORE.on or CORE.resting

    try:
        found = seen(program, Policy(every=0, signal="SIGUSR2"))
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert not errors
    assert found.numbers
    check_whole(found)


def test_forked_children() -> None:
    """A child that is forked in a step, or between two that are recorded, tells nothing."""
    training = Training()
    codes = []

    def program(tracker: ModTracker) -> None:
        for _ in range(2):
            training.backward()
            child = os.fork()
            if not child:
                code = 1
                try:
                    training.step()
                    with tracker.step(3), tracker.evaluation():
                        training.model(X)  # torch may not run a backward here
                    code = 2 * (CORE.on or CORE.resting)
                finally:
                    os._exit(code)
            codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            training.step()

    found = seen(program, Policy(every=2))
    assert codes == [0, 0]
    assert found.inside == [ONE]


# -- policies -------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", ["auto", "explicit"])
@pytest.mark.parametrize(
    "policy",
    [
        Policy(budget=1),
        Policy(budget=3),
        Policy(min_duration=1e6),
        Policy(outliers=1.0),
        Policy(outliers=1e6, budget=1),
        Policy(every=2),
        Policy(every=0),
        Policy(first=1, min_duration=1e-4),
        Policy(depth=1, budget=2),
        Policy(modules=["nothing"]),
        Policy(exclude=["*"], outliers=1.0),
    ],
)
def test_traces_are_whole(policy: Policy, steps: str) -> None:
    """Whatever is folded or left out: no parent is missing, and nothing that is linked to."""
    training = Training()

    def program(tracker: ModTracker) -> None:
        training.iterate(2)
        kept = training.model[0](X)
        training.iterate()
        kept.sum().backward()  # of a forward in another step
        training.step()
        with pytest.raises(RuntimeError):
            training.model(torch.ones(1, 3))
        training.model.eval()
        training.model(X).sum().backward()
        training.model.train()
        with tracker.evaluation():
            kept = training.model[0](X)
        kept.sum().backward()
        with tracker.step(50):
            training.iterate()
        kept = training.model(X)
        with tracker.step(51):
            kept.sum().backward()
        training.iterate()

    check_whole(seen(program, policy, steps=steps))


def test_methods_are_of_the_same_kind() -> None:
    """What asks whether a method is a coroutine function, or a generator's, is told what it was."""

    class Model(nn.Module):
        async def later(self) -> None: ...

        def some(self) -> Iterator[int]:
            yield 1

        async def several(self) -> Any:
            yield 1

    def kinds() -> list[bool]:
        model = Model()
        return [
            inspect.iscoroutinefunction(model.later),
            inspect.isgeneratorfunction(model.some),
            inspect.isasyncgenfunction(model.several),
        ]

    found: list[bool] = []
    seen(lambda _: found.extend(kinds()), Policy(methods=["later", "some", "several"]))
    assert found == kinds() == [True] * 3


def test_methods_that_are_none() -> None:
    """Properties, static and class methods, overridden and inherited ones; all is put back."""

    class Base(nn.Module):
        def over(self, x: int) -> int:
            return x + 1

    class Model(Base):
        def over(self, x: int) -> int:
            return super().over(x) + 1

        @property
        def known(self) -> int:
            return 3

        @staticmethod
        def fixed(x: int) -> int:
            return x

        @classmethod
        def named(cls) -> str:
            return cls.__name__

    names = ["over", "known", "fixed", "named", "train", "__repr__", "nothing", "Base.over"]
    before = dict(vars(Base)), dict(vars(Model))
    found: list[Any] = []

    def program(_: ModTracker) -> None:
        model = Model()
        found.extend([model.over(1), model.known, model.fixed(2), model.named(), model.train()])

    told = seen(program, Policy(methods=names))
    assert found[:4] == [3, 3, 2, "Model"]
    assert (dict(vars(Base)), dict(vars(Model))) == before
    assert told.outside == ["forward Model.over"]


# -- collectives ----------------------------------------------------------------------------------


@pytest.fixture
def group(tmp_path: pathlib.Path) -> Iterator[None]:
    """A process group of this process alone."""
    torch.distributed.init_process_group(
        "gloo", rank=0, world_size=1, init_method=f"file://{tmp_path}/store"
    )
    yield
    torch.distributed.destroy_process_group()


class Reducing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        torch.distributed.all_reduce(y.detach().clone())
        return y


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("steps", ["auto", "explicit"])
@pytest.mark.parametrize("mode", ["summed", "each"])
@pytest.mark.parametrize(
    "policy",
    [
        Policy(),
        Policy(budget=2),
        Policy(min_duration=1e6),
        Policy(outliers=1.0),
        Policy(depth=1),
        Policy(exclude=["*"], budget=1),
        Policy(every=2),
        Policy(every=0),
    ],
)
def test_collectives_are_counted_exactly(policy: Policy, mode: str, steps: str) -> None:
    """All that were launched, whatever is recorded; and a step's spans tell them once each."""
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Sequential(Reducing(), Reducing()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(X).sum().backward()  # DDP's own, at first
    optimizer.zero_grad()
    model(X).sum().backward()
    optimizer.zero_grad()
    totals: list[Any] = []

    def iterate() -> None:
        loss = model(X).sum()
        torch.distributed.all_reduce(torch.ones(5))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    def program(tracker: ModTracker) -> None:
        for number in range(4):
            if steps == "auto":
                iterate()
            else:
                with tracker.step(number):
                    iterate()
            torch.distributed.all_reduce(torch.ones(3))
        totals.extend([tracker.collectives.total, tracker.collectives.size])

    found = seen(program, policy, collectives=mode, steps=steps)
    check_whole(found)
    for step in found.steps:
        events = [
            event.attributes
            for span in found.spans
            if span.context.trace_id == step.context.trace_id
            for event in span.events
            if event.name == semconv.COLLECTIVE_EVENT
        ]
        for key, default in ((semconv.COLLECTIVE_COUNT, 1), (semconv.COLLECTIVE_SIZE, 0)):
            assert sum(one.get(key, default) for one in events) == step.attributes[key]
    # A step: one in each of two modules, one between, the gradients'; one after each.
    gradients = sum(one.numel() for one in model.parameters()) * 4
    assert totals == [4 * 5, 4 * (2 * X.numel() * 4 + 5 * 4 + gradients + 3 * 4)]


# -- memory ---------------------------------------------------------------------------------------


class Nested(InMemorySpanExporter):
    """Counts the spans that are in others, and keeps nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def export(self, spans: Any) -> Any:
        self.count += sum(span.parent is not None for span in spans)


@pytest.mark.parametrize(
    "policy", [Policy(), Policy(every=3), Policy(outliers=1.5), Policy(budget=2)]
)
def test_memory_is_flat(policy: Policy) -> None:
    """Steps, optimizers that come and go and models that come and go leave nothing.

    What the last steps hold is there until others follow them, and an outlier's spans are more: so
    the clock goes on by readings, and it is the same step in each block that takes long.
    """
    exporter = Nested()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    training = Training()

    def block() -> int:
        for number in range(20):
            training.optimizer = torch.optim.SGD(training.model.parameters(), lr=0.0)
            nn.Linear(4, 4)(X)
            for _ in range(4 if number == 10 else 0):
                training.backward()
            training.iterate()
            training.evaluate()
        gc.collect()
        return traced_bytes()

    with fixed([provider]), ModTracker(tracer_provider=provider, policy=policy):
        tracemalloc.start()
        try:
            sizes = [block() for _ in range(18)]
        finally:
            tracemalloc.stop()
    early, late = sizes[6:12], sizes[12:]
    assert min(late) - min(early) < 120 * 250, sizes
    assert exporter.count >= 18 * 20  # of outliers, too, there are some


def test_a_tracker_that_was_left_is_gone() -> None:
    """Nothing of ours holds it, or the hooks that were registered with it."""

    def leave(**options: Any) -> weakref.ref[ModTracker]:
        found: list[ModTracker] = []

        def program(tracker: ModTracker) -> None:
            found.append(tracker)
            Training().iterate(3)

        seen(program, **options)
        return weakref.ref(found.pop())

    refs = [
        leave(policy=policy)
        for policy in (Policy(), Policy(every=2), Policy(methods=["extra"], signal="SIGUSR2"))
    ]
    gc.collect()
    assert [ref() for ref in refs] == [None] * 3


def test_a_step_is_exported_though_its_flush_is_interrupted(
    provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    """A signal's exception while a step is written: no span is left without the step's."""
    what = signal.SIGALRM
    before = signal.signal(what, plain_handler(Late("late")))
    training = Batches()
    broken = []
    try:
        for number in itertools.count(1, 9):
            exporter.clear()
            with ModTracker(tracer_provider=provider):
                try:
                    with InterruptInSteps(what, number) as interrupt:
                        training.iterate()
                except Late:
                    pass
                training.start()
            if interrupt.where is None:
                break
            spans = exporter.get_finished_spans()
            steps = {one.context.trace_id for one in spans if one.name == "train_step"}
            if any(one.context.trace_id not in steps for one in spans):
                broken.append((number, *interrupt.where))
    finally:
        signal.signal(what, before)
    assert not broken
