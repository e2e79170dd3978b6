"""What --step, --trace and --rank mean, and what is meant without them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from otel_modtrack.usage import UsageError
from otel_modtrack.view.choose import Selection, choose_parts, choose_units, select
from otel_modtrack.view.model import Process, Span, build_trees
from tests.view.making import MS, make_ranks, make_run, make_span, make_step


def later(span: Span, by_ms: int) -> Span:
    """Move a span."""
    return replace(span, start_ns=span.start_ns + by_ms * MS, end_ns=span.end_ns + by_ms * MS)


def parts(
    spans: list[Span], step: int | None = None, trace: str | None = None, rank: int | None = None
) -> list[list[tuple[int | None, str]]]:
    """Return the rank and label of the roots of each part."""
    found = choose_parts(build_trees(spans), Selection(step, trace, rank), "f.jsonl")
    return [[(root.span.process.rank, root.span.label) for root in part] for part in found]


def test_last_step_is_the_one_that_began_last() -> None:
    """Wherever it stands in the file."""
    assert parts(make_run(1, 3, 2)) == [[(None, "train_step 3")]]


def test_step_is_chosen_by_number() -> None:
    """Also below another span."""
    epoch = make_span("0", "", "epoch", -1, 99)
    inner = replace(make_span("a", "0", "train_step", 0, 10), attributes={})
    spans = [epoch, replace(inner, attributes={"modtrack.step.number": 2})]
    assert parts(spans, step=2) == [[(None, "train_step 2")]]
    assert parts(make_run(1, 2, 3), step=2) == [[(None, "train_step 2")]]


def test_repeated_step_is_the_last_of_them() -> None:
    """After a restart from a checkpoint the new step counts."""
    again = [replace(later(span, 50_000), trace_id="again") for span in make_run(2)]
    (found,) = choose_parts(build_trees([*make_run(1, 2, 3), *again]), Selection(2), "f.jsonl")
    assert [root.span.trace_id for root in found] == ["again"]


def test_every_rank_is_shown_in_order() -> None:
    """The ranks come in order of their number, each with the same step."""
    expected = [[(0, "train_step 2")], [(1, "train_step 2")], [(2, "train_step 2")]]
    assert parts(make_ranks(3, 1, 2)) == expected
    assert parts(make_ranks(3, 1, 2, 3), step=2) == expected
    assert parts(make_ranks(3, 1, 2, 3), step=2, rank=1) == expected[1:2]


def test_rank_that_is_ahead_does_not_decide() -> None:
    """While files are written, the last step is the last that all ranks have finished."""
    spans = [span for span in make_ranks(2, 1, 2, 3) if (span.trace_id) != "r0t3"]
    assert parts(spans) == [[(0, "train_step 2")], [(1, "train_step 2")]]


def test_ranks_without_a_step_in_common_show_their_own_last() -> None:
    """Files of different times are shown all the same."""
    spans = [span for span in make_ranks(2, 1, 2) if span.trace_id in {"r0t1", "r1t2"}]
    assert parts(spans) == [[(0, "train_step 1")], [(1, "train_step 2")]]


def test_last_trace_is_shown_where_there_are_no_steps() -> None:
    """Forward and backward without a step are the roots of one trace, shown together."""
    old = replace(make_span("y", "", "forward Old", -9, -8), trace_id="s")
    spans = [old, *(span for span in make_step() if span.name != "train_step")]
    assert parts(spans) == [[(None, "forward Net"), (None, "backward")]]


def test_trace_is_chosen_by_the_beginning_of_its_id() -> None:
    """As long as no other begins so; in whatever case; a whole id is always enough."""
    spans = make_run(1, 2, 12)
    assert parts(spans, trace="t2") == [[(None, "train_step 2")]]
    assert parts(spans, trace="T12") == [[(None, "train_step 12")]]
    assert parts(spans, trace="t1") == [[(None, "train_step 1")]]


def test_rank_is_chosen_below_a_span_of_another_process() -> None:
    """Ranks that continue the trace of their launcher are found in it."""
    launcher = make_span("0", "", "launch", -1, 99)
    spans = [launcher]
    for rank in (0, 1):
        process = Process("svc", rank, 2)
        step = make_span(f"a{rank}", "0", "train_step", rank, 10, step=3)
        spans.append(replace(step, process=process))
    assert parts(spans, rank=1) == [[(1, "train_step 3")]]
    assert parts(spans) == [[(0, "train_step 3")], [(1, "train_step 3")]]


@pytest.mark.parametrize(
    ("selection", "says"),
    [
        (Selection(9), "there is no step 9 in f.jsonl: the steps run from 4 to 6"),
        (Selection(9, rank=1), "no step 9 of rank 1 in f.jsonl: the steps run from 4 to 6"),
        (Selection(9, "r1t4"), "there is no step 9 in trace r1t4: the only step is 4"),
        (Selection(rank=2), "there is no rank 2 in f.jsonl: the ranks run from 0 to 1"),
        (Selection(trace="x"), "no trace x in f.jsonl: the last of 6 traces: r0t6, r1t6, r0t5"),
        (Selection(trace="r1"), "3 traces in f.jsonl begin with r1: give more of r1t4, r1t5, r1t6"),
    ],
)
def test_what_is_not_there_is_answered_with_what_is(selection: Selection, says: str) -> None:
    """A wrong number is answered with the right ones."""
    with pytest.raises(UsageError) as caught:
        select(build_trees(make_ranks(2, 4, 5, 6)), selection, "f.jsonl")
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("selection", "says"),
    [
        (Selection(0), "there is no step 0 in f.jsonl: no span is a step, leave it out"),
        (Selection(rank=0), "no rank 0 in f.jsonl: no span tells its rank, leave it out"),
    ],
)
def test_file_that_knows_none_says_so(selection: Selection, says: str) -> None:
    """A file without steps or ranks says that it has none."""
    with pytest.raises(UsageError) as caught:
        select(build_trees([make_span("a", "", "forward Net", 0, 1)]), selection, "f.jsonl")
    assert says in str(caught.value)


def test_all_steps_are_summed_up_and_nothing_else() -> None:
    """What is in no step is left out, and counted."""
    outside = [replace(make_span("y", "", "forward Net", -9, -8), trace_id="s")]
    units = choose_units(build_trees([*outside, *make_ranks(2, 1, 2)]), Selection(), "f.jsonl")
    assert (units.what, units.count, units.outside) == ("step", 4, 1)
    assert (units.spans, units.ranks, units.duration_ns) == (24, [0, 1], 40 * MS)


def test_traces_are_summed_up_where_there_are_no_steps() -> None:
    """A request is a unit, however many roots its trace has."""
    spans = [
        make_span("a", "", "forward Net", 0, 1),
        make_span("b", "", "backward", 1, 3),
        replace(make_span("a", "", "forward Net", 5, 6), trace_id="u"),
    ]
    units = choose_units(build_trees(spans), Selection(), "f.jsonl")
    assert (units.what, units.count, units.duration_ns) == ("trace", 2, 4 * MS)
