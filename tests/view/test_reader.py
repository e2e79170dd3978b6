"""Files become spans; what cannot be read is named, and costs only itself."""

from __future__ import annotations

import gzip
import json
import os
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from otel_modtrack.usage import UsageError
from otel_modtrack.view.model import Link
from otel_modtrack.view.reader import read_files
from tests.view.making import (
    PROCESS,
    as_json,
    as_line,
    make_parallel_step,
    make_ranks,
    make_span,
    make_step,
    write,
)

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("int_as_string", [True, False])
def test_file_is_read_back(tmp_path: Path, int_as_string: bool) -> None:
    """64-bit integers may be strings, as the specification wants, or numbers, as some write."""
    path = tmp_path / "trace.jsonl"
    spans = make_parallel_step()
    path.write_text(as_line(*(as_json(s, int_as_string=int_as_string) for s in spans)))
    found = read_files([str(path)])
    assert [replace(span, process=PROCESS) for span in found.spans] == spans
    (process,) = {span.process for span in found.spans}
    assert (process.service, process.rank, process.world_size) == ("svc", 1, 2)
    assert process.source == str(path)
    assert found.faults == []


def test_every_kind_of_value_is_read(tmp_path: Path) -> None:
    """Attributes keep their types."""
    span = as_json(make_span("a", "", "s", 0, 1))
    span["attributes"] = [
        {"key": "text", "value": {"stringValue": "x"}},
        {"key": "yes", "value": {"boolValue": True}},
        {"key": "number", "value": {"doubleValue": 0.5}},
        {"key": "list", "value": {"arrayValue": {"values": [{"intValue": "3"}]}}},
        {
            "key": "map",
            "value": {"kvlistValue": {"values": [{"key": "a", "value": {"intValue": "4"}}]}},
        },
        {"key": "none", "value": {}},
        {"key": "left out"},
        {"key": "null", "value": {"stringValue": None}},
    ]
    path = tmp_path / "trace.jsonl"
    path.write_text(as_line(span))
    assert read_files([str(path)]).spans[0].attributes == {
        "text": "x",
        "yes": True,
        "number": 0.5,
        "list": (3,),
        "map": {"a": 4},
        "none": None,
        "left out": None,
        "null": None,
    }


def test_root_may_have_a_parent_of_zeros(tmp_path: Path) -> None:
    """An all-zero parent id, as some exporters write it, is no parent."""
    path = tmp_path / "trace.jsonl"
    path.write_text(as_line(as_json(make_span("a", "0000000000000000", "s", 0, 1))))
    assert read_files([str(path)]).spans[0].parent_id == ""


def test_unfinished_span_ends_where_it_began(tmp_path: Path) -> None:
    """A span without an end has no negative duration."""
    span = as_json(make_span("a", "", "s", 0, 1)) | {"endTimeUnixNano": "0"}
    path = tmp_path / "trace.jsonl"
    path.write_text(as_line(span))
    assert read_files([str(path)]).spans[0].duration_ns == 0


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
        as_line(as_json(make_span("z", "", "s", 0, 1)) | {"startTimeUnixNano": float("inf")}),
        as_line(as_json(make_span("z", "", "s", 0, 1)) | {"startTimeUnixNano": "-1"}),
        as_line(as_json(make_span("z", "", "s", 0, 1)) | {"endTimeUnixNano": str(2**64)}),
        as_line(as_json(make_span("z", "", "s", 0, 1)) | {"spanId": "no base64 !"[:11] + "!"}),
        as_line(
            as_json(make_span("z", "", "s", 0, 1))
            | {"attributes": [{"key": "n", "value": {"intValue": float("inf")}}]}
        ),
    ],
)
def test_broken_line_costs_only_itself(tmp_path: Path, bad: str) -> None:
    """What cannot be read is skipped and its line is named; the rest is there."""
    path = tmp_path / "trace.jsonl"
    path.write_text(as_line(as_json(make_step()[0])) + bad.rstrip("\n") + "\n\n")
    found = read_files([str(path)])
    assert [span.span_id for span in found.spans] == ["c"]
    assert [fault.lines for fault in found.faults] == [[2]]


def test_bad_span_does_not_take_its_neighbours(tmp_path: Path) -> None:
    """One malformed span in a request leaves the others."""
    path = tmp_path / "trace.jsonl"
    path.write_text(as_line(as_json(make_step()[0]), {"name": "x"}, as_json(make_step()[1])))
    found = read_files([str(path)])
    assert [span.span_id for span in found.spans] == ["c", "d"]
    assert [fault.lines for fault in found.faults] == [[1]]


def test_other_signals_are_passed_over(tmp_path: Path) -> None:
    """Metrics and logs in the same file are no fault."""
    path = tmp_path / "trace.jsonl"
    path.write_text('{"resourceMetrics": []}\n' + as_line(as_json(make_step()[0])))
    assert read_files([str(path)]).faults == []


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "has no spans"),
        ('{"resourceSpans": []}\n', "has no spans"),
        ("step,loss\n1,2\n", "is not a file of OTLP JSON lines: line 1 "),
        ('{"resourceMetrics": []}\n', "has no spans, but metrics or logs; give the file of the"),
        ("step,loss", "is not a file of OTLP JSON lines: line 1 "),
        ('{\n "resourceSpans": []\n}\n', "has a document over several lines; put each in a line"),
        (
            as_line({"name": "no ids"}),
            r"has no spans that can be read \(.*, line 1: a span without an id or a time",
        ),
        ('{"resourceSpans": [{"scopeSp', "has no spans; let the program that writes it finish"),
    ],
)
def test_file_without_spans_is_refused(tmp_path: Path, content: str, says: str) -> None:
    """A file of another kind is named, with what it should be."""
    path = tmp_path / "trace.jsonl"
    path.write_text(content)
    with pytest.raises(UsageError, match=says) as caught:
        read_files([str(path)])
    assert str(path) in str(caught.value)


