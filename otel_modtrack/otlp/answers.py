"""What a backend that took a request says of it, whatever the transport."""

from __future__ import annotations

from opentelemetry.proto.collector.trace.v1 import trace_service_pb2

from otel_modtrack.otlp.transport import DELIVERED, Fate, Outcome

__all__ = ["delivered", "rejected_in"]


def delivered(rejected: int) -> Outcome:
    """A request that was taken, but for so many of its spans."""
    return Outcome(Fate.DELIVERED, "rejected", rejected=rejected) if rejected else DELIVERED


def rejected_in(answer: bytes) -> int:
    """How many spans of a request that was taken were not; the answer is encoded by protobuf."""
    try:
        # Metrics' and logs' answers have their count at the same place.
        found = trace_service_pb2.ExportTraceServiceResponse.FromString(answer)
    except Exception:  # noqa: BLE001 - an answer that cannot be read says nothing
        return 0
    return int(found.partial_success.rejected_spans)
