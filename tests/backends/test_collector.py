"""The Collector with our configuration files: what it passes on, measures, keeps and drops."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.backends.ranks import SERVICE, samples, total
from tests.backends.spans import ordered
from tests.polling import poll

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.backends.programs import Collector
    from tests.backends.ranks import Rank


def test_everything_arrives_behind_it_once(
    to_backend: Callable[..., tuple[Collector, Collector]], make_rank: Callable[..., Rank]
) -> None:
    """What two ranks send is what the backend gets: ids, times, attributes, status and resource."""
    collector, backend = to_backend("config.yaml")
    ranks = [make_rank(collector, number) for number in range(2)]
    for rank in ranks:
        rank.step()
        rank.step(error=True)
    sent = ordered(span for rank in ranks for span in rank.sent())
    assert backend.wait_for(len(sent)) == sent


def test_a_backend_that_is_away_loses_nothing(
    to_backend: Callable[..., tuple[Collector, Collector]], make_rank: Callable[..., Rank]
) -> None:
    """What is sent while the backend is down waits in the Collector until it is back."""
    collector, backend = to_backend("config.yaml")
    rank = make_rank(collector)
    backend.stop()
    rank.step()
    backend.start()
    rank.step()
    sent = rank.sent()
    assert backend.wait_for(len(sent)) == sent


def test_metrics_of_the_spans(
    to_backend: Callable[..., tuple[Collector, Collector]], make_rank: Callable[..., Rank]
) -> None:
    """Durations, calls, errors and collectives by service, template, phase, type and rank; no fqn.

    Two processes of one rank, as before and after a restart, are two instances of one service.
    """
    collector, _ = to_backend("config.yaml")
    for number in (0, 0, 1):
        rank = make_rank(collector, number)
        rank.step()
        rank.step(error=True)
    calls, seconds = "traces_span_metrics_calls_total", "traces_span_metrics_duration_seconds"
    step = {"span_name": "train_step", "service_name": SERVICE}
    block = {"span_name": "forward GPT.layers.*", "modtrack_phase": "forward"}

    def complete() -> str | None:
        page = collector.metrics()
        done = total(page, calls, **step) == 6
        return page if done and total(page, "modtrack_collective_count_total") == 12 else None

    page = poll(complete, "the metrics of six steps")
    assert total(page, calls, **step, modtrack_rank="0") == 4
    assert total(page, calls, **block, modtrack_module_type="Block", modtrack_rank="1") == 4
    assert total(page, f"{seconds}_count", **block) == 12
    assert total(page, f"{seconds}_sum", **block) == pytest.approx(0.036)
    assert total(page, f"{seconds}_bucket", **block, le="0.002") == 0
    assert total(page, f"{seconds}_bucket", **block, le="0.005") == 12
    assert total(page, calls, status_code="STATUS_CODE_ERROR") == 3
    assert total(page, "modtrack_collective_size_bytes_total", modtrack_rank="0") == 4000
    assert total(page, "modtrack_collective_size_bytes_total", modtrack_rank="1") == 2000
    labels = {label for name, its, _ in samples(page) if name == calls for label in its}
    assert labels == {
        "collector_instance_id",
        "instance",
        "job",
        "modtrack_module_type",
        "modtrack_phase",
        "modtrack_rank",
        "service_name",
        "span_kind",
        "span_name",
        "status_code",
    }


def test_a_metric_leads_to_its_trace(
    to_backend: Callable[..., tuple[Collector, Collector]], make_rank: Callable[..., Rank]
) -> None:
    """A bucket of the histogram has the ids of a span that fell into it."""
    collector, backend = to_backend("config.yaml")
    rank = make_rank(collector)

    def exemplar() -> re.Match[str] | None:
        # They are shown for one interval: send steps until one is seen.
        rank.step()
        pattern = r'seconds_bucket{[^}]*span_name="train_step"[^}]*} \S+ # {(.*?)} 0.01 '
        return re.search(pattern, collector.metrics())

    ids = dict(re.findall(r'(\w+)="(\w+)"', poll(exemplar, "an exemplar")[1]))
    spans = backend.wait_for(6, ids["trace_id"])
    assert ids["span_id"] in {span.span_id for span in spans if span.name == "train_step"}


def test_tail_sampling_keeps_slow_steps(
    to_backend: Callable[..., tuple[Collector, Collector]], make_rank: Callable[..., Rank]
) -> None:
    """Whole, when they are over the bound; the others: test_delivered_sampled.py."""
    collector, backend = to_backend(
        "tail-sampling.yaml",
        COLLECTOR_DECISION_WAIT="1s",
        COLLECTOR_SLOW_MS="500",
        COLLECTOR_KEEP_PERCENT="0",
    )
    rank = make_rank(collector)
    for _ in range(3):
        rank.step(ms=400)
    slow = rank.step(ms=600)
    # What it has not decided when it is stopped, it decides then.
    collector.stop()
    backend.stop()
    assert backend.spans() == [span for span in rank.sent() if span.trace_id == slow]
