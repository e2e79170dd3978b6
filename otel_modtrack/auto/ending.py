"""Enters the tracker, finds out late where spans go, and leaves it before the provider ends."""

from __future__ import annotations

import atexit
import contextvars
import logging
import multiprocessing
import os
import signal
import threading
from typing import TYPE_CHECKING, Any

from opentelemetry import trace

from otel_modtrack import leaving, options
from otel_modtrack.auto.faults import complain
from otel_modtrack.configuring import EXIT_TIMEOUT_S, configure
from otel_modtrack.otlp import variables
from otel_modtrack.tracker import ModTracker

if TYPE_CHECKING:
    from otel_modtrack.auto.arming import Arming, Settings

__all__ = ["enter", "forget", "is_forked"]

logger = logging.getLogger("otel_modtrack")

_NO_PROVIDER = (
    "no tracer provider is set, and nothing is recorded until there is one: start the program with"
    " `otel-modtrack run`, install opentelemetry-distro, or call otel_modtrack.configure()"
)
_said: set[str] = set()


def is_forked() -> bool:
    """Whether the environment asks for forked children to be tracked.

    Raises:
        ConfigurationError: if the variable cannot be used.
    """
    return bool(options.read(options.FORKED))


def enter(arming: Arming, settings: Settings) -> ModTracker:
    """Enter a tracker that looks for its provider when it needs one.

    Raises:
        ConfigurationError: if a variable cannot be used.
    """
    tracker = ModTracker(**settings.arguments)
    tracker._prepare = _Preparation(arming, settings, tracker).run  # noqa: SLF001 - made for it
    tracker.__enter__()
    return tracker


def forget(arming: Arming) -> None:
    """The tracker is left: nothing is to be done at the end of the process."""
    for one in _ends:
        if one.arming is arming:
            atexit.unregister(one.run)
    _ends[:] = [one for one in _ends if one.arming is not arming]


class _Preparation:
    """What is done before a tracker looks where its spans go."""

    def __init__(self, arming: Arming, settings: Settings, tracker: ModTracker) -> None:
        self._arming = arming
        self._settings = settings
        self._tracker = tracker
        self._configures = settings.configures
        self._ending = _Ending(arming, flushes=not settings.configures)
        _ends.append(self._ending)
        atexit.register(self._ending.run)

    def run(self) -> None:
        """Never raises, but for a signal handler's exception."""
        try:
            if self._configures:
                self._configures = False
                _configure()
            self._look()
        except Exception as error:  # noqa: BLE001 - nothing of ours may reach the user
            complain(error)

    def _look(self) -> None:
        given = "tracer_provider" in self._settings.arguments
        provider = self._settings.arguments.get("tracer_provider") or trace.get_tracer_provider()
        if isinstance(provider, trace.ProxyTracerProvider):
            self._tracker._prepare = self.run  # noqa: SLF001 - look again next time
            if not self._settings.configures:
                _say(_NO_PROVIDER)
            return
        self._ending.register()
        if not given:
            _check_queue(provider, self._tracker._policy.budget)  # noqa: SLF001 - as above


class _Ending:
    """Leaves the tracker at the end of the process, before its provider is shut down.

    Args:
        arming: whose tracker it is.
        flushes: whether the provider is one that nobody shuts down in a worker.
    """

    def __init__(self, arming: Arming, *, flushes: bool) -> None:
        self.arming = arming
        self._flushes = flushes

    def register(self) -> None:
        """Be called before what was registered until now."""
        atexit.unregister(self.run)
        atexit.register(self.run)
        leaving.at_worker_exit(self._run_in_worker)

    def run(self) -> None:
        """At the end. What ended the program is what ended the step that was open. Never raises."""
        try:
            self.arming.leave(leaving.ended_by())
        except Exception:
            logger.debug("otel_modtrack: the tracker was not left", exc_info=True)

    def _run_in_worker(self) -> None:
        self.run()
        flush = getattr(trace.get_tracer_provider(), "force_flush", None)
        if self._flushes and flush is not None:
            timeout_s = variables.number(EXIT_TIMEOUT_S, "OTEL_PYTHON_MODTRACK_EXIT_TIMEOUT")
            flush(int(timeout_s * 1000))


_ends: list[_Ending] = []


def _configure() -> None:
    """Make the providers, and leave everything else as the program has it."""
    is_main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM)
    # In a context of its own: nothing is to be attached in the middle of a call of the program's.
    contextvars.copy_context().run(configure)
    if is_main and before is not None and signal.getsignal(signal.SIGTERM) is not before:
        signal.signal(signal.SIGTERM, before)  # `Arming` has taken care of it


def _check_queue(provider: Any, budget: int) -> None:
    """Say if the SDK's queue is smaller than a trace may be. Its names are private: or say nothing.

    Source: opentelemetry/sdk/_shared_internal/__init__.py, `BatchProcessor` (SDK 1.35 to 1.45).
    """
    processors = getattr(getattr(provider, "_active_span_processor", None), "_span_processors", ())
    for one in processors:
        room = getattr(getattr(one, "_batch_processor", one), "_max_queue_size", None)
        if isinstance(room, int) and not 0 < budget <= room:
            wanted = f"{budget:,}" if budget else "any number of"
            _say(
                f"a trace may have {wanted} spans, and the BatchSpanProcessor has room for"
                f" {room:,}: set OTEL_BSP_MAX_QUEUE_SIZE to {max(budget, 4 * room)} or more, or"
                f" OTEL_PYTHON_MODTRACK_BUDGET to {room}, so that none is lost"
            )
            return


def _say(sentence: str) -> None:
    """Once; not in workers, and by the first rank alone."""
    if sentence in _said:
        return
    _said.add(sentence)
    if multiprocessing.parent_process() is None and os.environ.get("RANK", "0") == "0":
        logger.warning("otel_modtrack: %s", sentence)
