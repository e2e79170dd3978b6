"""A trace file becomes the right trees, and the trees the right text."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.trace import Status, StatusCode

from otel_modtrack.usage import UsageError
from otel_modtrack.view.command import view_file, view_spans
from otel_modtrack.view.model import (
    Collectives,
    Event,
    Node,
    Span,
    build_trees,
    find_steps,
    sum_collectives,
)
from otel_modtrack.view.reader import from_sdk, read_trace_file
from otel_modtrack.view.terminal import render_size, render_slowest, render_tree

if TYPE_CHECKING:
    from pathlib import Path

    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

MS = 1_000_000
BASE_NS = 1_700_000_000_000_000_000


def make_span(
    span_id: str, parent_id: str, name: str, start_ms: float, end_ms: float, **attributes: Any
) -> Span:
    """Make a span of trace "t". Attributes are named by the end of their key."""
    keys = {
        "phase": "modtrack.phase",
        "fqn": "modtrack.module.fqn",
        "call": "modtrack.module.call_index",
        "step": "modtrack.step.number",
        "error": "error.type",
    }
    return Span(
        trace_id="t",
        span_id=span_id,
        parent_id=parent_id,
        name=name,
        start_ns=BASE_NS + round(start_ms * MS),
        end_ns=BASE_NS + round(end_ms * MS),
        attributes={keys[key]: value for key, value in attributes.items()},
        failed="error" in attributes,
        service="svc",
    )


def make_step() -> list[Span]:
    """Make the spans of a step of 10 ms, children before parents as exporters see them."""
    return [
        make_span("c", "b", "forward Net.l.*", 1, 2, phase="forward", fqn="Net.l.0"),
        make_span("d", "b", "forward Net.l.*", 2, 4, phase="forward", fqn="Net.l.1"),
        make_span("b", "a", "forward Net", 1, 5, phase="forward", fqn="Net"),
        make_span("f", "e", "backward Net", 6, 9, phase="backward", fqn="Net"),
        make_span("e", "a", "backward", 5.5, 9.5),
        make_span("a", "", "train_step", 0, 10, step=7),
    ]


def launched(operation: str, count: int, size: int, group: str = "") -> Event:
    """Make the event of a span that launched collectives."""
    attributes: dict[str, Any] = {
        "modtrack.collective.operation": operation,
        "modtrack.collective.count": count,
        "modtrack.collective.size": size,
    }
    if group:
        attributes["modtrack.collective.group.description"] = group
    return Event("modtrack.collective", attributes)


def make_parallel_step() -> list[Span]:
    """Make the same step on rank 1 of 2, with collectives in one layer and in the backward."""
    events: dict[str, tuple[Event, ...]] = {
        "d": (
            launched("all_gather", 1, 2048, "default_pg"),
            Event("exception", {"exception.type": "ValueError"}),
            launched("all_reduce", 2, 64, "mesh_tp"),
            launched("all_gather", 3, 1024),
        ),
        "f": (launched("reduce_scatter", 1, 1_500_000, "undefined"), launched("barrier", 1, 0)),
    }
    ranks = {"modtrack.rank": 1, "modtrack.world_size": 2}
    return [
        replace(
            span,
            events=events.get(span.span_id, ()),
            attributes={**span.attributes, **(ranks if span.span_id == "a" else {})},
        )
        for span in make_step()
    ]


def as_json(span: Span, *, int_as_string: bool = True) -> dict[str, Any]:
    """Encode a span as the OTLP JSON encoding wants it."""
    number = str if int_as_string else int

    def value(content: object) -> dict[str, Any]:
        return (
            {"intValue": number(content)}
            if isinstance(content, int)
            else {"stringValue": str(content)}
        )

    return {
        "traceId": span.trace_id,
        "spanId": span.span_id,
        "parentSpanId": span.parent_id,
        "name": span.name,
        "startTimeUnixNano": number(span.start_ns),
        "endTimeUnixNano": number(span.end_ns),
        "attributes": [{"key": k, "value": value(v)} for k, v in span.attributes.items()],
        "events": [
            {
                "timeUnixNano": number(span.start_ns),
                "name": event.name,
                "attributes": [{"key": k, "value": value(v)} for k, v in event.attributes.items()],
            }
            for event in span.events
        ],
        "status": {"code": 2} if span.failed else {},
    }


def as_line(*spans: dict[str, Any]) -> str:
    """Put spans into one export request of service "svc"."""
    resource = {"attributes": [{"key": "service.name", "value": {"stringValue": "svc"}}]}
    scope_spans = [{"scope": {"name": "otel_modtrack"}, "spans": list(spans)}]
    request = {"resourceSpans": [{"resource": resource, "scopeSpans": scope_spans}]}
    return json.dumps(request) + "\n"


def shape(nodes: list[Node]) -> list[Any]:
    """Return trees as nested lists of labels."""
    return [[node.span.label, *shape(node.children)] for node in nodes]


# Trees


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
    assert len(render_slowest(roots, top=depth).splitlines()) == depth + 1


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
    assert [node.span.step for node in find_steps(build_trees([step, epoch]))] == [7]


def test_repeated_call_of_a_module_is_numbered() -> None:
    """Calls of one module in a step can be told apart."""
    span = make_span("a", "", "forward Net", 0, 1, phase="forward", fqn="Net", call=1)
    assert span.label == "forward Net #1"


# Text


def test_tree_text() -> None:
    """The tree shows durations, own times, shares of the step and full names."""
    assert render_tree(build_trees(make_step())) == (
        " total ms    self ms   share  span\n"
        "   10.000      2.000  100.0%  train_step 7\n"
        "    4.000      1.000   40.0%  ├─ forward Net\n"
        "    1.000      1.000   10.0%  │  ├─ forward Net.l.0\n"
        "    2.000      2.000   20.0%  │  └─ forward Net.l.1\n"
        "    4.000      1.000   40.0%  └─ backward\n"
        "    3.000      3.000   30.0%     └─ backward Net"
    )


def test_depth_cuts_and_says_what_it_hides() -> None:
    """Levels below the depth are counted, not shown."""
    assert render_tree(build_trees(make_step()), depth=2).splitlines()[1:] == [
        "   10.000      2.000  100.0%  train_step 7",
        "    4.000      1.000   40.0%  ├─ forward Net (+2 below)",
        "    4.000      1.000   40.0%  └─ backward (+1 below)",
    ]
    assert render_tree(build_trees(make_step()), depth=1).splitlines()[1:] == [
        "   10.000      2.000  100.0%  train_step 7 (+5 below)",
    ]


def test_slowest_are_summed_by_name_and_add_up() -> None:
    """Layers of a stack are one row, sorted by own time, and own times make up the whole."""
    roots = build_trees(make_step())
    assert render_slowest(roots, top=3) == (
        "  self ms   share   total ms  calls  span\n"
        "    3.000   30.0%      3.000      1  backward Net\n"
        "    3.000   30.0%      3.000      2  forward Net.l.*\n"
        "    2.000   20.0%     10.000      1  train_step"
    )
    rows = render_slowest(roots, top=99).splitlines()[1:]
    assert sum(float(row.split()[0]) for row in rows) == 10


def test_module_inside_itself_is_totalled_once() -> None:
    """The total of a recursive module is that of its outermost call."""
    spans = [
        make_span("a", "", "forward R", 0, 4),
        make_span("b", "a", "forward R", 1, 3),
    ]
    (row,) = render_slowest(build_trees(spans), top=9).splitlines()[1:]
    assert row.split() == ["4.000", "100.0%", "4.000", "2", "forward", "R"]


def test_failed_span_names_its_error() -> None:
    """A span with an error says which."""
    spans = [make_span("a", "", "forward R", 0, 4, error="ValueError")]
    assert render_tree(build_trees(spans)).endswith("forward R ! ValueError")


def test_colour_only_adds_escapes() -> None:
    """Without colour there is no escape sequence; with it the text is the same."""
    roots = build_trees(make_step())
    plain = render_tree(roots)
    coloured = render_tree(roots, colour=True)
    assert "\033" not in plain
    assert "\033[32mforward\033[0m Net" in coloured
    for code in ("0", "1", "2", "32", "34"):
        coloured = coloured.replace(f"\033[{code}m", "")
    assert coloured == plain


def test_names_cannot_command_the_terminal() -> None:
    """Control characters of a name from a file are not printed."""
    roots = build_trees([make_span("a", "", "evil\033[2J\r\n", 0, 1)])
    assert render_tree(roots).endswith("evil?[2J??")
    assert "\033" not in render_slowest(roots, top=1)


def test_span_without_duration_has_no_share() -> None:
    """A trace of zero length does not divide by zero."""
    assert "  0.0%" in render_tree(build_trees([make_span("a", "", "instant", 1, 1)]))


# Collectives


def test_collectives_are_summed_by_operation_and_group() -> None:
    """Only what says what it launched counts; groups that nobody named are one."""
    odd = [
        Event("modtrack.collective", {"modtrack.collective.operation": "gather"}),
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


def test_tree_shows_what_a_span_launched() -> None:
    """Collectives stand behind their span: operation, number, size and a group that has a name."""
    launches = "  all_gather x4 3.0 KiB, all_reduce x2 64 B (mesh_tp)"
    assert render_tree(build_trees(make_parallel_step())).splitlines()[1:] == [
        "   10.000      2.000  100.0%  train_step 7",
        "    4.000      1.000   40.0%  ├─ forward Net",
        "    1.000      1.000   10.0%  │  ├─ forward Net.l.0",
        "    2.000      2.000   20.0%  │  └─ forward Net.l.1" + launches,
        "    4.000      1.000   40.0%  └─ backward",
        "    3.000      3.000   30.0%     └─ backward Net  reduce_scatter 1.4 MiB, barrier",
    ]


def test_depth_keeps_the_collectives_of_what_it_hides() -> None:
    """A line that stands for spans below it has their collectives."""
    launches = "  all_gather x4 3.0 KiB, all_reduce x2 64 B (mesh_tp)"
    assert render_tree(build_trees(make_parallel_step()), depth=2).splitlines()[1:] == [
        "   10.000      2.000  100.0%  train_step 7",
        "    4.000      1.000   40.0%  ├─ forward Net (+2 below)" + launches,
        "    4.000      1.000   40.0%  └─ backward (+1 below)  reduce_scatter 1.4 MiB, barrier",
    ]


def test_names_of_collectives_cannot_command_the_terminal() -> None:
    """Nor can names that stand in events."""
    events = (launched("all\033[2J", 1, 1, "group\r"),)
    (root,) = build_trees([replace(make_span("a", "", "s", 0, 1), events=events)])
    assert render_tree([root]).endswith("  s  all?[2J 1 B (group?)")
    assert "\033[36mall?[2J" in render_tree([root], colour=True)


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1024**2 - 1, "1.0 MiB"),
        (5 * 1024**3 // 2, "2.5 GiB"),
        (3000 * 1024**4, "3,000.0 TiB"),
    ],
)
def test_size_text(size_bytes: int, text: str) -> None:
    """Sizes have three digits or so and a binary unit."""
    assert render_size(size_bytes) == text


# Files


@pytest.mark.parametrize("int_as_string", [True, False])
def test_file_is_read_back(tmp_path: Path, int_as_string: bool) -> None:
    """64-bit integers may be strings, as the specification wants, or numbers, as some write."""
    path = tmp_path / "trace.jsonl"
    spans = make_parallel_step()
    path.write_text(as_line(*(as_json(s, int_as_string=int_as_string) for s in spans)))
    found = read_trace_file(path)
    assert found.spans == spans
    assert found.bad_lines == []


def test_every_kind_of_value_is_read(tmp_path: Path) -> None:
    """Attributes keep their types."""
    span = as_json(make_span("a", "", "s", 0, 1))
    span["attributes"] = [
        {"key": "text", "value": {"stringValue": "x"}},
        {"key": "yes", "value": {"boolValue": True}},
        {"key": "number", "value": {"doubleValue": 0.5}},
        {"key": "list", "value": {"arrayValue": {"values": [{"intValue": "3"}]}}},
        {"key": "none", "value": {}},
    ]
    path = tmp_path / "trace.jsonl"
    path.write_text(as_line(span))
    assert read_trace_file(path).spans[0].attributes == {
        "text": "x",
        "yes": True,
        "number": 0.5,
        "list": (3,),
        "none": None,
    }


def test_root_may_have_a_parent_of_zeros(tmp_path: Path) -> None:
    """An all-zero parent id, as some exporters write it, is no parent."""
    path = tmp_path / "trace.jsonl"
    path.write_text(as_line(as_json(make_span("a", "0000000000000000", "s", 0, 1))))
    assert read_trace_file(path).spans[0].parent_id == ""


def test_unfinished_span_ends_where_it_began(tmp_path: Path) -> None:
    """A span without an end has no negative duration."""
    span = as_json(make_span("a", "", "s", 0, 1)) | {"endTimeUnixNano": "0"}
    path = tmp_path / "trace.jsonl"
    path.write_text(as_line(span))
    assert read_trace_file(path).spans[0].duration_ns == 0


@pytest.mark.parametrize(
    "bad",
    [
        '{"resourceSpans": [{"scopeSp',
        "\x00\x01 no text at all",
        "[1, 2]",
        "7",
        '{"resourceSpans": 7}',
        '{"some": "log line"}',
        "[" * 100_000,
        as_line({"name": "no ids, no times"}),
        as_line(as_json(make_span("z", "", "s", 0, 1)) | {"startTimeUnixNano": "soon"}),
    ],
)
def test_broken_line_costs_only_itself(tmp_path: Path, bad: str) -> None:
    """What cannot be read is skipped and its line is named; the rest is there."""
    path = tmp_path / "trace.jsonl"
    path.write_text(as_line(as_json(make_step()[0])) + bad.rstrip("\n") + "\n\n")
    found = read_trace_file(path)
    assert [span.span_id for span in found.spans] == ["c"]
    assert found.bad_lines == [2]


def test_bad_span_does_not_take_its_neighbours(tmp_path: Path) -> None:
    """One malformed span in a request leaves the others."""
    path = tmp_path / "trace.jsonl"
    path.write_text(as_line(as_json(make_step()[0]), {"name": "x"}, as_json(make_step()[1])))
    found = read_trace_file(path)
    assert [span.span_id for span in found.spans] == ["c", "d"]
    assert found.bad_lines == [1]


def test_other_signals_are_passed_over(tmp_path: Path) -> None:
    """Metrics and logs in the same file are no fault."""
    path = tmp_path / "trace.jsonl"
    path.write_text('{"resourceMetrics": []}\n' + as_line(as_json(make_step()[0])))
    assert read_trace_file(path).bad_lines == []


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "has no spans"),
        ('{"resourceSpans": []}\n', "has no spans"),
        ("step,loss\n1,2\n", "is not a file of OTLP JSON lines: line 1 "),
    ],
)
def test_file_without_spans_is_refused(tmp_path: Path, content: str, says: str) -> None:
    """A file of another kind is named, with what it should be."""
    path = tmp_path / "trace.jsonl"
    path.write_text(content)
    with pytest.raises(UsageError, match=says) as caught:
        read_trace_file(path)
    assert str(path) in str(caught.value)


def test_missing_file_is_refused(tmp_path: Path) -> None:
    """A file that is not there is named."""
    with pytest.raises(UsageError, match=r"cannot read .*nowhere\.jsonl: No such file"):
        read_trace_file(tmp_path / "nowhere.jsonl")


# The whole command


def write_steps(path: Path, *numbers: int) -> None:
    """Write one trace for each step number, one second after the other."""
    lines = []
    for number in numbers:
        lines += [
            as_line(
                as_json(span)
                | {
                    "traceId": f"t{number}",
                    "startTimeUnixNano": str(span.start_ns + number * 1000 * MS),
                    "endTimeUnixNano": str(span.end_ns + number * 1000 * MS),
                    "attributes": [
                        {"key": "modtrack.step.number", "value": {"intValue": str(number)}}
                    ]
                    if span.name == "train_step"
                    else [],
                }
            )
            for span in make_step()
        ]
    path.write_text("".join(lines))


def test_last_step_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a choice it is the step that began last, wherever it stands in the file."""
    path = tmp_path / "trace.jsonl"
    write_steps(path, 1, 3, 2)
    view_file(path)
    shown = capsys.readouterr()
    assert shown.out.startswith("Step 3 of svc: 6 spans, 10.0 ms\n")
    assert "train_step 3" in shown.out
    assert "train_step 2" not in shown.out
    assert "Slowest" in shown.out
    assert shown.err == ""


