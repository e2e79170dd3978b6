"""Every file says what the spans say, whichever road it is read by."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

from otel_modtrack.view.exports import write_chrome, write_perfetto, write_speedscope
from otel_modtrack.view.exports.content import categorise
from otel_modtrack.view.model import Process, build_trees
from tests.exports import sample
from tests.exports.read_chrome import read_chrome
from tests.exports.read_perfetto import read_perfetto
from tests.exports.shown import Mark, Shown, flatten

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_modtrack.view.model import Span
    from tests.exports.processor import Processor

# Around the spans that cannot be drawn in their parent.
_CONCURRENT = {"a2": ""}
_OUTLASTING = dict.fromkeys(("late", "early", "after", "remote", "back", "orphan"), "")

Files = Mapping[tuple[str, str], Path]
Read = Callable[[str], Shown]


@pytest.fixture(params=["perfetto", "chrome", "perfetto, real", "chrome, real"])
def read(request: pytest.FixtureRequest) -> Read:
    """Return what is shown of the spans of a name, in one file and read by one road."""
    if request.param.endswith("real"):
        shown = request.getfixturevalue("shown_by_perfetto")
        return lambda name: shown[request.param.split(",")[0], name]
    files = request.getfixturevalue("files")
    reader = {"perfetto": read_perfetto, "chrome": read_chrome}[request.param]
    return lambda name: reader(files[request.param, name].read_bytes())


def check_slices(
    shown: Shown, spans: Sequence[Span], arounds: Mapping[str, str] | None = None
) -> None:
    """Compare names, times and nesting: a span is in its parent unless `arounds` says otherwise."""
    first_ns = min(span.start_ns for span in spans)
    expected = {
        span.span_id: (
            span.label,
            span.start_ns - first_ns,
            span.end_ns - first_ns,
            (arounds or {}).get(span.span_id, span.parent_id),
        )
        for span in spans
    }
    found = {
        span_id: (one.name, one.start_ns, one.end_ns, one.around)
        for span_id, one in shown.slices.items()
    }
    assert found == expected


def places(shown: Shown) -> dict[str, tuple[str, str]]:
    """Return the process and the lane of each span."""
    return {span_id: (one.process, one.lane) for span_id, one in shown.slices.items()}


def test_two_ranks(read: Read) -> None:
    """Each rank is a process of one lane, and a step nests in it as it ran, to the nanosecond."""
    spans = sample.two_ranks()
    shown = read("two_ranks")
    check_slices(shown, spans)
    assert places(shown) == {span.span_id: (f"rank {span.span_id[1]}", "spans") for span in spans}
    assert {one.name: one.category for one in shown.slices.values()} == {
        "train_step 7": "step",
        "forward Net": "forward",
        "forward Net.l.0": "forward",
        "forward Net.l.1": "forward",
        "backward": "backward",
        "backward Net.l.1": "backward",
        "optimizer_step SGD": "optimizer",
    }


def test_links_are_flows(read: Read) -> None:
    """An arrow leads from each forward to the backward that links to it, on its own rank."""
    assert read("two_ranks").flows == {("r0d", "r0f"), ("r1d", "r1f")}


def test_collectives_are_marks(read: Read) -> None:
    """A collective is a mark on the span that launched it, at its time, with bytes and group."""
    shown = read("two_ranks")
    assert {mark for mark in shown.marks if mark.category == "collective"} == {
        Mark("r0b", "broadcast", "collective", 15),
        Mark("r0d", "all_reduce", "collective", 75),
        Mark("r1b", "broadcast", "collective", 22),
        Mark("r1d", "all_reduce", "collective", 82),
    }
    assert flatten(shown.marks[Mark("r1d", "all_reduce", "collective", 82)]) == {
        "modtrack_collective_operation": "all_reduce",
        "modtrack_collective_count": 1,
        "modtrack_collective_size": 4096,
        "modtrack_collective_group_description": "mesh_tp",
        "modtrack_collective_async": True,
    }


def test_counter(read: Read) -> None:
    """Each rank has a counter of the bytes that its collectives moved so far."""
    assert read("two_ranks").counters == {
        "rank 0": [(15, 64), (75, 4160)],
        "rank 1": [(22, 64), (82, 4160)],
    }


def test_failed_span(read: Read) -> None:
    """A failed span says so, with the status's message, and its exception is a mark on it."""
    shown = read("two_ranks")
    assert flatten(shown.attributes["r1g"]) == {
        "error_type": "OutOfMemoryError",
        "otel_span_id": "r1g",
        "otel_status": "ERROR",
        "otel_status_message": "out of memory",
    }
    assert "otel_status" not in flatten(shown.attributes["r0g"])
    (exception,) = (shown.marks[mark] for mark in shown.marks if mark.category == "event")
    assert flatten(exception) == {"exception_stacktrace": sample.STACK}
    assert Mark("r1g", "exception", "event", 5006) in shown.marks


