"""A program under `configure()`, in a process of its own, that does what a test tells it.

    with Traced({"OTEL_EXPORTER_OTLP_ENDPOINT": collector.http_endpoint}) as program:
        program.do("train", 3)
        assert program.do("flush") == (246, 0)
        sent = program.do("sent")

What can be told are the methods of `Work`. The processes are forked from one that has imported
torch and done nothing: each configures itself, as a fresh one would.
"""

from __future__ import annotations

import contextlib
import io
import logging
import multiprocessing
import os
import time
import traceback
from array import array
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from opentelemetry import trace
from opentelemetry.sdk.trace import SpanProcessor
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from torch import distributed, nn

from otel_modtrack import ModTracker, configure, region
from otel_modtrack.demo.model import GPT
from otel_modtrack.demo.train import train
from tests.backends.spans import Span, from_sdk

if TYPE_CHECKING:
    from collections.abc import Mapping
    from multiprocessing.connection import Connection

    from opentelemetry.sdk.trace import ReadableSpan
    from typing_extensions import Self

TIMEOUT_S = 240  # nothing takes this long unless it hangs


class Traced:
    """The side of the test: starts the process, and ends it with the `with` block.

    Args:
        environment: OTEL_* and other variables; those of the tests' process are not passed on.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._pipe, pipe = _CONTEXT.Pipe()
        everything = {"OTEL_METRICS_EXPORTER": "none", "OTEL_SERVICE_NAME": "traced", **environment}
        self._process = _CONTEXT.Process(target=_serve, args=(pipe, everything), daemon=True)
        self._process.start()
        pipe.close()

    def begin(self, what: str, *arguments: Any) -> None:
        """Tell it to do something, and go on."""
        self._pipe.send((what, arguments))

    def answer(self) -> Any:
        """What came of what it was told; waits for it."""
        assert self._pipe.poll(TIMEOUT_S), f"no answer within {TIMEOUT_S} s"
        failure, found = self._pipe.recv()
        assert not failure, failure
        return found

    def do(self, what: str, *arguments: Any) -> Any:
        """Tell it to do something, and wait for what comes of it."""
        self.begin(what, *arguments)
        return self.answer()

    def end(self) -> None:
        """Have it end normally."""
        self._pipe.send(("", ()))
        self._process.join(TIMEOUT_S)
        assert self._process.exitcode == 0, self._process.exitcode

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.kill()
        self._process.join()
        self._process.close()
        self._pipe.close()


def memory_mib(pid: int | str = "self") -> dict[str, float]:
    """What a process has resident ``now``, and the ``most`` that it ever had."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    kib = {"now": fields["VmRSS"], "most": fields["VmHWM"]}
    return {name: int(value.split()[0]) / 1024 for name, value in kib.items()}


class Ids(SpanProcessor):
    """Remembers the ids of all spans, in little room."""

    def __init__(self) -> None:
        self.known = array("Q")

    def on_end(self, span: ReadableSpan) -> None:
        """Called by the thread that ends the span."""
        self.known.append(span.context.span_id)


