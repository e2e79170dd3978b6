"""Lanes: in each all spans nest, and none is lost, whatever the spans are like."""

from __future__ import annotations

from hypothesis import given, strategies as st

from otel_modtrack.view.lanes import lay_out
from otel_modtrack.view.model import Node, Process, Span, build_trees
from tests.exports import sample


def parents_of(roots: list[Node]) -> dict[Node, Node]:
    """Return the parent of each node that has one."""
    return {child: node for root in roots for _, node in root.walk() for child in node.children}


@st.composite
def forests(draw: st.DrawFn) -> list[Span]:
    """Draw spans with any parents, in few moments, so that many touch or coincide."""
    spans = []
    for index in range(draw(st.integers(1, 12))):
        parent = draw(st.integers(-1, index - 1))
        start_ns = draw(st.integers(0, 6))
        end_ns = start_ns + draw(st.integers(0, 6))
        process = draw(st.sampled_from([sample.SERVICE, sample.RANKS[0]]))
        above = str(parent) if parent >= 0 else ""
        spans.append(sample.made(str(index), above, "s", start_ns, end_ns, process))
    return spans


@given(forests())
def test_any_spans(spans: list[Span]) -> None:
    """Every span is in one lane; what is open around it is its parent there, and holds it."""
    roots = build_trees(spans)
    parents = parents_of(roots)
    placed = []
    for process in lay_out(roots):
        for lane in process.lanes:
            stack: list[Node] = []
            last_ns = 0
            for node, depth in zip(lane.nodes, lane.depths, strict=True):
                span = node.span
                assert span.process is process.process
                assert span.start_ns >= last_ns, "in order of start"
                last_ns = span.start_ns
                for closed in stack[depth:]:
                    assert closed.span.end_ns <= span.start_ns, "what is closed has ended"
                del stack[depth:]
                if stack:
                    assert parents[node] is stack[-1]
                    assert stack[-1].span.start_ns <= span.start_ns
                    assert span.end_ns <= stack[-1].span.end_ns
                stack.append(node)
                placed.append(span.span_id)
    assert sorted(placed) == sorted(span.span_id for span in spans)


def test_sequence_is_one_lane() -> None:
    """What runs one after the other is in one lane, also where a moment is all between two."""
    spans = [sample.made(str(at), "", "s", 10 * at, 10 * at + 10) for at in range(50)]
    (process,) = lay_out(build_trees(spans))
    assert [lane.name for lane in process.lanes] == ["spans"]
    assert process.lanes[0].depths == [0] * 50


def test_deep_tree() -> None:
    """A tree deeper than Python may recurse is one lane."""
    depth = 5_000
    spans = [
        sample.made(str(at), str(at - 1) if at else "", "s", at, 2 * depth - at)
        for at in range(depth)
    ]
    (process,) = lay_out(build_trees(spans))
    assert process.lanes[0].depths == list(range(depth))


def test_lanes_are_as_few_as_possible() -> None:
    """Requests that overlap two by two need two lanes, however many there are."""
    spans = [sample.made(str(at), "", "s", 10 * at, 10 * at + 15) for at in range(50)]
    (process,) = lay_out(build_trees(spans))
    assert [len(lane.nodes) for lane in process.lanes] == [25, 25]


def names(*processes: Process) -> list[str]:
    """Return the names that processes are shown by."""
    spans = [sample.made(str(at), "", "s", at, at, one) for at, one in enumerate(processes)]
    return [process.name for process in lay_out(build_trees(spans))]


def test_processes_are_in_order_of_rank() -> None:
    """Ranks come in their order, whichever began first, and what has no rank comes last."""
    assert names(sample.SERVICE, sample.RANKS[1], sample.RANKS[0]) == ["rank 0", "rank 1", "shop"]


def test_names_tell_processes_apart() -> None:
    """Processes of one label are told apart by service, by file, or else by number."""
    assert names(Process("a", 0, 2, "x"), Process("b", 0, 2, "x"), Process("a", 1, 2, "x")) == [
        "rank 0 (a)",
        "rank 0 (b)",
        "rank 1",
    ]
    assert names(Process("a", 0, 2, "x"), Process("a", 0, 2, "y")) == ["rank 0 (x)", "rank 0 (y)"]
    assert names(Process("a", 0, 2, "x"), Process("a", 0, 2, "x")) == ["rank 0", "rank 0 #2"]
    assert names(Process()) == ["spans"]
