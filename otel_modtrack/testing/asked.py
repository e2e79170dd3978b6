"""What a test asks for: numbers, texts and patterns; and names as a message lists them."""

from __future__ import annotations

import operator
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from otel_modtrack.usage import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["check_number", "check_text", "fits", "name_some"]


def check_number(what: str, value: Any, least: int = 0) -> None:
    """Refuse what is no whole number, or less than `least`.

    Raises:
        UsageError: that begins with `what`, as ``depth is a number of levels``.
    """
    __tracebackhide__ = True
    try:
        is_fine = operator.index(value) >= least
    except TypeError:
        is_fine = False
    if not is_fine:
        raise UsageError(f"{what}, {least} or more, not {value!r}")


def check_text(what: str, value: object) -> None:
    """Refuse what is no text.

    Raises:
        UsageError: that begins with `what`, as ``fqn``.
    """
    __tracebackhide__ = True
    if not isinstance(value, str):
        raise UsageError(f"{what} is a text, not {type(value).__name__}")


def fits(fqn: str | None, pattern: str) -> bool:
    """Whether there is an fqn and it is `pattern`, or fits it as a shell would have it."""
    return fqn is not None and (fqn == pattern or fnmatchcase(fqn, pattern))


def name_some(names: Sequence[str], most: int) -> str:
    """The first of some names, and how many more there are."""
    more = f", and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
