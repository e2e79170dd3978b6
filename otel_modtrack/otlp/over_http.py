"""OTLP over HTTP, with protobuf or JSON.

Source: OpenTelemetry protocol specification, *OTLP/HTTP*.
"""

from __future__ import annotations

import email.utils
import gzip
import http
import json
import logging
import threading
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import requests

from otel_modtrack.otlp.answers import delivered, rejected_in
from otel_modtrack.otlp.settings import JSON
from otel_modtrack.otlp.transport import Fate, Outcome
from otel_modtrack.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_modtrack.otlp.settings import Endpoint

__all__ = ["HttpTransport"]

_TRY_AGAIN = {429, 502, 503, 504}
# What the Collector, and what is built on it, says with 400 of a body over its size limit.
_TOO_LARGE = b"request body too large"
_MOST_READ = 65_536  # bytes of an answer; none that is meant for us is larger


class _Silence(logging.Filter, threading.local):
    """Keeps urllib3 quiet about our requests: it logs queries, and headers a server garbled."""

    is_on = False

    def __enter__(self) -> None:
        self.is_on = True

    def __exit__(self, *exception: object) -> None:
        self.is_on = False

    def filter(self, record: logging.LogRecord) -> bool:
        """Other threads' requests are none of our business."""
        del record
        return not self.is_on


_silence = _Silence()
for _name in ("connection", "connectionpool", "poolmanager", "response", "util.retry"):
    logging.getLogger(f"urllib3.{_name}").addFilter(_silence)


class HttpTransport:
    """One session of `requests`; see `transport.Transport`."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._session: requests.Session | None = None

    def send(self, body: bytes, timeout_s: float) -> Outcome:
        """See `Transport.send`."""
        headers = {}
        if self._endpoint.compression == "gzip":
            body = gzip.compress(body, compresslevel=6)
            headers["content-encoding"] = "gzip"
        try:
            with (
                _silence,
                self._open().post(
                    self._endpoint.url,
                    data=body,
                    headers=headers,
                    timeout=timeout_s,
                    allow_redirects=False,
                    # Said with each request: of a session's own, REQUESTS_CA_BUNDLE makes nothing.
                    verify=self._endpoint.tls.certificate or None,
                    stream=True,  # once the status is known, a broken answer changes nothing
                ) as response,
            ):
                return _outcome(response)
        except requests.exceptions.SSLError:
            return Outcome(Fate.TRY_AGAIN, "TLS failed", answered=False)
        except requests.exceptions.Timeout:
            return Outcome(Fate.TRY_AGAIN, "timeout", answered=False)
        except requests.exceptions.RequestException as error:
            if isinstance(error, ValueError):  # an address or header that cannot be used
                return Outcome(Fate.REFUSED, type(error).__name__, answered=False)
            refused = isinstance(error, requests.exceptions.ConnectionError)
            reason = "no connection" if refused else "connection broken"
            return Outcome(Fate.TRY_AGAIN, reason, answered=False)
        except Exception as error:  # noqa: BLE001 - whatever a library raises is no one else's
            return Outcome(Fate.REFUSED, type(error).__name__, answered=False)

    def after_fork(self) -> None:
        """See `Transport.after_fork`: nothing is said on its sockets."""
        self._session = None

    def close(self) -> None:
        """See `Transport.close`."""
        session, self._session = self._session, None
        if session is None:
            return
        # One by one: urllib3 leaves it to finalizers, and at the program's end those are used up.
        for adapter in session.adapters.values():
            pools = adapter.poolmanager.pools  # type: ignore[attr-defined]
            for key in pools.keys():  # noqa: SIM118 - it cannot be iterated itself
                pools[key].close()
        session.close()

    def _open(self) -> requests.Session:
        if self._session is None:
            endpoint, session = self._endpoint, requests.Session()
            is_json = endpoint.protocol == JSON
            session.headers.update(
                {
                    "user-agent": f"otel-modtrack/{__version__}",
                    "content-type": "application/json" if is_json else "application/x-protobuf",
                    **endpoint.headers,
                }
            )
            session.auth = _credentials(endpoint.url)
            tls = endpoint.tls
            if tls.client_certificate:
                key = tls.client_key
                session.cert = (tls.client_certificate, key) if key else tls.client_certificate
            self._session = session
        return self._session


def _credentials(url: str) -> Callable[[requests.PreparedRequest], requests.PreparedRequest]:
    """Those in the address, if any; never those that ~/.netrc has for the host."""
    parts = urlsplit(url)
    if parts.username is None:
        return lambda request: request
    return requests.auth.HTTPBasicAuth(unquote(parts.username), unquote(parts.password or ""))


def _outcome(response: requests.Response) -> Outcome:
    status = response.status_code
    if 200 <= status < 300:  # noqa: PLR2004 - success, as HTTP has it
        return delivered(_rejected(response))
    reason = f"HTTP {status}"
    if status == http.HTTPStatus.REQUEST_ENTITY_TOO_LARGE or (
        status == http.HTTPStatus.BAD_REQUEST and _TOO_LARGE in _read(response)
    ):
        return Outcome(Fate.TOO_LARGE, reason)
    if status in _TRY_AGAIN:
        return Outcome(Fate.TRY_AGAIN, reason, _wait_s(response.headers.get("Retry-After", "")))
    return Outcome(Fate.REFUSED, reason)


def _read(response: requests.Response) -> bytes:
    """What it says; nothing, if that breaks off or cannot be decompressed."""
    try:
        found: bytes = response.raw.read(_MOST_READ, decode_content=True)
    except Exception:  # noqa: BLE001 - whatever it is, the status was there before
        return b""
    return found


def _rejected(response: requests.Response) -> int:
    """How many spans of a request that was taken were not."""
    content = _read(response)
    if "json" not in response.headers.get("Content-Type", ""):
        return rejected_in(content)
    try:
        found: dict[str, Any] = json.loads(content or b"{}").get("partialSuccess") or {}
        return sum(int(value) for key, value in found.items() if key.startswith("rejected"))
    except Exception:  # noqa: BLE001 - an answer that cannot be read says nothing
        return 0


def _wait_s(text: str) -> float | None:
    """What Retry-After says: seconds, or a date."""
    if text.strip().isdecimal():
        return float(text)
    try:
        when_s = email.utils.parsedate_to_datetime(text).timestamp()
    except (OverflowError, TypeError, ValueError):
        return None
    return max(when_s - time.time(), 0.0)
