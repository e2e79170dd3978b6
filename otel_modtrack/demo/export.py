"""Where the demo's spans go: always to a file, and to an OTLP backend if the environment names one.

Each way counts what it was given and what it got rid of, so that a loss shows.
"""

from __future__ import annotations

import logging
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from opentelemetry.exporter.otlp.json.file import FileSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_ON

from otel_modtrack.usage import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path


__all__ = ["Backend", "CountingExporter", "Pipeline", "find_backend", "open_pipeline"]

_DEFAULT_SERVICE: Final = "otel-modtrack-demo"
_PROTOCOLS: Final = ("http/protobuf", "grpc")
# Retries of one batch, where OTEL_EXPORTER_OTLP_TIMEOUT says nothing. Nobody waits long for a demo.
_TIMEOUT_S: Final = 5.0
# Of the file's own batches: spans in one line, and the longest that a span waits to be written.
_BATCH: Final = 512
_DELAY_MS: Final = 1000


class CountingExporter(SpanExporter):
    """Counts the spans that another exporter got rid of, and gives up after its first failure.

    An exporter tries a batch again for some seconds before it fails. Without giving up, a backend
    that is down would cost that for every batch.
    """

    def __init__(self, exporter: SpanExporter) -> None:
        self.exported = 0
        self.has_failed = False
        self._exporter = exporter

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Hand a batch on. Never raises."""
        if self.has_failed:
            return SpanExportResult.FAILURE
        try:
            result = self._exporter.export(spans)
        except Exception:  # noqa: BLE001 - whatever it is, it must not end the training
            result = SpanExportResult.FAILURE
        if result is SpanExportResult.SUCCESS:
            self.exported += len(spans)
        else:
            self.has_failed = True
        return result

    def shutdown(self) -> None:
        """Close the connection or the file."""
        self._exporter.shutdown()


class _ProducedCounter(SpanProcessor):
    """Counts the spans that ended, before any queue."""

    def __init__(self) -> None:
        self.produced = 0

    def on_end(self, span: ReadableSpan) -> None:  # noqa: ARG002 - the interface's name
        self.produced += 1


class Backend:
    """An OTLP backend, as the environment names it.

    Attributes:
        address: Where it is, without credentials: fit to be printed.
        protocol: ``http/protobuf`` or ``grpc``.
    """

    def __init__(self, endpoint: str, protocol: str) -> None:
        self.address = _without_credentials(endpoint)
        self.protocol = protocol

    def exporter(self) -> SpanExporter:
        """Make the standard exporter, which reads the rest of the environment itself.

        Raises:
            UsageError: If a variable holds what it cannot take.
        """
        timeout_s = None if _environment("TIMEOUT") else _TIMEOUT_S
        try:
            if self.protocol == "grpc":
                from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import (
                    OTLPSpanExporter as GrpcSpanExporter,
                )

                return GrpcSpanExporter(timeout=timeout_s)
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

            return OTLPSpanExporter(timeout=timeout_s)
        except Exception as error:  # noqa: BLE001 - several libraries read the variables
            # Its text may quote a header or a key: only its name is shown.
            raise UsageError(
                f"the OTLP exporter refuses its settings ({type(error).__name__}); check the "
                "OTEL_EXPORTER_OTLP_* variables"
            ) from None


class Pipeline:
    """A tracer provider, and what became of its spans.

    Attributes:
        provider: Records every span, whatever the environment says about sampling.
        file: Counts what was written.
        backend: Counts what was sent; None without a backend.
    """

    def __init__(self, out: Path, backend: Backend | None, *, queue_size: int) -> None:
        self.provider = TracerProvider(
            sampler=ALWAYS_ON, resource=_resource(), shutdown_on_exit=False
        )
        self._counter = _ProducedCounter()
        self.provider.add_span_processor(self._counter)
        self.backend = None if backend is None else CountingExporter(backend.exporter())
        if self.backend is not None:
            self.provider.add_span_processor(_user_batches(self.backend, queue_size))
        self.file = CountingExporter(FileSpanExporter(out))
        self.provider.add_span_processor(
            BatchSpanProcessor(
                self.file,
                max_queue_size=max(queue_size, _BATCH),
                max_export_batch_size=_BATCH,
                schedule_delay_millis=_DELAY_MS,
                export_timeout_millis=_DELAY_MS,
            )
        )

    @property
    def produced(self) -> int:
        """How many spans ended."""
        return self._counter.produced


def _user_batches(exporter: SpanExporter, queue_size: int) -> SpanProcessor:
    """Batch as the user's OTEL_BSP_* variables say; none of the spans is dropped by default."""
    size = None if os.environ.get("OTEL_BSP_MAX_QUEUE_SIZE") else max(queue_size, _BATCH)
    try:
        return BatchSpanProcessor(exporter, max_queue_size=size)
    except ValueError as error:
        raise UsageError(
            f"the OTEL_BSP_* variables do not fit each other: {error} Correct or unset them"
        ) from None


@contextmanager
def open_pipeline(out: Path, backend: Backend | None, *, queue_size: int) -> Iterator[Pipeline]:
    """Give a pipeline, and wait at the end until its spans are where they go.

    The SDK and its exporters are quiet meanwhile: a backend that is down would write a page. What
    they have to say is in the counts.

    Args:
        out: File that the spans are appended to.
        backend: Where they go besides.
        queue_size: As many spans as may ever wait: none of them is dropped.

    Raises:
        UsageError: If the backend's settings are of no use.
    """
    logger = logging.getLogger("opentelemetry")
    quiet = logging.NullHandler()
    propagated = logger.propagate
    logger.addHandler(quiet)
    logger.propagate = False
    try:
        pipeline = Pipeline(out, backend, queue_size=queue_size)
        try:
            yield pipeline
        finally:
            pipeline.provider.shutdown()
    finally:
        logger.propagate = propagated
        logger.removeHandler(quiet)


def find_backend() -> Backend | None:
    """Return the OTLP backend that the environment names, if it names one.

    Raises:
        UsageError: If its protocol or address is of no use.
    """
    endpoint = _environment("ENDPOINT")
    if not endpoint:
        return None
    protocol = _environment("PROTOCOL") or _PROTOCOLS[0]
    if protocol not in _PROTOCOLS:
        raise UsageError(
            f"OTEL_EXPORTER_OTLP_PROTOCOL={protocol} is not supported; set it to "
            f"{' or '.join(_PROTOCOLS)}"
        )
    backend = Backend(endpoint, protocol)
    # gRPC takes an address without a scheme as well.
    needs_url = protocol != "grpc" or not backend.address
    if needs_url and not backend.address.startswith(("http://", "https://")):
        raise UsageError(
            "OTEL_EXPORTER_OTLP_ENDPOINT is no URL; set it to one such as http://localhost:4318"
        )
    return backend


def _environment(name: str) -> str:
    """Return a setting of the OTLP exporter: the one for traces, or the one for all signals."""
    for variable in (f"OTEL_EXPORTER_OTLP_TRACES_{name}", f"OTEL_EXPORTER_OTLP_{name}"):
        if value := os.environ.get(variable, "").strip():
            return value
    return ""


def _without_credentials(endpoint: str) -> str:
    """Return an address without user, password and query; "" if it is none."""
    if "://" not in endpoint:
        return endpoint.rpartition("@")[2]
    try:
        parts = urlsplit(endpoint)
    except ValueError:
        return ""
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _resource() -> Resource:
    resource = Resource.create()
    if str(resource.attributes[SERVICE_NAME]).startswith("unknown_service"):
        return resource.merge(Resource({SERVICE_NAME: _DEFAULT_SERVICE}))
    return resource
