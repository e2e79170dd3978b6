"""What docs/backends.md asks Jaeger is answered, and the answers are true.

A real Jaeger is asked by the very lines of the documentation, about a real training and a real
service (`asked.py`). The answers are compared with what these wrote into files beside.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import urllib.request
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.backends import asked
from tests.backends.programs import Jaeger, free_port
from tests.backends.queries import (
    BACKWARD,
    BYTES,
    DECODE,
    RAISED,
    RECOMPUTED,
    SLOWER,
    STRAGGLER,
    blocks,
    run,
)
from tests.backends.spans import Span, from_otlp
from tests.polling import poll

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tests.backends.programs import Binaries

DAY_NS = 24 * 3600 * 10**9
TIMEOUT_S = 240


@dataclass(frozen=True)
class Ran:
    """What `asked.py` has done.

    Attributes:
        jaeger: Has all its spans.
        documents: The OTLP JSON that it wrote into files.
        spans: The spans in these.
        counted: By rank: how often and how many bytes, by operation, as the tracker counted.
    """

    jaeger: Jaeger
    documents: list[dict[str, Any]]
    spans: list[Span]
    counted: list[dict[str, list[int]]]

    def named(self, name: str, service: str = "trainer") -> list[Span]:
        """The spans of a name and a service, in the order in which they began."""
        found = [
            span
            for span in self.spans
            if (span.name, span.resource["service.name"]) == (name, service)
        ]
        return sorted(found, key=lambda span: span.start_ns)


@pytest.fixture(scope="module")
def ran(binaries: Binaries, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ran]:
    """Two ranks and a service, whose spans `configure()` has sent to a Jaeger of their own."""
    folder = tmp_path_factory.mktemp("asked")
    with Jaeger(binaries.jaeger, folder) as jaeger:
        known = {name: it for name, it in os.environ.items() if not name.startswith("OTEL_")}
        common = {
            **known,
            "OTEL_EXPORTER_OTLP_ENDPOINT": jaeger.http_endpoint,
            "OTEL_TRACES_EXPORTER": "otlp,otlp_json_file",
            "OTEL_METRICS_EXPORTER": "none",
            "OTEL_PYTHON_MODTRACK_EXIT_TIMEOUT": "60",
            "OMP_NUM_THREADS": "1",
        }
        world = {
            "OTEL_SERVICE_NAME": "trainer",
            "WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
            "TORCHELASTIC_RUN_ID": "48213",
        }
        started = [
            start("train", folder / f"{rank}.jsonl", {**common, **world, "RANK": str(rank)})
            for rank in range(2)
        ]
        started.append(start("serve", folder / "service.jsonl", common))
        outputs = finish(started)
        lines = [line for file in folder.glob("*.jsonl") for line in file.read_text().splitlines()]
        documents = [json.loads(line) for line in lines]
        spans = from_otlp(*documents)

        def complete() -> bool:
            traces = [*jaeger.find("trainer", limit="100"), *jaeger.find("text-service")]
            return sum(len(trace["spans"]) for trace in traces) == len(spans)

        poll(complete, "all spans in Jaeger")
        counted = [json.loads(output) for output in outputs[:2]]
        yield Ran(jaeger, documents, spans, counted)


def start(what: str, file: Path, environment: dict[str, str]) -> subprocess.Popen[str]:
    """One of the programs of `asked.py`, which writes its spans into a file, too."""
    return subprocess.Popen(  # noqa: S603 - our own command
        [sys.executable, asked.__file__, what],
        env={**environment, "OTEL_PYTHON_MODTRACK_FILE": str(file)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(started: list[subprocess.Popen[str]]) -> list[str]:
    """What each has printed, once all have ended well."""
    try:
        outputs = [program.communicate(timeout=TIMEOUT_S) for program in started]
    finally:
        for program in started:
            program.kill()
            program.communicate()
    for program, (_, errors) in zip(started, outputs, strict=True):
        assert program.returncode == 0, errors
    return [output for output, _ in outputs]


def ask(section: str, jaeger: Jaeger, folder: Path) -> str:
    """What the `curl` lines of a section print, asked of this Jaeger."""
    for program in ("bash", "curl", "jq"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed, with which the documentation asks Jaeger")
    [lines] = [block for block in blocks("sh", section) if "curl" in block]
    default = "http://127.0.0.1:16686"
    assert default in lines
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = run(
        *("bash", "-euo", "pipefail", "-c", lines.replace(default, jaeger.query_url)),
        cwd=folder,
        env={**os.environ, "PATH": path},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def answers(section: str, jaeger: Jaeger, folder: Path) -> list[Any]:
    """The JSON lines of such an answer."""
    return [json.loads(line) for line in ask(section, jaeger, folder).splitlines()]


def ms(span: Span) -> float:
    """How long it took, in milliseconds."""
    return (span.end_ns - span.start_ns) / 1e6


def about(value_ms: float) -> Any:
    """Equal to what Jaeger, which counts microseconds, makes of a sum of some hundred spans."""
    return pytest.approx(value_ms, abs=0.5)


def median(spans: Iterable[Span]) -> Any:
    """The upper median of their durations, as `jq` takes it."""
    return about(statistics.median_high(map(ms, spans)))


def test_all_that_jaeger_is_asked_is_tested() -> None:
    """Each block with `curl` stands in a section that a test here asks."""
    sections = (SLOWER, STRAGGLER, RAISED, BACKWARD, BYTES, RECOMPUTED, DECODE, "Jaeger")
    tested = [block for section in sections for block in blocks("sh", section) if "curl" in block]
    assert sorted(tested) == sorted(block for block in blocks("sh") if "curl" in block)


def test_jaeger_finds_the_layer_that_got_slower(
    ran: Ran, make_jaeger: Callable[[], Jaeger], tmp_path: Path
) -> None:
    """If the fast steps are of yesterday it is the layer that got slow, by as much as it did."""
    fast = {
        span.trace_id
        for span in ran.named("train_step")
        if span.attributes["modtrack.step.number"] < asked.SLOW_FROM
    }
    jaeger = make_jaeger()
    for document in json.loads(json.dumps(ran.documents)):
        for resource in document["resourceSpans"]:
            for scope in resource["scopeSpans"]:
                for span in scope["spans"]:
                    if span["traceId"] in fast:
                        for key in ("startTimeUnixNano", "endTimeUnixNano"):
                            span[key] = str(int(span[key]) - DAY_NS)
        request = urllib.request.Request(  # noqa: S310 - ours
            f"{jaeger.http_endpoint}/v1/traces",
            json.dumps(document).encode(),
            {"Content-Type": "application/json"},
        )
        urllib.request.urlopen(request, timeout=10).close()  # noqa: S310
    first, *_ = answers(SLOWER, jaeger, tmp_path)
    mlp = "GPT.layers.1.mlp"
    calls = ran.named("forward GPT.layers.*.mlp")
    calls = [span for span in calls if span.attributes["modtrack.module.fqn"] == mlp]
    assert first == {
        "fqn": mlp,
        "before": median(span for span in calls if span.trace_id in fast),
        "since": median(span for span in calls if span.trace_id not in fast),
    }


def test_jaeger_finds_the_straggler(ran: Ran, tmp_path: Path) -> None:
    """It is the rank whose forward was made slow."""
    by_rank = defaultdict(list)
    for span in ran.named("forward GPT"):
        by_rank[span.resource["modtrack.rank"]].append(span)
    found = answers(STRAGGLER, ran.jaeger, tmp_path)
    assert found == [{"rank": rank, "ms": median(by_rank[rank])} for rank in (1, 0)]


def test_jaeger_finds_the_module_that_raised(ran: Ran, tmp_path: Path) -> None:
    """It is the innermost of those that the exception left."""
    [line] = ask(RAISED, ran.jaeger, tmp_path).splitlines()
    fqn, error, message = line.split("\t")
    assert (fqn, error) == ("GPT.layers.0.attn.q_proj", "RuntimeError")
    assert "shapes cannot be multiplied" in message


def test_jaeger_tells_where_the_backward_spends_its_time(ran: Ran, tmp_path: Path) -> None:
    """The modules with the most time of their own, the one with the slow gradient among them."""
    own = Counter[str]()
    names = {span.span_id: span.name for span in ran.spans}
    for span in ran.spans:
        for name, part in ((span.name, ms(span)), (names.get(span.parent_id, ""), -ms(span))):
            if name.startswith("backward"):
                own[name] += part  # type: ignore[assignment]
    found = answers(BACKWARD, ran.jaeger, tmp_path)
    assert found == [{"name": line["name"], "ms": about(own[line["name"]])} for line in found]
    assert [line["ms"] for line in found] == [about(most) for _, most in own.most_common(5)]
    assert "backward GPT.layers.*.attn" in [line["name"] for line in found[:2]]


def test_jaeger_adds_up_the_collectives(ran: Ran, tmp_path: Path) -> None:
    """Count and bytes are what both ranks' trackers have counted; a group has its description."""
    found = answers(BYTES, ran.jaeger, tmp_path)
    counted: dict[str, list[int]] = {}
    for rank in ran.counted:
        for operation, pair in rank.items():
            known = counted.get(operation, [0, 0])
            counted[operation] = [a + b for a, b in zip(known, pair, strict=True)]
    assert {line["operation"]: [line["count"], line["bytes"]] for line in found} == counted
    groups = {line["operation"]: line["group"] for line in found}
    assert groups["all_gather"] == "shards"
    assert groups["all_reduce"] != "shards"


