"""A process that takes OTLP/HTTP and throws it away. It prints its port and serves until killed."""

from __future__ import annotations

import http.server


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers every export with success."""

    protocol_version = "HTTP/1.1"  # connections stay open, as a collector's do
    disable_nagle_algorithm = True

    def do_POST(self) -> None:
        """Read the request to its end and say that it was taken."""
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", "0")  # an empty ExportTraceServiceResponse
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


if __name__ == "__main__":
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_port, flush=True)
    server.serve_forever()
