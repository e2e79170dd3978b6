"""What is done again, switched off, or there already: one span per call, and no warning."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.polling import poll
from tests.processes.running import HERE, Program

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.processes.running import Receiver

    Start = Callable[..., Program]

ONE_CALL = ["forward Sequential", "forward Sequential.*"]
PRELUDE = """
import json, logging, sys, threading
from opentelemetry import metrics, trace
from otel_modtrack import configure

def span(name):
    trace.get_tracer("app").start_span(name).end()

def say(**line):
    print(json.dumps(line), flush=True)

def ours():
    return [one.name for one in threading.enumerate() if one.name.startswith("otel_modtrack")]

"""


def program(source: str) -> str:
    """A program that knows how to make a span and to say something."""
    return PRELUDE + source


@pytest.fixture(scope="module")
def ran(receiver: Receiver) -> Iterator[Program]:
    """All cases of `again.py`, where every warning is an error."""
    with Program(receiver, HERE / "again.py", python=("-W", "error")) as program:
        yield program.finish()


@pytest.mark.parametrize(
    "case",
    [
        "a_cell_twice",
        "a_cell_that_leaves_its_tracker_on_twice",
        "a_tracker_in_a_tracker",
        "one_tracker_entered_twice",
    ],
)
def test_done_twice_there_is_one_span_per_call(ran: Program, case: str) -> None:
    """A notebook's cell, run again; a program that is tracked, and tracked again."""
    (line,) = [line for line in ran.told if line["case"] == case]
    found = [span["name"] for span in ran.spans if span["trace_id"] in line["trace_ids"]]
    assert len(line["trace_ids"]) == line["calls"]
    assert sorted(found) == sorted([*ONE_CALL, "call"] * line["calls"])


def test_nothing_warns(ran: Program) -> None:
    """Neither by warnings nor by the log."""
    assert not ran.errors


def test_configured_twice_is_the_same(ran: Program) -> None:
    """The same providers, the same counts, and no further thread."""
    (line,) = [line for line in ran.told if line["case"] == "configure_twice"]
    assert line["same"]
    assert line["threads"] == ["otel_modtrack spans"]


def test_suppressed_there_is_no_span(ran: Program) -> None:
    """Under `suppress_instrumentation` neither calls nor steps are told."""
    (line,) = [line for line in ran.told if line["case"] == "suppressed"]
    assert line["calls"] == 0
    assert "train_step" not in ran.names


def test_the_sdk_is_disabled(start: Start) -> None:
    """OTEL_SDK_DISABLED: no provider, no thread, nothing is sent, and all calls still work."""
    running = start(
        program("""
telemetry = configure()
span("one")
assert not ours()
assert isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)
assert telemetry.flush() and telemetry.shutdown()
assert (telemetry.spans.delivered, telemetry.spans.lost, telemetry.spans.waiting) == (0, 0, 0)
"""),
        {"OTEL_SDK_DISABLED": "true", "OTEL_METRICS_EXPORTER": "otlp"},
        python=("-W", "error"),
    ).finish()
    assert not running.errors
    assert not running.spans
    assert not running.metrics


