"""A backend that breaks, is away, never answers: its spans wait, or are counted as lost."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from tests.backends.programs import free_port
from tests.delivery.answers import NEVER, TAKE, Answer, busy
from tests.delivery.pipes import SLACK_S, connected, pipe, receiver_for
from tests.polling import poll

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.delivery.pipes import Pipe

HTTP, GRPC = "http/protobuf", "grpc"

both_transports = pytest.mark.parametrize("protocol", [HTTP, GRPC])


# -- connections that break ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cut", "arrivals"),
    [
        ("before", 1),
        ("is read", 2),  # nobody can know: at least once
        ("middle", 1),  # of the answer, whose status was there
    ],
)
def test_connection_is_cut(environment: pytest.MonkeyPatch, cut: str, arrivals: int) -> None:
    """The request is sent again, unless the answer has said that it was taken."""
    with connected(environment, HTTP) as receiver, pipe(batch=10) as made:
        receiver.script(Answer(cut=cut, body=b"12345"), TAKE)
        made.produce(10, large="x" * 200_000)  # larger than what the kernel takes at once
        poll(lambda: made.counts.delivered, "delivered")
        assert (made.counts.delivered, made.counts.lost) == (10, 0)
        assert receiver.span_ids() == sorted(made.span_ids * arrivals)


@both_transports
def test_killed_during_a_request(environment: pytest.MonkeyPatch, protocol: str) -> None:
    """A backend that dies with a request in its hands gets it when it is back on its port."""
    with connected(environment, protocol, port=free_port()) as receiver, pipe() as made:
        made.produce(5)
        assert made.delivery.flush(10)
        receiver.script(NEVER)
        made.produce(5)
        poll(lambda: not made.delivery._queue, "under way")
        receiver.stop()
        made.produce(5)
        receiver.script(TAKE)
        receiver.start()
        poll(lambda: made.counts.delivered == 15, "delivered")
        made.all_in(receiver)


@both_transports
def test_absent_at_first(
    environment: pytest.MonkeyPatch, protocol: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Spans wait for a backend that is not there yet, and one line says so."""
    receiver = receiver_for(protocol, port=free_port())
    environment.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
    environment.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
    with pipe() as made:
        made.produce(100)
        poll(lambda: caplog.records, "it is said")
        assert made.counts.waiting == 100
        with receiver:
            poll(lambda: made.counts.delivered == 100, "delivered")
            made.all_in(receiver)
    reason = "UNAVAILABLE" if protocol == GRPC else "no connection"
    line = f"spans cannot be delivered to {made.endpoint.shown} now: {reason};"
    assert caplog.messages == [f"{line} up to 10,000 are kept, and tried again"]


@both_transports
def test_never_answers(environment: pytest.MonkeyPatch, protocol: str) -> None:
    """A request without an answer is sent again when its time is up."""
    with connected(environment, protocol) as receiver, pipe(timeout_s=0.2) as made:
        receiver.script(NEVER, TAKE)
        made.produce(10)
        poll(lambda: made.counts.delivered, "delivered")
        assert (made.counts.delivered, made.counts.lost) == (10, 0)
        assert set(receiver.span_ids()) == set(made.span_ids)


@both_transports
def test_slow(environment: pytest.MonkeyPatch, protocol: str) -> None:
    """While one request takes its two seconds, the program goes on, and all of it arrives."""
    with connected(environment, protocol) as receiver, pipe() as made:
        receiver.script(Answer(after_s=2), TAKE)
        made.produce(64)
        poll(lambda: not made.delivery._queue, "under way")
        made.produce(2000)
        assert receiver.requests == [], "not answered yet"
        poll(lambda: made.counts.delivered == 2064, "delivered")
        made.all_in(receiver)


@both_transports
def test_given_up(environment: pytest.MonkeyPatch, protocol: str) -> None:
    """A batch that a backend is too busy for all the time is lost in the end; others get a turn."""
    environment.setattr("otel_modtrack.otlp.delivery._KEPT_S", 0.3)
    with connected(environment, protocol) as receiver, pipe(batch=10) as made:
        receiver.script(busy())
        made.produce(10)
        reason = "UNAVAILABLE" if protocol == GRPC else "HTTP 503"
        poll(lambda: made.counts.lost_by_reason == {reason: 10}, "given up")
        receiver.script(TAKE)
        made.produce(10)
        poll(lambda: made.counts.delivered == 10, "delivered")
        assert receiver.span_ids() == sorted(made.span_ids[10:])


# -- a queue that is full ------------------------------------------------------------------------


@both_transports
def test_queue_is_full(environment: pytest.MonkeyPatch, protocol: str) -> None:
    """What finds no room is lost, and counted; what waits is delivered once there is a backend."""
    receiver = receiver_for(protocol, port=free_port())
    environment.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
    environment.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
    with pipe(waiting=100, batch=10) as made:
        made.produce(1000)
        lost = made.counts.lost
        assert 0 < lost <= 900, "a batch under way has left the queue"
        assert made.counts.lost_by_reason == {"queue full": lost}
        made.check_sum()
        with receiver:
            poll(lambda: not made.counts.waiting, "delivered")
            assert made.counts.delivered == 1000 - lost
            found = receiver.span_ids()
            assert len(found) == len(set(found)) == 1000 - lost
            assert set(found) < set(made.span_ids)


# -- the end -------------------------------------------------------------------------------------


@contextmanager
def dead_end(environment: pytest.MonkeyPatch, protocol: str, how: str) -> Iterator[None]:
    """A backend that takes nothing: ``absent``, ``silent`` or ``busy``."""
    environment.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
    if how == "absent":
        environment.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://localhost:{free_port()}")
        yield
        return
    with connected(environment, protocol) as receiver:
        receiver.script(NEVER if how == "silent" else busy(60))
        yield


@both_transports
@pytest.mark.parametrize("how", ["absent", "silent", "busy"])
def test_end_is_in_time(environment: pytest.MonkeyPatch, protocol: str, how: str) -> None:
    """Whatever the backend does, the end takes no longer than it may, and the rest is lost."""
    exit_s = 0.5 if how == "silent" else 30  # out of time, or no use waiting
    with dead_end(environment, protocol, how), pipe(timeout_s=20) as made:
        made.produce(200)
        begun_s = time.monotonic()
        assert made.delivery.flush(0.1) is False
        assert made.delivery.shutdown(exit_s) is (how != "silent")
        assert time.monotonic() - begun_s < 0.6 + SLACK_S
        assert (made.counts.delivered, made.counts.lost, made.counts.waiting) == (0, 200, 0)
        assert made.delivery.shutdown(0.5), "once is enough"
        made.produce(1)
        assert made.counts.lost_by_reason["ended after the exit"] == 1
        made.check_sum()


def test_end_while_threads_go_on(environment: pytest.MonkeyPatch) -> None:
    """Spans that end while the delivery does are delivered or counted, all of them."""
    with connected(environment, HTTP) as receiver:
        for _ in range(5):
            with pipe(waiting=1000, batch=1000) as made, produced_by_threads(made):
                poll(lambda made=made: made.counts.delivered, "some")
                assert made.delivery.shutdown(10)
            made.check_sum()
            assert made.counts.waiting == 0
            found = receiver.span_ids()
            assert made.counts.delivered == len(set(found) & set(made.span_ids))
            assert len(found) == len(set(found))


@contextmanager
def produced_by_threads(made: Pipe) -> Iterator[None]:
    """Two threads produce until the end of the block."""
    is_over = threading.Event()

    def produce() -> None:
        while not is_over.is_set():
            made.produce(1)

    threads = [threading.Thread(target=produce) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