def test_concurrent(read: Read) -> None:
    """What runs at the same time is in different lanes, and a free lane is used again."""
    spans = sample.concurrent()
    shown = read("concurrent")
    check_slices(shown, spans, _CONCURRENT)
    assert {span_id: lane for span_id, (_, lane) in places(shown).items()} == {
        "a": "spans",
        "a1": "spans",
        "b": "spans 2",
        "b1": "spans 2",
        "a2": "spans 3",
        "a3": "spans 3",
        "c": "spans 4",
        "d": "spans",
    }


def test_outlasting(read: Read) -> None:
    """What sticks out of its parent keeps its times, has a lane of its own and names its parent."""
    spans = sample.outlasting()
    shown = read("outlasting")
    check_slices(shown, spans, _OUTLASTING)
    assert places(shown)["remote"] == ("rank 0", "spans")
    parents = {
        span_id: flatten(values).get("otel_parent_span_id")
        for span_id, values in shown.attributes.items()
    }
    assert {span_id: parents[span_id] for span_id in _OUTLASTING} == {
        "late": "a",
        "early": "a",
        "after": "a",
        "remote": "call",
        "back": "remote",
        "orphan": "gone",
    }
    assert parents["call"] is None  # it is seen in its parent


@pytest.mark.parametrize("read", ["perfetto", "perfetto, real"], indirect=True)
def test_instantaneous_in_perfetto(read: Read) -> None:
    """Spans without duration are in their parents, also where others begin or end just then."""
    shown = read("instantaneous")
    check_slices(shown, sample.instantaneous())
    assert {lane for _, lane in places(shown).values()} == {"spans"}
    assert set(shown.marks) == {Mark("a", "begun", "event", 0), Mark("a", "half", "event", 500)}


@pytest.mark.parametrize("read", ["chrome", "chrome, real"], indirect=True)
def test_instantaneous_in_chrome(read: Read) -> None:
    """Spans without duration are there at their time; the format cannot tell what they are in."""
    assert {
        one.name: (one.start_ns, one.end_ns) for one in read("instantaneous").slices.values()
    } == {
        span.name: (span.start_ns - sample.BASE_NS, span.end_ns - sample.BASE_NS)
        for span in sample.instantaneous()
    }


def test_foreign(read: Read) -> None:
    """Another program's spans keep kind, scope and links; events stay in their spans."""
    spans = sample.foreign()
    shown = read("foreign")
    check_slices(shown, spans)
    assert {one.category for one in shown.slices.values()} == {"span"}
    assert shown.flows == {("c", "b"), ("c", "d"), ("a", "d")}
    assert flatten(shown.attributes["b"]) == {
        "otel_span_id": "b",
        "otel_kind": "CLIENT",
        "otel_links[0]_span_id": "nowhere",
        "otel_links[1]_trace_id": "y",
        "otel_links[1]_span_id": "c",
        "otel_links[1]_why": "cause",
        "otel_links[2]_span_id": "b",
    }
    assert flatten(shown.attributes["d"])["otel_scope"] == "kafka"
    assert {mark.name: mark.time_ns for mark in shown.marks} == {"event": 0, "late": 500}


def test_names_like_ours() -> None:
    """Another program's `backward` is no phase, as in the tree and on the page."""
    ours, theirs = (
        sample.made("a", "", "backward", 0, 1, scope=scope) for scope in ("otel_modtrack", "app")
    )
    assert (categorise(ours), categorise(theirs)) == ("backward", "span")


def test_odd_texts(read: Read) -> None:
    """Quotes, control characters, emoji and half a surrogate pair arrive, the last as "?"."""
    shown = read("odd")
    for index, span in enumerate(sample.odd()[:-1]):
        text = span.name.replace("\ud800", "?")
        # Perfetto leaves JSON with an escaped control character in it as it is written.
        texts = {text, json.dumps(text, ensure_ascii=False)[1:-1]}
        assert shown.slices[f"s{index}"].name in texts
        assert shown.attributes[f"s{index}"]["value"] in texts


def test_demo(read: Read, demo_spans: Sequence[Span]) -> None:
    """All that the demo records is there: names, times, nesting, links, attributes."""
    shown = read("demo")
    check_slices(shown, demo_spans)
    assert {lane for _, lane in places(shown).values()} == {"spans"}
    assert shown.flows == {
        (link.span_id, span.span_id) for span in demo_spans for link in span.links
    }
    assert len(shown.flows) > 20
    for span in demo_spans:
        attributes = flatten(shown.attributes[span.span_id])
        assert flatten(span.attributes).items() <= attributes.items()


