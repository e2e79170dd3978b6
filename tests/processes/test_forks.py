"""Processes that fork while they are traced: no hang, no span twice, no thread too many."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from tests.processes.running import HERE, Program

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.processes.running import Receiver, Span

    Start = Callable[..., Program]

# What one step of `forks.child` and one of a `Forks` consist of.
STEP = ["backward", "backward Sequential", "backward Sequential.*"]
STEP += ["forward Sequential", "forward Sequential.*", "train_step"]
STEP_OF_FORKS = ["backward", "backward Forks", *["backward Forks.linear"] * 2]
STEP_OF_FORKS += ["forward Forks", *["forward Forks.linear"] * 2, "train_step"]

QUIET = {
    "fork_in_a_step": STEP,
    "exit_in_a_step": ["forward Sequential", "forward Sequential.*", "train_step"],
    "fork_in_a_forward": STEP_OF_FORKS,
    "fork_in_a_forward_with_a_span": STEP_OF_FORKS,
    "exit_in_a_forward": STEP_OF_FORKS,
    "exit_in_a_forward_with_a_span": STEP_OF_FORKS,
    "exit_in_a_span": ["exit_in_a_span"],
    "quiet_loader": [*STEP[:-1] * 8, *["data_load"] * 8, "train_step"],
}
TRACED = {
    "configured": 2,
    "grandchild": 2,
    "shut_down": 1,
    "own_spans": 2,
    "tracing_loader": 2,
    "pool": 2,
    "terminated_pool": 2,
}
PREFORKED = ["preforked_and_configured", "preforked"]


class Ran:
    """What `forks.py` told, and what was received of it."""

    def __init__(self, program: Program) -> None:
        self.lines = program.told
        self.spans = program.spans
        self.metrics = program.metrics
        self.errors = program.errors

    def told(self, case: str, role: str) -> list[dict[str, Any]]:
        """What the processes in a role have told."""
        return [line for line in self.lines if line["case"] == case and line["role"] == role]

    def tracing(self, case: str) -> dict[int, dict[str, Any]]:
        """What the traced children have told first, by process."""
        lines = self.told(case, "tracing") + self.told(case, "shut down")
        return {line["pid"]: line for line in reversed(lines)}

    def of(self, pids: Any) -> list[Span]:
        """The spans of some processes."""
        return [span for span in self.spans if span["resource"]["process.pid"] in pids]

    def trace(self, case: str) -> list[Span]:
        """The spans of the trace in which a case ran in the parent process."""
        (line,) = self.told(case, "parent")
        return [span for span in self.spans if span["trace_id"] == line["trace_id"]]


@pytest.fixture(scope="module", params=["http/protobuf", "grpc"])
def ran(receiver: Receiver, request: pytest.FixtureRequest) -> Iterator[Ran]:
    """All cases of `forks.py`, over each protocol; it has been in use before the first fork."""
    environment = {**receiver.environment(request.param), "OTEL_METRICS_EXPORTER": "otlp"}
    with Program(receiver, HERE / "forks.py", environment) as program:
        yield Ran(program.finish())


@pytest.mark.parametrize("case", [*QUIET, *TRACED, *PREFORKED])
def test_nobody_is_told_of_a_fault(ran: Ran, case: str) -> None:
    """Nothing is said in the parent or in a child, and every child ends well."""
    (line,) = ran.told(case, "over")
    assert not line["errors"]
    assert not ran.errors


@pytest.mark.parametrize("case", QUIET)
def test_the_parents_step_is_told_once_and_whole(ran: Ran, case: str) -> None:
    """A child that goes on where the parent was neither ends its spans nor takes any away."""
    assert sorted(span["name"] for span in ran.trace(case)) == sorted(QUIET[case])


def test_no_span_is_delivered_twice(ran: Ran) -> None:
    """Whoever ends a span that was open at a fork, it is the parent's."""
    ids = Counter(span["span_id"] for span in ran.spans)
    assert not [span["name"] for span in ran.spans if ids[span["span_id"]] > 1]


@pytest.mark.parametrize("case", QUIET)
def test_a_child_that_is_not_traced_is_quiet(ran: Ran, case: str) -> None:
    """It has no thread of ours, and sends neither spans nor metrics."""
    children = ran.told(case, "quiet")
    assert children or case.startswith("exit_in_a_")  # those have left
    for child in children:
        assert child["threads"] == ["MainThread"]
    assert not ran.of({child["pid"] for child in children})


def test_only_processes_that_are_traced_send_metrics(ran: Ran) -> None:
    """What the parent has counted is not sent again by its children."""
    traced = {span["resource"]["service.instance.id"] for span in ran.spans}
    sending = {metric["resource"]["service.instance.id"] for metric in ran.metrics}
    assert sending <= traced


@pytest.mark.parametrize("case", TRACED)
def test_traced_children_are_below_what_started_them(ran: Ran, case: str) -> None:
    """Everything of a traced child is delivered, under the step in which it was started."""
    (parent,) = ran.told(case, "parent")
    children = ran.tracing(case)
    assert len(children) == TRACED[case]
    spans = ran.of(children)
    ids = {span["span_id"] for span in spans}
    assert {span["resource"]["process.pid"] for span in spans} == set(children)
    assert {span["trace_id"] for span in spans} == {parent["trace_id"]}
    assert {span["parent_id"] for span in spans} - ids == {parent["span_id"]}


