"""Metrics, collected now and then and sent by OTLP; among them what became of the spans.

The SDK's periodic reader starts a thread in every forked child, and waits at the exit for as long
as its exporter likes. This one does neither.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from typing import TYPE_CHECKING, Any

from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import (
    Counter,
    Histogram,
    ObservableCounter,
    ObservableUpDownCounter,
    UpDownCounter,
)
from opentelemetry.sdk.metrics.export import AggregationTemporality, MetricReader

from otel_modtrack.otlp.senders import encode_metrics

if TYPE_CHECKING:
    from collections.abc import Iterable

    from opentelemetry.metrics import MeterProvider

    from otel_modtrack.otlp.counts import Counts
    from otel_modtrack.otlp.delivery import Delivery
    from otel_modtrack.otlp.settings import Endpoint

__all__ = ["TEMPORALITIES", "Reader", "watch"]

logger = logging.getLogger("otel_modtrack.otlp")

_POLL_S = 0.002
_DELTA, _CUMULATIVE = AggregationTemporality.DELTA, AggregationTemporality.CUMULATIVE
# Source: OpenTelemetry specification, *Metrics exporter - OTLP*, additional configuration.
TEMPORALITIES: dict[str, dict[Any, AggregationTemporality]] = {
    "cumulative": {},
    "delta": dict.fromkeys((Counter, Histogram, ObservableCounter), _DELTA)
    | dict.fromkeys((UpDownCounter, ObservableUpDownCounter), _CUMULATIVE),
    "lowmemory": dict.fromkeys((Counter, Histogram), _DELTA)
    | dict.fromkeys((ObservableCounter, UpDownCounter, ObservableUpDownCounter), _CUMULATIVE),
}


class Reader(MetricReader):
    """Collects every so often, and hands what it found to a `Delivery`.

    Args:
        endpoint: whose protocol decides the encoding.
        delivery: that sends it.
        interval_s: between two collections.
        temporality: a key of `TEMPORALITIES`.
    """

    def __init__(
        self, endpoint: Endpoint, delivery: Delivery, interval_s: float, temporality: str
    ) -> None:
        super().__init__(preferred_temporality=TEMPORALITIES[temporality])
        self._endpoint = endpoint
        self._delivery = delivery
        self._interval_s = interval_s
        self._stop: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Collect from now on; in a forked child only where this is called again."""
        self._stop = queue.SimpleQueue()
        self._thread = threading.Thread(
            target=self._tick, args=(self._stop,), name="otel_modtrack collect", daemon=True
        )
        self._thread.start()

    def _tick(self, stop: queue.SimpleQueue[None]) -> None:
        while True:
            try:
                stop.get(timeout=self._interval_s)
            except queue.Empty:
                self.gather()
            else:
                self.gather()
                return

    def gather(self) -> None:
        """Collect. Never raises, whatever the program's own instruments do."""
        try:
            self.collect()
        except Exception as error:  # noqa: BLE001 - a callback that is late, a number too large
            logger.warning("metrics could not be collected: %s", type(error).__name__)

    def _receive_metrics(
        self, metrics_data: Any, timeout_millis: float = 10_000, **kwargs: Any
    ) -> None:
        del timeout_millis, kwargs
        if metrics_data is not None and metrics_data.resource_metrics:
            self._delivery.put(encode_metrics(self._endpoint, metrics_data))

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        """Collect, and wait until it is sent."""
        self.gather()
        return self._delivery.flush(timeout_millis / 1e3)

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
        """By whoever shuts the provider down; see `end`."""
        del kwargs
        self.end(timeout_millis / 1e3)

    def end(self, timeout_s: float) -> bool:
        """Collect a last time, for half of the time at most, and deliver it in what is left.

        On the thread that always collects: a signal handler calls this, and what it interrupted may
        hold a lock of the SDK's.

        Returns:
            Whether all of it was delivered or lost before the time was up.
        """
        thread, begun_s = self._thread, time.monotonic()
        self._stop.put(None)
        while thread is not None and thread.is_alive():
            if time.monotonic() - begun_s >= timeout_s / 2:
                break
            time.sleep(_POLL_S)
        return self._delivery.shutdown(max(timeout_s - (time.monotonic() - begun_s), 0.0))


def watch(counts: Counts, provider: MeterProvider, shown: str, version: str) -> None:
    """Tell what became of the spans, as metrics.

    Source: OpenTelemetry semantic conventions, *OpenTelemetry SDK metrics*.
    """
    meter = provider.get_meter("otel_modtrack", version)
    name = {"otel.component.type": "otel_modtrack", "otel.component.name": shown}

    def processed(_: CallbackOptions) -> Iterable[Observation]:
        yield Observation(counts.delivered, name)
        for reason, lost in list(counts.lost_by_reason.items()):
            yield Observation(lost, {**name, "error.type": reason})

    def waiting(_: CallbackOptions) -> Iterable[Observation]:
        yield Observation(counts.waiting, name)

    meter.create_observable_counter(
        "otel.sdk.exporter.span.exported",
        [processed],
        unit="{span}",
        description="spans delivered, and those lost by error.type",
    )
    meter.create_observable_up_down_counter(
        "otel.sdk.processor.span.queue.size",
        [waiting],
        unit="{span}",
        description="spans that wait to be delivered",
    )
