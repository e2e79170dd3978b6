"""The exceptions that say that what was asked for, or set, cannot be used."""

from __future__ import annotations

__all__ = ["ConfigurationError", "UsageError"]


class UsageError(Exception):
    """What the user gave cannot be used.

    The message is one sentence that names the thing and the mend. The command line prints it and
    leaves with exit code 2; nobody sees a traceback.
    """


class ConfigurationError(UsageError, ValueError):
    """A variable of the environment cannot be used; see `otel_modtrack.configure`.

    The message is one sentence that names the variable and the mend, and quotes no secret.
    """
