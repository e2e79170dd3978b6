"""Where spans go: a processor that drops them, and a receiver of OTLP/HTTP in another process."""

from __future__ import annotations

import pathlib
import subprocess
import sys
from typing import TYPE_CHECKING

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Telemetry"]

_QUEUE = 200_000  # spans: nothing may be dropped, or the export would look cheaper than it is


class Dropping(SpanProcessor):
    """Takes every span and drops it."""

    def on_end(self, span: ReadableSpan) -> None:
        """Drop it."""


class CountingExporter(OTLPSpanExporter):
    """OTLP/HTTP, and how many spans the receiver has acknowledged."""

    delivered = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Export, and count."""
        result = super().export(spans)
        if result is SpanExportResult.SUCCESS:
            self.delivered += len(spans)
        return result


class Telemetry:
    """The receiver in a process of its own, and the providers. To be closed."""

    def __init__(self) -> None:
        receiver = pathlib.Path(__file__).with_name("receiver.py")
        self._process = subprocess.Popen(  # noqa: S603 - our own script
            [sys.executable, str(receiver)], stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None  # noqa: S101 - a pipe was asked for
        port = int(self._process.stdout.readline())
        self.exporter = CountingExporter(endpoint=f"http://127.0.0.1:{port}/v1/traces", headers={})
        self.exporting = TracerProvider(shutdown_on_exit=False)
        self.exporting.add_span_processor(
            BatchSpanProcessor(self.exporter, max_queue_size=_QUEUE, max_export_batch_size=512)
        )
        self.dropping = TracerProvider(shutdown_on_exit=False)
        self.dropping.add_span_processor(Dropping())

    def close(self) -> None:
        """Stop the exporter's thread and the receiver."""
        self.exporting.shutdown()
        self.dropping.shutdown()
        self._process.kill()
        self._process.communicate()

    def drain(self) -> None:
        """Wait until all spans are delivered.

        Raises:
            RuntimeError: if they are not within the processor's time.
        """
        if not self.exporting.force_flush():
            raise RuntimeError("the receiver did not take all spans in time")
