"""Reads settings from the environment; what cannot be used is one sentence that names the variable.

No value of a header, and no content of a file, is ever part of a sentence.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import unquote

from otel_modtrack.usage import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["choice", "flag", "headers", "is_text", "number", "pairs", "text", "truth", "whole"]

# A header's name: a token, as RFC 9110 has it.
_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_MOST_SHOWN = 40
_LARGEST = 1e9  # what is larger means "without end"; no clock takes much more


def text(*names: str) -> tuple[str, str]:
    """The first of these variables that is set, and which one it is; ("", the first) if none is.

    Set to nothing is not set. Source: OpenTelemetry specification, *Environment variables*.
    """
    for name in names:
        value = os.environ.get(name, "").strip()
        if value:
            return value, name
    return "", names[0]


def flag(*names: str) -> bool | None:
    """True or false; None where it is not set.

    Raises:
        ConfigurationError: if it is neither.
    """
    value, name = text(*names)
    if not value:
        return None
    try:
        return truth(value)
    except ValueError:
        raise ConfigurationError(
            f"{name}={shown(value)} is neither; set it to true or false"
        ) from None


def truth(value: str) -> bool:
    """What ``true`` or ``false`` says, in any case.

    Raises:
        ValueError: if it is neither.
    """
    if value.lower() not in ("true", "false"):
        raise ValueError(value)
    return value.lower() == "true"


def choice(options: Sequence[str], *names: str) -> str:
    """One of these; "" where it is not set.

    Raises:
        ConfigurationError: if it is none of them.
    """
    value, name = text(*names)
    if value and value not in options:
        raise ConfigurationError(
            f"{name}={shown(value)} is not supported; set it to {_one_of(options)}"
        )
    return value


def number(default: float, *names: str, at_least: float = 0.0) -> float:
    """A number, in whatever unit the variable has.

    Raises:
        ConfigurationError: if it is none, or too small.
    """
    value, name = text(*names)
    if not value:
        return default
    try:
        found = float(value)
    except ValueError:
        found = float("nan")
    if not at_least <= found < float("inf"):
        raise ConfigurationError(
            f"{name}={shown(value)} is no number of {at_least:g} or more; correct or unset it"
        )
    return min(found, _LARGEST)


def whole(default: int, *names: str) -> int:
    """A whole number of 1 or more.

    Raises:
        ConfigurationError: if it is none.
    """
    value, name = text(*names)
    if not value:
        return default
    found = int(min(float(value), _LARGEST)) if value.isdecimal() else 0
    if not found:
        raise ConfigurationError(
            f"{name}={shown(value)} is no whole number of 1 or more; correct or unset it"
        )
    return found


def pairs(*names: str, headers: bool) -> dict[str, str]:
    """``key=value,key=value``, with values percent-encoded where they need to be.

    Args:
        names: of the variables; the first that is set is read.
        headers: whether they are headers: names are tokens, in lower case.

    Raises:
        ConfigurationError: if an entry cannot be read. It is told by its place, never by its text.
    """
    value, name = text(*names)
    found = {}
    for place, entry in enumerate(value.split(","), 1):
        if not entry.strip():
            continue
        key, equals, content = entry.partition("=")
        key, content = unquote(key).strip(), unquote(content).strip()
        fits = bool(_NAME.fullmatch(key)) if headers else bool(key) and is_text(key + content)
        if not equals or not fits or (headers and not _is_header_value(content)):
            raise ConfigurationError(
                f"{name}: entry {place} cannot be read; write key=value,key=value, and"
                " percent-encode commas, line ends and whatever is not ASCII in values"
            )
        found[key.lower() if headers else key] = content
    return found


def headers(given: Mapping[str, str], name: str) -> dict[str, str]:
    """Headers that are an argument in place of a variable, with names in lower case.

    Args:
        given: the argument.
        name: what it is called in a sentence.

    Raises:
        ConfigurationError: if it is no dict, or has something in it that is no header.
    """
    if not isinstance(given, Mapping):
        raise ConfigurationError(f"{name} wants a dict of texts, not {type(given).__name__}")
    for key, value in given.items():
        if not (isinstance(key, str) and _NAME.fullmatch(key)):
            raise ConfigurationError(f"{name}: {key!r} is no name of a header")
        if not isinstance(value, str) or not _is_header_value(value) or value != value.strip():
            raise ConfigurationError(
                f"{name}: the value of {key!r} is no text of one line without spaces around it"
            )
    return {key.lower(): value for key, value in given.items()}


def shown(value: str) -> str:
    """A value that is no secret, short enough for a sentence."""
    return value if len(value) <= _MOST_SHOWN else f"{value[:_MOST_SHOWN]}…"


def _is_header_value(value: str) -> bool:
    return value.isascii() and value.isprintable()


def is_text(value: str) -> bool:
    """Whether it can be encoded: bytes of the environment that are not UTF-8 cannot."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _one_of(options: Sequence[str]) -> str:
    *others, last = options
    return f"{', '.join(others)} or {last}" if others else last
