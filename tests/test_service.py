"""The service of examples/service: real uvicorn, real clients, and the traces that come of it."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import httpx
import pytest

from tests.backends.spans import Span, from_otlp
from tests.polling import poll

if TYPE_CHECKING:
    from collections.abc import Iterator

SERVICE = Path(__file__).parent.parent / "examples" / "service"
DEADLINE_S = 60
CLIENT, SERVER, INTERNAL = 3, 2, 1

REQUESTS = 8
LENGTH = 5  # of the texts
LEFT_LENGTH = 1000  # of the one whose reader leaves
STOPPED_LENGTH = 40  # of the one during which the service is stopped
# Traces that the tests begin themselves.
LEFT, STOPPED, UNSAMPLED = f"{1:032x}", f"{2:032x}", f"{3:032x}"
PROMPT = "The import statement"

LAYER = [
    "attn_norm",
    "attn",
    *("attn.q_proj", "attn.k_proj", "attn.v_proj", "attn.out_proj"),
    "mlp_norm",
    "mlp",
    *("mlp.up_proj", "mlp.down_proj"),
]
# What is in each decode step, in order of start.
MODULES = [
    "GPT",
    *("GPT.token_embedding", "GPT.position_embedding"),
    *(f"GPT.layers.{at}{name}" for at in (0, 1) for name in ("", *(f".{one}" for one in LAYER))),
    *("GPT.norm", "GPT.head"),
]


class Served(NamedTuple):
    """What came of one run of the service.

    Attributes:
        spans: Of the service and its clients.
        texts: What each client got, by its name, in the order of its requests.
        code: The service's exit code.
        said: What it wrote on stderr.
    """

    spans: list[Span]
    texts: dict[str, list[str]]
    code: int
    said: str

    def trace(self, trace_id: str) -> list[Span]:
        """The spans of a trace, in order of start."""
        return [span for span in self.spans if span.trace_id == trace_id]

    def begun_with(self, path: str) -> list[list[Span]]:
        """The traces of a client's requests to ``path``."""
        starts = [s for s in self.spans if s.kind == CLIENT and path in s.attributes["http.url"]]
        return [self.trace(start.trace_id) for start in starts]


def environment(folder: Path, name: str) -> dict[str, str]:
    """The environment of a program whose spans are to be in ``{name}.jsonl``."""
    others_settings = re.compile("OTEL_.*|TRACE(PARENT|STATE)|.*_proxy", re.IGNORECASE)
    plain = {key: os.environ[key] for key in os.environ if not others_settings.fullmatch(key)}
    return plain | {
        "OTEL_TRACES_EXPORTER": "otlp_json_file",
        "OTEL_METRICS_EXPORTER": "none",
        "OTEL_PYTHON_MODTRACK_FILE": str(folder / f"{name}.jsonl"),
    }


