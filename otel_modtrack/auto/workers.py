"""Workers of multiprocessing's are tracked as the process that starts them is."""

from __future__ import annotations

import functools
import sys
import threading
from typing import TYPE_CHECKING, Any

from otel_modtrack.auto.kinds import is_loader

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["StartSwap", "starting"]

_MARK = "_modtrack_auto"  # on a multiprocessing.Process, which takes it into its process
_here = threading.local()


def starting() -> object:
    """The Process that this thread is starting, or None; seen from a forked child as well."""
    return getattr(_here, "process", None)


class _Passed:
    """Switches tracking on where it is unpickled: in the process that was started."""

    def __init__(self, configures: bool) -> None:
        self._configures = configures

    def __reduce__(self) -> tuple[Callable[[bool], _Passed], tuple[bool]]:
        return _arrive, (self._configures,)


def _arrive(configures: bool) -> _Passed:
    from otel_modtrack.auto.arming import AUTO, Settings  # noqa: PLC0415 - it imports this module

    AUTO.arm(Settings(configures=configures, carried=True))
    return _Passed(configures)


class StartSwap:
    """A wrapper around what starts processes, once multiprocessing.process is imported.

    Args:
        configures: whether a worker makes the providers that the environment asks for.
        mine: whether this process is tracked.
    """

    def __init__(self, configures: bool, mine: Callable[[], bool]) -> None:
        self._owner: Any = sys.modules["multiprocessing.process"].BaseProcess
        self._original = original = self._owner.start

        @functools.wraps(original)
        def start(process: Any) -> Any:
            if mine() and not is_loader(process):
                process.__dict__.setdefault(_MARK, _Passed(configures))
            before, _here.process = starting(), process
            try:
                return original(process)
            finally:
                _here.process = before

        self._ours = start
        self._owner.start = start

    def remove(self) -> None:
        """Take it away, unless somebody has wrapped it since: then it does nothing."""
        if self._owner.start is self._ours:
            self._owner.start = self._original