def test_values_in_perfetto(files: Files) -> None:
    """Perfetto's file keeps every value that it has a type for, and the rest as text."""
    values = read_perfetto(files["perfetto", "odd"].read_bytes()).attributes["values"]
    assert math.isnan(values.pop("nan"))
    assert {name: value for name, value in values.items() if not name.startswith("otel.")} == {
        "bool": True,
        "int": -5,
        "largest": 2**63 - 1,
        "smallest": -(2**63),
        "huge": "1180591620717411303424",
        "double": 0.1,
        "infinite": -math.inf,
        "list": ["a", "b"],
        "empty": [],
        "none": "None",
        "dict": {"values": [{"key": "k", "value": {"intValue": "3"}}]},
        "": "no name",
    }


def test_values_in_chrome(files: Files) -> None:
    """Chrome's file keeps every value that a browser reads exactly, and the rest as text."""
    values = read_chrome(files["chrome", "odd"].read_bytes()).attributes["values"]
    values["double"] = float(values["double"])
    assert {name: value for name, value in values.items() if not name.startswith("otel.")} == {
        "bool": True,
        "int": -5,
        "largest": "9223372036854775807",
        "smallest": "-9223372036854775808",
        "huge": "1180591620717411303424",
        "double": 0.1,
        "nan": "nan",
        "infinite": "-inf",
        "list": ["a", "b"],
        "empty": [],
        "none": None,
        "dict": {"values": [{"key": "k", "value": {"intValue": "3"}}]},
        "": "no name",
    }


def test_wall_time(files: Files, processor: Processor) -> None:
    """Perfetto's file tells when it was, and Chrome's does in its other data."""
    processor.load(files["perfetto", "two_ranks"])
    assert processor.query("select to_realtime(7) as ns") == [{"ns": sample.BASE_NS + 7}]
    content = json.loads(files["chrome", "two_ranks"].read_bytes())
    assert content["otherData"]["start_time_unix_ns"] == str(sample.BASE_NS)


def test_order_of_tracks(files: Files) -> None:
    """Perfetto is told to show the ranks in their order, and each one's lanes in theirs."""
    packets = Trace.FromString(files["perfetto", "concurrent"].read_bytes()).packet
    tracks = [one.track_descriptor for one in packets if one.HasField("track_descriptor")]
    root, process, *lanes = tracks
    assert (root.uuid, root.process_ordering) == (0, root.PROCESS_ORDERING_EXPLICIT)
    assert (process.process.pid, process.sibling_order_rank) == (1, 0)
    assert process.child_ordering == process.EXPLICIT
    assert [(lane.parent_uuid, lane.name, lane.sibling_order_rank) for lane in lanes] == [
        (process.uuid, "spans", 0),
        (process.uuid, "spans 2", 1),
        (process.uuid, "spans 3", 2),
        (process.uuid, "spans 4", 3),
    ]


def test_nothing() -> None:
    """No spans are no error: the files are there, with nothing to show."""
    for write, read in (write_perfetto, read_perfetto), (write_chrome, read_chrome):
        out = io.BytesIO()
        write(out, [], lambda count: None)
        assert read(out.getvalue()) == Shown()
    out = io.BytesIO()
    write_speedscope(out, [], lambda count: None)
    assert json.loads(out.getvalue())["profiles"] == []


@pytest.mark.parametrize(
    ("told", "expected"),
    [([40, 30], [40, 30]), ([40, 40], [1, 2]), ([40, None], [1, 2]), ([0, 40], [1, 2])],
)
def test_process_ids(told: list[int | None], expected: list[int]) -> None:
    """A process has its own id, unless some have none, or the same, as on several machines."""
    ranks = [
        Process("trainer", rank, 2, "run.jsonl", {} if pid is None else {"process.pid": pid})
        for rank, pid in enumerate(told)
    ]
    spans = [sample.made(f"s{one.rank}", "", "s", 0, 1, one) for one in ranks]
    out = io.BytesIO()
    write_perfetto(out, build_trees(spans), lambda count: None)
    packets = Trace.FromString(out.getvalue()).packet
    tracks = [one.track_descriptor for one in packets if one.track_descriptor.HasField("process")]
    assert [(one.process.process_name, one.process.pid) for one in tracks] == [
        ("rank 0", expected[0]),
        ("rank 1", expected[1]),
    ]
    out = io.BytesIO()
    write_chrome(out, build_trees(spans), lambda count: None)
    events = json.loads(out.getvalue())["traceEvents"]
    names = {one["pid"]: one["args"]["name"] for one in events if one["name"] == "process_name"}
    assert names == {expected[0]: "rank 0", expected[1]: "rank 1"}
