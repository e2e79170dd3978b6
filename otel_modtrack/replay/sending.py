"""Sends one request until its fate is known."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from otel_modtrack.otlp import variables
from otel_modtrack.otlp.settings import JSON, read_endpoint
from otel_modtrack.otlp.transport import Fate, open_transport
from otel_modtrack.replay.lines import split, to_protobuf

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_modtrack.otlp.settings import Endpoint
    from otel_modtrack.otlp.transport import Outcome, Transport
    from otel_modtrack.replay.lines import Request

__all__ = ["Backend", "Result", "StoppedError"]

_FIRST_WAIT_S: Final = 0.5
_LONGEST_WAIT_S: Final = 10.0
_SHORTEST_WAIT_S: Final = 0.1  # where the server says to come again at once
# Refusals that are not about the request: every other would get the same.
_OF_ALL: Final = frozenset(
    {
        *(f"HTTP {status}" for status in (301, 302, 303, 307, 308, 401, 403, 404, 405, 415, 501)),
        *("UNAUTHENTICATED", "PERMISSION_DENIED", "UNIMPLEMENTED"),
    }
)
_MENDS: Final = {
    "HTTP 401": "set OTEL_EXPORTER_OTLP_HEADERS",
    "HTTP 403": "check OTEL_EXPORTER_OTLP_HEADERS",
    "HTTP 415": "set OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf",
    "UNAUTHENTICATED": "set OTEL_EXPORTER_OTLP_HEADERS",
    "PERMISSION_DENIED": "check OTEL_EXPORTER_OTLP_HEADERS",
}
# The Collector's OTLP/HTTP receiver answers 400, not 413, to what is over its size limit.
_MAYBE_TOO_LARGE: Final = "HTTP 400"
_LARGE_BYTES: Final = 1 << 20
_OTHER_MEND: Final = "check OTEL_EXPORTER_OTLP_ENDPOINT and OTEL_EXPORTER_OTLP_PROTOCOL"


class StoppedError(Exception):
    """It is of no use to go on. The message says why, and what may help."""


@dataclass(slots=True)
class Result:
    """What became of a request.

    Attributes:
        sent: How many of its spans, metrics or log records the backend has.
        lost: How many it has not, by reason.
    """

    sent: int = 0
    lost: dict[str, int] = field(default_factory=dict)

    def lose(self, reason: str, count: int) -> None:
        """Count what the backend has not."""
        self.lost[reason] = self.lost.get(reason, 0) + count


class Backend:
    """The endpoints that the environment names, one a signal.

    Args:
        patience_s: How long a request is tried again before it is given up.
        tell: Is told what is waited for, in a few words.

    Raises:
        ConfigurationError: If the variables for traces cannot be used.
    """

    def __init__(self, patience_s: float, tell: Callable[[str], None]) -> None:
        self._patience_s = patience_s
        self._tell = tell
        self._opened: dict[str, tuple[Endpoint, Transport]] = {}
        self._refusals: dict[str, str] = {}  # of all that belongs to a signal
        self.endpoint("traces")

    def endpoint(self, signal: str) -> Endpoint:
        """Where a signal goes.

        Raises:
            ConfigurationError: If the variables for it cannot be used.
        """
        if signal not in self._opened:
            endpoint = read_endpoint(signal)
            own = f"OTEL_EXPORTER_OTLP_{signal.upper()}_PROTOCOL"
            if not variables.text(own, "OTEL_EXPORTER_OTLP_PROTOCOL")[0]:
                endpoint = replace(endpoint, protocol=JSON)  # a line is sent as it stands
            self._opened[signal] = (endpoint, open_transport(endpoint))
        return self._opened[signal][0]

    def send(self, request: Request, result: Result) -> None:
        """Send a request, in parts if it is too large, and note in ``result`` what arrives.

        Raises:
            MalformedError: If it cannot be encoded as the endpoint wants it.
            StoppedError: If the backend takes no spans, or nothing in time.
            ConfigurationError: If the variables for its signal cannot be used.
        """
        if request.signal in self._refusals:
            result.lose(self._refusals[request.signal], request.count)
            return
        outcome, size_bytes = self._try(request)
        is_too_large = outcome.fate is Fate.TOO_LARGE or (
            outcome.reason == _MAYBE_TOO_LARGE and size_bytes > _LARGE_BYTES
        )
        if outcome.fate is Fate.DELIVERED:
            # Of metrics, the backend counts data points.
            lost = min(outcome.rejected, request.count)
            result.sent += request.count - lost
            if lost:
                result.lose("rejected by the backend", lost)
        elif is_too_large and request.count > 1:
            for part in split(request):
                self.send(part, result)
        elif outcome.fate is Fate.REFUSED and _is_of_all(outcome):
            endpoint = self.endpoint(request.signal)
            mend = _MENDS.get(outcome.reason, _OTHER_MEND)
            reason = f"{endpoint.shown} refuses all {request.signal} ({outcome.reason}): {mend}"
            if request.signal == "traces":
                raise StoppedError(reason)
            # Many backends take spans only.
            self._refusals[request.signal] = reason
            result.lose(reason, request.count)
        else:
            what = "too large" if is_too_large else "refused"
            result.lose(f"{what} ({outcome.reason})", request.count)

    def close(self) -> None:
        """Close the connections."""
        for _, transport in self._opened.values():
            transport.close()

    def _try(self, request: Request) -> tuple[Outcome, int]:
        """Send until the answer is other than to try again. Returns it, and the size in bytes."""
        endpoint = self.endpoint(request.signal)
        transport = self._opened[request.signal][1]
        body = request.text if endpoint.protocol == JSON else to_protobuf(request)
        give_up_s = time.monotonic() + self._patience_s
        backoff_s = _FIRST_WAIT_S
        while True:
            outcome = transport.send(body, endpoint.timeout_s)
            if outcome.fate is not Fate.TRY_AGAIN:
                return outcome, len(body)
            wait_s = backoff_s if outcome.wait_s is None else max(outcome.wait_s, _SHORTEST_WAIT_S)
            if time.monotonic() + wait_s > give_up_s:
                raise StoppedError(_why_stopped(outcome, endpoint))
            if backoff_s == _FIRST_WAIT_S:
                self._tell(f"{endpoint.shown}: {outcome.reason}; trying again")
            time.sleep(wait_s)
            backoff_s = min(2 * backoff_s, _LONGEST_WAIT_S)


def _is_of_all(outcome: Outcome) -> bool:
    return outcome.reason in _OF_ALL or not outcome.answered


def _why_stopped(outcome: Outcome, endpoint: Endpoint) -> str:
    if not outcome.answered:
        return (
            f"no answer from {endpoint.shown} ({outcome.reason}): check that an OTLP backend "
            "listens there, or set OTEL_EXPORTER_OTLP_ENDPOINT"
        )
    asked = "" if outcome.wait_s is None else f" for {outcome.wait_s:,.0f} s"
    return (
        f"{endpoint.shown} takes nothing{asked} ({outcome.reason}): try later, or wait longer "
        "with --wait"
    )
