"""The one exception by which a command says that it cannot do what was asked."""

from __future__ import annotations

__all__ = ["UsageError"]


class UsageError(Exception):
    """What the user gave cannot be used.

    The message is one sentence that names the thing and the mend. The command line prints it and
    leaves with exit code 2; nobody sees a traceback.
    """
