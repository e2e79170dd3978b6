"""Spans become the right trees, with the right numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from otel_modtrack.view.choose import Selection, choose_units
from otel_modtrack.view.model import (
    Collectives,
    Event,
    Span,
    build_trees,
    sum_collectives,
)
from otel_modtrack.view.top import TEMPLATE, sum_rows
from otel_modtrack.view.tree import render_tree
from tests.view.making import (
    BASE_NS,
    MS,
    launched,
    make_parallel_step,
    make_span,
    make_step,
    shape,
)


def test_children_hang_under_their_parents_in_order_of_start() -> None:
    """Spans in any order form the tree that they were recorded as."""
    expected = [
        [
            "train_step 7",
            ["forward Net", ["forward Net.l.0"], ["forward Net.l.1"]],
            ["backward", ["backward Net"]],
        ]
    ]
    assert shape(build_trees(make_step())) == expected
    assert shape(build_trees(reversed(make_step()))) == expected


def test_orphan_becomes_a_root() -> None:
    """A span whose parent is not in the file is shown as a root, in its place in time."""
    spans = [span for span in make_step() if span.span_id not in {"a", "e"}]
    assert shape(build_trees(spans)) == [
        ["forward Net", ["forward Net.l.0"], ["forward Net.l.1"]],
        ["backward Net"],
    ]


def test_parent_in_another_trace_is_no_parent() -> None:
    """Span ids are looked up within the trace only."""
    stranger = Span("other", "x", "a", "elsewhere", BASE_NS, BASE_NS + 1)
    roots = build_trees([*make_step(), stranger])
    assert sorted(root.span.name for root in roots) == ["elsewhere", "train_step"]


def test_repeated_span_counts_once() -> None:
    """What was exported twice is in the tree once."""
    assert shape(build_trees(make_step() * 2)) == shape(build_trees(make_step()))


def test_ring_of_parents_loses_nothing() -> None:
    """Spans that are each other's parents, and what hangs below, are all in one tree."""
    spans = [
        make_span("a", "b", "first", 0, 9),
        make_span("b", "a", "second", 1, 8),
        make_span("c", "b", "below", 2, 3),
        make_span("d", "d", "own parent", 4, 5),
    ]
    assert shape(build_trees(spans)) == [["first", ["second", ["below"]]], ["own parent"]]


def test_very_deep_trees_do_not_recurse() -> None:
    """A tree deeper than Python's recursion limit can be walked and drawn."""
    depth = 2000
    spans = [make_span(str(i), str(i - 1), f"s{i}", i, 2 * depth - i) for i in range(depth)]
    roots = build_trees(spans)
    assert len(render_tree(roots).splitlines()) == depth + 1
    assert len(sum_rows(roots, by=TEMPLATE)) == depth


def test_own_time_is_what_no_child_covers() -> None:
    """Overlapping children count once, and what sticks out of the parent not at all."""
    spans = [
        make_span("p", "", "parent", 0, 10),
        make_span("a", "p", "a", 1, 5),
        make_span("b", "p", "b", 3, 6),
        make_span("c", "p", "inside b", 4, 5),
        make_span("d", "p", "late", 9, 12),
    ]
    (root,) = build_trees(spans)
    assert root.self_ns == (10 - 5 - 1) * MS


def test_steps_are_found_below_other_spans() -> None:
    """A step inside the user's own span is still a step."""
    epoch = make_span("0", "", "epoch", -1, 11)
    step = make_span("a", "0", "train_step", 0, 10, step=7)
    assert [
        node.span.step for node in choose_units(build_trees([step, epoch]), Selection(), "it").roots
    ] == [7]


def test_repeated_call_of_a_module_is_numbered() -> None:
    """Calls of one module in a step can be told apart."""
    span = make_span("a", "", "forward Net", 0, 1, phase="forward", fqn="Net", call=1)
    assert span.label == "forward Net #1"


@pytest.mark.parametrize(
    ("name", "attributes", "scope", "category"),
    [
        ("recompute Net", {"phase": "recompute", "fqn": "Net"}, "otel_modtrack", "recompute"),
        ("train_step", {"step": 3}, "otel_modtrack", "step"),
        ("backward", {}, "otel_modtrack", "backward"),
        ("optimizer_step AdamW", {}, "otel_modtrack", "optimizer"),
        ("backward", {}, "app", "other"),
        ("optimizer_step AdamW", {}, "app", "other"),
        ("tokenize", {}, "otel_modtrack", "other"),
    ],
)
def test_category_of_a_span(
    name: str, attributes: dict[str, object], scope: str, category: str
) -> None:
    """A span is of its phase, or told by what otel_modtrack calls it; another's name tells not."""
    span = replace(make_span("a", "", name, 0, 1, **attributes), scope=scope)
    assert span.category == category


def test_collectives_are_summed_by_operation_and_group() -> None:
    """Only what says what it launched counts; groups that nobody named are one."""
    odd = [
        Event("modtrack.collective", 0, {"modtrack.collective.operation": "gather"}),
        replace(launched("gather", 1, 1), name="other"),
        launched("gather", 1, "many"),  # type: ignore[arg-type]
    ]
    spans = [replace(span, events=(*span.events, *odd)) for span in make_parallel_step()]
    assert sum_collectives(spans) == [
        Collectives("all_gather", "", 4, 3072),
        Collectives("all_reduce", "mesh_tp", 2, 64),
        Collectives("reduce_scatter", "", 1, 1_500_000),
        Collectives("barrier", "", 1, 0),
    ]
    assert sum_collectives(make_step()) == []