def test_the_size_of_a_batch(start: Start) -> None:
    """OTEL_BSP_MAX_EXPORT_BATCH_SIZE: no request has more spans."""
    running = start(
        program("""
configure()
for number in range(10):
    span(f"{number}")
"""),
        {"OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "3", "OTEL_BSP_SCHEDULE_DELAY": "600000"},
    ).finish()
    assert running.names == [f"{number}" for number in range(10)]
    requests = [span["request"] for span in running.spans]
    assert max(requests.count(number) for number in requests) == 3


def test_the_delay(start: Start) -> None:
    """OTEL_BSP_SCHEDULE_DELAY: so long a span waits, and no longer, with nobody asking for it."""
    source = program("""
telemetry = configure()
span("one")
say(waiting=telemetry.spans.waiting)
sys.stdin.readline()
say(delivered=telemetry.spans.delivered)
""")
    running = start(source, {"OTEL_BSP_SCHEDULE_DELAY": "1"})
    patient = start(source, {"OTEL_BSP_SCHEDULE_DELAY": "600000"})
    poll(lambda: running.names == ["one"], "the span")
    assert json.loads(patient.line()) == {"waiting": 1}
    assert not patient.spans
    for one in (running, patient):
        one.go_on()
        one.finish()
    assert patient.told[-1] == {"delivered": 0}
    assert patient.names == ["one"]  # at the exit


def test_the_size_of_the_queue(start: Start) -> None:
    """OTEL_BSP_MAX_QUEUE_SIZE: so many wait, and what comes then is lost and counted."""
    running = start(
        program("""
telemetry = configure()
for _ in range(20):
    span("one")
counts = telemetry.spans
say(waiting=counts.waiting, lost=counts.lost, why=counts.lost_by_reason)
telemetry.shutdown(0)
say(lost=counts.lost)
"""),
        {
            "OTEL_BSP_MAX_QUEUE_SIZE": "8",
            "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "8",
            "OTEL_BSP_SCHEDULE_DELAY": "600000",
        },
        waits=True,
    ).finish()
    first, last = running.told
    assert 8 <= first["waiting"] <= 8 + 8  # and those of the request that is under way
    assert first["why"] == {"queue full": first["lost"]}
    assert last == {"lost": 20}
    assert "20 of 20 spans were lost" in running.errors


@pytest.mark.parametrize("sampler", ["always_off", "traceidratio"])
def test_the_sampler(start: Start, sampler: str) -> None:
    """OTEL_TRACES_SAMPLER: what it drops is not sent, and not counted as lost."""
    running = start(
        program("""
telemetry = configure()
span("one")
telemetry.shutdown()
assert (telemetry.spans.delivered, telemetry.spans.lost) == (0, 0)
"""),
        {"OTEL_TRACES_SAMPLER": sampler, "OTEL_TRACES_SAMPLER_ARG": "0"},
    ).finish()
    assert not running.spans
    assert not running.errors


def test_a_tracer_provider_of_the_programs_own(start: Start) -> None:
    """It is used and not replaced, flushed if that is asked for, and never shut down."""
    running = start(
        program("""
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider

class Processor(SpanProcessor):
    def on_end(self, span):
        say(ended=span.name)

    def force_flush(self, timeout_millis=0):
        say(flushed=True)
        return True

    def shutdown(self):
        say(shut_down=True)

mine = TracerProvider(shutdown_on_exit=False)
mine.add_span_processor(Processor())
trace.set_tracer_provider(mine)
telemetry = configure()
assert telemetry.tracer_provider is mine is trace.get_tracer_provider()
span("one")
assert telemetry.flush() and telemetry.shutdown()
span("two")
"""),
        python=("-W", "error"),
    ).finish()
    assert running.told == [{"ended": "one"}, {"flushed": True}, {"ended": "two"}]
    assert not running.spans
    assert not running.errors


def test_a_meter_provider_of_the_programs_own(start: Start) -> None:
    """It is used and not replaced: what became of the spans is told to it."""
    running = start(
        program("""
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

reader = InMemoryMetricReader()
mine = MeterProvider([reader], shutdown_on_exit=False)
metrics.set_meter_provider(mine)
telemetry = configure()
assert telemetry.meter_provider is mine is metrics.get_meter_provider()
span("one")
assert telemetry.flush()
assert ours() == ["otel_modtrack spans"]
found = reader.get_metrics_data()
say(
    metrics={
        metric.name: [point.value for point in metric.data.data_points]
        for resource in (found.resource_metrics if found else ())
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }
)
"""),
        {"OTEL_METRICS_EXPORTER": "otlp"},
        python=("-W", "error"),
    ).finish()
    assert running.names == ["one"]
    assert not running.metrics
    assert running.told[0]["metrics"].get("otel.sdk.exporter.span.exported") == [1]


@pytest.mark.parametrize(
    ("variables", "resource"),
    [
        (
            {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "TORCHELASTIC_RUN_ID": "job-7"},
            {"rank": 3, "world_size": 8, "local_rank": 1, "job.id": "job-7"},
        ),
        (
            {"RANK": "0", "WORLD_SIZE": "2", "SLURM_JOB_ID": "42", "TORCHELASTIC_RUN_ID": "none"},
            {"rank": 0, "world_size": 2, "job.id": "42"},
        ),
        ({"RANK": "3"}, {}),
    ],
    ids=["torchrun", "a scheduler", "no launcher"],
)
def test_the_resource_says_which_rank_it_is(
    start: Start, variables: dict[str, str], resource: dict[str, object]
) -> None:
    """Rank, world size and job as the launcher has them in the environment."""
    running = start(
        program("""
configure()
span("one")
"""),
        {**variables, "OTEL_RESOURCE_ATTRIBUTES": "team=vision"},
    ).finish()
    (span,) = running.spans
    assert span["resource"]["team"] == "vision"
    found = {
        key.removeprefix("modtrack."): value
        for key, value in span["resource"].items()
        if key.startswith("modtrack.")
    }
    assert found == resource