class Work:
    """The side of the process: everything that it can be told to do."""

    def __init__(self) -> None:
        self._log = io.StringIO()
        logging.basicConfig(stream=self._log)
        self.telemetry = configure()
        provider: Any = self.telemetry.tracer_provider
        self._ids = Ids()
        provider.add_span_processor(self._ids)
        self._memory = InMemorySpanExporter()
        self._provider = provider
        self._tracer = trace.get_tracer("tests", "1.2")

    # -- what became of it -----------------------------------------------------------------------

    def remember(self) -> None:
        """Keep whole spans from here on, for `sent`: in the SDK's in-memory exporter."""
        self._provider.add_span_processor(SimpleSpanProcessor(self._memory))

    def sent(self) -> list[Span]:
        """The spans that the in-memory exporter got."""
        return from_sdk(self._memory.get_finished_spans())

    def ids(self) -> array[int]:
        """The ids of all spans that have ended."""
        return self._ids.known

    def counts(self) -> dict[str, int]:
        """What became of the spans so far."""
        counts = self.telemetry.spans
        return {
            "delivered": counts.delivered,
            "lost": counts.lost,
            "waiting": counts.waiting,
            "produced": len(self._ids.known),
            **counts.lost_by_reason,
        }

    def flush(self) -> dict[str, int]:
        """Deliver or lose everything, however long that takes."""
        assert self.telemetry.flush(TIMEOUT_S)
        return self.counts()

    def said(self) -> str:
        """What was logged so far."""
        return self._log.getvalue()

    def shutdown(self) -> dict[str, int]:
        """What the end of the process does."""
        self.telemetry.shutdown()
        return self.counts()

    # -- what makes spans ------------------------------------------------------------------------

    def train(self, steps: int) -> None:
        """The demo's training, with recomputation."""
        torch.manual_seed(0)
        model = GPT(50, context=16, dim=16, checkpointing=True)
        tokens = torch.arange(1000) % 50

        def on_step(step: int, loss: float) -> None:
            """Nothing to be shown."""

        provider = self._provider
        train(model, tokens, steps=steps, seed=0, tracer_provider=provider, on_step=on_step)

    def layers(self, steps: int) -> dict[str, float]:
        """A training that makes 204 spans a step, at its own speed; what it took of this process.

        Memory is what is resident, in MiB: before the first span, and the most that it ever was.
        """
        model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(100)))
        optimizer = torch.optim.SGD(model.parameters())
        x = torch.ones(8, 8)
        waiting = 0
        before_mib, begun_s, cpu_s = memory_mib()["now"], time.monotonic(), time.process_time()
        with ModTracker(model) as tracker:
            for step in range(steps):
                with tracker.step(step):
                    model(x).sum().backward()
                    optimizer.step()
                    optimizer.zero_grad()
                waiting = max(waiting, self.telemetry.spans.waiting)
        made_s = time.monotonic() - begun_s
        assert self.telemetry.flush(TIMEOUT_S)
        return {
            "made_s": made_s,
            "delivered_s": time.monotonic() - begun_s,
            "cpu_s": time.process_time() - cpu_s,
            "most_waiting": waiting,
            "before_mib": before_mib,
            "most_mib": memory_mib()["most"],
        }

    def serve(self) -> None:
        """A request as a service has it: with what else OTLP can carry on its span."""
        model = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 2))
        with self._tracer.start_as_current_span("enqueue", kind=trace.SpanKind.PRODUCER) as queued:
            pass
        link = trace.Link(queued.get_span_context(), {"messaging.batch": 3})
        with (
            ModTracker(model),
            self._tracer.start_as_current_span(
                "POST /generate",
                kind=trace.SpanKind.SERVER,
                links=[link],
                attributes={
                    "http.response.status_code": 200,
                    "url.path": "/generate/ü",
                    "tokens": (2**53 + 1, -1),
                    "temperature": 0.1,
                    "whole": 2.0,
                    "stream": False,
                    "empty": "",
                    "prompts": ("a", "ж"),
                },
            ) as span,
            torch.inference_mode(),
            region("generate"),
        ):
            model(torch.ones(1, 4))
            span.add_event("first token", {"scores": (0.5, 1.0)})
            span.set_status(trace.Status(trace.StatusCode.OK))

    def fail(self) -> None:
        """A step with a module that raises."""

        class Picky(nn.Module):
            """Takes no more than one row."""

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                if len(x) > 1:
                    raise ValueError("one row at a time")
                return x

        model = nn.Sequential(nn.Linear(2, 2), Picky())
        with contextlib.suppress(ValueError), ModTracker(model) as tracker, tracker.step(7):
            model(torch.ones(2, 2))

    def collect(self, rank: int, world_size: int, file: str) -> None:
        """A step of data-parallel training on this rank of several."""
        place = {"init_method": f"file://{file}", "rank": rank, "world_size": world_size}
        distributed.init_process_group("gloo", **place)
        model = nn.parallel.DistributedDataParallel(nn.Linear(4, 4))
        with ModTracker(model) as tracker, tracker.step(0):
            model(torch.ones(2, 4)).sum().backward()
        distributed.destroy_process_group()

    def spans(self, count: int, size_bytes: int = 0) -> None:
        """Plain spans, each with a text of some size."""
        text = "x" * size_bytes
        for number in range(count):
            attributes = {"number": number, "text": text}
            self._tracer.start_span("span", attributes=attributes).end()

    def steps(self, count: int, kind: str = "") -> list[str]:
        """Steps of five spans, as it may be with an ``error`` or an ``outlier``; the trace ids."""
        found = []
        for _ in range(count):
            with self._tracer.start_as_current_span("train_step") as step:
                if kind == "outlier":
                    step.set_attribute("modtrack.step.outlier", True)
                with self._tracer.start_as_current_span("forward GPT") as forward:
                    for _ in range(3):
                        self._tracer.start_span("forward GPT.layers.*").end()
                    if kind == "error":
                        forward.set_status(trace.Status(trace.StatusCode.ERROR))
            found.append(f"{step.get_span_context().trace_id:032x}")
        return found


def _serve(pipe: Connection, environment: Mapping[str, str]) -> None:
    """The process: until it is told to end, or whoever started it is gone."""
    for name in list(os.environ):
        if name.startswith(("OTEL_", "TRACE", "RANK", "WORLD_SIZE", "SLURM_")):
            del os.environ[name]
    os.environ.update(environment)
    torch.set_num_threads(1)
    work = Work()
    while True:
        try:
            what, arguments = pipe.recv()
        except EOFError:
            return
        if not what:
            return
        try:
            pipe.send(("", getattr(work, what)(*arguments)))
        except Exception:  # noqa: BLE001 - told by the test
            pipe.send((traceback.format_exc(), None))


_CONTEXT = multiprocessing.get_context("forkserver")
# An optimizer's first step imports the compiler, which takes seconds.
_CONTEXT.set_forkserver_preload([__name__, "torch._dynamo"])
