"""A small OTLP receiver in a process of its own: every span is on the disk before it is answered.

    python receiving.py FILE    # prints the ports for HTTP and for gRPC, then serves until killed

Spans and metrics are lines of JSON in FILE. A request with the header ``x-wait`` is noted there,
too; it is not looked at before a line comes on stdin.
"""

from __future__ import annotations

import gzip
import http.server
import itertools
import json
import os
import sys
import threading
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2

_numbers = itertools.count()
_goes_on = threading.Event()
_file = -1


def note(*lines: dict[str, Any]) -> None:
    """Write lines in one go: no two requests mix."""
    os.write(_file, "".join(json.dumps(line) + "\n" for line in lines).encode())


def wait(whose: str | None) -> None:
    """Note that a request is there, and wait for the line on stdin, if it has the header."""
    if whose is not None:
        note({"waits": whose})
        _goes_on.wait()


def take_spans(body: bytes, protocol: str) -> None:
    """One request with spans; each line says which request it came with."""
    request = trace_service_pb2.ExportTraceServiceRequest.FromString(body)
    number = next(_numbers)
    note(
        *(
            {
                "request": number,
                "protocol": protocol,
                "resource": _attributes(group.resource),
                "name": span.name,
                "trace_id": span.trace_id.hex(),
                "span_id": span.span_id.hex(),
                "parent_id": span.parent_span_id.hex(),
                "state": span.trace_state,
                "attributes": _attributes(span),
            }
            for group in request.resource_spans
            for scope in group.scope_spans
            for span in scope.spans
        )
    )


def take_metrics(body: bytes) -> None:
    """One request with metrics: their numbers, by name."""
    request = metrics_service_pb2.ExportMetricsServiceRequest.FromString(body)
    note(
        *(
            {
                "resource": _attributes(group.resource),
                "metric": metric.name,
                "points": [
                    {"value": point.as_int or point.as_double, "attributes": _attributes(point)}
                    for point in metric.sum.data_points
                ],
            }
            for group in request.resource_metrics
            for scope in group.scope_metrics
            for metric in scope.metrics
        )
    )


def _attributes(holder: Any) -> dict[str, Any]:
    return {
        item.key: getattr(item.value, item.value.WhichOneof("value")) for item in holder.attributes
    }


class Handler(http.server.BaseHTTPRequestHandler):
    """OTLP over HTTP."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """One request."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers["Content-Encoding"] == "gzip":
            body = gzip.decompress(body)
        wait(self.headers.get("x-wait"))
        if self.path.endswith("/v1/metrics"):
            take_metrics(body)
        else:
            take_spans(body, "http")
        self.send_response(200)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as the base class has it
        """Say nothing."""


class Server(http.server.ThreadingHTTPServer):
    """One thread for each connection."""

    def handle_error(self, request: object, client_address: object) -> None:
        """The other side went away: nothing to be told."""


class Service(grpc.GenericRpcHandler):
    """OTLP over gRPC."""

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        """Both methods."""

        def take(body: bytes, context: grpc.ServicerContext) -> bytes:
            wait(dict(context.invocation_metadata()).get("x-wait"))
            if "Metrics" in handler_call_details.method:
                take_metrics(body)
            else:
                take_spans(body, "grpc")
            return b""

        return grpc.unary_unary_rpc_method_handler(take)


def main() -> None:
    """Serve until killed, or until whoever started this is gone."""
    global _file  # noqa: PLW0603 - one process, one file
    _file = os.open(Path(sys.argv[1]), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    over_http = Server(("127.0.0.1", 0), Handler)
    threading.Thread(target=over_http.serve_forever, daemon=True).start()
    over_grpc = grpc.server(futures.ThreadPoolExecutor(32), handlers=[Service()])
    grpc_port = over_grpc.add_insecure_port("127.0.0.1:0")
    over_grpc.start()
    sys.stdout.write(f"{over_http.server_port} {grpc_port}\n")
    sys.stdout.flush()
    for _ in sys.stdin:
        _goes_on.set()
    os._exit(0)


if __name__ == "__main__":
    main()
