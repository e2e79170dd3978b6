"""The span processors that put what ends into a `Delivery`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor

from otel_modtrack import leaving
from otel_modtrack.otlp.delivery import Delivery
from otel_modtrack.usage import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from otel_modtrack.otlp.counts import Counts
    from otel_modtrack.otlp.records import Record

__all__ = ["OtlpSpanProcessor", "Processor"]


class Processor(SpanProcessor):
    """Puts each span that is sampled into a delivery.

    Args:
        delivery: it.
        exit_timeout_s: how long `shutdown` may take.

    Attributes:
        takes_records: whether spans of ours need not be made for it; see `records`.
    """

    def __init__(self, delivery: Delivery, exit_timeout_s: float) -> None:
        self._delivery = delivery
        self._put = delivery.put
        self._exit_timeout_s = exit_timeout_s
        self.takes_records = delivery.takes_records

    def on_end(self, span: ReadableSpan) -> None:
        """Called by the thread that ends the span."""
        context = span.context
        if context is None or not context.trace_flags & 1:
            return
        since_ns = self._delivery.since_ns
        if since_ns and (span.start_time or 0) < since_ns:
            return  # began before this process was forked: its parent ends it, too
        self._put(span)

    def put_records(self, records: Sequence[Record]) -> None:
        """As `on_end` for each of them. All are sampled. Never raises."""
        since_ns = self._delivery.since_ns
        if since_ns:
            records = [one for one in records if one[4] >= since_ns]  # began since
        self._delivery.put_all(records)

    def shutdown(self) -> None:
        """By whoever shuts the provider down."""
        self._delivery.shutdown(self._exit_timeout_s)

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Wait until what ended before is delivered or lost."""
        return self._delivery.flush(timeout_millis / 1e3)


class OtlpSpanProcessor(Processor):
    """Delivers the spans of a provider of yours by OTLP: all of them, and ours at the least cost.

    It stands in for ``BatchSpanProcessor(OTLPSpanExporter())``: module spans become bytes without a
    span object, any other span is encoded by OpenTelemetry's own encoder, and each is counted as
    delivered or lost. What is left out is as the ``OTEL_EXPORTER_OTLP_*`` and ``OTEL_BSP_*``
    variables say.

    Args:
        endpoint: address as it is used, with ``/v1/traces`` for HTTP.
        protocol: ``http/protobuf``, ``grpc`` or ``http/json``.
        headers: sent with each request, in place of the environment's.
        exit_timeout_s: how long `shutdown` may take, seconds.

    Attributes:
        counts: what became of the spans: ``delivered``, ``lost``, ``lost_by_reason``, ``waiting``.

    Raises:
        ConfigurationError: if an argument or a variable cannot be used, or a package is missing.

    Example:
        >>> provider = TracerProvider()
        >>> provider.add_span_processor(OtlpSpanProcessor())
    """

    def __init__(
        self,
        endpoint: str | None = None,
        *,
        protocol: str | None = None,
        headers: Mapping[str, str] | None = None,
        exit_timeout_s: float | None = None,
    ) -> None:
        # Here, for they need the exporters' packages, and this module's base does not.
        from otel_modtrack.otlp.senders import SpanSender  # noqa: PLC0415
        from otel_modtrack.otlp.settings import read_endpoint  # noqa: PLC0415
        from otel_modtrack.pipeline import exit_timeout_s as exit_s, read_limits  # noqa: PLC0415

        if exit_timeout_s is not None:
            _check_timeout(exit_timeout_s)
        where = read_endpoint("traces", protocol, endpoint, headers)
        limits = read_limits(where.timeout_s)
        timeout_s = exit_s() if exit_timeout_s is None else exit_timeout_s
        delivery = Delivery(SpanSender(where), limits, on_start=self._in_a_worker)
        super().__init__(delivery, timeout_s)
        self.counts: Counts = delivery.counts
        delivery.start()

    def shutdown(self) -> None:
        """See `Processor.shutdown`; what was lost is told in one line of the log."""
        super().shutdown()
        self.counts.tell_lost()

    def _in_a_worker(self) -> None:
        leaving.at_worker_exit(self.shutdown)  # it leaves by os._exit


def _check_timeout(seconds: object) -> None:
    """Raises ConfigurationError: if it is none."""
    if (
        isinstance(seconds, bool)
        or not isinstance(seconds, (int, float))
        or not (math.isfinite(seconds) and seconds >= 0)
    ):
        raise ConfigurationError(f"exit_timeout_s={seconds!r} is no number of 0 or more")