@contextlib.contextmanager
def service(folder: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The service, ready, and its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with subprocess.Popen(  # noqa: S603 - our own program
        [
            *(sys.executable, "-m", "uvicorn", "--app-dir", str(SERVICE), "app:app"),
            *("--port", str(port), "--log-level", "warning"),
        ],
        env=environment(folder, "service"),
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        try:
            url = f"http://127.0.0.1:{port}"
            poll(lambda: is_ready(running, url), "the service comes up", DEADLINE_S)
            yield running, url
        finally:
            running.kill()


def is_ready(running: subprocess.Popen[str], url: str) -> bool:
    """Whether the service answers; fails with what it said where it has ended."""
    assert running.poll() is None, running.stderr and running.stderr.read()
    try:
        return httpx.get(f"{url}/health", trust_env=False).is_success
    except httpx.ConnectError:
        return False


def ask(folder: Path, name: str, url: str, *options: str) -> list[str]:
    """The texts that a client in a process of its own prints."""
    done = subprocess.run(  # noqa: S603 - our own program
        [
            *(sys.executable, "-W", "error", str(SERVICE / "client.py"), "--url", url),
            *("--length", str(LENGTH), "--prompt", PROMPT, *options),
        ],
        env=environment(folder, name),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return [json.loads(line) for line in done.stdout.splitlines()]


@contextlib.contextmanager
def reading(
    url: str, path: str, trace_id: str, length: int, *, sampled: bool = True
) -> Iterator[Iterator[str]]:
    """A text in a trace of ours, as it comes."""
    wanted = {"prompt": PROMPT, "length": length}
    headers = {"traceparent": f"00-{trace_id}-{1:016x}-{sampled:02x}"}
    with (
        httpx.Client(base_url=url, timeout=DEADLINE_S, trust_env=False) as client,
        client.stream("POST", path, json=wanted, headers=headers) as response,
    ):
        yield response.iter_text()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Served:
    """All that is asked of one service, from its start to its end by SIGTERM."""
    folder = tmp_path_factory.mktemp("service")
    texts = {}
    with service(folder) as (running, url):
        texts["plain"] = ask(folder, "plain", url, "--requests", str(REQUESTS))
        texts["stream"] = ask(folder, "stream", url, "--requests", "3", "--stream")
        for path in ("/generate", "/stream"):
            with reading(url, path, UNSAMPLED, LENGTH, sampled=False) as parts:
                texts[f"unsampled {path}"] = ["".join(parts)]
        with reading(url, "/stream", LEFT, LEFT_LENGTH) as parts:
            next(parts)  # and then the reader leaves
        with reading(url, "/stream", STOPPED, STOPPED_LENGTH) as parts:
            first = next(parts)
            running.send_signal(signal.SIGTERM)
            texts["stopped"] = [first + "".join(parts)]
        _, said = running.communicate(timeout=DEADLINE_S)
    lines = [line for file in folder.glob("*.jsonl") for line in file.read_text().splitlines()]
    return Served(from_otlp(*map(json.loads, lines)), texts, running.returncode, said)


def tree(spans: list[Span], parent_id: str) -> list[Any]:
    """What is under a span: pairs of a label and what is under that, in order of start."""
    found = [span for span in spans if span.parent_id == parent_id]
    return [(label(span), tree(spans, span.span_id)) for span in sorted(found, key=started)]


def started(span: Span) -> int:
    """When a span began."""
    return span.start_ns


def label(span: Span) -> str:
    """A module's or region's fqn; for other spans their kind and name."""
    fqn = span.attributes.get("modtrack.module.fqn")
    kind = {CLIENT: "client", SERVER: "server"}.get(span.kind)
    return str(fqn) if fqn else f"{kind} {span.name}"


def module_tree(fqns: list[str]) -> list[Any]:
    """The tree that fqns in order of start make by their dots; list modules are not called."""
    roots: list[Any] = []
    for fqn in fqns:
        nodes = roots
        while nodes and re.match(re.escape(nodes[-1][0]) + r"\.", fqn):
            nodes = nodes[-1][1]
        nodes.append((fqn, []))
    return roots


def generation(length: int) -> list[Any]:
    """What is under the server span of a text of so many characters."""
    return [("generate", [("decode_step", module_tree(MODULES))] * length)]


def test_one_trace_from_the_client_to_the_layers(served: Served) -> None:
    """Of requests at the same time each has a trace of its own, with all of the model's calls."""
    traces = served.begun_with("/generate")
    assert len(traces) == REQUESTS
    assert len({trace[0].trace_id for trace in traces}) == REQUESTS
    for trace in traces:
        assert tree(trace, "") == [("client POST", [("server POST /generate", generation(LENGTH))])]
        services = {span.resource["service.name"] for span in trace if span.kind != CLIENT}
        assert services == {"text-service"}


def test_requests_run_beside_each_other(served: Served) -> None:
    """A request does not wait for the one before: their traces are told apart all the same."""
    traces = served.begun_with("/generate")
    servers = sorted((s for trace in traces for s in trace if s.kind == SERVER), key=started)
    overlapping = [b for a, b in itertools.pairwise(servers) if b.start_ns < a.end_ns]
    assert overlapping


def test_stream_shows_each_decode_step(served: Served) -> None:
    """Steps that run after the endpoint returned, on any thread, are under their request's span."""
    traces = served.begun_with("/stream")
    assert len(traces) == 3
    for trace in traces:
        assert tree(trace, "") == [("client POST", [("server POST /stream", generation(LENGTH))])]


def test_texts_are_those_of_the_model_alone(served: Served) -> None:
    """Tracked, sampled out or streamed, requests get what the model writes untracked."""
    spec = importlib.util.spec_from_file_location("service_model", SERVICE / "model.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    writer = module.Writer()
    wanted = ["".join(writer.write(PROMPT, LENGTH, seed)) for seed in range(REQUESTS)]
    assert served.texts == {
        "plain": wanted,
        "stream": wanted[:3],
        "unsampled /generate": wanted[:1],
        "unsampled /stream": wanted[:1],
        "stopped": ["".join(writer.write(PROMPT, STOPPED_LENGTH, 0))],
    }


def test_sampled_out_requests_have_no_spans(served: Served) -> None:
    """What the caller has not sampled is in nobody's spans; nor are health checks."""
    assert not served.trace(UNSAMPLED)
    assert len({span.trace_id for span in served.spans}) == REQUESTS + 3 + 2
    assert not [span for span in served.spans if "health" in span.name]


def test_reader_that_leaves(served: Served) -> None:
    """A stream that nobody reads to its end ends, and what it had decoded is there."""
    trace = served.trace(LEFT)
    ((server, ((generate, steps),)),) = tree(trace, f"{1:016x}")
    assert (server, generate) == ("server POST /stream", "generate")
    assert 0 < len(steps) < LEFT_LENGTH
    assert steps == [("decode_step", module_tree(MODULES))] * len(steps)


def test_sigterm(served: Served) -> None:
    """Stopped during a stream, the service completes it, and all spans are delivered."""
    assert served.code == -signal.SIGTERM
    assert tree(served.trace(STOPPED), f"{1:016x}") == [
        ("server POST /stream", generation(STOPPED_LENGTH))
    ]
    assert served.said == ""


def test_no_span_is_there_twice(served: Served) -> None:
    """Each span was written once, within its parent's time where it is in the same process."""
    (most,) = Counter(span.span_id for span in served.spans).most_common(1)
    assert most[1] == 1
    by_id = {span.span_id: span for span in served.spans}
    for span in served.spans:
        above = by_id.get(span.parent_id)
        assert span.start_ns <= span.end_ns
        if above is not None and above.kind == INTERNAL:
            assert above.start_ns <= span.start_ns
            assert span.end_ns <= above.end_ns
