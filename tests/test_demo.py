"""The demo, run as its users run it: what it writes, sends, prints and refuses."""

from __future__ import annotations

import gzip
import io
import os
import re
import shlex
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import grpc
import pytest
import torch
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)

from otel_modtrack.cli import main
from otel_modtrack.demo.command import _check_written
from otel_modtrack.demo.model import GPT
from otel_modtrack.demo.progress import Progress
from otel_modtrack.demo.text import english_text
from otel_modtrack.demo.train import encode
from otel_modtrack.usage import UsageError
from otel_modtrack.view.choose import Selection, choose_units
from otel_modtrack.view.model import Node, build_trees
from otel_modtrack.view.reader import read_files
from tests.polling import poll

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


STEPS = 6
SPANS_A_STEP = 59  # 28 modules and the loss, both ways; the step, its backward, its optimizer


class Finished:
    """A run of the demo that is over."""

    def __init__(self, out: Path, arguments: Sequence[str], environment: dict[str, str]) -> None:
        ours = {key: value for key, value in os.environ.items() if not key.startswith("OTEL_")}
        self.out = out
        self.process = subprocess.run(  # noqa: S603 - our own command
            [sys.executable, "-m", "otel_modtrack", "demo", "--out", out, *arguments],
            env=ours | environment,
            capture_output=True,
            text=True,
            encoding="utf-8",
            check=False,
        )

    @property
    def steps(self) -> list[Node]:
        """The steps that the file holds, as trees."""
        found = read_files([str(self.out)])
        assert found.faults == []
        return choose_units(build_trees(found.spans), Selection(), "the file").roots

    @property
    def losses(self) -> list[float]:
        """The first and the last loss, as printed."""
        printed = re.search(r"^Loss (\S+) -> (\S+) in ", self.process.stdout, re.MULTILINE)
        assert printed is not None
        return [float(loss) for loss in printed.groups()]


def run_demo(out: Path, *arguments: str, steps: int = STEPS, **environment: str) -> Finished:
    """Run the demo to its end, with these variables and no other OTEL_ ones."""
    return Finished(out, ["--steps", str(steps), *arguments], environment)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """One run without options."""
    return run_demo(tmp_path_factory.mktemp("demo") / "plain.jsonl")


