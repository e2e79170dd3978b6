"""The trace that a process continues, and that the processes which it starts continue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.processes.running import HERE, Program

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.processes.running import Receiver, Span

TRACE, PARENT = "a" * 32, "b" * 16
GIVEN = {
    "continued": {"TRACEPARENT": f"00-{TRACE}-{PARENT}-01", "TRACESTATE": "vendor=told"},
    "alone": {},
    "not_sampled": {"TRACEPARENT": f"00-{TRACE}-{PARENT}-00"},
    "not_sampled_here": {"OTEL_TRACES_SAMPLER": "parentbased_always_off"},
    "malformed": {"TRACEPARENT": "nonsense", "TRACESTATE": "vendor=told"},
}
NOBODY = "0" * 16
PLACES = {"step": "train_step", "forward": "forward Starts", "backward": "backward Starts.linear"}
WORKERS = ["fork", "spawn", "forkserver"]


class Ran:
    """What `parents.py` told, and what was received of it."""

    def __init__(self, program: Program) -> None:
        self.lines = program.told
        self.spans = program.spans
        self.errors = program.errors

    def scenario(self, name: str) -> list[dict[str, Any]]:
        """What was told while it ran."""
        ends = [line for line in self.lines if line.get("scenario") == name]
        begin, end = (self.lines.index(line) for line in ends)
        return self.lines[begin : end + 1]

    def told(self, scenario: str, place: str, role: str) -> dict[str, Any]:
        """What one process told."""
        (line,) = [
            line
            for line in self.scenario(scenario)
            if line.get("place") == place and line["role"] == role
        ]
        return line

    def of(self, line: dict[str, Any]) -> list[Span]:
        """The spans of the process that told this, in the order in which they were received."""
        return [span for span in self.spans if span["resource"]["process.pid"] == line["pid"]]

    def mine(self, scenario: str) -> list[Span]:
        """The spans of the process that ran a scenario."""
        return self.of(self.scenario(scenario)[0])


@pytest.fixture(scope="module")
def ran(receiver: Receiver) -> Iterator[Ran]:
    """All scenarios of `parents.py`."""
    arguments = [
        f"{scenario}:{key}:{value}"
        for scenario, variables in GIVEN.items()
        for key, value in variables.items()
    ]
    with Program(receiver, HERE / "parents.py", arguments=tuple(arguments)) as program:
        yield Ran(program.finish())


@pytest.mark.parametrize("scenario", sorted(GIVEN.keys() - {"malformed"}))
def test_nothing_goes_wrong_and_nothing_is_said(ran: Ran, scenario: str) -> None:
    """Every process ends well; os.environ is as it was, and nothing is wrapped afterwards."""
    assert not ran.scenario(scenario)[-1]["errors"]
    assert not ran.errors


@pytest.mark.parametrize("name", ["own", "train_step", "forward Sequential"])
def test_the_environments_parent(ran: Ran, name: str) -> None:
    """It is that of the program's own spans, of steps, and of root calls, in other threads too."""
    spans = [span for span in ran.mine("continued") if span["name"] == name]
    assert len(spans) == (2 if name == "forward Sequential" else 1)
    for span in spans:
        assert (span["trace_id"], span["parent_id"]) == (TRACE, PARENT)
        assert span["state"] == "vendor=told"


def test_without_one_they_are_roots(ran: Ran) -> None:
    """Nothing in the environment: steps and root calls begin traces of their own."""
    spans = [span for span in ran.mine("alone") if span["name"] != "forward Sequential.*"]
    assert sorted(span["name"] for span in spans) == ["forward Sequential", "train_step"]
    assert {span["parent_id"] for span in spans} == {""}
    assert len({span["trace_id"] for span in spans}) == 2


def test_a_malformed_one_is_told_once_and_ignored(ran: Ran) -> None:
    """However often it is looked at."""
    (line,) = ran.scenario("malformed")[-1]["errors"].splitlines()
    assert line.startswith("TRACEPARENT is no W3C trace context")
    roots = [span for span in ran.mine("malformed") if span["name"] != "forward Sequential.*"]
    assert [span["name"] for span in roots] == ["own", *["forward Sequential"] * 2]
    assert {span["parent_id"] for span in roots} == {""}


@pytest.mark.parametrize("place", PLACES)
def test_the_regions_in_which_children_are_started(ran: Ran, place: str) -> None:
    """What the program sees as the current span there is the span of the region."""
    line = ran.told("continued", place, "parent")
    (span,) = [span for span in ran.spans if span["span_id"] == line["span_id"]]
    assert span["name"] == PLACES[place]
    assert span["trace_id"] == line["trace_id"] == TRACE


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("method", WORKERS)
def test_workers_are_below_the_region_that_started_them(ran: Ran, place: str, method: str) -> None:
    """However multiprocessing starts them, they configure and trace, and the trace is one."""
    parent = ran.told("continued", place, "parent")
    spans = ran.of(ran.told("continued", place, method))
    (root,) = [span for span in spans if span["parent_id"] == parent["span_id"]]
    below = [span for span in spans if span is not root]
    if method == "spawn" and place != "forward":  # such a child has no torch
        assert (root["name"], below) == ("work", [])
    else:
        (leaf,) = below
        assert (root["name"], leaf["name"]) == ("forward Sequential", "forward Sequential.*")
        assert leaf["parent_id"] == root["span_id"]
    assert {(span["trace_id"], span["state"]) for span in spans} == {(TRACE, "vendor=told")}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("role", ["inherited", "changed"])
def test_subprocesses_are_below_the_region_that_started_them(
    ran: Ran, place: str, role: str
) -> None:
    """With this process's environment, or a copy of it with changes."""
    parent = ran.told("continued", place, "parent")
    line = ran.told("continued", place, role)
    (span,) = ran.of(line)
    assert (span["trace_id"], span["parent_id"]) == (TRACE, parent["span_id"])
    assert span["state"] == "vendor=told"
    assert line["added"] == ("1" if role == "changed" else None)


@pytest.mark.parametrize("place", PLACES)
def test_an_environment_of_the_programs_own_is_left_alone(ran: Ran, place: str) -> None:
    """One that has nothing of this process's, and one with a parent of its own."""
    assert ran.told("continued", place, "empty")["given"] is None
    assert ran.told("continued", place, "its own")["given"].startswith("00-1111")


@pytest.mark.parametrize("role", ["inherited", "fork", "spawn"])
def test_children_that_are_started_outside_of_spans_are_roots(ran: Ran, role: str) -> None:
    """A tracker that is on makes no trace out of nothing."""
    spans = ran.of(ran.told("alone", "outside", role))
    assert [span["parent_id"] for span in spans].count("") == 1


def test_a_subprocess_of_asyncios(ran: Ran) -> None:
    """It is below the step in which it was started."""
    parent = ran.told("alone", "asyncio", "parent")
    (span,) = ran.of(ran.told("alone", "asyncio", "inherited"))
    assert span["parent_id"] == parent["span_id"] != NOBODY


@pytest.mark.parametrize("scenario", ["not_sampled", "not_sampled_here"])
def test_what_is_not_sampled_is_not_sampled_in_children(ran: Ran, scenario: str) -> None:
    """Neither this process nor any that it starts has a span."""
    lines = [line for line in ran.scenario(scenario) if "pid" in line and line["role"] != "over"]
    assert len(lines) > 1
    assert not [span for line in lines for span in ran.of(line)]