def test_missing_file_is_refused(tmp_path: Path) -> None:
    """A file that is not there is named."""
    with pytest.raises(UsageError, match=r"cannot read .*nowhere\.jsonl: No such file"):
        read_files([str(tmp_path / "nowhere.jsonl")])


def test_link_status_kind_and_scope_are_read(tmp_path: Path) -> None:
    """What a span says besides times and attributes is kept."""
    span = as_json(make_span("a", "", "s", 0, 1)) | {
        "kind": "SPAN_KIND_SERVER",
        "status": {"code": "STATUS_CODE_ERROR", "message": "no room"},
        "links": [{"traceId": "AB", "spanId": "CD", "attributes": []}],
    }
    path = tmp_path / "trace.jsonl"
    path.write_text(as_line(span, scope="app"))
    (found,) = read_files([str(path)]).spans
    assert (found.kind, found.failed, found.status_message) == (2, True, "no room")
    assert (found.scope, found.links) == ("app", (Link("ab", "cd"),))


def test_null_is_what_is_left_out(tmp_path: Path) -> None:
    """As in all JSON of Protocol Buffers; and a span may have no name."""
    path = tmp_path / "trace.jsonl"
    optional = "attributes", "events", "links", "status", "kind", "parentSpanId", "name"
    span = as_json(make_span("a", "", "s", 0, 1))
    path.write_text(
        as_line({**span, **dict.fromkeys(optional)})
        + as_line({key: value for key, value in span.items() if key not in optional})
    )
    found = read_files([str(path)])
    assert found.faults == []
    assert [(one.name, one.kind, one.parent_id, one.failed) for one in found.spans] == [
        ("(no name)", 1, "", False)
    ] * 2


@pytest.mark.parametrize("wrapped", ['{{"batches": {}}}', '{{"trace": {{"resourceSpans": {}}}}}'])
def test_answers_of_tempo_are_read(tmp_path: Path, wrapped: str) -> None:
    """Its ids are in base64, and kinds have names."""
    spans = [
        {
            "traceId": "AAECAwQFBgcICQoLDA0ODw==",
            "spanId": "8PHy8/T19vc=",
            "name": "GET /",
            "kind": "SPAN_KIND_SERVER",
            "startTimeUnixNano": "1700000000000000000",
            "endTimeUnixNano": "1700000000000000005",
        }
    ]
    spans.append({**spans[0], "spanId": "AQIDBAUGBwg=", "parentSpanId": "8PHy8/T19vc="})
    path = tmp_path / "trace.json"
    path.write_text(wrapped.format(json.dumps([{"scopeSpans": [{"spans": spans}]}])))
    first, second = read_files([str(path)]).spans
    assert first.trace_id == second.trace_id == "000102030405060708090a0b0c0d0e0f"
    assert (first.span_id, second.parent_id) == ("f0f1f2f3f4f5f6f7",) * 2
    assert (first.kind, first.duration_ns) == (2, 5)


def test_answers_of_query_apis_are_read(tmp_path: Path) -> None:
    """Jaeger's API wraps the request, which is read all the same."""
    path = tmp_path / "trace.jsonl"
    path.write_text('{"result": ' + as_line(as_json(make_step()[0])).strip() + "}\n")
    assert [span.span_id for span in read_files([str(path)]).spans] == ["c"]


# Several files, other files


def test_files_of_ranks_are_read_together(tmp_path: Path) -> None:
    """Every span knows the file and the rank that it is of."""
    spans = make_ranks(2, 1)
    paths = [
        write(tmp_path / f"rank{rank}.jsonl", [s for s in spans if s.process.rank == rank])
        for rank in (0, 1)
    ]
    found = read_files(paths)
    assert {(span.process.source, span.process.rank) for span in found.spans} == {
        (paths[0], 0),
        (paths[1], 1),
    }
    assert len(found.spans) == 12


def test_gzip_is_read(tmp_path: Path) -> None:
    """A file that gzip compressed is read, whatever its name."""
    path = tmp_path / "trace"
    path.write_bytes(gzip.compress(as_line(*map(as_json, make_step())).encode()))
    assert len(read_files([str(path)]).spans) == 6


def test_gzip_that_is_cut_off_gives_what_is_there(tmp_path: Path) -> None:
    """The lines before the cut are read, and the cut is named."""
    lines = "".join(as_line(as_json(span)) for span in make_step())
    whole = gzip.compress(lines.encode() + os.urandom(4000), mtime=0)
    path = tmp_path / "trace.gz"
    path.write_bytes(whole[:-2000])
    found = read_files([str(path)])
    assert len(found.spans) == 6
    assert "the file is cut off here" in {fault.reason for fault in found.faults}


def test_stdin_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dash is stdin, and stdin is still open afterwards."""
    path = write(tmp_path / "trace.jsonl", make_step())
    with open(path) as stdin:  # noqa: PTH123 - as a shell does
        monkeypatch.setattr(sys, "stdin", stdin)
        found = read_files(["-"])
        assert not stdin.closed
    assert {span.process.source for span in found.spans} == {"stdin"}
    assert len(found.spans) == 6


def test_last_line_that_is_being_written_is_named_as_such(tmp_path: Path) -> None:
    """A file that grows ends within a line: the rest is read."""
    path = tmp_path / "trace.jsonl"
    content = as_line(*map(as_json, make_step()))
    path.write_text(content + content[:100])
    found = read_files([str(path)])
    assert len(found.spans) == 6
    (fault,) = found.faults
    assert (fault.lines, fault.reason) == (
        [2],
        "incomplete: still being written, or its program was killed",
    )
