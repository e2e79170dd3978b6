"""Spans -> a file of Chrome's trace events, for chrome://tracing, Perfetto and others.

Source: *Trace Event Format*, the JSON object format. Times are in microseconds, here with three
decimals, so that no nanosecond is lost.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from otel_modtrack.version import __version__
from otel_modtrack.view.exports.content import (
    CLOSE,
    OPEN,
    categorise,
    describe_process,
    describe_span,
    find_flows,
    moment_of,
    name_event,
    number_processes,
    total_collectives,
    walk_lane,
)
from otel_modtrack.view.exports.output import write_lanes
from otel_modtrack.view.plain import plain

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from otel_modtrack.view.exports.output import Output
    from otel_modtrack.view.lanes import ProcessLanes
    from otel_modtrack.view.model import Event, Node

__all__ = ["write_chrome"]

# Names of chrome://tracing's own colours. Blue against orange is told apart by everybody.
_COLOURS: Final = {
    "forward": "rail_response",
    "backward": "rail_idle",
    "recompute": "yellow",
    "optimizer": "olive",
    "step": "grey",
}
_FAILED_COLOUR: Final = "terrible"
# Writes every character as it is: Perfetto refuses escaped pairs of surrogates.
_json: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def write_chrome(out: BinaryIO, roots: Sequence[Node], report: Callable[[int], None]) -> None:
    """Write every span of the trees as a complete event.

    Args:
        out: Written from start to end; nothing seeks.
        roots: The trees, of any number of processes and files.
        report: Told now and then how many spans are written so far, and once at the end.
    """
    write_lanes(out, roots, report, _Writer)


class _Writer:
    """Writes event by event.

    Args:
        output: What is written to.
        start_ns: Time that the file counts from, in ns since 1970.
    """

    def __init__(self, output: Output, start_ns: int) -> None:
        self._output = output
        self._start_ns = start_ns
        self._separator = "\n"
        # No two lanes have the same number, also of different processes: Perfetto mixes them up.
        self._threads = 0
        self._bound: dict[Node, tuple[str, int]] = {}
        self._flows: dict[Node, list[tuple[str, int]]] = {}

    def write(self, processes: Sequence[ProcessLanes]) -> None:
        """Write the whole file."""
        for number, (first, second) in enumerate(find_flows(processes), start=1):
            self._join(first, second, number)
        head = {
            "displayTimeUnit": "ns",
            "otherData": {
                "exporter": f"otel_modtrack {__version__}",
                "start_time_unix_ns": str(self._start_ns),
            },
        }
        self._put(json.dumps(head)[:-1] + ', "traceEvents": [')
        pids = number_processes(processes)
        for rank, (pid, process) in enumerate(zip(pids, processes, strict=True)):
            self._write_process(pid, rank, process)
        self._put("\n]}\n")

    def _join(self, first: Node, second: Node, number: int) -> None:
        """Note the flow from one span to another.

        A span can be bound to one flow, exactly: a forward and all its backwards are. Where it has
        others, they are events at its start, which viewers join to the innermost span there.
        """
        kind, bound = self._bound.get(first, ("flow_out", number))
        if kind == "flow_out" and second not in self._bound:
            self._bound[first] = kind, bound
            self._bound[second] = "flow_in", bound
        else:
            self._flows.setdefault(first, []).append(("s", number))
            self._flows.setdefault(second, []).append(("f", number))

    def _write_process(self, pid: int, rank: int, process: ProcessLanes) -> None:
        labels = ", ".join(describe_process(process.process))
        self._write_metadata("process_name", pid, 0, {"name": process.name})
        self._write_metadata("process_labels", pid, 0, {"labels": labels})
        self._write_metadata("process_sort_index", pid, 0, {"sort_index": rank})
        for lane in process.lanes:
            self._threads += 1
            tid = self._threads
            self._write_metadata("thread_name", pid, tid, {"name": lane.name})
            self._write_metadata("thread_sort_index", pid, tid, {"sort_index": tid})
            depth = 0
            for what, node, event in walk_lane(lane):
                if what == OPEN:
                    self._write_span(node, pid, tid, is_outermost=depth == 0)
                    depth += 1
                elif what == CLOSE:
                    depth -= 1
                elif event is not None:
                    self._write_event(event, node, pid, tid)
        for time_ns, total_bytes in total_collectives(process):
            args = {"bytes": total_bytes}
            self._write(f'"ph":"C","name":"collectives","pid":{pid},"ts":{self._us(time_ns)}', args)

    def _write_metadata(self, name: str, pid: int, tid: int, args: dict[str, Any]) -> None:
        self._write(f'"ph":"M","name":"{name}","pid":{pid},"tid":{tid}', args)

    def _write_span(self, node: Node, pid: int, tid: int, *, is_outermost: bool) -> None:
        span = node.span
        category = categorise(span)
        place = f'"pid":{pid},"tid":{tid},"ts":{self._us(span.start_ns)}'
        fields = (
            f'"ph":"X","name":{_json(span.label)},"cat":{_json(category)},{place},'
            f'"dur":{_us(span.duration_ns)}'
        )
        colour = _FAILED_COLOUR if span.failed else _COLOURS.get(category)
        if colour:
            fields += f',"cname":"{colour}"'
        if node in self._bound:
            kind, number = self._bound[node]
            fields += f',"bind_id":"{number:#x}","{kind}":true'
        self._write(fields, {**span.attributes, **describe_span(span, is_outermost=is_outermost)})
        self._output.count_span()
        for phase, number in self._flows.get(node, ()):
            # "e": it ends at the span that is open at that time, not at the next one.
            bound = ',"bp":"e"' if phase == "f" else ""
            self._write(f'"ph":"{phase}","name":"link","cat":"link","id":{number},{place}{bound}')

    def _write_event(self, event: Event, node: Node, pid: int, tid: int) -> None:
        name, category = name_event(event)
        self._write(
            f'"ph":"i","s":"t","name":{_json(name)},"cat":"{category}","pid":{pid},'
            f'"tid":{tid},"ts":{self._us(moment_of(event, node.span))}',
            event.attributes,
        )

    def _write(self, fields: str, args: Mapping[str, Any] | None = None) -> None:
        shown = "" if args is None else f',"args":{_json(plain(args))}'
        self._put(f"{self._separator}{{{fields}{shown}}}")
        self._separator = ",\n"

    def _us(self, time_ns: int) -> str:
        return _us(time_ns - self._start_ns)

    def _put(self, text: str) -> None:
        self._output.write(text.encode(errors="replace"))


def _us(duration_ns: int) -> str:
    return f"{duration_ns // 1000}.{duration_ns % 1000:03}"
