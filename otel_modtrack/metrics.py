"""Durations and collectives as metrics, written when a unit is over.

A histogram of the SDK's takes 12 us per value, more than a span costs. So what a unit measured
under equal attributes is recorded in one go, see `sdk_metrics`.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Final

from otel_modtrack import semconv
from otel_modtrack.interrupts import from_signal_handler
from otel_modtrack.regions import CALLS
from otel_modtrack.sdk_metrics import feeding
from otel_modtrack.series import NO_MARK, NOWHERE, Mark, Series, around

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from opentelemetry import trace
    from opentelemetry.metrics import MeterProvider

    from otel_modtrack.comm.records import Collective
    from otel_modtrack.regions import Region, Unit

    ContextOf = Callable[[Region], trace.SpanContext | None]

__all__ = ["MODULE_BOUNDS_S", "STEP_BOUNDS_S", "Meter"]

logger = logging.getLogger("otel_modtrack")

MODULE_BOUNDS_S: Final = (
    *(50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)
STEP_BOUNDS_S: Final = (
    *(1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
    *(25.0, 50.0, 100.0, 250.0),
)
_KEPT = 4096  # series that are kept for the next unit


class Meter:
    """The instruments of one provider, and what is recorded with them. Safe to share by threads.

    Each method may be called at the end of every step: it never raises, except what a signal
    handler of the user's raised in it.

    Args:
        provider: any implementation; the SDK's is fast.
        version: of this library.
    """

    def __init__(self, provider: MeterProvider, version: str) -> None:
        meter = provider.get_meter(semconv.SCOPE_NAME, version)
        self._modules = meter.create_histogram(
            semconv.MODULE_DURATION,
            unit="s",
            description="duration of calls of modules and named regions",
            explicit_bucket_boundaries_advisory=MODULE_BOUNDS_S,
        )
        self._steps = meter.create_histogram(
            semconv.STEP_DURATION,
            unit="s",
            description="duration of training steps",
            explicit_bucket_boundaries_advisory=STEP_BOUNDS_S,
        )
        self._launches = meter.create_counter(
            semconv.COLLECTIVE_COUNT, unit="{collective}", description="collectives launched"
        )
        self._bytes = meter.create_counter(
            semconv.COLLECTIVE_SIZE, unit="By", description="payload of collectives on this rank"
        )
        self._drops = meter.create_counter(
            semconv.SPANS_DROPPED,
            unit="{span}",
            description="regions that could not be handed to the tracer provider",
        )
        self._series: dict[tuple[str, str, str], Series] = {}
        self._read: Callable[[], int] | None = None
        self._told = 0
        self._lock = threading.Lock()
        self._complained = False

    def take(self, unit: Unit, regions: Iterable[Region], context_of: ContextOf | None) -> None:
        """Record the durations of what ran in a unit, and the collectives launched in it.

        Args:
            unit: that is over.
            regions: of it, all closed, also those that have no span.
            context_of: gives the span of a region, None where it has none; None if nothing of the
                unit is traced. A span that is not sampled is taken for none.
        """
        try:
            self._take_durations(regions, context_of)
            if unit.collectives:
                self._take_collectives(unit.collectives, context_of)
            self._take_drops()
        except Exception as error:  # noqa: BLE001 - a provider of the user's
            self._fault(error)

    def step(self, duration_s: float, span_context: trace.SpanContext | None) -> None:
        """Record the duration of a training step.

        Args:
            duration_s: seconds.
            span_context: of its span, if it has one.
        """
        try:
            self._steps.record(duration_s, {}, around(span_context))
            self._take_drops()
        except Exception as error:  # noqa: BLE001 - a provider of the user's
            self._fault(error)

    def outside(self, record: Collective) -> None:
        """Count a collective that was launched in no unit."""
        try:
            self._take_collectives((record,), None)
        except Exception as error:  # noqa: BLE001 - a provider of the user's
            self._fault(error)

    def watch_dropped(self, read: Callable[[], int]) -> None:
        """Count what was dropped, from now on; looked at with each unit and step.

        A plain counter: an observable one of the SDK's keeps the callback of whoever made it first,
        and with it the tracker that has been left.

        Args:
            read: gives the number of regions dropped so far; it never gets less.
        """
        try:
            with self._lock:
                self._read, self._told = read, 0
            self._drops.add(0, {}, NOWHERE)  # a rate needs to see where it began
            self._take_drops()
        except Exception as error:  # noqa: BLE001 - a provider of the user's
            self._fault(error)

    def _take_drops(self) -> None:
        with self._lock:
            total = self._read() if self._read is not None else 0
            new, self._told = total - self._told, max(total, self._told)
        if new > 0:
            self._drops.add(new, {}, NOWHERE)

    def _take_durations(self, regions: Iterable[Region], context_of: ContextOf | None) -> None:
        groups: dict[tuple[str, str, str], list[Region]] = {}
        for region in regions:
            subject = region.subject
            if subject.kind in CALLS:
                key = (region.phase, subject.template, subject.type)
                group = groups.get(key)
                if group is None:
                    groups[key] = [region]
                else:
                    group.append(region)
        feed = feeding(self._modules)
        for key, group in groups.items():
            series = self._series.get(key)
            if series is None:
                series = self._new_series(key)
            values = [(region.end_ns - region.start_ns) / 1e9 for region in group]
            mark = NO_MARK if context_of is None else _mark(group, values, context_of)
            feed(series, values, mark)

    def _new_series(self, key: tuple[str, str, str]) -> Series:
        phase, template, type_name = key
        if len(self._series) >= _KEPT:
            self._series.clear()
        series = self._series[key] = Series(
            {
                semconv.PHASE: phase,
                semconv.MODULE_TEMPLATE: template,
                semconv.MODULE_TYPE: type_name,
            }
        )
        return series

    def _take_collectives(
        self, records: Sequence[Collective], context_of: ContextOf | None
    ) -> None:
        groups: dict[tuple[str, str], list[Collective]] = {}
        for record in records:
            launch = record.launch
            groups.setdefault((launch.operator.operation, launch.group.name), []).append(record)
        for (operation, name), group in groups.items():
            attributes = {
                semconv.COLLECTIVE_OPERATION: operation,
                semconv.COLLECTIVE_GROUP_NAME: name,
            }
            first = group[0].region
            traced = context_of is not None and first is not None
            context = around(context_of(first) if traced else None)  # type: ignore[misc, arg-type]
            self._launches.add(len(group), attributes, context)
            self._bytes.add(sum(record.launch.size for record in group), attributes, context)

    def _fault(self, error: Exception) -> None:
        """Something could not be recorded.

        Raises:
            Exception: `error` itself, if a signal handler of the user's raised it in our code.
        """
        if from_signal_handler(error):
            raise error
        if not self._complained:
            self._complained = True
            logger.error("a metric could not be recorded; further ones are tried", exc_info=error)


def _mark(group: list[Region], values: list[float], context_of: ContextOf) -> Mark:
    """The longest that has a span which is sampled."""
    at = values.index(max(values))
    found = context_of(group[at])
    if found is None and len(values) > 1:
        for at in sorted(range(len(values)), key=values.__getitem__, reverse=True):
            found = context_of(group[at])
            if found is not None:
                break
    context = around(found)
    return NO_MARK if context is NOWHERE else Mark(at, context)
