"""An OTLP receiver that misbehaves as it is told to, over HTTP and over gRPC, in this process.

    with HttpReceiver() as receiver:
        receiver.script(busy(wait_s=1), TAKE)  # the first request, and all that come after it
        send_spans_to(receiver.port)
        assert receiver.span_ids() == produced

Bodies are decoded only when somebody asks, so that a program which is timed pays for none of it.
"""

from __future__ import annotations

import contextlib
import gzip
import http.server
import json
import socket
import ssl
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2

from tests.delivery.answers import TAKE, TOO_LARGE, Answer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from typing_extensions import Self

    from tests.delivery.certificates import Files


@dataclass
class Request:
    """One request, when and as it came, what it was answered, and whether its spans were taken."""

    path: str
    headers: Mapping[str, str]
    body: bytes
    answer: Answer
    at_s: float
    taken: bool

    def decode(self) -> Any:
        """The request: a message of opentelemetry-proto, or the JSON of one."""
        body = gzip.decompress(self.body) if self.headers.get("content-encoding") else self.body
        if "json" in self.headers.get("content-type", ""):
            return json.loads(body)
        of_metrics = "metrics" in self.path.lower()
        service = metrics_service_pb2 if of_metrics else trace_service_pb2
        kind = "ExportMetricsServiceRequest" if of_metrics else "ExportTraceServiceRequest"
        return getattr(service, kind).FromString(body)

    def span_ids(self) -> list[str]:
        """The ids of its spans, in hexadecimal; of metrics none."""
        if "metrics" in self.path.lower():
            return []
        found = self.decode()
        if isinstance(found, dict):
            return [
                span["spanId"]
                for resource in found["resourceSpans"]
                for scope in resource["scopeSpans"]
                for span in scope["spans"]
            ]
        return [
            span.span_id.hex()
            for resource in found.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


class Receiver:
    """What both protocols have in common.

    Args:
        port: 0 for any that is free; the same again after `stop` and `start`.
        tls: files of the server; the client has to show a certificate, too, if `mutual`.
        authorization: what that header has to be; whoever comes without is refused.

    Attributes:
        requests: all that were read, in order.
    """

    scheme = "http"

    def __init__(
        self,
        *,
        port: int = 0,
        tls: Files | None = None,
        mutual: bool = False,
        authorization: str | None = None,
    ) -> None:
        self.port = port
        self.requests: list[Request] = []
        self._tls = tls
        self._mutual = mutual
        self._authorization = authorization
        self._lock = threading.Lock()
        self._next: list[Answer] = []
        self._then = TAKE
        self._stopping = threading.Event()

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http{'s' if self._tls else ''}://localhost:{self.port}"

    def script(self, *answers: Answer) -> None:
        """Give these answers, one a request, and the last one to all that follow."""
        with self._lock:
            *self._next, self._then = answers

    def span_ids(self) -> list[str]:
        """The ids of all spans that it took, sorted; one that came twice is there twice."""
        with self._lock:
            known = list(self.requests)
        found = []
        for request in known:
            if request.taken:
                ids = request.span_ids()
                found.extend(ids[: len(ids) - request.answer.rejected])
        return sorted(found)

    def start(self) -> Self:
        """Listen."""
        self._stopping.clear()
        self._listen()
        return self

    def stop(self) -> None:
        """Close everything at once, as a program does that is killed."""
        self._stopping.set()
        self._close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def _listen(self) -> None:
        raise NotImplementedError

    def _close(self) -> None:
        raise NotImplementedError

    def _answer(self, path: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """Choose the answer, wait as long as it wants to, and note the request.

        Raises:
            _StoppedError: if the receiver was stopped meanwhile.
        """
        at_s = time.monotonic()
        with self._lock:
            answer = self._next.pop(0) if self._next else self._then
        if self._authorization and headers.get("authorization") != self._authorization:
            answer = Answer(401, grpc.StatusCode.UNAUTHENTICATED)
        elif answer.most_bytes is not None:
            answer = TOO_LARGE if len(body) > answer.most_bytes else TAKE
        if answer.after_s:
            self._stopping.wait(min(answer.after_s, threading.TIMEOUT_MAX))
        stopped = self._stopping.is_set()
        taken = answer.takes and not stopped
        with self._lock:
            self.requests.append(Request(path, headers, body, answer, at_s, taken))
        if stopped:
            raise _StoppedError
        return answer


class _StoppedError(Exception):
    pass


class HttpReceiver(Receiver):
    """OTLP over HTTP: whatever content type comes."""

    def _listen(self) -> None:
        self._server = _Server(self, self.port)
        self.port = self._server.server_port
        # Polled rarely: `_close` does not wait for it.
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    def _close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.hang_up()
        self._server.server_close()  # waits for the handlers

    def context(self) -> ssl.SSLContext | None:
        """For the server's side of TLS."""
        if self._tls is None:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self._tls.certificate, self._tls.key)
        if self._mutual:
            context.load_verify_locations(self._tls.authority)
            context.verify_mode = ssl.CERT_REQUIRED
        return context


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = False  # `server_close` waits for them
    request_queue_size = 64

    def __init__(self, receiver: HttpReceiver, port: int) -> None:
        self.receiver = receiver
        self._open: set[socket.socket] = set()
        self._context = receiver.context()
        super().__init__(("127.0.0.1", port), _Handler)

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        if self._context is not None:  # shaken hands with in its own thread
            connection = self._context.wrap_socket(
                connection, server_side=True, do_handshake_on_connect=False
            )
        self._open.add(connection)
        return connection, address

    def close_request(self, request: Any) -> None:
        self._open.discard(request)
        super().close_request(request)

    def hang_up(self) -> None:
        """Close what is open, so that nobody reads on."""
        for connection in list(self._open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hung up, or could not shake hands, is no one's fault."""


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # headers and body are two packets
    server: _Server

    def do_POST(self) -> None:
        try:
            self._do_post()
        except _StoppedError:
            self._cut()

    def do_CONNECT(self) -> None:
        """Asked to be a proxy: no tunnel here."""
        self.send_error(407, self.server.receiver._then.text)

    def _do_post(self) -> None:
        headers = {key.lower(): value for key, value in self.headers.items()}
        receiver = self.server.receiver
        answer = receiver._next[0] if receiver._next else receiver._then
        if answer.cut == "before":
            receiver._answer(self.path, headers, b"")
            self._cut()
            return
        body = self.rfile.read(int(headers["content-length"]))
        answer = receiver._answer(self.path, headers, body)
        if answer.cut == "is read":
            self._cut()
            return
        content = self._content(answer, headers) if answer.body is None else answer.body
        self.send_response(answer.status, answer.text or None)
        for name, value in {"Content-Type": headers["content-type"], **answer.headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if answer.cut == "middle":
            self.wfile.write(content[:1])
            self._cut()
            return
        self.wfile.write(content)

    def _content(self, answer: Answer, headers: Mapping[str, str]) -> bytes:
        if answer.status != 200:
            return answer.text.encode()
        if "json" not in headers["content-type"]:
            return _success(answer)
        rejected = {"partialSuccess": {"rejectedSpans": str(answer.rejected)}}
        return json.dumps(rejected if answer.rejected else {}).encode()

    def _cut(self) -> None:
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name in http.server
        """Nobody reads it."""


class GrpcReceiver(Receiver):
    """OTLP over gRPC.

    Args:
        most_bytes: gRPC's own limit for a message that comes in.
    """

    def __init__(self, *, most_bytes: int = 4 << 20, **others: Any) -> None:
        super().__init__(**others)
        self._most_bytes = most_bytes

    def _listen(self) -> None:
        self._pool = ThreadPoolExecutor(4)
        self._server = grpc.server(
            self._pool,
            (_Methods(self._handle),),
            options=(
                ("grpc.max_receive_message_length", self._most_bytes),
                ("grpc.so_reuseport", 0),
            ),
        )
        address = f"127.0.0.1:{self.port}"
        if self._tls is None:
            self.port = self._server.add_insecure_port(address)
        else:
            self.port = self._server.add_secure_port(address, self._credentials(self._tls))
        before = set(threading.enumerate())
        self._server.start()
        self._threads = set(threading.enumerate()) - before

    def _close(self) -> None:
        self._server.stop(None).wait()
        self._pool.shutdown()
        for thread in self._threads:  # its own; nobody else waits for it
            thread.join()
        del self._server  # its port is closed with it

    def _credentials(self, tls: Files) -> grpc.ServerCredentials:
        pair = (tls.key.read_bytes(), tls.certificate.read_bytes())
        authority = tls.authority.read_bytes() if self._mutual else None
        return grpc.ssl_server_credentials([pair], authority, self._mutual)

    def _handle(self, path: str, body: bytes, context: grpc.ServicerContext) -> bytes:
        headers = {key: str(value) for key, value in context.invocation_metadata()}
        try:
            answer = self._answer(path, headers, body)
        except _StoppedError:
            context.abort(grpc.StatusCode.UNAVAILABLE, "stopped")
        if answer.details is not None:
            context.set_trailing_metadata((("grpc-status-details-bin", answer.details),))
        if answer.code is not grpc.StatusCode.OK:
            context.abort(answer.code, answer.text)
        return _success(answer) if answer.body is None else answer.body


class _Methods(grpc.GenericRpcHandler):
    def __init__(self, handle: Callable[[str, bytes, grpc.ServicerContext], bytes]) -> None:
        self._handle = handle

    def service(self, call: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        return grpc.unary_unary_rpc_method_handler(
            lambda body, context: self._handle(call.method, body, context)
        )


def _success(answer: Answer) -> bytes:
    found = trace_service_pb2.ExportTraceServiceResponse()
    if answer.rejected:
        found.partial_success.rejected_spans = answer.rejected
        found.partial_success.error_message = answer.text
    return found.SerializeToString()
