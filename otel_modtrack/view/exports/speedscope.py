"""Spans -> a file for speedscope.

Source: speedscope's ``file-format-schema.json``: evented profiles, whose events open and close
frames in order of time, the innermost first.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, BinaryIO

from otel_modtrack.version import __version__
from otel_modtrack.view.exports.content import CLOSE, EVENT, walk_lane
from otel_modtrack.view.exports.output import write_lanes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from otel_modtrack.view.exports.output import Output
    from otel_modtrack.view.lanes import Lane, ProcessLanes
    from otel_modtrack.view.model import Node, Span

__all__ = ["write_speedscope"]


def write_speedscope(out: BinaryIO, roots: Sequence[Node], report: Callable[[int], None]) -> None:
    """Write every span of the trees as an evented profile for each lane.

    Args:
        out: Written from start to end; nothing seeks.
        roots: The trees, of any number of processes and files.
        report: Told now and then how many spans are written so far, and once at the end.
    """
    write_lanes(out, roots, report, _Writer)


class _Writer:
    """Writes the object key by key, the frames last: only then all are known.

    Args:
        output: What is written to.
        start_ns: Time that the file counts from, in ns since 1970.
    """

    def __init__(self, output: Output, start_ns: int) -> None:
        self._output = output
        self._start_ns = start_ns
        self._frames: dict[tuple[str, str], int] = {}

    def write(self, processes: Sequence[ProcessLanes]) -> None:
        """Write the whole file."""
        head = {
            "$schema": "https://www.speedscope.app/file-format-schema.json",
            "exporter": f"otel_modtrack {__version__}",
            "name": _name_file(processes),
            "activeProfileIndex": 0,
        }
        self._put(json.dumps(head)[:-1] + ', "profiles": [')
        is_first = True
        for process in processes:
            for lane in process.lanes:
                self._put("\n" if is_first else ",\n")
                self._write_profile(f"{process.name}, {lane.name}", lane)
                is_first = False
        frames = [_make_frame(name, template) for name, template in self._frames]
        self._put(f'],\n"shared": {{"frames": {json.dumps(frames)}}}}}\n')

    def _write_profile(self, name: str, lane: Lane) -> None:
        starts = [lane.nodes[0].span.start_ns]
        head = {
            "type": "evented",
            "name": name,
            "unit": "nanoseconds",
            "startValue": starts[0] - self._start_ns,
            "endValue": max(node.span.end_ns for node in lane.nodes) - self._start_ns,
        }
        self._put(json.dumps(head)[:-1] + ', "events": [')
        separator = ""
        for what, node, _ in walk_lane(lane):
            if what == EVENT:
                continue
            span = node.span
            kind, at_ns = ("C", span.end_ns) if what == CLOSE else ("O", span.start_ns)
            frame = self._number(span)
            self._put(
                f'{separator}{{"type":"{kind}","frame":{frame},"at":{at_ns - self._start_ns}}}'
            )
            separator = ","
            if what == CLOSE:
                self._output.count_span()
        self._put("]}")

    def _number(self, span: Span) -> int:
        """Return the number of the span's frame: one for all calls of a module in a phase."""
        name = f"{span.call} (failed)" if span.failed else span.call
        return self._frames.setdefault((name, span.template or ""), len(self._frames))

    def _put(self, text: str) -> None:
        self._output.write(text.encode())


def _make_frame(name: str, template: str) -> dict[str, Any]:
    """Return a frame. Its file is the template, so that all layers of a list have like colours."""
    return {"name": name, "file": template} if template else {"name": name}


def _name_file(processes: Sequence[ProcessLanes]) -> str:
    sources = dict.fromkeys(process.process.source for process in processes)
    return ", ".join(source for source in sources if source) or "otel_modtrack"
