"""However a process ends, its spans are delivered as far as there is time to."""

from __future__ import annotations

import signal
import textwrap
from typing import TYPE_CHECKING

import pytest

from tests.polling import poll

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.processes.running import Program, Receiver

    Start = Callable[..., Program]

PRELUDE = """
import os, signal, sys, threading
from opentelemetry import trace
from otel_modtrack import configure

tracer = trace.get_tracer("app")

def span(name):
    tracer.start_span(name).end()

def say(text):
    os.write(1, f"{text}\\n".encode())  # also from a signal handler

"""


def program(source: str) -> str:
    """A program that knows how to make a span and to say something."""
    return PRELUDE + textwrap.dedent(source)


@pytest.mark.parametrize(
    ("end", "status", "last_words"),
    [
        ("pass", 0, ""),
        ("sys.exit(3)", 3, ""),
        ("raise ValueError('told')", 1, "ValueError: told"),
        ("threading.Thread(target=lambda: (main.join(), span('late'))).start()", 0, ""),
    ],
)
def test_every_span_is_delivered_before_the_end(
    start: Start, end: str, status: int, last_words: str
) -> None:
    """At the end of the program, by sys.exit, by an exception, and what other threads still do."""
    running = start(
        program(f"""
            main = threading.main_thread()
            configure()
            span("one")
            {end}
        """)
    )
    assert running.wait() == status
    assert running.errors.strip().splitlines()[-1:] == ([last_words] if last_words else [])
    assert running.names == (["late", "one"] if "late" in end else ["one"])


def test_what_was_flushed_is_there_after_os_exit(start: Start) -> None:
    """os._exit leaves no time: it ends at once, with what was flushed before."""
    running = start(
        program("""
            telemetry = configure()
            span("one")
            assert telemetry.flush()
            span("two")
            os._exit(7)
        """)
    )
    assert running.wait() == 7
    assert running.names == ["one"]
    assert not running.errors


def test_configured_in_another_thread(start: Start) -> None:
    """Where handlers cannot be installed the normal end delivers all the same."""
    running = start(
        program("""
            before = signal.getsignal(signal.SIGTERM)
            thread = threading.Thread(target=configure)
            thread.start()
            thread.join()
            span("one")
            assert signal.getsignal(signal.SIGTERM) is before
        """)
    ).finish()
    assert running.names == ["one"]
    assert not running.errors


def test_sigterm_ends_the_process_as_it_would_and_delivers(start: Start) -> None:
    """Killed at any moment: each span that had ended is delivered; the status is the signal's."""
    running = start(
        program("""
            configure()
            number = 0
            while True:
                span(f"{number:06}")
                say(number)
                number += 1
        """),
        {"OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "50", "OTEL_BSP_SCHEDULE_DELAY": "1"},
    )
    while running.line() != "500":
        pass
    running.process.send_signal(signal.SIGTERM)
    assert running.wait() == -signal.SIGTERM
    assert not running.errors
    told = [f"{int(line):06}" for line in running.output.split()]
    found = running.names
    assert found[: len(told)] == told
    assert len(found) - len(told) in (0, 1)


@pytest.mark.parametrize(
    ("handling", "output"),
    [
        ("signal.signal(SIGTERM, handler); configure()", ["ready", "handled", "goes on"]),
        ("configure(); signal.signal(SIGTERM, handler)", ["ready", "handled", "goes on"]),
        ("configure(); chain(); signal.signal(SIGTERM, handler)", ["ready", "handled"]),
        ("signal.signal(SIGTERM, signal.SIG_IGN); configure()", ["ready", "goes on"]),
    ],
    ids=["before", "after", "after, and calls ours", "ignored"],
)
def test_a_handler_of_the_programs_own_decides(
    start: Start, handling: str, output: list[str]
) -> None:
    """It is called once, whenever it was installed, and if it returns the program goes on."""
    running = start(
        program(f"""
            from signal import SIGTERM
            called = []
            then = []

            def chain():
                then.append(signal.getsignal(SIGTERM))

            def handler(number, frame):
                assert number == SIGTERM
                say("handled")
                for one in then:
                    one(number, frame)

            {handling}
            span("one")
            say("ready")
            sys.stdin.readline()
            say("goes on")
            span("two")
        """)
    )
    assert running.line() == "ready"
    running.process.send_signal(signal.SIGTERM)
    if "handled" in output:
        assert running.line() == "handled"
    goes_on = output[-1] == "goes on"
    if goes_on:
        running.go_on()
    assert running.wait() == (0 if goes_on else -signal.SIGTERM)
    assert running.output.splitlines() == output
    assert running.names == (["one", "two"] if goes_on else ["one"])
    assert not running.errors


def test_a_handler_that_leaves_by_an_exception(start: Start) -> None:
    """SystemExit of a handler of the program's own is its exit status, and all is delivered."""
    running = start(
        program("""
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))
            configure()
            span("one")
            say("ready")
            sys.stdin.readline()
        """)
    )
    assert running.line() == "ready"
    running.process.send_signal(signal.SIGTERM)
    assert running.wait() == 9
    assert running.names == ["one"]
    assert not running.errors


def test_sigint_is_a_keyboard_interrupt(start: Start) -> None:
    """Ctrl-C ends the program as it does without us, and everything is delivered."""
    running = start(
        program("""
            configure()
            span("one")
            say("ready")
            sys.stdin.readline()
        """)
    )
    assert running.line() == "ready"
    running.process.send_signal(signal.SIGINT)
    assert running.wait() == -signal.SIGINT
    assert running.errors.splitlines()[-1] == "KeyboardInterrupt"
    assert "otel_modtrack" not in running.errors
    assert running.names == ["one"]


WITH_TWO_SPANS = program("""
    configure()
    span("one")
    span("two")
    say("ready")
    sys.stdin.readline()
""")


def begin_to_end(running: Program, first: signal.Signals | None) -> None:
    """Have a program end, by a signal or by itself."""
    assert running.line() == "ready"
    if first is None:
        running.go_on()
    else:
        running.process.send_signal(first)


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM, None])
def test_a_second_interrupt_leaves_at_once(start: Start, first: signal.Signals | None) -> None:
    """Whoever cannot wait for the exit need not, sees no traceback of ours, but what is lost."""
    patient = {
        "OTEL_EXPORTER_OTLP_TIMEOUT": "600",
        "OTEL_PYTHON_MODTRACK_EXIT_TIMEOUT": "600",
        "OTEL_BSP_SCHEDULE_DELAY": "600000",
    }
    running = start(WITH_TWO_SPANS, patient, waits=True)
    begin_to_end(running, first)
    poll(running.waits_for_answer, "the last request")
    running.process.send_signal(signal.SIGINT)
    assert running.wait() == -(first or 0)
    assert "otel_modtrack" not in running.errors
    assert "2 of 2 spans were lost: 2 exit" in running.errors


