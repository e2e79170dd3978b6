"""OTLP over gRPC. Requests are encoded already, so that no generated stub is needed.

Source: OpenTelemetry protocol specification, *OTLP/gRPC*.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, ClassVar, Final

import grpc
from google.rpc import error_details_pb2, status_pb2

from otel_modtrack.otlp.answers import delivered, rejected_in
from otel_modtrack.otlp.transport import Fate, Outcome
from otel_modtrack.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_modtrack.otlp.settings import Endpoint

__all__ = ["GrpcTransport"]

_METHODS: Final = {
    "traces": "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
    "metrics": "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
    "logs": "/opentelemetry.proto.collector.logs.v1.LogsService/Export",
}
_CODES: Final = grpc.StatusCode
_TRY_AGAIN: Final = {
    _CODES.CANCELLED,
    _CODES.DEADLINE_EXCEEDED,
    _CODES.ABORTED,
    _CODES.OUT_OF_RANGE,
    _CODES.UNAVAILABLE,
    _CODES.DATA_LOSS,
}
_OPTIONS: Final = (
    ("grpc.primary_user_agent", f"otel-modtrack/{__version__}"),
    # Between its own attempts to connect gRPC fails at once; ours wait long enough.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2000),
    # A pool of subchannels of its own: none that a forked parent holds.
    ("grpc.use_local_subchannel_pool", 1),
)
# How long a fork waits for a request that is under way.
_FORK_WAITS_S = 0.5
# Channels of a parent process. Closing one in a forked child would wait for threads that are gone.
_inherited: list[Any] = []


class GrpcTransport:
    """One channel; see `transport.Transport`."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._channel: grpc.Channel | None = None
        self._call: Callable[..., bytes] | None = None
        self._metadata = tuple(endpoint.headers.items())
        self.idle = threading.Lock()  # held while a request is under way
        self.broken = False
        _transports.add(self)

    def send(self, body: bytes, timeout_s: float) -> Outcome:
        """See `Transport.send`."""
        if self.broken:
            return Outcome(Fate.REFUSED, "forked during a gRPC request", answered=False)
        try:
            with self.idle:
                answer = self._open()(body, timeout=timeout_s, metadata=self._metadata)
        except grpc.RpcError as error:
            return _outcome(error)
        except Exception as error:  # noqa: BLE001 - whatever a library raises is no one else's
            return Outcome(Fate.REFUSED, type(error).__name__, answered=False)
        return delivered(rejected_in(answer))

    def after_fork(self) -> None:
        """See `Transport.after_fork`."""
        _inherited.append((self._channel, self._call))
        self._channel = self._call = None

    def close(self) -> None:
        """See `Transport.close`."""
        if self._channel is not None:
            self._channel.close()
            self._channel = self._call = None

    def _open(self) -> Callable[..., bytes]:
        if self._call is None:
            endpoint = self._endpoint
            gzip = endpoint.compression == "gzip"
            compression = grpc.Compression.Gzip if gzip else grpc.Compression.NoCompression
            if endpoint.secure:
                self._channel = grpc.secure_channel(
                    endpoint.url, self._credentials(), _OPTIONS, compression
                )
            else:
                self._channel = grpc.insecure_channel(endpoint.url, _OPTIONS, compression)
            self._call = self._channel.unary_unary(
                _METHODS[endpoint.signal],
                request_serializer=None,
                response_deserializer=None,
            )
        return self._call

    def _credentials(self) -> grpc.ChannelCredentials:
        tls = self._endpoint.tls
        chain = _read(tls.client_certificate)
        # One file may hold both.
        key = _read(tls.client_key) or chain
        return grpc.ssl_channel_credentials(_read(tls.certificate), key, chain)


def _outcome(error: Any) -> Outcome:
    code = error.code()
    wait_s = _wait_s(error)
    answered = wait_s is not None or code not in (_CODES.UNAVAILABLE, _CODES.DEADLINE_EXCEEDED)
    if code is _CODES.RESOURCE_EXHAUSTED and wait_s is None:
        # Only such a refusal with a time to wait is about load. The others are about size.
        return Outcome(Fate.TOO_LARGE, code.name)
    if code in _TRY_AGAIN or code is _CODES.RESOURCE_EXHAUSTED:
        return Outcome(Fate.TRY_AGAIN, code.name, wait_s, answered=answered)
    return Outcome(Fate.REFUSED, code.name)


def _wait_s(error: Any) -> float | None:
    """What the server asks to wait: RetryInfo among the details of the status."""
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            try:
                for detail in status_pb2.Status.FromString(value).details:
                    info = error_details_pb2.RetryInfo()
                    if detail.Unpack(info):
                        return info.retry_delay.seconds + info.retry_delay.nanos / 1e9  # type: ignore[no-any-return]
            except Exception:  # noqa: BLE001 - details that cannot be read say nothing
                return None
    return None


def _read(path: str) -> bytes | None:
    if not path:
        return None
    with open(path, "rb") as file:  # noqa: PTH123 - a path as the user wrote it
        return file.read()


class _Fork:
    """The fork that is going on.

    gRPC's own handlers give up where a request is under way, and its core aborts the child, sooner
    or later, when that uses it.

    Attributes:
        held: locks of the transports that do nothing meanwhile.
        in_time: whether these are all.
    """

    held: ClassVar[list[threading.Lock]] = []
    in_time = True


_transports: weakref.WeakSet[GrpcTransport] = weakref.WeakSet()


def _before_fork() -> None:
    end_s = time.monotonic() + _FORK_WAITS_S
    locks = [one.idle for one in _transports]
    _Fork.held = [
        lock for lock in locks if lock.acquire(timeout=max(end_s - time.monotonic(), 0.0))
    ]
    _Fork.in_time = len(_Fork.held) == len(locks)


def _after_in_parent() -> None:
    while _Fork.held:
        _Fork.held.pop().release()


def _after_in_child() -> None:
    _Fork.held = []
    for one in _transports:
        one.idle = threading.Lock()
        one.broken |= not _Fork.in_time


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork, after_in_parent=_after_in_parent, after_in_child=_after_in_child
    )
