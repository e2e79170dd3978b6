"""What got slower or faster between two runs: every column, and what is compared with what."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from otel_modtrack.usage import UsageError
from otel_modtrack.view.choose import Selection, Units, choose_units
from otel_modtrack.view.diff import (
    Change,
    PerStep,
    Side,
    compare,
    leave_out_warm_up,
    measure,
    render_changes,
)
from otel_modtrack.view.model import Process, Span, build_trees
from otel_modtrack.view.top import FQN, SELF, TEMPLATE, TOTAL
from tests.view.making import MS, make_ranks, make_run, make_span, make_step
from tests.view.test_top import nested_spans


def units_of(spans: list[Span]) -> Units:
    """Take all steps."""
    return choose_units(build_trees(spans), Selection(), "f.jsonl")


def side_of(spans: list[Span], by: str = TEMPLATE) -> Side:
    """Take all steps but those of the warm-up."""
    return measure(*leave_out_warm_up(units_of(spans)), by=by)


def slower_step() -> list[Span]:
    """Make a step of 12 ms: the second layer takes 2 ms more, and something else is there."""
    spans = {span.span_id: span for span in make_step()}
    for later in ("f", "e"):
        span = spans[later]
        spans[later] = replace(span, start_ns=span.start_ns + 2 * MS, end_ns=span.end_ns + 2 * MS)
    for longer in ("d", "b", "a"):
        spans[longer] = replace(spans[longer], end_ns=spans[longer].end_ns + 2 * MS)
    spans["n"] = make_span("n", "a", "optimizer_step SGD", 11.5, 11.75)
    del spans["f"]
    return list(spans.values())


def once(self_ms: float, total_ms: float, calls: int) -> PerStep:
    """What it took in the only step, which is the mean and the median."""
    return PerStep(self_ms * MS, total_ms * MS, self_ms * MS, total_ms * MS, calls)


def test_every_number() -> None:
    """Means per step of both, the largest difference first; what is in one only, too."""
    changes = compare(side_of(make_step()), side_of(slower_step()), sort=SELF)
    assert changes == [
        Change("backward", "backward", "", once(1, 4, 1), once(4, 4, 1)),
        Change("backward Net", "backward", "Net", once(3, 3, 1), None),
        Change(
            "forward Net.l.*",
            "forward",
            "Net.l.*",
            once(3, 3, 2),
            once(5, 5, 2),
        ),
        Change("optimizer_step SGD", "optimizer", "", None, once(0.25, 0.25, 1)),
        Change("train_step", "step", "", once(2, 10, 1), once(1.75, 12, 1)),
        Change("forward Net", "forward", "Net", once(1, 4, 1), once(1, 6, 1)),
    ]


def test_text() -> None:
    """New and gone stand for what has no share; calls are told twice if they differ."""
    changes = compare(side_of(make_step()), side_of(slower_step()), sort=SELF)
    assert render_changes(changes, sort=SELF).splitlines() == [
        "before ms   after ms  difference         %  of medians  calls  span",
        "    1.000      4.000      +3.000   +300.0%      +3.000      1  backward",
        "    3.000          -      -3.000      gone      -3.000  1 > 0  backward Net",
        "    3.000      5.000      +2.000    +66.7%      +2.000      2  forward Net.l.*",
        "        -      0.250      +0.250       new      +0.250  0 > 1  optimizer_step SGD",
        "    2.000      1.750      -0.250    -12.5%      -0.250      1  train_step",
        "    1.000      1.000      +0.000     +0.0%      +0.000      1  forward Net",
    ]


def test_total_times_are_compared_on_request() -> None:
    """By total, what contains the slower one comes first."""
    changes = compare(side_of(make_step()), side_of(slower_step()), sort=TOTAL)
    assert render_changes(changes[:3], sort=TOTAL).splitlines()[1:] == [
        "    3.000          -      -3.000      gone      -3.000  1 > 0  backward Net",
        "    4.000      6.000      +2.000    +50.0%      +2.000      1  forward Net",
        "    3.000      5.000      +2.000    +66.7%      +2.000      2  forward Net.l.*",
    ]


def test_layers_are_compared_by_fqn_on_request() -> None:
    """By fqn it is told which layer got slower."""
    changes = compare(side_of(make_step(), FQN), side_of(slower_step(), FQN), sort=SELF)
    differences = {change.name: change.difference_ns(SELF) / MS for change in changes}
    assert differences["forward Net.l.0"] == 0
    assert differences["forward Net.l.1"] == 2


def test_nothing_before_has_no_share() -> None:
    """A module that took no measurable time is not divided by."""
    change = Change("s", "other", "", once(0, 0, 1), once(1, 1, 1))
    assert render_changes([change], sort=SELF).split()[-4:] == ["-", "+1.000", "1", "s"]


def test_one_odd_step_moves_the_mean_and_not_the_median() -> None:
    """A pause of the machine in one step of three is no slower module."""
    paused = [
        replace(span, end_ns=span.end_ns + 90 * MS) if span.step == 3 else span
        for span in make_run(1, 2, 3, 4)
    ]
    before, after = side_of(make_run(1, 2, 3, 4)), side_of(paused)
    assert (after.mean_ns, after.median_ns) == (40 * MS, 10 * MS)
    (change,) = [one for one in compare(before, after, sort=SELF) if one.category == "step"]
    assert change.difference_ns(SELF) == 30 * MS
    assert change.median_difference_ns(SELF) == 0
    assert change.median_difference_ns(TOTAL) == 0


def test_step_without_a_module_counts_as_no_time_of_it() -> None:
    """What runs in one step of three takes a third on average, and nothing in the middle one."""
    evaluated = make_span("x", "a", "evaluate", 9.5, 9.8)
    steps = make_run(1, 2, 3, 4)
    spans = [*steps, replace(evaluated, trace_id="t4", start_ns=steps[-1].start_ns)]
    spans[-1] = replace(spans[-1], end_ns=spans[-1].start_ns + 3 * MS)
    changes = compare(side_of(steps), side_of(spans), sort=SELF)
    (change,) = [one for one in changes if one.name == "evaluate"]
    assert change.before is None
    assert change.after == PerStep(1 * MS, 1 * MS, 0, 0, 1 / 3)


def test_runs_of_different_length_are_compared_by_their_steps() -> None:
    """Twice as many steps are not twice as slow, and the first step, which is, does not count."""
    before = side_of(make_run(1, 2, 3, stretch=9))
    after = side_of(make_run(1, 2, 3, 4, 5, stretch=2))
    assert (before.units.count, before.left_out, before.mean_ns) == (2, 1, 10 * MS)
    assert (after.units.count, after.left_out, after.mean_ns) == (4, 1, 10 * MS)
    assert {change.difference_ns(SELF) for change in compare(before, after, sort=SELF)} == {0}


def test_each_ranks_first_step_is_left_out() -> None:
    """Every rank warms up."""
    units, left_out = leave_out_warm_up(units_of(make_ranks(2, 4, 5, 6)))
    assert left_out == 2
    assert [root.span.step for root in units.roots] == [5, 5, 6, 6]


def test_each_runs_first_step_is_left_out() -> None:
    """After a restart the process is another; in several files of one process it is the same."""
    first, again = ({"process.pid": pid} for pid in (1, 2))
    spans = [
        *make_run(1, 2, process=Process("svc", source="a", attributes=first)),
        *make_run(3, process=Process("svc", source="b", attributes=first)),
        *make_run(4, 5, process=Process("svc", source="b", attributes=again)),
    ]
    units, left_out = leave_out_warm_up(units_of(spans))
    assert left_out == 2
    assert [root.span.step for root in units.roots] == [2, 3, 5]


def test_only_step_is_not_left_out() -> None:
    """A rank that has but one step keeps it."""
    alone = make_run(4, process=Process("svc", 1, 2), prefix="r1t")
    both = make_run(4, 5, process=Process("svc", 0, 2), prefix="r0t")
    units, left_out = leave_out_warm_up(units_of([*alone, *both]))
    assert left_out == 1
    assert [(root.span.step, root.span.process.rank) for root in units.roots] == [(4, 1), (5, 0)]


def test_requests_have_no_warm_up() -> None:
    """Where there are no steps, all traces are compared."""
    spans = [
        make_span("a", "", "GET /", 0, 1),
        replace(make_span("a", "", "GET /", 2, 4), trace_id="u"),
    ]
    side = side_of(spans)
    assert (side.units.what, side.left_out, side.mean_ns) == ("trace", 0, 1.5 * MS)


def test_steps_are_not_compared_with_traces() -> None:
    """What is not alike is refused."""
    traces = side_of([make_span("a", "", "GET /", 0, 1)])
    with pytest.raises(UsageError, match="only the earlier run has steps"):
        compare(side_of(make_step()), traces, sort=SELF)
    with pytest.raises(UsageError, match="only the later run has steps"):
        compare(traces, side_of(make_step()), sort=SELF)


def test_slower_is_red_and_faster_is_green() -> None:
    """And the sign tells it without colours."""
    changes = compare(side_of(make_step()), side_of(slower_step()), sort=SELF)
    text = render_changes(changes, sort=SELF, colour=True)
    assert "\033[31m+3.000\033[0m" in text
    assert "\033[32m-3.000\033[0m" in text


@given(st.integers(0), st.integers(0))
def test_differences_add_up_to_that_of_the_step(first: int, second: int) -> None:
    """Of own times: nothing is counted twice, and nothing is missing."""
    for by in (TEMPLATE, FQN):
        before, after = side_of(nested_spans(first), by), side_of(nested_spans(second), by)
        changes = compare(before, after, sort=SELF)
        sum_ns = sum(change.difference_ns(SELF) for change in changes)
        assert sum_ns == pytest.approx(after.mean_ns - before.mean_ns, abs=1e-3)
        sizes = [abs(change.difference_ns(SELF)) for change in changes]
        assert sizes == sorted(sizes, reverse=True)
