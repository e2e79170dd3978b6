"""How batches are sent: spans and metrics by OTLP, spans to a file or by any other exporter."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, cast

from opentelemetry.sdk.trace.export import SpanExportResult

from otel_modtrack.otlp.settings import JSON
from otel_modtrack.otlp.transport import DELIVERED, Fate, Outcome, open_transport

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter

    from otel_modtrack.otlp.records import Record
    from otel_modtrack.otlp.settings import Endpoint

    _Encode = Callable[[Sequence[Record | ReadableSpan]], bytes]

__all__ = ["ExporterSender", "FileSender", "MetricSender", "SpanSender", "encode_metrics"]

_NO_METRICS = "set OTEL_METRICS_EXPORTER=none where the backend takes no metrics"


class _OtlpSender:
    """What is common to both: a transport, opened at the first request."""

    mend = ""
    takes_records = False

    def __init__(self, endpoint: Endpoint) -> None:
        self.shown = endpoint.shown
        self.endpoint = endpoint
        self._transport = open_transport(endpoint)

    def send(self, prepared: bytes, timeout_s: float) -> Outcome:
        """See `delivery.Sender`."""
        return self._transport.send(prepared, timeout_s)

    def after_fork(self) -> None:
        """See `delivery.Sender`."""
        self._transport.after_fork()

    def close(self) -> None:
        """See `delivery.Sender`."""
        self._transport.close()


class SpanSender(_OtlpSender):
    """Spans, encoded by OpenTelemetry's own encoders; records, by ours."""

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint)
        self._encode, self.takes_records = _span_encoder(endpoint)

    def prepare(self, batch: Sequence[Record | ReadableSpan]) -> bytes:
        """See `delivery.Sender`."""
        return self._encode(batch)


class MetricSender(_OtlpSender):
    """Metrics that are encoded already, one request at a time."""

    mend = _NO_METRICS

    def prepare(self, batch: Sequence[bytes]) -> bytes:
        """See `delivery.Sender`."""
        (request,) = batch
        return request


class FileSender:
    """Spans as lines of OTLP JSON. Each is one write, so that processes may share a file.

    Args:
        path: appended to, and made where it is not there.

    Raises:
        OSError: if it cannot be opened.
    """

    mend = ""
    takes_records = True

    def __init__(self, path: str) -> None:
        self.shown = path
        self._encode = _json_encoder()
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)

    def prepare(self, batch: Sequence[Record | ReadableSpan]) -> bytes:
        """See `delivery.Sender`."""
        return self._encode(batch) + b"\n"

    def send(self, prepared: bytes, timeout_s: float) -> Outcome:  # noqa: ARG002 - a file's is none
        """See `delivery.Sender`."""
        try:
            written = os.write(self._file, prepared)
            if written < len(prepared):
                os.write(self._file, b"\n")  # what is cut off harms no other line
                return Outcome(Fate.REFUSED, "the disk is full")
        except OSError as error:
            return Outcome(Fate.REFUSED, error.strerror or type(error).__name__)
        return DELIVERED

    def after_fork(self) -> None:
        """See `delivery.Sender`: appending needs nothing."""

    def close(self) -> None:
        """See `delivery.Sender`."""
        os.close(self._file)


class ExporterSender:
    """Spans by an exporter of OpenTelemetry's: to the terminal, to a file, by other protocols."""

    mend = ""
    takes_records = False  # exporters are given spans

    def __init__(self, exporter: SpanExporter, shown: str) -> None:
        self.shown = shown
        self._exporter = exporter

    def prepare(self, batch: Sequence[ReadableSpan]) -> Sequence[ReadableSpan]:
        """See `delivery.Sender`."""
        return batch

    def send(self, prepared: Sequence[ReadableSpan], timeout_s: float) -> Outcome:  # noqa: ARG002
        """See `delivery.Sender`: an exporter has its own timeout."""
        try:
            if self._exporter.export(prepared) is SpanExportResult.SUCCESS:
                return DELIVERED
        except Exception as error:  # noqa: BLE001 - whatever an exporter raises is no one else's
            return Outcome(Fate.REFUSED, type(error).__name__)
        return Outcome(Fate.REFUSED, "the exporter failed")

    def after_fork(self) -> None:
        """See `delivery.Sender`."""

    def close(self) -> None:
        """See `delivery.Sender`."""
        self._exporter.shutdown()


def _span_encoder(endpoint: Endpoint) -> tuple[_Encode, bool]:
    """What encodes spans, and whether it takes records as well."""
    if endpoint.protocol == JSON:
        return _json_encoder(), True
    # Here, and in what follows, because each protocol's packages are an extra.
    from opentelemetry.exporter.otlp.proto.common.trace_encoder import (  # noqa: PLC0415
        encode_spans,
    )

    from otel_modtrack.otlp import encoding  # noqa: PLC0415

    if encoding.agrees():
        return encoding.encode, True
    return lambda spans: encode_spans(cast("Any", spans)).SerializeToString(), False


def _json_encoder() -> _Encode:
    from otel_modtrack.otlp.encoding_json import encode_json  # noqa: PLC0415

    return encode_json


def encode_metrics(endpoint: Endpoint, metrics: Any) -> bytes:
    """One request, as the endpoint's protocol has it."""
    if endpoint.protocol == JSON:
        from opentelemetry.exporter.otlp.json.common.metrics_encoder import (  # noqa: PLC0415
            encode_metrics as encode_json,
        )

        return _as_json(encode_json(metrics))
    from opentelemetry.exporter.otlp.proto.common.metrics_encoder import (  # noqa: PLC0415
        encode_metrics as encode,
    )

    encoded: bytes = encode(metrics).SerializeToString()
    return encoded


def _as_json(request: Any) -> bytes:
    return json.dumps(request.to_dict(), separators=(",", ":")).encode()
