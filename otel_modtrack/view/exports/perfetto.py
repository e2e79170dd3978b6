"""Spans -> a native Perfetto trace.

A trace is a row of TracePackets. Descriptors name the tracks, then the events of each track follow
in order. The numbers below are those of Perfetto's ``.proto`` files.

Source: Perfetto, *Writing synthetic traces* and *Track events*, and
``protos/perfetto/trace/trace_packet.proto`` with what it includes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, BinaryIO, Final

from otel_modtrack.view.exports.annotations import Annotations
from otel_modtrack.view.exports.content import (
    EVENT,
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
from otel_modtrack.view.exports.interning import Interned
from otel_modtrack.view.exports.output import write_lanes
from otel_modtrack.view.exports.protobuf import fixed64, message, text, varint

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from otel_modtrack.view.exports.output import Output
    from otel_modtrack.view.lanes import Lane, ProcessLanes
    from otel_modtrack.view.model import Event, Node

__all__ = ["write_perfetto"]


class _Trace:
    PACKET: Final = 1


class _TracePacket:
    CLOCK_SNAPSHOT: Final = 6
    TIMESTAMP: Final = 8
    TRUSTED_PACKET_SEQUENCE_ID: Final = 10
    TRACK_EVENT: Final = 11
    INTERNED_DATA: Final = 12
    SEQUENCE_FLAGS: Final = 13
    TRACK_DESCRIPTOR: Final = 60

    INCREMENTAL_STATE_CLEARED: Final = 1
    NEEDS_INCREMENTAL_STATE: Final = 2


class _ClockSnapshot:
    CLOCKS: Final = 1
    CLOCK_ID: Final = 1  # of a Clock, and so is the next
    CLOCK_TIMESTAMP: Final = 2

    REALTIME: Final = 1
    BOOTTIME: Final = 6  # what timestamps are of


class _TrackDescriptor:
    UUID: Final = 1
    NAME: Final = 2
    PROCESS: Final = 3
    PARENT_UUID: Final = 5
    COUNTER: Final = 8
    CHILD_ORDERING: Final = 11
    SIBLING_ORDER_RANK: Final = 12
    DESCRIPTION: Final = 14
    SIBLING_MERGE_BEHAVIOR: Final = 15
    PROCESS_ORDERING: Final = 19

    EXPLICIT_CHILDREN: Final = 3
    EXPLICIT_PROCESSES: Final = 1
    NEVER_MERGED: Final = 2


class _ProcessDescriptor:
    PID: Final = 1
    PROCESS_NAME: Final = 6
    PROCESS_LABELS: Final = 8


class _CounterDescriptor:
    UNIT: Final = 3

    SIZE_BYTES: Final = 3


class _TrackEvent:
    CATEGORY_IIDS: Final = 3
    TYPE: Final = 9
    NAME_IID: Final = 10
    TRACK_UUID: Final = 11
    COUNTER_VALUE: Final = 30
    FLOW_IDS: Final = 47
    TERMINATING_FLOW_IDS: Final = 48

    SLICE_BEGIN: Final = 1
    SLICE_END: Final = 2
    INSTANT: Final = 3
    COUNTER: Final = 4


_SEQUENCE: Final = varint(_TracePacket.TRUSTED_PACKET_SEQUENCE_ID, 1)
_NEEDS_STATE: Final = varint(_TracePacket.SEQUENCE_FLAGS, _TracePacket.NEEDS_INCREMENTAL_STATE)


def write_perfetto(out: BinaryIO, roots: Sequence[Node], report: Callable[[int], None]) -> None:
    """Write every span of the trees as a slice.

    Args:
        out: Written from start to end; nothing seeks.
        roots: The trees, of any number of processes and files.
        report: Told now and then how many spans are written so far, and once at the end.
    """
    write_lanes(out, roots, report, _Writer)


class _Writer:
    """Writes packet by packet.

    Args:
        output: What is written to.
        start_ns: Time that the file counts from, in ns since 1970.
    """

    def __init__(self, output: Output, start_ns: int) -> None:
        self._output = output
        self._start_ns = start_ns
        self._interned = Interned()
        self._annotations = Annotations(self._interned)
        self._tracks = 0
        self._flows: dict[Node, bytes] = {}

    def write(self, processes: Sequence[ProcessLanes]) -> None:
        """Write the whole file."""
        # Flow 0 is none.
        for number, (first, second) in enumerate(find_flows(processes), start=1):
            self._add_flow(first, fixed64(_TrackEvent.FLOW_IDS, number))
            self._add_flow(second, fixed64(_TrackEvent.TERMINATING_FLOW_IDS, number))
        self._write_head()
        pids = number_processes(processes)
        for rank, (pid, process) in enumerate(zip(pids, processes, strict=True)):
            self._write_process(pid, rank, process)

    def _add_flow(self, node: Node, flow: bytes) -> None:
        self._flows[node] = self._flows.get(node, b"") + flow

    def _write_head(self) -> None:
        clocks = b"".join(
            message(
                _ClockSnapshot.CLOCKS,
                varint(_ClockSnapshot.CLOCK_ID, clock)
                + varint(_ClockSnapshot.CLOCK_TIMESTAMP, time_ns),
            )
            for clock, time_ns in (
                (_ClockSnapshot.BOOTTIME, 0),
                (_ClockSnapshot.REALTIME, self._start_ns),
            )
        )
        self._put(
            message(_TracePacket.CLOCK_SNAPSHOT, clocks)
            + varint(_TracePacket.SEQUENCE_FLAGS, _TracePacket.INCREMENTAL_STATE_CLEARED)
        )
        # Track 0 is nobody's: it says that the processes come in our order, not by their load.
        self._describe(
            varint(_TrackDescriptor.UUID, 0)
            + varint(_TrackDescriptor.PROCESS_ORDERING, _TrackDescriptor.EXPLICIT_PROCESSES)
        )

    def _write_process(self, pid: int, rank: int, process: ProcessLanes) -> None:
        labels = describe_process(process.process)
        descriptor = (
            varint(_ProcessDescriptor.PID, pid)
            + text(_ProcessDescriptor.PROCESS_NAME, process.name)
            + b"".join(text(_ProcessDescriptor.PROCESS_LABELS, label) for label in labels)
        )
        parent = self._new_track()
        self._describe(
            varint(_TrackDescriptor.UUID, parent)
            + message(_TrackDescriptor.PROCESS, descriptor)
            + varint(_TrackDescriptor.CHILD_ORDERING, _TrackDescriptor.EXPLICIT_CHILDREN)
            + varint(_TrackDescriptor.SIBLING_ORDER_RANK, rank)
            + text(_TrackDescriptor.DESCRIPTION, ", ".join(labels))
        )
        for number, lane in enumerate(process.lanes):
            self._write_lane(lane, parent, number)
        totals = total_collectives(process)
        if totals:
            self._write_counter(totals, parent, len(process.lanes))

    def _write_lane(self, lane: Lane, parent: int, rank: int) -> None:
        track = self._new_track()
        self._describe(
            varint(_TrackDescriptor.UUID, track)
            + varint(_TrackDescriptor.PARENT_UUID, parent)
            + text(_TrackDescriptor.NAME, lane.name)
            + varint(_TrackDescriptor.SIBLING_ORDER_RANK, rank)
            + varint(_TrackDescriptor.SIBLING_MERGE_BEHAVIOR, _TrackDescriptor.NEVER_MERGED)
        )
        on_track = varint(_TrackEvent.TRACK_UUID, track)
        begin = varint(_TrackEvent.TYPE, _TrackEvent.SLICE_BEGIN) + on_track
        end = varint(_TrackEvent.TYPE, _TrackEvent.SLICE_END) + on_track
        instant = varint(_TrackEvent.TYPE, _TrackEvent.INSTANT) + on_track
        depth = 0
        for what, node, event in walk_lane(lane):
            span = node.span
            if what == OPEN:
                self._write_event(span.start_ns, begin + self._slice(node, is_outermost=not depth))
                depth += 1
            elif what == EVENT and event is not None:
                self._write_event(moment_of(event, span), instant + self._instant(event))
            else:
                self._write_event(span.end_ns, end)
                self._output.count_span()
                depth -= 1

    def _slice(self, node: Node, *, is_outermost: bool) -> bytes:
        span = node.span
        return (
            self._titled(span.label, categorise(span))
            + self._annotations.shared(span.attributes)
            + self._annotations.own(describe_span(span, is_outermost=is_outermost))
            + self._flows.get(node, b"")
        )

    def _instant(self, event: Event) -> bytes:
        return self._titled(*name_event(event)) + self._annotations.shared(event.attributes)

    def _titled(self, name: str, category: str) -> bytes:
        return varint(_TrackEvent.NAME_IID, self._interned.event_name(name)) + varint(
            _TrackEvent.CATEGORY_IIDS, self._interned.category(category)
        )

    def _write_counter(self, totals: Sequence[tuple[int, int]], parent: int, rank: int) -> None:
        track = self._new_track()
        self._describe(
            varint(_TrackDescriptor.UUID, track)
            + varint(_TrackDescriptor.PARENT_UUID, parent)
            + text(_TrackDescriptor.NAME, "collective bytes")
            + varint(_TrackDescriptor.SIBLING_ORDER_RANK, rank)
            + message(
                _TrackDescriptor.COUNTER,
                varint(_CounterDescriptor.UNIT, _CounterDescriptor.SIZE_BYTES),
            )
        )
        head = varint(_TrackEvent.TYPE, _TrackEvent.COUNTER) + varint(_TrackEvent.TRACK_UUID, track)
        for time_ns, total_bytes in totals:
            self._write_event(time_ns, head + varint(_TrackEvent.COUNTER_VALUE, total_bytes))

    def _new_track(self) -> int:
        self._tracks += 1
        return self._tracks

    def _describe(self, descriptor: bytes) -> None:
        self._put(message(_TracePacket.TRACK_DESCRIPTOR, descriptor))

    def _write_event(self, time_ns: int, event: bytes) -> None:
        fresh = self._interned.take_fresh()
        self._put(
            varint(_TracePacket.TIMESTAMP, time_ns - self._start_ns)
            + (message(_TracePacket.INTERNED_DATA, fresh) if fresh else b"")
            + message(_TracePacket.TRACK_EVENT, event)
            + _NEEDS_STATE
        )

    def _put(self, packet: bytes) -> None:
        self._output.write(message(_Trace.PACKET, _SEQUENCE + packet))
