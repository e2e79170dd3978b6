"""The oracle can find fault: each tampering with right spans is noticed, and so is a blind test."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.autograd import graph

from tests.tracker.oracle import Oracle, Watched, watched
from tests.tracker.verdict import judge

if TYPE_CHECKING:
    from collections.abc import Callable

    from opentelemetry.sdk.trace import ReadableSpan


@pytest.fixture
def run() -> Watched:
    """A small run in which nothing is wrong."""
    net = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
    with watched(net) as run:
        net(torch.ones(1, 3)).sum().backward()
    assert run.verdict.labelled == 5
    return run


def backward(spans: list[ReadableSpan], fqn: str) -> ReadableSpan:
    """The backward span of a module."""
    return next(
        span
        for span in spans
        if span.attributes.get("modtrack.phase") == "backward"
        and span.attributes["modtrack.module.fqn"].endswith(fqn)
    )


def ends_late(spans: list[ReadableSpan]) -> None:
    """A region lasts into the next one's first node."""
    backward(spans, ".2")._end_time = backward(spans, ".0")._start_time


def ends_early(spans: list[ReadableSpan]) -> None:
    """A region ends before its last node."""
    span = backward(spans, ".0")
    span._end_time = span._start_time + 1


def begins_late(spans: list[ReadableSpan]) -> None:
    """A region begins after its first node."""
    span = backward(spans, ".2")
    span._start_time = span._end_time - 1


def is_missing(spans: list[ReadableSpan]) -> None:
    """A region is not reported."""
    spans.remove(backward(spans, ".1"))


def is_there_twice(spans: list[ReadableSpan]) -> None:
    """A region is reported twice."""
    spans.append(copy.copy(backward(spans, ".1")))


def is_linked_to_another(spans: list[ReadableSpan]) -> None:
    """A region is linked to the forward of another call."""
    backward(spans, ".1")._links = backward(spans, ".0")._links


def lies_elsewhere(spans: list[ReadableSpan]) -> None:
    """A region is nested in a sibling."""
    backward(spans, ".1")._parent = backward(spans, ".2").context


def has_no_forward(spans: list[ReadableSpan]) -> None:
    """A call has no span."""
    spans.remove(next(s for s in spans if s.name == "forward Sequential.*"))


@pytest.mark.parametrize(
    "tamper",
    [
        ends_late,
        ends_early,
        begins_late,
        is_missing,
        is_there_twice,
        is_linked_to_another,
        lies_elsewhere,
        has_no_forward,
    ],
)
def test_tampering_is_noticed(run: Watched, tamper: Callable[[Any], None]) -> None:
    """Spans that are not as they must be make the verdict."""
    spans = [copy.copy(span) for span in run.spans]
    assert not judge(run.oracle, spans).wrong
    tamper(spans)
    assert judge(run.oracle, spans).wrong


def test_blind_test_fails() -> None:
    """A test without a backward cannot pass as one with a backward."""
    with pytest.raises(AssertionError, match="no node was checked"), watched():
        nn.Linear(3, 3)(torch.ones(1, 3))


@pytest.mark.skipif(
    not hasattr(graph, "node_creation_hook"), reason="this torch has no node_creation_hook"
)
def test_labels_agree_with_torch_telling_of_nodes() -> None:
    """torch's own hook on the making of nodes sees the same nodes made in the same calls."""
    told: list[tuple[str, str]] = []
    net = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3), nn.Sequential(nn.Tanh()))
    with Oracle(net) as oracle:

        def made(node: Any) -> None:
            told.append((node.name(), oracle.label()[0]))

        with graph.node_creation_hook(made):
            net(torch.ones(1, 3)).sum().backward()
    ours = [(node.name, node.label) for node in oracle.nodes]
    assert sorted(ours) == sorted(one for one in told if "AccumulateGrad" not in one[0])
    assert len({label for _, label in ours}) == 4
