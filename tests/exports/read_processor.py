"""Perfetto's own trace processor, asked in SQL -> what a viewer shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.exports.shown import Mark, Shown, Slice

if TYPE_CHECKING:
    from pathlib import Path

    from tests.exports.processor import Processor

__all__ = ["read_processor"]

_QUERIES = {
    "faults": "select name, value from stats where value != 0 and severity != 'info'",
    # A lane is a track of its process's, or a thread.
    "slices": """
        select s.id, s.ts, s.dur, s.name, s.category, s.parent_id as around, s.arg_set_id as args,
            coalesce(p.name, q.name) as process, coalesce(h.name, t.name) as lane
        from slice s join track t on t.id = s.track_id
        left join process_track pt on pt.id = t.id left join process p on p.upid = pt.upid
        left join thread_track tt on tt.id = t.id left join thread h on h.utid = tt.utid
        left join process q on q.upid = h.upid""",
    "args": """
        select arg_set_id as args, key, value_type, int_value, string_value, real_value
        from args where key like 'debug.%' or key like 'args.%'""",
    "flows": "select slice_out, slice_in from flow",
    "counters": """
        select p.name as process, c.ts, c.value from counter c
        join process_counter_track t on t.id = c.track_id join process p using (upid)
        order by c.ts""",
}


def read_processor(processor: Processor, file: Path) -> Shown:
    """Read a file. Attributes have one level, and underscores for dots; empty ones are missing."""
    processor.load(file)
    return _show({name: processor.query(sql) for name, sql in _QUERIES.items()})


def _show(rows: dict[str, list[dict[str, Any]]]) -> Shown:
    assert rows["faults"] == []
    attributes: dict[int, dict[str, Any]] = {}
    for arg in rows["args"]:
        name = arg["key"].split(".", 1)[1].replace(".", "_")
        attributes.setdefault(arg["args"], {})[name] = _value(arg)
    ids = {row["id"]: attributes.get(row["args"], {}).get("otel_span_id") for row in rows["slices"]}
    shown = Shown()
    for row in rows["slices"]:
        around = "" if row["around"] is None else ids[row["around"]]
        span_id, args = ids[row["id"]], attributes.get(row["args"], {})
        if span_id is None:
            assert row["dur"] == 0
            shown.marks[Mark(around, row["name"], row["category"], row["ts"])] = args
        else:
            place = row["process"], row["lane"], row["name"], row["category"]
            shown.slices[span_id] = Slice(*place, row["ts"], row["ts"] + row["dur"], around)
            shown.attributes[span_id] = args
    shown.flows = {(ids[row["slice_out"]], ids[row["slice_in"]]) for row in rows["flows"]}
    for row in rows["counters"]:
        shown.counters.setdefault(row["process"], []).append((row["ts"], row["value"]))
    return shown


def _value(arg: dict[str, Any]) -> Any:
    if arg["value_type"] == "string":
        return arg["string_value"]
    if arg["value_type"] == "real":
        return arg["real_value"]
    return bool(arg["int_value"]) if arg["value_type"] == "bool" else arg["int_value"]
