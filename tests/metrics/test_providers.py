"""Any meter provider will do, and none of its faults reaches the program."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import Any

import pytest
from opentelemetry import metrics as api
from opentelemetry.metrics import NoOpMeter, NoOpMeterProvider
from opentelemetry.metrics._internal import _ProxyMeterProvider

from otel_modtrack import metrics, semconv
from otel_modtrack.regions import Phase
from tests.metrics.making import Call, launched, points, provider_of, span, unit_of


class Instrument(api.Counter, api.Histogram):
    """Notes what it is given."""

    def __init__(self, name: str, seen: list[Any]) -> None:
        self.name, self.seen = name, seen

    def add(self, amount: Any, attributes: Any = None, context: Any = None) -> None:
        self.seen.append((self.name, amount, attributes, context))

    record = add


class Provider(api.MeterProvider):
    """One that knows the API alone."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def get_meter(self, name: str, *args: Any, **kwargs: Any) -> api.Meter:
        seen = self.seen

        class Meter(NoOpMeter):
            def create_counter(self, name: str, *args: Any, **kwargs: Any) -> Any:
                return Instrument(name, seen)

            def create_histogram(self, name: str, *args: Any, **kwargs: Any) -> Any:
                return Instrument(name, seen)

        return Meter(name)


def use_all(provider: api.MeterProvider) -> metrics.Meter:
    """Record one of each."""
    meter = metrics.Meter(provider, "1")
    meter.watch_dropped(lambda: 2)
    unit = unit_of([Call("Net.layers.0", Phase.FORWARD, 1_000_000)] * 2)
    unit.collectives.append(launched("all_reduce", "0", 8))
    meter.take(unit, unit.regions, lambda _: span(1))
    meter.step(1.0, span(2))
    return meter


def test_a_provider_of_the_apis_alone() -> None:
    """It is given each value by itself."""
    provider = Provider()
    use_all(provider)
    labels = {
        semconv.PHASE: "forward",
        semconv.MODULE_TEMPLATE: "Net.layers.*",
        semconv.MODULE_TYPE: "Linear",
    }
    launch = {semconv.COLLECTIVE_OPERATION: "all_reduce", semconv.COLLECTIVE_GROUP_NAME: "0"}
    assert [(name, value, found) for name, value, found, _ in provider.seen] == [
        (semconv.SPANS_DROPPED, 0, {}),
        (semconv.SPANS_DROPPED, 2, {}),
        (semconv.MODULE_DURATION, 0.001, labels),
        (semconv.MODULE_DURATION, 0.001, labels),
        (semconv.COLLECTIVE_COUNT, 1, launch),
        (semconv.COLLECTIVE_SIZE, 8, launch),
        (semconv.STEP_DURATION, 1.0, {}),
    ]


def test_no_provider() -> None:
    """Nothing is recorded, and nothing is said."""
    use_all(NoOpMeterProvider())


WITHOUT_THE_SDK = """
import sys
sys.modules["opentelemetry.sdk"] = None
import torch
from opentelemetry.metrics import NoOpMeterProvider
from otel_modtrack import ModTracker
from otel_modtrack.metrics import Meter
model = torch.nn.Linear(2, 2)
for provider in (None, NoOpMeterProvider()):
    with ModTracker(model, metrics=True, meter_provider=provider) as tracker:
        for number in range(2):
            with tracker.step(number):
                model(torch.ones(1, 2)).sum().backward()
print(Meter.__name__, [name for name in sys.modules if name.startswith("opentelemetry.sdk.")])
"""


def test_without_the_sdk() -> None:
    """The API alone is enough, to the global provider and to one that is given."""
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-W", "error", "-c", WITHOUT_THE_SDK],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "Meter []\n"


def test_a_provider_that_is_set_later() -> None:
    """The API's proxy, which the SDK's provider takes the place of."""
    proxy = _ProxyMeterProvider()
    meter = use_all(proxy)
    provider, (reader,) = provider_of()
    proxy.on_set_meter_provider(provider)
    unit = unit_of([Call("Net.layers.0", Phase.FORWARD, 1_000_000)] * 2)
    meter.take(unit, unit.regions, lambda _: span(1))
    (point,) = points(reader)[semconv.MODULE_DURATION]
    assert (point.count, point.exemplars[0].span_id) == (2, 1)


def test_a_reader_that_is_added_later() -> None:
    """Where the SDK can do that."""
    provider, (reader,) = provider_of()
    if not hasattr(provider, "add_metric_reader"):
        pytest.skip("this SDK cannot")
    _, (later,) = provider_of()
    unit = unit_of([Call("Net.layers.0", Phase.FORWARD, 1_000_000)] * 2)
    meter = use_all(provider)
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader  # noqa: PLC0415 - used here

    later = InMemoryMetricReader()
    provider.add_metric_reader(later)
    meter.take(unit, unit.regions, None)
    assert points(reader)[semconv.MODULE_DURATION][0].count == 4
    assert points(later)[semconv.MODULE_DURATION][0].count == 2


@pytest.mark.parametrize("part", ["record", "add"])
def test_a_provider_that_raises(
    part: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is said once, and nothing is raised."""

    def fail(*_: Any) -> None:
        raise OSError("no room")

    monkeypatch.setattr(Instrument, part, fail)
    meter = use_all(Provider())
    meter.outside(launched("all_reduce", "0", 8))
    meter.step(1.0, None)
    assert [record.getMessage() for record in caplog.records] == [
        "a metric could not be recorded; further ones are tried"
    ]


def test_what_a_signal_handler_raises_is_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    """A time limit that goes off in our code reaches the program."""

    def expired(number: int, frame: Any) -> None:
        raise TimeoutError

    def record(*_: Any) -> None:
        signal.raise_signal(signal.SIGALRM)

    before = signal.signal(signal.SIGALRM, expired)
    try:
        monkeypatch.setattr(Instrument, "record", record)
        with pytest.raises(TimeoutError):
            use_all(Provider())
    finally:
        signal.signal(signal.SIGALRM, before)
