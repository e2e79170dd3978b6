"""200,000 spans through the Collector with our file, by what `configure()` does unasked."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.backends.programs import ROOT
from tests.backends.worker_traced import Traced, memory_mib

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.backends.programs import Collector

SPANS = 200_000
STEP = 205  # spans
# Of memory: what the program may have more than before its first span, and a Collector in all.
GROWTH_MIB, COLLECTOR_MIB = 200, 512


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_two_hundred_thousand_spans(make_collector: Callable[..., Collector]) -> None:
    """A training makes them as fast as it can: none is lost, and memory does not grow with them.

    With their delivery that takes less than a minute of one core.
    """
    backend = make_collector()
    collector = make_collector(
        ROOT / "collector" / "config.yaml", {"COLLECTOR_BACKEND": backend.grpc_address}
    )
    steps = -(-SPANS // STEP)
    with Traced({"OTEL_EXPORTER_OTLP_ENDPOINT": collector.http_endpoint}) as program:
        took = program.do("layers", steps)
        counts = program.do("counts")
        sent = program.do("ids")
        program.end()
    most_mib = max(memory_mib(one.pid)["most"] for one in (collector, backend))
    collector.stop()  # what it still holds goes on
    backend.stop()
    assert (counts["delivered"], counts["lost"]) == (steps * STEP, 0)
    assert took["cpu_s"] < 60, took
    assert took["most_mib"] - took["before_mib"] < GROWTH_MIB, took
    assert most_mib < COLLECTOR_MIB
    ids = written(backend)
    assert len(ids) == len(sent)
    assert set(ids) == set(sent)


def written(backend: Collector) -> list[int]:
    """The ids of the spans in its files, which are large, and gone then."""
    found = []
    for file in backend.folder.glob("spans-*.jsonl"):
        # Links have ids, too, but no start.
        ids = re.findall(rb'"spanId":"(\w+)"[^}]*"startTimeUnixNano"', file.read_bytes())
        found.extend(int(one, 16) for one in ids)
        file.unlink()
    return found