@pytest.fixture(scope="module")
def checkpointed(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """One run with checkpointing, another seed, another name and a file that was there before."""
    out = tmp_path_factory.mktemp("demo") / "checkpointed.jsonl"
    out.write_text("left over\n")
    return run_demo(out, "--checkpointing", "--seed", "1", steps=2, OTEL_SERVICE_NAME="mine")


def shape(node: Node) -> list[Any]:
    """Return a tree as nested lists of labels."""
    return [node.span.label, *(shape(child) for child in node.children)]


def block(phase: str, number: int) -> list[Any]:
    """Return the expected shape of one layer. The backward goes the other way."""
    at = f"{phase} GPT.layers.{number}"
    projections = ["q_proj", "k_proj", "v_proj", "out_proj"]
    expected = [
        [f"{at}.attn_norm"],
        [f"{at}.attn", *([f"{at}.attn.{name}"] for name in projections)],
        [f"{at}.mlp_norm"],
        [f"{at}.mlp", [f"{at}.mlp.up_proj"], [f"{at}.mlp.down_proj"]],
    ]
    if phase == "backward":
        expected = [[name, *reversed(children)] for name, *children in reversed(expected)]
    return [at, *expected]


def expected_step(number: int) -> list[Any]:
    """Return the expected shape of one step without checkpointing."""
    return [
        f"train_step {number}",
        [
            "forward GPT",
            ["forward GPT.token_embedding"],
            ["forward GPT.position_embedding"],
            block("forward", 0),
            block("forward", 1),
            ["forward GPT.norm"],
            ["forward GPT.head"],
            ["forward loss"],
        ],
        [
            "backward",
            [
                "backward GPT",
                ["backward loss"],
                ["backward GPT.head"],
                ["backward GPT.norm"],
                block("backward", 1),
                block("backward", 0),
                ["backward GPT.position_embedding"],
                ["backward GPT.token_embedding"],
            ],
        ],
        ["optimizer_step AdamW"],
    ]


# What is written and printed


def test_every_step_is_a_whole_tree(plain: Finished) -> None:
    """Each step has every module, forward and backward, in order, and no other span."""
    assert plain.process.returncode == 0
    assert [shape(step) for step in plain.steps] == [expected_step(n) for n in range(STEPS)]
    assert len(read_files([str(plain.out)]).spans) == STEPS * SPANS_A_STEP


def test_each_step_is_a_trace(plain: Finished) -> None:
    """No two steps share a trace id, and a step's spans all have the same."""
    traces = [{node.span.trace_id for _, node in step.walk()} for step in plain.steps]
    assert [len(trace) for trace in traces] == [1] * STEPS
    assert len(set().union(*traces)) == STEPS


def test_spans_lie_inside_their_parents(plain: Finished, checkpointed: Finished) -> None:
    """No span begins before its parent or ends after it."""
    for step in plain.steps + checkpointed.steps:
        for _, node in step.walk():
            for child in node.children:
                assert node.span.start_ns <= child.span.start_ns
                assert child.span.end_ns <= node.span.end_ns


def test_loss_falls(plain: Finished) -> None:
    """The model learns: after a few steps its loss is far below that of guessing."""
    first, last = plain.losses
    assert last < first - 1


def test_output_tells_the_whole_story(plain: Finished) -> None:
    """Progress, the last step's tree, the slowest, the counts and the next command are printed."""
    out = plain.process.stdout
    assert f"step     0 of {STEPS}  loss {plain.losses[0]:.3f}\n" in out
    assert f"Step {STEPS - 1} of otel-modtrack-demo: {SPANS_A_STEP} spans, " in out
    assert "└─ forward GPT.layers.1.mlp.down_proj\n" in out
    assert re.search(r"self ms +share +total ms +calls +span\n( +\d.*\n){10}\n", out)
    assert f"{STEPS * SPANS_A_STEP} of {STEPS * SPANS_A_STEP} spans are in {plain.out}\n" in out
    assert plain.process.stderr == ""


def test_view_shows_the_same(plain: Finished) -> None:
    """The commands that the demo names at its end print what the demo printed, and write a page."""
    again, page = (line.partition(": ") for line in plain.process.stdout.splitlines()[-2:])
    assert (again[0], page[0]) == ("Show it again", "In a browser")
    command = again[2]
    assert page[2] == f"{command} --html {plain.out.with_suffix('.html')}"
    shown = subprocess.run(  # noqa: S603 - our own command
        shlex.split(command), capture_output=True, text=True, encoding="utf-8", check=True
    )
    assert shown.stdout.startswith(f"Step {STEPS - 1} of ")
    assert shown.stdout in plain.process.stdout
    assert main(shlex.split(page[2])[1:]) == 0
    assert plain.out.with_suffix(".html").read_text().startswith("<!doctype html>")


def test_checkpointing_recomputes_inside_the_backward(checkpointed: Finished) -> None:
    """Each block is computed once more, inside the backward of that block."""
    for step in checkpointed.steps:
        path: list[str] = []
        found = []
        for depth, node in step.walk():
            del path[depth:]
            path.append(node.span.label)
            if node.span.label.startswith("recompute GPT.layers.") and node.children:
                _, name = node.span.label.split()
                found.append(name)
                block_name = ".".join(name.split(".")[:3])
                assert f"backward {block_name}" in path
        assert found[0] == "GPT.layers.1"
        assert "GPT.layers.0" in found


def test_old_file_is_replaced(checkpointed: Finished) -> None:
    """What stood in the file before is gone."""
    assert "left over" not in checkpointed.out.read_text()
    assert len(checkpointed.steps) == 2


def test_service_name_is_the_users(checkpointed: Finished) -> None:
    """OTEL_SERVICE_NAME is heeded."""
    assert {step.span.process.service for step in checkpointed.steps} == {"mine"}


def test_seed_decides_the_run(plain: Finished, checkpointed: Finished, tmp_path: Path) -> None:
    """The same seed gives the same losses, another seed others."""
    again = run_demo(tmp_path / "again.jsonl")
    assert again.losses == plain.losses
    assert checkpointed.losses[0] != plain.losses[0]


# Backends


@contextmanager
def http_backend(requests: list[tuple[dict[str, str], bytes]]) -> Iterator[str]:
    """An OTLP/HTTP receiver that keeps what it gets. Yields its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            requests.append((dict(self.headers) | {"path": self.path}, body))
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.end_headers()
            self.wfile.write(ExportTraceServiceResponse().SerializeToString())

        def log_message(self, *_: object) -> None:
            """Nothing: stderr belongs to the tests."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


@contextmanager
def grpc_backend(requests: list[ExportTraceServiceRequest]) -> Iterator[str]:
    """An OTLP/gRPC receiver that keeps what it gets. Yields its address."""

    class Servicer(TraceServiceServicer):
        def Export(  # noqa: N802 - gRPC's name
            self, request: ExportTraceServiceRequest, _: object
        ) -> ExportTraceServiceResponse:
            requests.append(request)
            return ExportTraceServiceResponse()

    before = threading.active_count()
    pool = ThreadPoolExecutor(2)
    server = grpc.server(pool)
    add_TraceServiceServicer_to_server(Servicer(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(grace=None).wait()
        pool.shutdown()
        poll(lambda: threading.active_count() <= before, "its own thread has ended", 30)


def span_ids(requests: Sequence[ExportTraceServiceRequest]) -> list[str]:
    """Return the ids of all spans, sorted."""
    return sorted(
        span.span_id.hex()
        for request in requests
        for resource_spans in request.resource_spans
        for scope_spans in resource_spans.scope_spans
        for span in scope_spans.spans
    )


def written_ids(finished: Finished) -> list[str]:
    """Return the ids of all spans in the file, sorted."""
    return sorted(span.span_id for span in read_files([str(finished.out)]).spans)


def test_http_backend_gets_every_span(tmp_path: Path) -> None:
    """The endpoint of the environment gets what the file gets, with the headers that it wants."""
    received: list[tuple[dict[str, str], bytes]] = []
    with http_backend(received) as url:
        done = run_demo(
            tmp_path / "demo.jsonl",
            OTEL_EXPORTER_OTLP_ENDPOINT=url,
            OTEL_EXPORTER_OTLP_HEADERS="x-key=secret",
            OTEL_EXPORTER_OTLP_COMPRESSION="gzip",
        )
    assert done.process.returncode == 0
    total = STEPS * SPANS_A_STEP
    sent = f"{total} of {total} spans were sent to {url}/v1/traces (http/protobuf)\n"
    assert sent in done.process.stdout
    assert done.process.stderr == ""
    assert {headers["path"] for headers, _ in received} == {"/v1/traces"}
    assert {headers["x-key"] for headers, _ in received} == {"secret"}
    requests = [ExportTraceServiceRequest.FromString(gzip.decompress(body)) for _, body in received]
    assert span_ids(requests) == written_ids(done)
    attributes = {
        (attribute.key, attribute.value.string_value)
        for request in requests
        for attribute in request.resource_spans[0].resource.attributes
    }
    assert ("service.name", "otel-modtrack-demo") in attributes


def test_grpc_backend_gets_every_span(tmp_path: Path) -> None:
    """The protocol of the environment is heeded, and the traces' own endpoint comes first."""
    received: list[ExportTraceServiceRequest] = []
    with grpc_backend(received) as address:
        done = run_demo(
            tmp_path / "demo.jsonl",
            steps=2,
            OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=f"http://{address}",
            OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:1",
            OTEL_EXPORTER_OTLP_PROTOCOL="grpc",
        )
    assert done.process.returncode == 0
    assert f"sent to {address} (grpc)\n" in done.process.stdout
    assert done.process.stderr == ""
    assert span_ids(received) == written_ids(done)


@pytest.fixture
def dead_address() -> str:
    """An address at which nothing listens."""
    with socket.socket() as once:
        once.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{once.getsockname()[1]}"


@pytest.mark.parametrize(
    ("protocol", "url", "told"),
    [
        (
            "http/protobuf",
            "http://me:secret@{}",
            "http://{}/v1/traces (http/protobuf); no connection",
        ),
        ("grpc", "http://{}", "{} (grpc); UNAVAILABLE"),
    ],
)
def test_dead_backend_costs_one_line(
    tmp_path: Path, dead_address: str, protocol: str, url: str, told: str
) -> None:
    """A backend that is down is named once, without its password; the file is complete."""
    done = run_demo(
        tmp_path / "demo.jsonl",
        steps=2,
        OTEL_EXPORTER_OTLP_ENDPOINT=url.format(dead_address),
        OTEL_EXPORTER_OTLP_PROTOCOL=protocol,
        OTEL_EXPORTER_OTLP_TIMEOUT="1",
    )
    assert done.process.returncode == 0
    assert done.process.stderr == (
        f"otel-modtrack demo: only 0 of 118 spans were sent to {told.format(dead_address)}"
        ": check that an OTLP backend listens there. The file has them all.\n"
    )
    assert len(written_ids(done)) == 2 * SPANS_A_STEP
    assert "secret" not in done.process.stdout


def test_small_queue_of_the_users_shows_its_losses(tmp_path: Path) -> None:
    """The user's queue size is heeded for the backend, and what it costs is said."""
    received: list[tuple[dict[str, str], bytes]] = []
    with http_backend(received) as url:
        done = run_demo(
            tmp_path / "demo.jsonl",
            steps=3,
            OTEL_EXPORTER_OTLP_ENDPOINT=url,
            OTEL_BSP_MAX_QUEUE_SIZE="2",
            OTEL_BSP_MAX_EXPORT_BATCH_SIZE="2",
        )
    assert done.process.returncode == 0
    assert done.process.stderr.endswith(
        "its queue was full: raise OTEL_BSP_MAX_QUEUE_SIZE. The file has them all.\n"
    )
    assert len(written_ids(done)) == 3 * SPANS_A_STEP


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        (
            {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/xml"},
            "OTEL_EXPORTER_OTLP_PROTOCOL=http/xml is not supported; set it to http/protobuf, grpc ",
        ),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "localhost:4318"}, "_ENDPOINT is no address; set it to"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://[broken"}, "_ENDPOINT is no address; set it to"),
        (
            {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_COMPRESSION": "zip"},
            "OTEL_EXPORTER_OTLP_COMPRESSION=zip is not supported; set it to gzip or none",
        ),
        (
            {"OTEL_BSP_MAX_QUEUE_SIZE": "7", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "8"},
            "OTEL_BSP_MAX_EXPORT_BATCH_SIZE=8 is more than OTEL_BSP_MAX_QUEUE_SIZE (7); lower it",
        ),
        ({"OTEL_SDK_DISABLED": "true"}, "OTEL_SDK_DISABLED=true switches every span off; unset it"),
    ],
)
def test_bad_environment_gets_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    environment: dict[str, str],
    says: str,
) -> None:
    """A variable of no use is named in one line, before any training."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert main(["demo", "--out", str(tmp_path / "demo.jsonl")]) == 2
    shown = capsys.readouterr()
    assert says in shown.err
    assert shown.err.count("\n") == 1
    assert "secret" not in shown.err
    assert "step " not in shown.out


def test_missing_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without the extra, one line says how to install it, and the file is left alone."""
    monkeypatch.setattr("otel_modtrack.demo.command._NEEDED", ("opentelemetry.none.at.all",))
    out = tmp_path / "demo.jsonl"
    out.write_text("kept")
    assert main(["demo", "--out", str(out)]) == 2
    assert capsys.readouterr().err == (
        "otel-modtrack demo: opentelemetry.none.at.all is not installed; "
        "install it with pip install 'otel_modtrack[demo]'\n"
    )
    assert out.read_text() == "kept"


# Parts


class Terminal(io.StringIO):
    """A stdout that says it is a terminal."""

    def isatty(self) -> bool:
        """Return True."""
        return True


def test_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal a bar moves, with the loss beside it, and no lines are printed."""
    monkeypatch.setattr(sys, "stdout", Terminal())
    progress = Progress(2)
    progress.advance(0, 2.5)
    progress.advance(1, 1.25)
    progress.close()
    shown = sys.stdout.getvalue()  # type: ignore[attr-defined]
    assert "2/2 [" in shown
    assert "loss=1.250" in shown
    assert "step     1" not in shown


def test_other_outputs_get_some_lines(capsys: pytest.CaptureFixture[str]) -> None:
    """Elsewhere some ten lines are printed, the last step among them, however many steps."""
    progress = Progress(1234)
    for step in range(1234):
        progress.advance(step, 1.0)
    progress.close()
    lines = capsys.readouterr().out.splitlines()
    assert 10 <= len(lines) <= 12
    assert lines[-1] == "step  1233 of 1234  loss 1.000"


@pytest.mark.parametrize(
    ("exported", "produced", "says"),
    [(0, 0, "made no span at all"), (5, 1180, "only 5 of 1,180 spans are in f.jsonl; make room")],
)
def test_incomplete_file_is_a_failure(exported: int, produced: int, says: str) -> None:
    """A file that lacks spans is not shown as if it were whole."""
    pipeline: Any = SimpleNamespace(file=SimpleNamespace(delivered=exported), produced=produced)
    with pytest.raises(UsageError, match=says):
        _check_written(pipeline, Path("f.jsonl"))


def test_text_is_plain_english() -> None:
    """The text is long, ASCII, the same each time, and has no markup left in it."""
    text = english_text()
    assert len(text) > 150_000
    assert text.isascii()
    assert text == english_text()
    assert "Assignment statements are used to (re)bind names to values" in text
    assert "::=" not in text
    assert "***" not in text


def test_encode_numbers_characters_densely() -> None:
    """Each character has a number below the size of the vocabulary."""
    tokens, vocabulary = encode("banana")
    assert tokens.tolist() == [1, 0, 2, 0, 2, 0]
    assert vocabulary == 3


def test_checkpointing_changes_no_gradient() -> None:
    """The model computes the same loss and gradients with and without checkpointing."""
    gradients = []
    tokens = torch.arange(8).view(2, 4) % 5
    for checkpointing in (False, True):
        torch.manual_seed(3)
        model = GPT(5, context=4, dim=8, heads=2, checkpointing=checkpointing)
        model(tokens, tokens).backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    for without, with_it in zip(*gradients, strict=True):
        assert torch.equal(without, with_it)
