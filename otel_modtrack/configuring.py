"""`configure`: providers from the environment alone, and an end at which nothing is lost unseen."""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import TYPE_CHECKING

from opentelemetry import context as context_api, metrics, trace

from otel_modtrack import carrier
from otel_modtrack.otlp import variables
from otel_modtrack.otlp.counts import Counts
from otel_modtrack.usage import ConfigurationError

if TYPE_CHECKING:
    from otel_modtrack.otlp.delivery import Delivery
    from otel_modtrack.otlp.metrics import Reader

__all__ = ["EXIT_TIMEOUT_S", "Telemetry", "configure"]

logger = logging.getLogger("otel_modtrack")

EXIT_TIMEOUT_S = 5.0
_METRICS_SHARE = 0.2  # of it
_LOCK = threading.Lock()


class Telemetry:
    """What `configure` built, or found.

    Attributes:
        tracer_provider: where spans go; the program's own, if it had set one.
        meter_provider: where metrics go; likewise.
        spans: what became of the spans: ``delivered``, ``lost``, ``lost_by_reason``, ``waiting``.
            All 0 where the provider is the program's own.
    """

    def __init__(self) -> None:
        self.tracer_provider = trace.get_tracer_provider()
        self.meter_provider = metrics.get_meter_provider()
        self.spans = Counts()
        self._deliveries: list[Delivery] = []  # of spans
        self._reader: Reader | None = None
        self._exit_timeout_s = EXIT_TIMEOUT_S
        self._mention: tuple[Counts, str] | None = None  # told at the end if they delivered any
        self._pid = os.getpid()

    def flush(self, timeout_s: float | None = None) -> bool:
        """Wait until every span that has ended is delivered or lost.

        Args:
            timeout_s: how long; OTEL_PYTHON_MODTRACK_EXIT_TIMEOUT if None.

        Returns:
            Whether that came to pass in time.
        """
        end_s = time.monotonic() + (self._exit_timeout_s if timeout_s is None else timeout_s)
        if not self._is_ours():
            flush = getattr(self.tracer_provider, "force_flush", None)
            return bool(flush(int((end_s - time.monotonic()) * 1000))) if flush else True
        in_time = True
        for one in self._deliveries:
            in_time &= one.flush(_until(end_s))
        if self._reader is not None:  # after the spans: it tells what became of them
            in_time &= self._reader.force_flush(_until(end_s) * 1000)
        return in_time

    def shutdown(self, timeout_s: float | None = None) -> bool:
        """Deliver what is there, count the rest as lost, and take nothing more.

        Done by itself when the process ends. A provider of the program's own is not touched.

        Args:
            timeout_s: how long; OTEL_PYTHON_MODTRACK_EXIT_TIMEOUT if None.

        Returns:
            Whether everything was delivered or lost before the time was up.
        """
        if not self._is_ours():
            return True
        timeout_s = self._exit_timeout_s if timeout_s is None else timeout_s
        end_s = time.monotonic() + timeout_s
        # The metrics' share is kept from the spans: they tell what became of them.
        spans_end_s = end_s - (timeout_s * _METRICS_SHARE if self._reader is not None else 0.0)
        in_time = True
        for one in self._deliveries:
            in_time &= one.shutdown(_until(spans_end_s))
        if self._reader is not None:
            in_time &= self._reader.end(_until(end_s))
        self.spans.tell_lost()
        self._say_where()
        return in_time

    def _is_ours(self) -> bool:
        """Whether anything here delivers; else the providers are the program's own, or none."""
        return bool(self._deliveries) or self._reader is not None

    def _say_where(self) -> None:
        """Tell, once and in the process that built all this, how to see what was delivered."""
        if self._mention is None or self._pid != os.getpid():
            return
        counts, sentence = self._mention
        if counts.delivered:
            from otel_modtrack.leaving import mention  # noqa: PLC0415 - as in `_enter_child`

            self._mention = None
            mention(sentence)

    def _leave(self) -> None:
        try:
            self.shutdown()
        except KeyboardInterrupt:  # a second Ctrl-C: leave now
            self.shutdown(0.0)

    def _send(self) -> None:
        for one in self._deliveries:
            one.flush(0.0)

    def _enter_child(self) -> None:
        """`configure` in a forked child: its spans are its own."""
        from otel_modtrack.leaving import at_worker_exit  # noqa: PLC0415 - as in `_build`

        self._pid = os.getpid()
        self._mention = None  # its parent's to tell
        if self._is_ours():
            at_worker_exit(self._leave)
            if self._reader is not None:
                self._reader.start()


def _until(end_s: float) -> float:
    return max(end_s - time.monotonic(), 0.0)


_configured: list[Telemetry] = []


def configure(*, service_name: str | None = None) -> Telemetry:
    """Build tracer and meter providers from the standard OTEL_* variables, and make them global.

    A provider that the program has set is used, and never replaced. Called again, it gives what it
    gave before. In a forked child it makes the child's spans the child's own. docs/backends.md
    lists the variables.

    Args:
        service_name: used where the environment names none.

    Returns:
        The providers, the counts of what became of the spans, and a way to flush.

    Raises:
        ConfigurationError: if a variable cannot be used; its message names it and the mend.
    """
    with _LOCK:
        if _configured:
            found = _configured[0]
            if found._pid != os.getpid():  # noqa: SLF001 - made here
                found._enter_child()  # noqa: SLF001
            return found
        found = Telemetry()
        if variables.flag("OTEL_SDK_DISABLED"):
            logger.info("OTEL_SDK_DISABLED=true: no spans")
        elif isinstance(found.tracer_provider, trace.ProxyTracerProvider):
            try:
                from otel_modtrack.pipeline import build  # noqa: PLC0415 - the SDK is optional
            except ImportError as error:
                raise ConfigurationError(
                    f"configure() needs {error.name}; install it with"
                    " pip install 'otel_modtrack[otlp]'"
                ) from None
            except ValueError as error:  # the SDK's span limits, read as it is imported
                raise ConfigurationError(f"{error}; correct or unset it") from None
            build(found, service_name)
        outer = carrier.read()
        if outer is not None and carrier.parent_in() is None:
            context_api.attach(outer)  # the program's own spans are in that trace, too
        _configured.append(found)
        return found
