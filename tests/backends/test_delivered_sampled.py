"""Tail sampling, alone and behind the gateway: what is worth it is kept whole."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.backends.programs import ROOT
from tests.backends.worker_traced import Traced
from tests.polling import poll

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.backends.programs import Collector

FOLDER = ROOT / "collector"
STEP = 5  # spans
PLAIN, WORTH_IT = 400, 20


def run_steps(collector: Collector) -> tuple[set[str], set[str]]:
    """A run of plain steps with outliers and errors among them: the trace ids of these, and of all.

    Requests are small: most traces are in two.
    """
    environment = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.http_endpoint,
        "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "16",
    }
    worth_it: set[str] = set()
    others: set[str] = set()
    with Traced(environment) as program:
        for _ in range(WORTH_IT):
            worth_it.update(program.do("steps", 1, "error"), program.do("steps", 1, "outlier"))
            others.update(program.do("steps", PLAIN // WORTH_IT))
        counts = program.do("flush")
        program.end()
    assert counts["delivered"] == counts["produced"] == STEP * (PLAIN + 2 * WORTH_IT)
    return worth_it, worth_it | others


def calls(collector: Collector, name: str) -> float:
    """How many spans of a name its metrics have counted."""
    page = collector.metrics()
    pattern = rf'traces_span_metrics_calls_total{{.*span_name="{re.escape(name)}".*}} (\S+)'
    return sum(float(value) for value in re.findall(pattern, page))


def check_kept(kept: list[str], worth_it: set[str], produced: set[str]) -> None:
    """Of each span the trace id is given: traces are whole, and the right ones."""
    assert all(kept.count(trace_id) == STEP for trace_id in kept)
    assert worth_it <= set(kept) <= produced
    # 20 of 400, on the average; the choice follows the ids, which are random.
    assert 1 <= len(set(kept)) - len(worth_it) <= 60


@pytest.fixture
def backend(make_collector: Callable[..., Collector]) -> Collector:
    """It writes what is kept."""
    return make_collector()


def test_errors_outliers_and_a_few_of_the_rest(
    make_collector: Callable[..., Collector], backend: Collector
) -> None:
    """With the share that the file has; the metrics are of all spans."""
    collector = make_collector(
        FOLDER / "tail-sampling.yaml",
        {
            "COLLECTOR_BACKEND": backend.grpc_address,
            "COLLECTOR_DECISION_WAIT": "1s",
            "COLLECTOR_METRICS_INTERVAL": "200ms",
        },
    )
    worth_it, produced = run_steps(collector)
    poll(lambda: calls(collector, "train_step") >= len(produced), "the metrics of all steps")
    assert calls(collector, "train_step") == len(produced)
    assert calls(collector, "forward GPT.layers.*") == 3 * len(produced)
    backend.wait_for(STEP * len(worth_it))
    collector.stop()  # what it still holds goes on
    backend.stop()
    check_kept([span.trace_id for span in backend.spans()], worth_it, produced)


def test_two_samplers_behind_the_gateway(make_collector: Callable[..., Collector]) -> None:
    """Each sees whole traces: a step is kept for an error that one of its spans has."""
    backends = [make_collector() for _ in range(2)]
    samplers = [
        make_collector(
            FOLDER / "tail-sampling.yaml",
            {"COLLECTOR_BACKEND": backend.grpc_address, "COLLECTOR_DECISION_WAIT": "1s"},
        )
        for backend in backends
    ]
    addresses = ", ".join(sampler.grpc_address for sampler in samplers)
    gateway = make_collector(FOLDER / "gateway.yaml", {"COLLECTOR_SAMPLERS": f"[{addresses}]"})
    worth_it, produced = run_steps(gateway)
    poll(lambda: sum(one.count() for one in backends) >= STEP * len(worth_it), "what is kept")
    for collector in (gateway, *samplers, *backends):
        collector.stop()
    first, second = ([span.trace_id for span in backend.spans()] for backend in backends)
    assert first
    assert second
    assert not set(first) & set(second)
    check_kept(first + second, worth_it, produced)
