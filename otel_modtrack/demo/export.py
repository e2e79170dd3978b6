"""Where the demo's spans go: to a file, and to an OTLP backend if the environment names one."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_ON

from otel_modtrack.otlp import variables
from otel_modtrack.otlp.delivery import Delivery, Limits
from otel_modtrack.otlp.senders import FileSender, SpanSender
from otel_modtrack.otlp.settings import read_endpoint
from otel_modtrack.pipeline import Processor, exit_timeout_s, read_limits
from otel_modtrack.resources import make_resource

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from otel_modtrack.otlp.counts import Counts
    from otel_modtrack.otlp.settings import Endpoint


__all__ = ["Pipeline", "find_backend", "open_pipeline"]

_DEFAULT_SERVICE: Final = "otel-modtrack-demo"
# Of the file: spans in one line, the longest that one waits, and the longest that the end takes.
_BATCH: Final = 512
_DELAY_S: Final = 1.0
_FILE_TIMEOUT_S: Final = 60.0


class Pipeline:
    """A tracer provider, and what became of its spans.

    Attributes:
        provider: Records every span, whatever the environment says about sampling.
        file: What was written.
        backend: What was sent; None without a backend.
    """

    def __init__(self, out: Path, backend: Endpoint | None, *, queue_size: int) -> None:
        self._exit_timeout_s = exit_timeout_s()
        self.provider = TracerProvider(
            sampler=ALWAYS_ON, resource=make_resource(_DEFAULT_SERVICE), shutdown_on_exit=False
        )
        self._file = Delivery(
            FileSender(str(out)), Limits(max(queue_size, _BATCH), _BATCH, _DELAY_S, 0.0)
        )
        self.file = self._file.counts
        self._backend: Delivery | None = None
        self.backend: Counts | None = None
        if backend is not None:
            limits = read_limits(backend.timeout_s, waiting=queue_size)
            self._backend = Delivery(SpanSender(backend), limits)
            self.backend = self._backend.counts
            self.provider.add_span_processor(Processor(self._backend, self._exit_timeout_s))
        self.provider.add_span_processor(Processor(self._file, _FILE_TIMEOUT_S))

    @property
    def produced(self) -> int:
        """How many spans ended."""
        return self.file.delivered + self.file.lost + self.file.waiting

    def close(self) -> None:
        """Wait until all spans are where they go, or lost."""
        self.provider.shutdown()


@contextmanager
def open_pipeline(out: Path, backend: Endpoint | None, *, queue_size: int) -> Iterator[Pipeline]:
    """Give a pipeline, and wait at the end until its spans are where they go.

    What the delivery would log meanwhile is in the counts, and is told at the end.

    Args:
        out: File that the spans are appended to.
        backend: Where they go besides.
        queue_size: As many spans as may ever wait: none of them is dropped.

    Raises:
        UsageError: If the backend's settings are of no use.
    """
    logger = logging.getLogger("otel_modtrack.otlp")
    disabled, logger.disabled = logger.disabled, True
    try:
        pipeline = Pipeline(out, backend, queue_size=queue_size)
        try:
            yield pipeline
        finally:
            pipeline.close()
    finally:
        logger.disabled = disabled


def find_backend() -> Endpoint | None:
    """Return the OTLP backend that the environment names, if it names one.

    Raises:
        UsageError: If a variable is of no use.
    """
    named = variables.text("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
    return read_endpoint("traces") if named[0] else None
