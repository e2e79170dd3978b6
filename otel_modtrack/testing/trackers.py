"""Trackers of a test, and the account of what was launched while any tracker was on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_modtrack.activation import ACTIVATION
from otel_modtrack.comm.ledger import Ledger
from otel_modtrack.comm.telling import OFF
from otel_modtrack.core import CORE
from otel_modtrack.spans import SpanSink
from otel_modtrack.tracker import ModTracker
from otel_modtrack.usage import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from opentelemetry.sdk.trace import TracerProvider
    from typing_extensions import Self

    from otel_modtrack.comm.records import Collective
    from otel_modtrack.regions import Region

__all__ = ["Account", "Tracker"]


class Tracker(ModTracker):
    """A tracker that tells when it is entered, and that no other one takes the spans from.

    Args:
        entered: is called with the tracker.
        providers: that are listened to.
        args: see `ModTracker`.
        kwargs: likewise.
    """

    def __init__(
        self,
        entered: Callable[[ModTracker], None],
        providers: Sequence[TracerProvider],
        *args: Any,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._told = entered
        self._providers = providers

    def __enter__(self) -> Self:
        __tracebackhide__ = True
        self._told(self)
        super().__enter__()
        sink = CORE.sink
        known = [id(provider) for provider in self._providers]
        if isinstance(sink, SpanSink) and sink.provider_key not in known:
            self.__exit__(None, None, None)
            raise UsageError(
                "modtrack.track(): a ModTracker that is on already has all spans go to its own"
                " provider; capture that one, modtrack.use(provider), or leave the tracker"
            )
        return self


class Account(Ledger):
    """Counts records, and notes whether a tracker that was on looked at collectives.

    Attributes:
        looked: whether one did while something ran.
    """

    def __init__(self) -> None:
        super().__init__()
        self.looked = False

    def add(self, record: Collective) -> None:
        """Count a record, sooner or later."""
        self.looked = True
        super().add(record)

    def take_modules(self, regions: Iterable[Region]) -> None:
        """Note what ran."""
        super().take_modules(regions)
        modes = {one.collectives for one in ACTIVATION._trackers}  # noqa: SLF001
        self.looked = self.looked or bool(modes - {OFF})
