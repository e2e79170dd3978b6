# ruff: noqa: SLF001 - what is private is tried before it is used, in `_sdk`
"""Many durations at once, added to the sums that the SDK keeps of a histogram.

That takes private interfaces. They are tried once per process; where the result is not what
`record` gives, `record` is used.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import time
from bisect import bisect_left
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import trace

from otel_modtrack import semconv
from otel_modtrack.interrupts import from_signal_handler
from otel_modtrack.series import NO_MARK, NOWHERE, Mark, Series, around, record

if TYPE_CHECKING:
    from collections.abc import Callable

    Feed = Callable[[Series, list[float], Mark], None]

__all__ = ["feeding"]

logger = logging.getLogger("otel_modtrack")

_TRIED_BOUNDS_S: Final = (1e-3, 0.1, 0.5, 1.0)  # of the histograms that are tried


def feeding(histogram: Any) -> Feed:
    """The quickest way to record in a histogram.

    Args:
        histogram: of any provider's.

    Returns:
        What records the values of a series, with a mark for the exemplar.
    """
    histogram = getattr(histogram, "_real_instrument", None) or histogram  # of the API's proxy
    feed = None
    if type(histogram).__module__.startswith("opentelemetry.sdk."):
        sdk = _sdk()
        feed = sdk.feeding(histogram) if sdk is not None else None
    return feed or functools.partial(record, histogram)


@functools.cache
def _sdk() -> _Sdk | None:
    """The fast road; None where it does not lead to what `record` gives."""
    try:  # anything may go wrong, where the SDK is another one
        sdk = _Sdk()
        if sdk.is_exact():
            return sdk
    except Exception as error:
        if from_signal_handler(error):
            raise
        logger.debug("private interfaces of the SDK", exc_info=True)
    logger.info("this OpenTelemetry SDK is not known: each duration is recorded by itself")
    return None


class _Sdk:
    """Adds to what the SDK keeps of a histogram, per reader and view.

    Only to explicit buckets that are there already; everything else is left to the SDK's own code,
    value by value.
    """

    def __init__(self) -> None:
        from opentelemetry.sdk import metrics, resources  # noqa: PLC0415 - the SDK is optional
        from opentelemetry.sdk.metrics import _internal, export  # noqa: PLC0415 - likewise

        self._api, self._export, self._resource = metrics, export, resources.Resource.get_empty()
        self._internal: Any = _internal
        self._choosers = metrics.TraceBasedExemplarFilter, metrics.AlwaysOffExemplarFilter
        self._buckets = _internal.aggregation._ExplicitBucketHistogramAggregation
        self._dropping = _internal.aggregation._DropAggregation
        self._measurement: Any = _internal.measurement.Measurement
        matching: Any = _internal._view_instrument_match
        self._key_of = getattr(matching, "_hash_attributes", lambda found: frozenset(found.items()))

    def feeding(self, histogram: Any) -> Feed | None:
        """How to record in one of the SDK's; None if not as here.

        A filter of exemplars that is not known may want values that have no span.
        """
        if type(histogram) is not self._internal.instrument._Histogram:
            return None
        consumer = histogram._measurement_consumer
        chooser = type(consumer._sdk_config.exemplar_filter)
        if chooser not in self._choosers:
            return None
        if not getattr(histogram, "_is_enabled", lambda: True)():  # which older SDKs have not
            return None
        streams = [
            stream
            for storage in consumer._reader_storages.values()
            for stream in storage._get_or_init_view_instrument_match(histogram)
        ]

        def feed(series: Series, values: list[float], mark: Mark) -> None:
            if series.key is None:
                series.key = self._key_of(series.attributes)
            if chooser is not self._choosers[0]:
                mark = NO_MARK
            for stream in streams:
                self._put(stream, series, values, mark)

        return feed

    def _put(self, stream: Any, series: Series, values: list[float], mark: Mark) -> None:
        kept, key = stream._view._attribute_keys, series.key
        if kept is not None:
            key = self._key_of({k: v for k, v in series.attributes.items() if k in kept})
        for done, value in enumerate(values):
            with stream._lock:  # a delta collection takes away what is there
                found = stream._attributes_aggregation.get(key)
                if type(found) is self._buckets:
                    _add(found, values[done:])
                    if mark.at >= done:
                        found._reservoir.offer(
                            values[mark.at], time.time_ns(), series.attributes, mark.context
                        )
                    return
            if type(found) is self._dropping:
                return
            is_marked = done == mark.at
            stream.consume_measurement(
                self._measurement(
                    value=value,
                    time_unix_nano=time.time_ns(),
                    instrument=stream._instrument,
                    context=mark.context if is_marked else NOWHERE,
                    attributes=series.attributes,
                ),
                is_marked,
            )

    def is_exact(self) -> bool:
        """Whether it gives what `record` gives, in both temporalities."""
        delta: dict[type, Any] = {self._api.Histogram: self._export.AggregationTemporality.DELTA}
        readers = [
            self._export.InMemoryMetricReader(),
            self._export.InMemoryMetricReader(preferred_temporality=delta),
        ]
        meter = self._api.MeterProvider(
            readers,
            self._resource,
            self._api.TraceBasedExemplarFilter(),
            shutdown_on_exit=False,
        ).get_meter(semconv.SCOPE_NAME)
        histograms = [
            meter.create_histogram(name, explicit_bucket_boundaries_advisory=_TRIED_BOUNDS_S)
            for name in ("a", "b")
        ]
        feed = self.feeding(histograms[1])
        if feed is None:
            return False
        series = Series({"a": "b", "c": "d"})
        span = trace.SpanContext(1, 2, is_remote=False, trace_flags=trace.TraceFlags(1))
        for values in ([0.1, 0.7, 0.3], [0.2, 20.0], [1e-5]):
            mark = Mark(len(values) - 1, around(span))
            record(histograms[0], series, values, mark)
            feed(series, values, mark)
            for reader in readers:
                data = reader.get_metrics_data()
                if not _points(data, "a") or _points(data, "a") != _points(data, "b"):
                    return False
        return True


def _points(data: Any, name: str) -> list[Any]:
    """What was collected of a histogram, without the time."""
    return [
        dataclasses.replace(
            point,
            start_time_unix_nano=0,
            time_unix_nano=0,
            exemplars=[dataclasses.replace(one, time_unix_nano=0) for one in point.exemplars],
        )
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if metric.name == name
        for point in metric.data.data_points
    ]


def _add(sums: Any, values: list[float]) -> None:
    """What `_ExplicitBucketHistogramAggregation.aggregate` does, for several values."""
    with sums._lock:
        bounds, counts, total = sums._boundaries, sums._value, sums._sum
        if counts is None:
            counts = sums._value = [0] * (len(bounds) + 1)
        for value in values:
            total += value
            counts[bisect_left(bounds, value)] += 1
        sums._sum = total
        if sums._record_min_max:
            sums._min = min(sums._min, min(values))  # noqa: PLW3301 - a star would copy them
            sums._max = max(sums._max, max(values))  # noqa: PLW3301 - likewise