@pytest.mark.parametrize(
    ("case", "roots", "modules"),
    [
        ("own_spans", 2, 0),
        ("configured", 2, 2),
        ("grandchild", 2, 1),
        ("shut_down", 1, 0),
        ("tracing_loader", 8, 8),
        ("pool", 4, 4),
        ("terminated_pool", 4, 4),
    ],
)
def test_everything_is_delivered_before_a_child_leaves(
    ran: Ran, case: str, roots: int, modules: int
) -> None:
    """By sys.exit, by os._exit after a flush, at its function's end, or by Pool.terminate."""
    spans = ran.of(ran.tracing(case))
    names = [span["name"] for span in spans]
    assert names.count("forward Sequential.*") == modules
    assert len(names) == roots + modules


@pytest.mark.parametrize("case", [*TRACED, *PREFORKED])
def test_a_childs_resource_is_its_own(ran: Ran, case: str) -> None:
    """Each process has an instance id and a process id of its own, configured or not."""
    known = {
        span["resource"]["process.pid"]: span["resource"]["service.instance.id"]
        for span in ran.spans
    }
    assert ran.tracing(case).keys() <= known.keys()
    assert len(set(known.values())) == len(known)


def test_metrics_have_the_resource_of_their_process(ran: Ran) -> None:
    """The spans and the metrics of a process are of one resource, also in a child."""
    resources = [span["resource"] for span in ran.spans]
    assert ran.metrics
    assert not [metric for metric in ran.metrics if metric["resource"] not in resources]


@pytest.mark.parametrize("case", TRACED)
def test_a_child_has_the_threads_that_it_needs(ran: Ran, case: str) -> None:
    """One for spans, those for metrics where it configured; none once it has shut down."""
    for child in ran.tracing(case).values():
        threads = set(child["threads"])
        if case == "shut_down":
            assert threads == {"MainThread"}
        elif case == "own_spans":
            assert threads == {"MainThread", "otel_modtrack spans"}
        else:
            assert len(threads) == len(child["threads"])  # none twice


@pytest.mark.parametrize("case", PREFORKED)
def test_workers_of_a_preforking_server(ran: Ran, case: str) -> None:
    """Each request is a trace of its own, whole and once, also after the worker's SIGTERM."""
    children = ran.tracing(case)
    assert len(children) == 2
    for pid in children:
        spans = ran.of({pid})
        requests = [span for span in spans if span["name"] == case]
        assert len(requests) == 2
        for request in requests:
            trace = [span for span in spans if span["trace_id"] == request["trace_id"]]
            names = [span["name"] for span in sorted(trace, key=lambda span: span["name"])]
            assert names == ["forward Sequential", "forward Sequential.*", case]
            assert request["parent_id"] == ""
            assert trace[names.index("forward Sequential")]["parent_id"] == request["span_id"]


@pytest.fixture(scope="module")
def spawned(receiver: Receiver) -> Iterator[Ran]:
    """The cases of `forks.py` in which children begin anew."""
    with Program(receiver, HERE / "forks.py", arguments=("spawning",)) as program:
        yield Ran(program.finish())


@pytest.mark.parametrize(
    ("case", "workers", "calls"),
    [("spawning_loader", 2, 8), ("spawning_pool", 1, 4), ("forkserver_pool", 2, 4)],
)
def test_workers_that_begin_anew(spawned: Ran, case: str, workers: int, calls: int) -> None:
    """Everything that they have traced is delivered, under the step in which they were started."""
    (over,) = spawned.told(case, "over")
    assert not over["errors"]
    (parent,) = spawned.told(case, "parent")
    children = spawned.tracing(case)
    assert len(children) == workers
    for child in children.values():
        assert child["threads"] == ["MainThread", "otel_modtrack spans"]
    spans = spawned.of(children)
    assert sorted(span["name"] for span in spans) == sorted(
        ["forward Sequential", "forward Sequential.*"] * calls
    )
    roots = [span for span in spans if span["name"] == "forward Sequential"]
    assert {(span["trace_id"], span["parent_id"]) for span in roots} == {
        (parent["trace_id"], parent["span_id"])
    }
    resources = {span["resource"]["service.instance.id"] for span in spans}
    assert len(resources) == workers


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_forking_while_spans_are_under_way(receiver: Receiver, start: Start, protocol: str) -> None:
    """A fork in the middle of requests with spans and metrics harms neither side."""
    program = start(
        """
        import os, sys, threading
        from opentelemetry import trace
        from otel_modtrack import configure

        configure()
        tracer = trace.get_tracer("app")
        stop = threading.Event()

        def work():
            while not stop.wait(0.003):  # a busy machine can deliver them, too
                tracer.start_span("parent").end()

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        for _ in range(20):
            pid = os.fork()
            if not pid:
                tracer.start_span("child").end()
                sys.exit(0)
            assert os.waitpid(pid, 0)[1] == 0
        stop.set()
        thread.join()
        """,
        {
            **receiver.environment(protocol),
            "OTEL_METRICS_EXPORTER": "otlp",
            "OTEL_METRIC_EXPORT_INTERVAL": "5",
            "OTEL_BSP_SCHEDULE_DELAY": "1",
            "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "5",
        },
    ).finish()
    assert program.names.count("child") == 20
    assert not program.errors  # gRPC says there whether a fork came at a bad time
