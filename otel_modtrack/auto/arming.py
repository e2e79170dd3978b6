"""`AUTO`: a tracker for a program that does not know of it, on from the import of torch to the end.

Imports nothing that costs: a program without torch pays for this file.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from otel_modtrack.auto.faults import complain
from otel_modtrack.auto.importing import ImportWatch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_modtrack.auto.workers import StartSwap
    from otel_modtrack.configuring import Telemetry
    from otel_modtrack.tracker import ModTracker

__all__ = ["AUTO", "Arming", "Settings"]

_OURS = ("otel_modtrack.leaving", __name__)  # whose handlers of SIGTERM end the process


class Settings(NamedTuple):
    """How to track.

    Attributes:
        configures: whether providers are made as the environment says, if the program has none.
        carried: whether workers of multiprocessing's are tracked as well.
        arguments: of `ModTracker`; what is missing is as the environment says.
        forked: whether forked children are tracked; as the environment says if None.
    """

    configures: bool
    carried: bool
    arguments: Mapping[str, Any] = MappingProxyType({})
    forked: bool | None = None


class Arming:
    """Tracking that is switched on once, for the process.

    Attributes:
        settings: how it is on, or will be; None while it is off.
        tracker: that is entered; None before torch is imported.
    """

    def __init__(self) -> None:
        self.settings: Settings | None = None
        self.tracker: ModTracker | None = None
        self._imports = ImportWatch()
        self._starts: StartSwap | None = None
        self._forked = False
        self._pid = 0
        self._watches_forks = [False, False]

    def arm(self, settings: Settings) -> None:
        """Track as soon as torch is imported; now if it is. On already: stays as it is."""
        if self.settings is not None:
            return
        self.settings = settings
        self._pid = os.getpid()
        if settings.configures:
            self._catch_sigterm()
        if not self._watches_forks[0] and hasattr(os, "register_at_fork"):
            self._watches_forks[0] = True
            os.register_at_fork(after_in_child=self._after_fork)
        self._imports.on("multiprocessing.process", self._see_starts)
        self._imports.on("torch", self._enter)

    def disarm(self) -> None:
        """Everything is as it was before `arm`."""
        self._imports.remove()
        if self.settings is None:
            return
        configures = self.settings.configures
        self.leave()
        self.settings = None
        if self._starts is not None:
            self._starts.remove()
            self._starts = None
        if configures and signal.getsignal(signal.SIGTERM) == self._terminate:
            self._release_sigterm()

    def leave(self, error: BaseException | None = None) -> None:
        """Leave the tracker: the step that is open ends now, by an exception if there is one."""
        tracker, self.tracker = self.tracker, None
        if tracker is None or self._pid != os.getpid():
            return
        from otel_modtrack.auto import ending  # noqa: PLC0415 - it was imported when this was on

        ending.forget(self)
        trace = error.__traceback__ if error is not None else None
        tracker.__exit__(type(error) if error is not None else None, error, trace)

    # -- what it waits for -----------------------------------------------------------------------

    def _see_starts(self) -> None:
        from otel_modtrack.auto.workers import StartSwap  # noqa: PLC0415 - needs multiprocessing

        settings = self.settings
        if settings is not None:
            self._starts = StartSwap(
                settings.configures,
                lambda: settings.carried and self.settings is settings,
            )

    def _enter(self) -> None:
        """Called by the import of torch. Never raises, but for a signal handler's exception."""
        settings = self.settings
        if settings is None or self.tracker is not None:
            return
        try:
            from otel_modtrack.auto.ending import enter, is_forked  # noqa: PLC0415 - needs torch

            self._forked = is_forked() if settings.forked is None else settings.forked
            self.tracker = enter(self, settings)
            if not self._watches_forks[1] and hasattr(os, "register_at_fork"):
                # After the tracker's own, which was registered by the import above.
                self._watches_forks[1] = True
                os.register_at_fork(after_in_child=self._after_tracked_fork)
        except Exception as error:  # noqa: BLE001 - nothing of ours may reach the user
            complain(error)

    # -- forks -----------------------------------------------------------------------------------

    def _after_fork(self) -> None:
        """In a forked child, before anything else of ours."""
        if self.settings is None:
            return
        if self.tracker is None:
            self._pid = os.getpid()  # forked before torch was imported: a process as any other
        elif self.settings.configures and signal.getsignal(signal.SIGTERM) == self._terminate:
            self._release_sigterm()

    def _after_tracked_fork(self) -> None:
        """In a forked child, after the tracker's own hook has switched it off."""
        settings, tracker = self.settings, self.tracker
        if settings is None or tracker is None:
            return
        from otel_modtrack.auto.kinds import is_loader  # noqa: PLC0415 - imported before
        from otel_modtrack.auto.workers import starting  # noqa: PLC0415 - likewise

        try:
            self._pid = os.getpid()
            self.disarm()
            if self._forked and not is_loader(starting()):
                self.arm(settings)
        except Exception as error:  # noqa: BLE001 - nothing of ours may reach the user
            complain(error)

    # -- SIGTERM ---------------------------------------------------------------------------------

    def _catch_sigterm(self) -> None:
        """Before the program can ask for it: servers put back what was there, and raise it again.

        A program that was started with SIGTERM ignored, or that has a handler, keeps that.
        """
        if (
            threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        ):
            signal.signal(signal.SIGTERM, self._terminate)

    def _release_sigterm(self) -> None:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _terminate(self, number: int, frame: Any) -> None:
        """End as the signal would have done, once what has ended is delivered."""
        del frame
        current = signal.getsignal(number)
        telemetry = _configured()
        if current != self._terminate and getattr(current, "__module__", "") not in _OURS:
            # Called by a handler that the program has put before this one, and that decides. There
            # would be none to call without us.
            if telemetry is not None:
                telemetry._send()  # noqa: SLF001 - made for handlers
            return
        try:
            if telemetry is not None and self._pid == os.getpid():
                telemetry._leave()  # noqa: SLF001 - likewise
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)


def _configured() -> Telemetry | None:
    """What `configure` made, whoever called it."""
    found = getattr(sys.modules.get("otel_modtrack.configuring"), "_configured", None)
    return found[0] if found else None


AUTO = Arming()
