"""The rules of the Trace Event Format -> what a viewer shows.

Source: *Trace Event Format*: the JSON object format; metadata, complete, instant, counter and flow
events.
"""

from __future__ import annotations

import json
import re
from decimal import Decimal
from typing import Any, NoReturn

from tests.exports.shown import Mark, Shown, Slice

__all__ = ["read_chrome"]

_KEYS = {
    "M": ({"name", "pid", "tid", "args"}, set()),
    "X": (
        {"name", "cat", "pid", "tid", "ts", "dur", "args"},
        {"cname", "bind_id", "flow_out", "flow_in"},
    ),
    "i": ({"name", "cat", "pid", "tid", "ts", "s", "args"}, set()),
    "C": ({"name", "pid", "ts", "args"}, set()),
    "s": ({"name", "cat", "pid", "tid", "ts", "id"}, set()),
    "f": ({"name", "cat", "pid", "tid", "ts", "id", "bp"}, set()),
}
_METADATA = {
    "process_name": ("name", str),
    "process_labels": ("labels", str),
    "process_sort_index": ("sort_index", int),
    "thread_name": ("name", str),
    "thread_sort_index": ("sort_index", int),
}
# Those that chrome://tracing has and that the writer may use.
_COLOURS = {"rail_response", "rail_idle", "yellow", "olive", "grey", "terrible"}
_LARGEST = 2**53


def read_chrome(data: bytes) -> Shown:
    """Read a file, and fail where it breaks a rule of the format."""
    # A pair of escaped surrogates is JSON, and Perfetto refuses it.
    assert not re.search(rb"\\ud[89ab]", data, re.IGNORECASE)
    content = json.loads(
        data.decode(), parse_float=Decimal, parse_constant=_refuse, parse_int=_parse_int
    )
    assert content["displayTimeUnit"] in {"ms", "ns"}
    assert set(content) == {"displayTimeUnit", "otherData", "traceEvents"}
    return _Reader(content["traceEvents"]).read()


def _refuse(constant: str) -> NoReturn:
    raise AssertionError(f"{constant} is not JSON")


def _parse_int(text: str) -> int:
    assert abs(int(text)) < _LARGEST
    return int(text)


def _ns(us: Decimal) -> int:
    ns = us * 1000
    assert ns == int(ns)
    assert ns >= 0
    return int(ns)


class _Reader:
    def __init__(self, events: list[dict[str, Any]]) -> None:
        self._events = events
        self._names: dict[tuple[str, int], str] = {}
        self._shown = Shown()
        self._stacks: dict[int, list[str]] = {}
        self._starts: dict[Any, str] = {}
        self._ends: dict[Any, list[str]] = {}

    def read(self) -> Shown:
        for event in self._events:
            required, optional = _KEYS[event["ph"]]
            assert required <= set(event) - {"ph"} <= required | optional, event
            assert event["pid"] > 0
            getattr(self, f"_read_{event['ph']}")(event)
        assert set(self._starts) == set(self._ends)
        self._shown.flows = {
            (start, end) for flow, start in self._starts.items() for end in self._ends[flow]
        }
        return self._shown

    def _read_M(self, event: dict[str, Any]) -> None:  # noqa: N802 - the format's letter
        key, kind = _METADATA[event["name"]]
        assert set(event["args"]) == {key}
        assert isinstance(event["args"][key], kind)
        if kind is str:
            number = event["tid"] if event["name"].startswith("thread") else event["pid"]
            assert (event["name"], number) not in self._names
            self._names[event["name"], number] = event["args"][key]

    def _read_X(self, event: dict[str, Any]) -> None:  # noqa: N802 - the format's letter
        start_ns, span_id = _ns(event["ts"]), event["args"]["otel.span_id"]
        end_ns = start_ns + _ns(event["dur"])
        assert event.get("cname", "grey") in _COLOURS
        stack = self._stacks.setdefault(event["tid"], [])
        slices = self._shown.slices
        while stack and slices[stack[-1]].end_ns < end_ns:
            assert slices[stack[-1]].end_ns <= start_ns, "they cross"
            stack.pop()
        while stack and slices[stack[-1]].end_ns <= start_ns:
            stack.pop()
        slices[span_id] = Slice(
            self._names["process_name", event["pid"]],
            self._names["thread_name", event["tid"]],
            event["name"],
            event["cat"],
            start_ns,
            end_ns,
            stack[-1] if stack else "",
        )
        self._shown.attributes[span_id] = event["args"]
        stack.append(span_id)
        if "bind_id" in event:
            int(event["bind_id"], 16)
            assert event.get("flow_out", False) != event.get("flow_in", False)
            if "flow_out" in event:
                assert event["bind_id"] not in self._starts
                self._starts[event["bind_id"]] = span_id
            else:
                self._ends.setdefault(event["bind_id"], []).append(span_id)

    def _read_i(self, event: dict[str, Any]) -> None:
        assert event["s"] == "t"
        time_ns = _ns(event["ts"])
        on = self._innermost(event["tid"], time_ns)
        self._shown.marks[Mark(on, event["name"], event["cat"], time_ns)] = event["args"]

    def _read_C(self, event: dict[str, Any]) -> None:  # noqa: N802 - the format's letter
        assert event["name"] == "collectives"
        counter = self._shown.counters.setdefault(self._names["process_name", event["pid"]], [])
        counter.append((_ns(event["ts"]), event["args"]["bytes"]))

    def _read_s(self, event: dict[str, Any]) -> None:
        self._starts[event["id"]] = self._stacks[event["tid"]][-1]
        assert self._shown.slices[self._starts[event["id"]]].start_ns == _ns(event["ts"])

    def _read_f(self, event: dict[str, Any]) -> None:
        assert event["bp"] == "e"
        self._ends[event["id"]] = [self._stacks[event["tid"]][-1]]
        assert self._shown.slices[self._ends[event["id"]][0]].start_ns == _ns(event["ts"])

    def _innermost(self, tid: int, time_ns: int) -> str:
        """Return the innermost span that is open in a lane, as far as the file was read."""
        slices = self._shown.slices
        return next(
            span_id
            for span_id in reversed(self._stacks[tid])
            if slices[span_id].start_ns <= time_ns <= slices[span_id].end_ns
        )
