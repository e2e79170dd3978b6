"""Training computes the same, at the same speed, whatever becomes of its spans."""

from __future__ import annotations

import contextlib
import random
import time
from typing import TYPE_CHECKING, Any

import pytest
import torch
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider, sampling
from torch import nn

from otel_modtrack import ModTracker, region
from tests.backends.programs import free_port
from tests.delivery.answers import INVALID, NEVER, Answer, busy
from tests.delivery.pipes import Pipe, black_hole, connected, pipe, receiver_for
from tests.polling import poll

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.delivery.receiver import Receiver

MOST = 2  # times the step without any exporter; whoever waits for a backend takes a hundred times
ROUNDS, MOST_ROUNDS = 12, 200  # on a machine that is busy with other things it takes more


class Ids(SpanProcessor):
    """The ids of all spans that end, whatever becomes of them."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def on_end(self, span: ReadableSpan) -> None:
        self.found.append(f"{span.get_span_context().span_id:016x}")


class Training:
    """A model, its optimizer and its data; the same for everyone."""

    def __init__(self, provider: TracerProvider | None, *, stepping: bool = True) -> None:
        torch.manual_seed(5)
        self.model = nn.Sequential(
            *(nn.Sequential(nn.Linear(192, 192), nn.GELU()) for _ in range(8))
        )
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self._batch = torch.randn(64, 192)
        self._provider = provider
        self._stepping = stepping
        self._step = 0
        self.losses: list[float] = []
        self.ids = Ids()
        if provider is not None:
            provider.add_span_processor(self.ids)

    def run(self, steps: int) -> float:
        """Train so many steps; how many seconds they took."""
        with contextlib.ExitStack() as stack:
            step: Callable[[int], Any] = contextlib.nullcontext
            if self._provider is not None:
                tracker = ModTracker(self.model, tracer_provider=self._provider)
                stack.enter_context(tracker)
                step = tracker.step if self._stepping else step
            begun_s = time.perf_counter()
            for _ in range(steps):
                with step(self._step):
                    with region("loss"):
                        loss = self.model(self._batch).square().mean()
                    loss.backward()
                    self.optimizer.step()
                    self.optimizer.zero_grad()
                self.losses.append(loss.item())
                self._step += 1
            return time.perf_counter() - begun_s

    def result(self) -> list[bytes]:
        """Losses and parameters, to the last bit."""
        tensors = [torch.tensor(self.losses), *self.model.parameters()]
        return [tensor.detach().numpy().tobytes() for tensor in tensors]


# -- backends that are of no use -----------------------------------------------------------------

# By name: protocol, and the answer that every request gets; None where nobody listens.
BACKENDS: dict[str, tuple[str, Answer | None]] = {
    "absent": ("http/protobuf", None),
    "absent, gRPC": ("grpc", None),
    "black hole": ("http/protobuf", None),
    "silent": ("http/protobuf", NEVER),
    "silent, gRPC": ("grpc", NEVER),
    "slow": ("http/protobuf", Answer(after_s=2)),
    "busy": ("http/protobuf", busy(1)),
    "refusing": ("http/protobuf", INVALID),
    "cutting": ("http/protobuf", Answer(cut="before")),
}


@contextlib.contextmanager
def backend(
    environment: pytest.MonkeyPatch, name: str
) -> Iterator[tuple[Pipe, Training, Receiver | None]]:
    """A pipe to one of them, a training whose spans go into it, and what receives if anything."""
    protocol, answer = BACKENDS[name]
    with contextlib.ExitStack() as stack:
        receiver = None
        if answer is not None:
            receiver = stack.enter_context(connected(environment, protocol))
            receiver.script(answer)
        else:
            hole = name == "black hole"
            port = stack.enter_context(black_hole()) if hole else free_port()
            environment.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
            environment.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
        made = stack.enter_context(pipe(waiting=200, batch=16, timeout_s=3, exit_s=0))
        yield made, Training(made.provider), receiver
        if receiver is not None:
            receiver.stop()  # whoever waits for an answer need not
            receiver.start()
        made.delivery.shutdown(0)


def test_speed_and_results(environment: pytest.MonkeyPatch) -> None:
    """A backend of no use costs no time, changes no bit, and every span is counted.

    What a refusing one gets is encoded, sent and, by a receiver in this process, read while the
    next training runs: another one each round.
    """
    alone, without = (
        Training(None),
        Training(TracerProvider(sampler=sampling.ALWAYS_ON, shutdown_on_exit=False)),
    )
    with contextlib.ExitStack() as stack:
        found = {name: stack.enter_context(backend(environment, name)) for name in BACKENDS}
        trainings = {"": without, **{name: found[name][1] for name in found}}
        best = dict.fromkeys(trainings, float("inf"))
        order = random.Random(5)  # noqa: S311 - the same for everyone
        for round_ in range(MOST_ROUNDS):
            alone.run(1)
            for name in order.sample(list(trainings), len(trainings)):
                best[name] = min(best[name], trainings[name].run(1))
            if round_ >= ROUNDS and max(best.values()) < MOST * best[""]:
                break
        assert max(best.values()) < MOST * best[""], best
        for name, training in trainings.items():
            assert training.result() == alone.result(), name
    for name, (made, training, receiver) in found.items():
        counts = made.counts
        assert counts.waiting == 0, name
        assert counts.delivered + counts.lost == len(training.ids.found), name
        arrived = receiver.span_ids() if receiver is not None else []
        assert len(arrived) == len(set(arrived)), name
        assert set(arrived) <= set(training.ids.found), name
        # A request under way at the end may have been taken, and counts as lost.
        assert counts.delivered <= len(arrived), name
        if name != "slow":
            assert counts.delivered == len(arrived) == 0, name


# -- backends that come and go -------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_killed_and_back(environment: pytest.MonkeyPatch, protocol: str) -> None:
    """Killed in mid-run and started again on its port, the backend has every span, once."""
    alone = Training(None)
    alone.run(12)
    with connected(environment, protocol, port=free_port()) as receiver, pipe() as made:
        training = Training(made.provider)
        training.run(3)
        poll(lambda: made.counts.delivered, "some of it is delivered")
        training.run(1)
        receiver.stop()
        training.run(4)
        assert made.counts.waiting
        receiver.start()
        training.run(4)
        poll(lambda: not made.counts.waiting, "all of it is delivered")
        assert receiver.span_ids() == sorted(training.ids.found)
        assert (made.counts.delivered, made.counts.lost) == (len(training.ids.found), 0)
    assert training.result() == alone.result()


def test_queue_is_full(environment: pytest.MonkeyPatch) -> None:
    """Spans that found no room are counted; the others arrive; the results are the same."""
    alone = Training(None)
    alone.run(6)
    receiver = receiver_for("http/protobuf", port=free_port())
    environment.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
    with pipe(waiting=50, batch=10) as made:
        training = Training(made.provider)
        training.run(6)
        with receiver:
            poll(lambda: not made.counts.waiting, "what waited is delivered")
            arrived = receiver.span_ids()
    lost = len(training.ids.found) - len(arrived)
    assert made.counts.lost_by_reason == {"queue full": lost}
    assert lost > 0
    assert made.counts.delivered == len(arrived) == len(set(arrived))
    assert training.result() == alone.result()


# -- a clock that is set back --------------------------------------------------------------------


class Clock:
    """`time.time_ns`, and a way to set it back. Nothing else is set back with it."""

    def __init__(self, environment: pytest.MonkeyPatch) -> None:
        self._back_ns = 0
        self._real = time.time_ns
        environment.setattr(time, "time_ns", lambda: self._real() - self._back_ns)

    def set_back(self, *_: object) -> None:
        """By five seconds."""
        self._back_ns += 5_000_000_000


def in_forward(training: Training, clock: Clock) -> None:
    """In the middle of the model."""
    training.model[3].register_forward_hook(clock.set_back)


def in_backward(training: Training, clock: Clock) -> None:
    """In the middle of the backward."""
    training.model[3].register_full_backward_hook(clock.set_back)


def in_optimizer(training: Training, clock: Clock) -> None:
    """In the optimizer's step."""
    training.optimizer.register_step_pre_hook(clock.set_back)


