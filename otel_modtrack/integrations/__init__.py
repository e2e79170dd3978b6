"""Steps, epochs and evaluations as training frameworks define them; `docs/frameworks.md`.

>>> from otel_modtrack.integrations.transformers import ModTrackCallback
>>> from otel_modtrack.integrations.lightning import ModTrackCallback
>>> from otel_modtrack.integrations.accelerate import steps

Each imports its framework, and nothing else does.
"""

from __future__ import annotations

from otel_modtrack.usage import UsageError

__all__ = ["MissingFrameworkError"]


class MissingFrameworkError(UsageError, ImportError):
    """An integration was imported whose framework is not installed.

    Args:
        integration: the module of ours.
        package: what pip installs.
    """

    def __init__(self, integration: str, package: str) -> None:
        super().__init__(
            f"{integration} wants {package}, which is not installed; install it with"
            f" pip install {package}"
        )
