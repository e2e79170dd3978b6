"""OpenTelemetry spans for every torch module: forward, backward and recomputation.

>>> from otel_modtrack import ModTracker, configure, region
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_modtrack.lazily import lazily
from otel_modtrack.usage import ConfigurationError
from otel_modtrack.version import __version__

if TYPE_CHECKING:
    from otel_modtrack.configuring import Telemetry, configure
    from otel_modtrack.policy import Policy
    from otel_modtrack.scopes import region
    from otel_modtrack.tracker import ModTracker

__all__ = [
    "ConfigurationError",
    "ModTracker",
    "Policy",
    "Telemetry",
    "__version__",
    "configure",
    "region",
]

# torch is loaded when a tracker is wanted: `otel-modtrack view` works without it.
__getattr__ = lazily(
    __name__,
    {
        "ModTracker": "tracker",
        "Policy": "policy",
        "Telemetry": "configuring",
        "configure": "configuring",
        "region": "scopes",
    },
)
