"""How long each kind of module took: every column, and what they add up to."""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import given, strategies as st

from otel_modtrack.view.model import Span, build_trees
from otel_modtrack.view.narrow import Narrowing
from otel_modtrack.view.top import (
    FQN,
    SELF,
    TEMPLATE,
    TOTAL,
    Row,
    render_slowest,
    render_top,
    sort_rows,
    sum_rows,
)
from tests.view.making import BASE_NS, MS, make_run, make_span, make_step


def numbers(row: Row) -> tuple[int, float, float, float, float]:
    """Return calls, and own time, total, mean and longest in ms."""
    return (
        row.calls,
        row.self_ns / MS,
        row.total_ns / MS,
        row.mean_ns / MS,
        row.longest_ns / MS,
    )


def test_every_number_by_template() -> None:
    """Two steps, of which the first takes three times as long: 30 and 10 ms."""
    rows = sum_rows(build_trees(make_run(1, 2, stretch=3)), by=TEMPLATE)
    assert {row.name: numbers(row) for row in rows} == {
        "train_step": (2, 8.0, 40.0, 20.0, 30.0),
        "forward Net": (2, 4.0, 16.0, 8.0, 12.0),
        "forward Net.l.*": (4, 12.0, 12.0, 3.0, 6.0),
        "backward": (2, 4.0, 16.0, 8.0, 12.0),
        "backward Net": (2, 12.0, 12.0, 6.0, 9.0),
    }


def test_every_number_by_fqn() -> None:
    """The layers of a stack are rows of their own."""
    rows = sum_rows(build_trees(make_run(1, 2, stretch=3)), by=FQN)
    assert {row.name: numbers(row) for row in rows if "l." in row.name} == {
        "forward Net.l.0": (2, 4.0, 4.0, 2.0, 3.0),
        "forward Net.l.1": (2, 8.0, 8.0, 4.0, 6.0),
    }
    assert {(row.category, row.module) for row in rows} == {
        ("step", ""),
        ("forward", "Net"),
        ("forward", "Net.l.0"),
        ("forward", "Net.l.1"),
        ("backward", ""),
        ("backward", "Net"),
    }


def test_text() -> None:
    """The table has all columns, and shares are of all steps together."""
    roots = build_trees(make_run(1, 2, stretch=3))
    rows = sort_rows(sum_rows(roots, by=TEMPLATE), TOTAL)
    assert render_top(rows, 40 * MS).splitlines() == [
        "  self ms   share   total ms   share  calls    mean ms  longest ms  span",
        "    8.000   20.0%     40.000  100.0%      2     20.000      30.000  train_step",
        "    4.000   10.0%     16.000   40.0%      2      8.000      12.000  backward",
        "    4.000   10.0%     16.000   40.0%      2      8.000      12.000  forward Net",
        "   12.000   30.0%     12.000   30.0%      2      6.000       9.000  backward Net",
        "   12.000   30.0%     12.000   30.0%      4      3.000       6.000  forward Net.l.*",
    ]


def test_brief_text_is_sorted_by_own_time() -> None:
    """Below a tree there is a small table; equal rows are in order of their names."""
    rows = sort_rows(sum_rows(build_trees(make_step()), by=TEMPLATE), SELF)
    assert render_slowest(rows[:3], 10 * MS) == (
        "  self ms   share   total ms  calls  span\n"
        "    3.000   30.0%      3.000      1  backward Net\n"
        "    3.000   30.0%      3.000      2  forward Net.l.*\n"
        "    2.000   20.0%     10.000      1  train_step"
    )


def test_module_inside_itself_is_totalled_once() -> None:
    """The total of a recursive module is that of its outermost call; its mean is of all calls."""
    spans = [
        make_span("a", "", "forward R", 0, 4),
        make_span("b", "a", "forward R", 1, 3),
    ]
    (row,) = sum_rows(build_trees(spans), by=TEMPLATE)
    assert numbers(row) == (2, 4.0, 4.0, 3.0, 4.0)


def test_what_does_not_fit_does_not_hide_what_does() -> None:
    """A layer inside a layer of the same template is outermost if the outer one is not shown."""

    def layer(span_id: str, parent_id: str, fqn: str, start_ms: int, end_ms: int) -> Span:
        names = {"phase": "forward", "fqn": fqn, "template": "T.*"}
        return make_span(span_id, parent_id, "forward T.*", start_ms, end_ms, **names)

    roots = build_trees([layer("a", "", "T.0", 0, 4), layer("b", "a", "T.1", 1, 3)])
    kept = Narrowing(modules=["T.1"]).keep(roots)
    (row,) = sum_rows(roots, by=TEMPLATE, kept=kept)
    assert numbers(row) == (1, 2.0, 2.0, 2.0, 2.0)


