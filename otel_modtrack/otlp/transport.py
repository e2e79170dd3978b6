"""Sends encoded requests, and says what became of each in words that hold nothing secret."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, NamedTuple, Protocol

from otel_modtrack.otlp.settings import GRPC

if TYPE_CHECKING:
    from otel_modtrack.otlp.settings import Endpoint

__all__ = ["DELIVERED", "Fate", "Outcome", "Transport", "open_transport"]


class Fate(enum.Enum):
    """What became of a request."""

    DELIVERED = "delivered"
    TRY_AGAIN = "try again"
    TOO_LARGE = "too large"
    REFUSED = "refused"


class Outcome(NamedTuple):
    """What became of a request.

    Attributes:
        fate: what to do about it.
        reason: in a few fixed words, such as ``HTTP 503``; never the server's own.
        wait_s: how long the server asks to wait; None if it does not say.
        rejected: how many spans of what was delivered the server did not take.
        answered: whether anything answered.
    """

    fate: Fate
    reason: str = ""
    wait_s: float | None = None
    rejected: int = 0
    answered: bool = True


DELIVERED = Outcome(Fate.DELIVERED)


class Transport(Protocol):
    """A connection to an endpoint. Used by one thread at a time."""

    def send(self, body: bytes, timeout_s: float) -> Outcome:
        """Send one encoded request. Never raises."""

    def after_fork(self) -> None:
        """In a forked child: leave the parent's connections alone, and make new ones."""

    def close(self) -> None:
        """Close the connections."""


def open_transport(endpoint: Endpoint) -> Transport:
    """The transport of an endpoint's protocol. Nothing is connected before the first request."""
    if endpoint.protocol == GRPC:
        from otel_modtrack.otlp.over_grpc import GrpcTransport  # noqa: PLC0415 - an extra

        return GrpcTransport(endpoint)
    from otel_modtrack.otlp.over_http import HttpTransport  # noqa: PLC0415 - an extra

    return HttpTransport(endpoint)