@pytest.mark.parametrize("first", [signal.SIGINT, None])
def test_sigterm_while_the_process_ends_takes_nothing_away(
    make_receiver: Callable[[], Receiver], start: Start, first: signal.Signals | None
) -> None:
    """A scheduler may come when the program is over already: what is under way is delivered."""
    receiver = make_receiver()
    running = start(
        WITH_TWO_SPANS,
        {
            "OTEL_EXPORTER_OTLP_TIMEOUT": "600",
            "OTEL_PYTHON_MODTRACK_EXIT_TIMEOUT": "600",
            "OTEL_BSP_SCHEDULE_DELAY": "600000",
            "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "1",
        },
        receiver=receiver,
        waits=True,
    )
    begin_to_end(running, first)
    poll(running.waits_for_answer, "the last request")
    running.process.send_signal(signal.SIGTERM)
    receiver.release()
    assert running.wait() == -signal.SIGTERM
    assert running.names == ["one", "two"]


def test_a_backend_that_is_not_there_holds_nobody_up(start: Start) -> None:
    """Nothing listens: the exit does not wait for its deadline, and tells what is lost."""
    running = start(
        program("""
            configure()
            span("one")
        """),
        {
            "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9",
            "OTEL_PYTHON_MODTRACK_EXIT_TIMEOUT": "600",
        },
    ).finish()
    assert "1 of 1 spans were lost: 1 no connection" in running.errors


@pytest.mark.parametrize("first", [signal.SIGTERM, None])
@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_a_backend_that_never_answers_costs_one_deadline(
    receiver: Receiver, start: Start, protocol: str, first: signal.Signals | None
) -> None:
    """Spans and metrics together: the exit waits for its one deadline, not for each request's."""
    running = start(
        WITH_TWO_SPANS,
        {
            **receiver.environment(protocol),
            "OTEL_METRICS_EXPORTER": "otlp",
            "OTEL_EXPORTER_OTLP_TIMEOUT": "600",
            "OTEL_PYTHON_MODTRACK_EXIT_TIMEOUT": "0.5",
        },
        waits=True,
    )
    begin_to_end(running, first)
    assert running.wait() == -(first or 0)
    # "exit", or the last request's timeout: it gets what is left of the same deadline.
    assert "2 of 2 spans were lost: 2 " in running.errors


def test_sigterm_while_the_program_records_a_metric(start: Start) -> None:
    """The signal may come while the SDK holds a lock of its own: nothing hangs."""
    running = start(
        program("""
            from opentelemetry import metrics

            class Interrupted(int):
                def __radd__(self, other):  # called by the SDK where it sums up
                    signal.raise_signal(signal.SIGTERM)
                    return other + int(self)

            configure()
            span("one")
            counter = metrics.get_meter("app").create_counter("app.tokens")
            counter.add(1)
            counter.add(Interrupted(1))
        """),
        # The metrics wait for that lock until their share of it is over.
        {"OTEL_METRICS_EXPORTER": "otlp", "OTEL_PYTHON_MODTRACK_EXIT_TIMEOUT": "4"},
    )
    assert running.wait() == -signal.SIGTERM
    assert running.names == ["one"]
