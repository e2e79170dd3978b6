"""OpenTelemetry spans for every torch module: forward, backward and recomputation.

>>> from otel_modtrack import ModTracker, region
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_modtrack.version import __version__

if TYPE_CHECKING:
    from otel_modtrack.scopes import region
    from otel_modtrack.tracker import ModTracker

__all__ = ["ModTracker", "__version__", "region"]


def __getattr__(name: str) -> Any:
    """Load torch only when a tracker is wanted: `otel-modtrack view` works without it."""
    if name == "ModTracker":
        from otel_modtrack.tracker import ModTracker  # noqa: PLC0415

        return ModTracker
    if name == "region":
        from otel_modtrack.scopes import region  # noqa: PLC0415

        return region
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)