def after_backward(training: Training, clock: Clock) -> None:
    """Between the backward and the optimizer's step."""
    training.model[0][0].weight.register_post_accumulate_grad_hook(clock.set_back)


@pytest.mark.parametrize("stepping", [True, False], ids=["steps", "calls"])
@pytest.mark.parametrize("where", [in_forward, in_backward, after_backward, in_optimizer])
def test_clock_is_set_back(
    environment: pytest.MonkeyPatch, where: Callable[[Training, Clock], None], stepping: bool
) -> None:
    """No span is shorter than nothing, and each lies within its parent."""
    with connected(environment, "http/protobuf") as receiver, pipe() as made:
        training = Training(made.provider, stepping=stepping)
        training.run(1)
        where(training, Clock(environment))
        training.run(2)
        assert made.delivery.flush(10)
        spans = {span.span_id: span for span in decoded(receiver)}
    assert sorted(one.hex() for one in spans) == sorted(training.ids.found)
    for span in spans.values():
        assert span.start_time_unix_nano <= span.end_time_unix_nano, span.name
        above = spans.get(span.parent_span_id)
        if above is not None:
            assert above.start_time_unix_nano <= span.start_time_unix_nano, span.name
            assert span.end_time_unix_nano <= above.end_time_unix_nano, span.name
    starts = [span.start_time_unix_nano for span in spans.values()]
    assert max(starts) - min(starts) > 4e9, "it was seen"


def decoded(receiver: Receiver) -> list[Any]:
    """Its spans."""
    return [
        span
        for request in receiver.requests
        for resource in request.decode().resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]
