"""From finished spans to an OTLP endpoint: settings, transports, and a queue that counts.

Why not the SDK's `BatchSpanProcessor` and the stock exporters: they drop without a count that can
be read, do not split what is refused as too large, have no deadline for the exit, and write the
server's words, which may quote a token, into the log. Spans that somebody made are encoded by
OpenTelemetry's own library here, too; those that nobody asked for are never made (`encoding`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_modtrack.lazily import lazily

if TYPE_CHECKING:
    from otel_modtrack.otlp.processor import OtlpSpanProcessor

__all__ = ["OtlpSpanProcessor"]


# The SDK is optional.
__getattr__ = lazily(__name__, {"OtlpSpanProcessor": "processor"})