def test_step_is_chosen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--step shows that step; --top 0 leaves the table out."""
    path = tmp_path / "trace.jsonl"
    write_steps(path, 1, 2, 3)
    view_file(path, step=2, top=0)
    shown = capsys.readouterr().out
    assert shown.startswith("Step 2 ")
    assert "Slowest" not in shown


@pytest.mark.parametrize(
    ("numbers", "says"),
    [
        ((4, 5, 6), "has no step 9; its steps run from 4 to 6"),
        ((4,), "has no step 9; its only step is 4"),
    ],
)
def test_step_that_is_not_there(tmp_path: Path, numbers: tuple[int, ...], says: str) -> None:
    """A wrong step number is answered with the right ones."""
    path = tmp_path / "trace.jsonl"
    write_steps(path, *numbers)
    with pytest.raises(UsageError, match=says):
        view_file(path, step=9)


def test_file_without_steps_shows_its_last_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Forward and backward without a step are the roots of one trace, shown together."""
    path = tmp_path / "trace.jsonl"
    earlier = as_json(make_span("y", "", "forward Old", -9, -8)) | {"traceId": "s"}
    spans = [span for span in make_step() if span.name != "train_step"]
    path.write_text(as_line(earlier, *map(as_json, spans)))
    view_file(path)
    shown = capsys.readouterr().out
    assert shown.startswith("Trace t of svc: 5 spans, 8.0 ms\n")
    assert "Old" not in shown
    with pytest.raises(UsageError, match="no steps at all"):
        view_file(path, step=0)


