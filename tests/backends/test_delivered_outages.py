"""The Collector away, killed or refusing: every span is delivered, or told as lost."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.backends.programs import TO_FILE, narrowed
from tests.backends.spans import from_otlp
from tests.backends.worker_traced import Traced
from tests.polling import poll

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.backends.programs import Collector

# A request is in the file before it is answered, in a line of its own: a kill takes nothing back.
AT_ONCE = TO_FILE.replace("flush_interval: 50ms", "rotation: {max_megabytes: 10000}")
LIMITED = AT_ONCE.replace(
    "exporters:\n",
    """processors:
  memory_limiter:
    check_interval: 50ms
    limit_mib: {limit_mib}
    spike_limit_mib: 1
exporters:
""",
    1,
).replace("receivers: [otlp]", "receivers: [otlp]\n      processors: [memory_limiter]")
SMALL_MESSAGES = (
    narrowed(AT_ONCE)
    .replace(
        "service:\n",
        """  file/metrics:
    path: ${env:COLLECTOR_FILE}.metrics
    rotation: {max_megabytes: 10000}
service:
""",
    )
    .replace(
        "  pipelines:\n",
        "  pipelines:\n    metrics: {receivers: [otlp], exporters: [file/metrics]}\n",
    )
)
each_protocol = pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])


def traced(collector: Collector, protocol: str, **others: str) -> Traced:
    """A program that sends to it, by small batches unless told otherwise."""
    endpoint = collector.grpc_endpoint if protocol == "grpc" else collector.http_endpoint
    return Traced(
        {
            "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
            "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
            "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "500",
            "OTEL_BSP_SCHEDULE_DELAY": "50",
            **others,
        }
    )


def requests(collector: Collector) -> list[list[list[int]]]:
    """The span ids that it wrote: by start of it, then by request."""
    return [
        [
            [int(span.span_id, 16) for span in from_otlp(json.loads(line))]
            for line in file.read_text().splitlines(keepends=True)
            if line.endswith("\n")
        ]
        for file in sorted(collector.folder.glob("spans-*.jsonl"))
    ]


def written(collector: Collector) -> Counter[int]:
    """The span ids that it wrote, and how often."""
    return Counter(one for start in requests(collector) for ids in start for one in ids)


def exported(collector: Collector) -> dict[str, int]:
    """How many spans were, by the metrics that it wrote last; of those lost, by error.type."""
    [file] = collector.folder.glob("*.metrics")
    [metric] = [
        metric
        for resource in json.loads(file.read_text().splitlines()[-1])["resourceMetrics"]
        for scope in resource["scopeMetrics"]
        for metric in scope["metrics"]
        if metric["name"] == "otel.sdk.exporter.span.exported"
    ]
    found = {}
    for point in metric["sum"]["dataPoints"]:
        labels = {item["key"]: item["value"]["stringValue"] for item in point["attributes"]}
        found[labels.get("error.type", "")] = int(point["asInt"])
    return found


@each_protocol
def test_killed_and_started_again(make_collector: Callable[..., Collector], protocol: str) -> None:
    """Killed twice while it takes spans: all arrive; twice only what it had not answered."""
    collector = make_collector(AT_ONCE)
    with traced(collector, protocol) as program:
        program.begin("spans", 12_000)
        for count in (2_000, 5_000):
            poll(lambda count=count: collector.count() >= count, f"{count} spans")
            collector.kill()
            collector.start()
        program.answer()
        counts = program.do("flush")
        sent = program.do("ids")
        program.end()
    assert (counts["delivered"], counts["lost"], counts["waiting"]) == (12_000, 0, 0)
    found = written(collector)
    assert set(found) == set(sent)
    twice = {one for one, times in found.items() if times > 1}
    unanswered = {one for start in requests(collector) if start for one in start[-1]}
    assert twice <= unanswered


@each_protocol
def test_started_later(make_collector: Callable[..., Collector], protocol: str) -> None:
    """What there is room for waits until it is there; the rest is told, by its reason."""
    collector = make_collector(AT_ONCE)
    collector.kill()
    with traced(collector, protocol, OTEL_BSP_MAX_QUEUE_SIZE="1000") as program:
        program.do("spans", 1)
        program.do("spans", 3_000)
        counts = program.do("counts")
        assert 1_000 <= counts["waiting"] <= 1_500  # and what is being sent
        collector.start()
        counts = program.do("flush")
        program.do("spans", 10)
        counts = program.do("flush")
        sent = program.do("ids")
        program.end()
    assert counts["lost"] == counts["queue full"] == 3_011 - counts["delivered"]
    assert counts["delivered"] >= 1_010
    found = written(collector)
    assert len(found) == found.total() == counts["delivered"]
    assert set(found) <= set(sent)


@each_protocol
def test_gone_for_good(make_collector: Callable[..., Collector], protocol: str) -> None:
    """The end of the process waits for its deadline, and what is left then is told as lost."""
    collector = make_collector(AT_ONCE)
    with traced(collector, protocol, OTEL_PYTHON_MODTRACK_EXIT_TIMEOUT="0.5") as program:
        program.do("spans", 500)
        assert program.do("flush")["delivered"] == 500
        collector.kill()
        program.do("spans", 700)
        counts = program.do("shutdown")
        program.end()
    assert (counts["delivered"], counts["lost"]) == (500, 700)
    assert len(written(collector)) == 500


@pytest.mark.parametrize(
    ("protocol", "reason"), [("http/protobuf", "HTTP 503"), ("grpc", "UNAVAILABLE")]
)
def test_short_of_memory(
    make_collector: Callable[..., Collector], protocol: str, reason: str
) -> None:
    """What its memory limiter refuses waits, and arrives once when there is memory again."""
    collector = make_collector(LIMITED.replace("{limit_mib}", "2"))
    poll(lambda: "Refusing data" in collector.log(), "it refuses")
    with traced(collector, protocol) as program:
        program.do("spans", 3_000)
        poll(lambda: reason in program.do("said"), "a request was refused")
        counts = program.do("counts")
        assert (counts["waiting"], counts["lost"]) == (3_000, 0)
        collector.stop()
        collector.config.write_text(LIMITED.replace("{limit_mib}", "1000"))
        collector.start()
        counts = program.do("flush")
        sent = program.do("ids")
        program.end()
    assert (counts["delivered"], counts["lost"]) == (3_000, 0)
    assert written(collector) == Counter(sent)


@pytest.mark.parametrize(
    ("protocol", "reason"), [("http/protobuf", "HTTP 400"), ("grpc", "RESOURCE_EXHAUSTED")]
)
def test_smaller_messages_than_ours(
    make_collector: Callable[..., Collector], protocol: str, reason: str
) -> None:
    """A request over its limit of 1 MiB is sent in parts; a span over it is lost, alone.

    The metrics that the Collector has in the end tell both.
    """
    collector = make_collector(SMALL_MESSAGES)
    large = {"OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "4096", "OTEL_METRICS_EXPORTER": "otlp"}
    with traced(collector, protocol, **large) as program:
        program.do("spans", 2_000, 1_000)
        program.do("spans", 1, 2_000_000)
        program.do("spans", 2_000, 1_000)
        counts = program.do("flush")
        program.end()
    assert (counts["delivered"], counts["lost"]) == (4_000, 1)
    assert len(written(collector)) == written(collector).total() == 4_000
    assert exported(collector) == {"": 4_000, reason: 1}
