"""Perfetto's own protobuf classes -> what a viewer shows."""

from __future__ import annotations

from typing import Any

from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as protos

from tests.exports.shown import Mark, Shown, Slice

__all__ = ["read_perfetto"]

_TRACK_EVENT = protos.TrackEvent
_VALUES = ("bool_value", "int_value", "double_value", "string_value")


def read_perfetto(data: bytes) -> Shown:
    """Read a trace as Perfetto does: by time, packets of one time in the order of the file."""
    return _Reader(protos.Trace.FromString(data)).read()


class _Reader:
    def __init__(self, trace: Any) -> None:
        self._packets = trace.packet
        self._tracks = {
            packet.track_descriptor.uuid: packet.track_descriptor
            for packet in trace.packet
            if packet.HasField("track_descriptor")
        }
        self._texts: dict[tuple[str, int], str] = {}
        self._shown = Shown()
        self._flow_starts: dict[int, str] = {}
        self._stacks: dict[int, list[str]] = {}

    def read(self) -> Shown:
        assert self._packets[0].sequence_flags == protos.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
        assert {packet.trusted_packet_sequence_id for packet in self._packets} == {1}
        for packet in self._packets:
            for table, entries in packet.interned_data.ListFields():
                for entry in entries:
                    content = entry.str.decode() if hasattr(entry, "str") else entry.name
                    assert self._texts.setdefault((table.name, entry.iid), content) == content
        events = [packet for packet in self._packets if packet.HasField("track_event")]
        for packet in sorted(events, key=lambda packet: packet.timestamp):
            self._read_event(packet.timestamp, packet.track_event)
        assert not any(self._stacks.values())
        return self._shown

    def _read_event(self, time_ns: int, event: Any) -> None:
        track = self._tracks[event.track_uuid]
        process = self._tracks[track.parent_uuid].process.process_name
        stack = self._stacks.setdefault(track.uuid, [])
        around = stack[-1] if stack else ""
        if event.type == _TRACK_EVENT.TYPE_COUNTER:
            assert track.counter.unit == protos.CounterDescriptor.UNIT_SIZE_BYTES
            counter = self._shown.counters.setdefault(process, [])
            counter.append((time_ns, event.counter_value))
        elif event.type == _TRACK_EVENT.TYPE_SLICE_END:
            slices = self._shown.slices
            slices[stack[-1]] = slices[stack[-1]]._replace(end_ns=time_ns)
            stack.pop()
        else:
            name = self._texts["event_names", event.name_iid]
            (category,) = (self._texts["event_categories", iid] for iid in event.category_iids)
            attributes = {
                self._texts["debug_annotation_names", one.name_iid]: self._value(one)
                for one in event.debug_annotations
            }
            if event.type == _TRACK_EVENT.TYPE_INSTANT:
                self._shown.marks[Mark(around, name, category, time_ns)] = attributes
            else:
                assert event.type == _TRACK_EVENT.TYPE_SLICE_BEGIN
                span_id = attributes["otel.span_id"]
                self._shown.slices[span_id] = Slice(
                    process, track.name, name, category, time_ns, -1, around
                )
                self._shown.attributes[span_id] = attributes
                stack.append(span_id)
                self._follow(event, span_id)

    def _follow(self, event: Any, span_id: str) -> None:
        for flow in event.flow_ids:
            self._flow_starts[flow] = span_id
        for flow in event.terminating_flow_ids:
            self._shown.flows.add((self._flow_starts.pop(flow), span_id))

    def _value(self, annotation: Any) -> Any:
        if annotation.dict_entries:
            return {
                self._texts["debug_annotation_names", one.name_iid]: self._value(one)
                for one in annotation.dict_entries
            }
        if annotation.array_values:
            return [self._value(one) for one in annotation.array_values]
        if annotation.HasField("string_value_iid"):
            return self._texts["debug_annotation_string_values", annotation.string_value_iid]
        for name in _VALUES:
            if annotation.HasField(name):
                return getattr(annotation, name)
        return []