def test_skipped_lines_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What was skipped is said on stderr, a long list shortened."""
    path = tmp_path / "trace.jsonl"
    path.write_text("torn\n" * 7 + as_line(*map(as_json, make_step())))
    view_file(path)
    assert "lines 1, 2, 3, 4, 5 and 2 more" in capsys.readouterr().err


def test_headline_tells_the_rank_and_the_collectives(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A step of a distributed program says whose it is, and how much it launched."""
    path = tmp_path / "trace.jsonl"
    path.write_text(as_line(*map(as_json, make_parallel_step())))
    view_file(path)
    assert capsys.readouterr().out.startswith(
        "Step 7 of svc, rank 1 of 2: 6 spans, 10.0 ms, 8 collectives of 1.4 MiB\n"
    )
    one = replace(make_span("a", "", "train_step", 0, 1, step=0), events=(launched("send", 1, 8),))
    path.write_text(as_line(as_json(one)))
    view_file(path)
    assert capsys.readouterr().out.startswith(
        "Step 0 of svc: 1 span, 1.0 ms, 1 collective of 8 B\n"
    )


def test_spans_of_the_sdk_are_shown_as_those_of_a_file(
    exporter: InMemorySpanExporter, provider: TracerProvider, capsys: pytest.CaptureFixture[str]
) -> None:
    """What an in-memory exporter holds needs no file."""
    tracer = provider.get_tracer("test")
    step = {"modtrack.step.number": 3, "modtrack.rank": 0, "modtrack.world_size": 4}
    with tracer.start_as_current_span("train_step", attributes=step):
        event = launched("all_reduce", 2, 64)
        with tracer.start_as_current_span("forward Net") as span:
            span.add_event(event.name, dict(event.attributes))
            span.set_status(Status(StatusCode.ERROR))
    finished = exporter.get_finished_spans()
    child, root = map(from_sdk, finished)
    assert (child.parent_id, root.parent_id) == (root.span_id, "")
    assert (child.failed, root.failed) == (True, False)
    assert (child.end_ns, child.events) == (finished[0].end_time, (event,))
    view_spans(finished, depth=1, top=0)
    headline, _, _, line = capsys.readouterr().out.splitlines()
    assert headline.startswith("Step 3, rank 0 of 4: 2 spans, ")
    assert line.endswith("train_step 3 (+1 below)  all_reduce x2 64 B")
    with pytest.raises(UsageError, match="the program has no step 9; its only step is 3"):
        view_spans(finished, step=9)
    with pytest.raises(UsageError, match="there are no spans"):
        view_spans([])