def test_jaeger_tells_the_share_of_recomputation(ran: Ran, tmp_path: Path) -> None:
    """It is the time of the outermost recompute spans, one for each block, by the backward's."""
    total = sum(map(ms, ran.named("backward")))
    recomputed = sum(map(ms, ran.named("recompute GPT.layers.*")))
    [share] = answers(RECOMPUTED, ran.jaeger, tmp_path)
    assert share == pytest.approx(recomputed / total, rel=0.01)


def test_jaeger_finds_the_slowest_decode_step(ran: Ran, tmp_path: Path) -> None:
    """For each request with a slow one it is the slowest, the one that was made slow included."""
    by_trace = defaultdict(list)
    for span in ran.named("forward decode_step", "text-service"):
        by_trace[span.trace_id].append(ms(span))
    expected = {
        trace: {"trace": trace, "step": steps.index(max(steps)), "ms": about(max(steps))}
        for trace, steps in by_trace.items()
        if max(steps) >= 20
    }
    assert expected
    found = answers(DECODE, ran.jaeger, tmp_path)
    assert {line["trace"]: line for line in found} == expected


def test_tags_find_what_the_documentation_says(ran: Ran) -> None:
    """A span's attributes, its Resource's and those of its events, all of one span."""
    steps = asked.STEPS * 2 + 1

    def found(min_duration: str = "0ms", **tags: str) -> int:
        tags = {name.replace("__", "."): value for name, value in tags.items()}
        query = {"tags": json.dumps(tags), "minDuration": min_duration, "limit": "100"}
        return len(ran.jaeger.find("trainer", **query))

    assert found(modtrack__rank="1", modtrack__step__number="3") == 1
    assert found(modtrack__job__id="48213") == steps
    assert found(modtrack__collective__operation="all_gather") == steps - 1
    assert found(modtrack__collective__operation="all_gather", error__type="RuntimeError") == 0
    assert found(error__type="RuntimeError") == 1
    layer = {"modtrack__module__fqn": "GPT.layers.1.mlp", "modtrack__phase": "forward"}
    slow = [span for span in ran.named("forward GPT.layers.*.mlp") if ms(span) >= 40]
    slow = [span for span in slow if span.attributes["modtrack.module.fqn"] == "GPT.layers.1.mlp"]
    assert found("40ms", **layer) == len(slow) > 0


def test_a_trace_of_jaeger_can_be_viewed(ran: Ran, tmp_path: Path) -> None:
    """Its query API gives the newest step as it was sent, and `otel-modtrack view` shows it."""
    shown = ask("Jaeger", ran.jaeger, tmp_path)
    got = from_otlp(json.loads((tmp_path / "trace.jsonl").read_text()))
    assert got == [span for span in ran.spans if span.trace_id == got[0].trace_id]
    assert shown.startswith("Step ")
    assert "trainer" in shown.splitlines()[0]
