"""The tests of what backends do to spans, with records in place of spans."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import trace

from otel_modtrack.otlp.records import Place, Template
from tests.delivery import test_delivery, test_outages
from tests.delivery.pipes import Pipe, connected, pipe
from tests.direct.roads import HAS_JSON

if TYPE_CHECKING:
    from otel_modtrack.otlp.records import Record

_SPANS_ONLY = {"test_exporter_of_another_kind"}  # exporters are never given records
_numbers = itertools.count(1)

for _module in (test_delivery, test_outages):
    for _name, _test in vars(_module).items():
        if _name.startswith("test_") and _name not in _SPANS_ONLY:
            globals()[_name] = _test


def produce(self: Pipe, count: int, **attributes: Any) -> None:
    """As `Pipe.produce`: so many at once, in units of at most ten."""
    tracer: Any = self._tracer
    template = Template("span", attributes)
    place = Place(
        next(_numbers),
        trace.TraceFlags(1),
        None,
        tracer.resource,
        tracer._instrumentation_scope,
    )
    [processor] = self.provider._active_span_processor._span_processors
    assert processor.takes_records
    left = count
    while left:
        ids = [next(_numbers).to_bytes(8, "big") for _ in range(min(left, 10))]
        left -= len(ids)
        records: list[Record] = [(place, template, one, b"", 1, 2, None, ()) for one in ids]
        self.span_ids += [one.hex() for one in ids]
        processor.put_records(records)


@pytest.fixture(autouse=True)
def _records(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that these tests make are records."""
    name = request.node.name
    if not HAS_JSON and ("http/json" in name or name == "test_file"):
        pytest.skip("the JSON encoder is not installed")
    monkeypatch.setattr(Pipe, "produce", produce)


def test_more_than_wait(environment: pytest.MonkeyPatch) -> None:
    """Of a unit that does not fit into the queue the first are sent, and the rest is counted."""
    with (
        connected(environment, "http/protobuf") as receiver,
        pipe(waiting=7, batch=7, delay_s=60.0) as made,
    ):
        produce(made, 10)
        assert made.delivery.flush(10)
        assert made.counts.lost_by_reason == {"queue full": 3}
        assert receiver.span_ids() == made.span_ids[:7]
        made.check_sum()


def test_after_the_end(environment: pytest.MonkeyPatch) -> None:
    """What comes after the shutdown is lost, and counted."""
    with connected(environment, "http/protobuf") as receiver, pipe() as made:
        produce(made, 3)
        made.delivery.shutdown(5)
        produce(made, 12)
        assert made.counts.lost_by_reason == {"ended after the exit": 12}
        assert len(receiver.span_ids()) == 3
        made.check_sum()