def test_same_name_in_another_scope_is_another_row() -> None:
    """A span of the user's own that is called as ours is not added to ours."""
    spans = [
        make_span("a", "", "backward", 0, 4),
        replace(make_span("b", "", "backward", 5, 6), scope="app"),
    ]
    rows = sum_rows(build_trees(spans), by=TEMPLATE)
    assert [(row.category, row.calls) for row in rows] == [("backward", 1), ("other", 1)]


def test_names_cannot_command_the_terminal() -> None:
    """Control characters of a name from a file are not printed."""
    rows = sum_rows(build_trees([make_span("a", "", "evil\033[2J\r", 0, 1)]), by=TEMPLATE)
    assert render_top(rows, MS, colour=False).endswith("evil?[2J?")
    assert render_slowest(rows, MS).endswith("evil?[2J?")


def test_phases_have_colours_on_a_terminal() -> None:
    """With colours the columns stand where they stand without."""
    rows = sum_rows(build_trees(make_step()), by=TEMPLATE)
    plain = render_top(rows, 10 * MS)
    coloured = render_top(rows, 10 * MS, colour=True)
    assert "\033[34mforward\033[0m Net" in coloured
    for code in ("0", "2", "33", "34"):
        coloured = coloured.replace(f"\033[{code}m", "")
    assert coloured == plain


def nested_spans(seed: int) -> list[Span]:
    """Make steps whose spans nest at random, as those of one thread do."""
    chance = random.Random(seed)  # noqa: S311 - nothing is secret
    spans: list[Span] = []
    start = 0
    for step in range(chance.randint(1, 3)):
        end = start + chance.randint(1, 1000)
        waiting = [("", start, end)]
        while waiting and len(spans) < 60:
            parent, first, last = waiting.pop(chance.randrange(len(waiting)))
            span_id = f"s{len(spans)}"
            if parent:
                template = chance.choice(["N.a.*", "N.b.*"])
                fqn = template.replace("*", str(chance.randint(0, 3)))
                names = {"phase": "forward", "fqn": fqn, "template": template}
                span = make_span(span_id, parent, f"forward {template}", 0, 0, **names)
            else:
                span = make_span(span_id, "", "train_step", 0, 0, step=step)
            times = {"start_ns": BASE_NS + first, "end_ns": BASE_NS + last}
            spans.append(replace(span, trace_id=f"t{step}", **times))  # type: ignore[arg-type]
            bounds = sorted(chance.randint(first, last) for _ in range(6))
            waiting += [(span_id, *pair) for pair in zip(bounds[::2], bounds[1::2], strict=True)]
        start = end
    return spans


def covered_ns(spans: list[Span], fqn: str) -> int:
    """Return the time in which any span of the module runs: nanosecond by nanosecond."""
    return len(
        {
            moment
            for span in spans
            if span.fqn == fqn
            for moment in range(span.start_ns, span.end_ns)
        }
    )


@given(st.integers(0))
def test_own_times_add_up_to_the_steps(seed: int) -> None:
    """However spans nest, the rows' own times are the steps' durations, by template and by fqn."""
    spans = nested_spans(seed)
    roots = build_trees(spans)
    whole_ns = sum(root.span.duration_ns for root in roots)
    for by in (TEMPLATE, FQN):
        rows = sum_rows(roots, by=by)
        assert sum(row.self_ns for row in rows) == whole_ns
        assert sum(row.calls for row in rows) == len(spans)
        for row in rows:
            assert 0 <= row.self_ns <= row.total_ns <= min(whole_ns, row.sum_ns)
            assert row.longest_ns <= row.total_ns
            assert row.mean_ns <= row.longest_ns


@given(st.integers(0))
def test_total_is_the_time_in_which_a_module_runs(seed: int) -> None:
    """On one thread, the total of a module that may run in itself is the time that it covers."""
    spans = nested_spans(seed)
    for row in sum_rows(build_trees(spans), by=FQN):
        if row.module:
            assert row.total_ns == covered_ns(spans, row.module)
