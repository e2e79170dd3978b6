"""Asks the service for several texts at once. Each request is a trace that begins here.

python examples/service/client.py --stream
"""

from __future__ import annotations

import argparse
import json
from concurrent.futures import ThreadPoolExecutor

import httpx
from opentelemetry.instrumentation.httpx import HTTPXClientInstrumentor

from otel_modtrack import configure


def main() -> None:
    """Print each text when it is complete, in the order of their seeds."""
    parser = argparse.ArgumentParser(description="Ask the text service for several texts at once.")
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--requests", type=int, default=4, help="at once (default: %(default)s)")
    parser.add_argument("--length", type=int, default=32, help="of a text (default: %(default)s)")
    parser.add_argument("--prompt", default="The import statement")
    parser.add_argument("--stream", action="store_true", help="a character at a time")
    chosen = parser.parse_args()

    configure(service_name="text-client")
    HTTPXClientInstrumentor().instrument()  # a client span for each request, told to the server

    with httpx.Client(base_url=chosen.url, timeout=60) as client:

        def ask(seed: int) -> str:
            wanted = {"prompt": chosen.prompt, "length": chosen.length, "seed": seed}
            path = "/stream" if chosen.stream else "/generate"
            with client.stream("POST", path, json=wanted) as response:
                response.raise_for_status()
                return "".join(response.iter_text())

        with ThreadPoolExecutor(chosen.requests) as pool:
            for text in pool.map(ask, range(chosen.requests)):
                print(json.dumps(text))


if __name__ == "__main__":
    main()
