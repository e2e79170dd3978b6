"""What is shown, as a document for scripts. Its keys are documented in docs/view.md.

Times are in milliseconds, with six decimals: no nanosecond is lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from otel_modtrack import semconv
from otel_modtrack.view.model import sum_collectives
from otel_modtrack.view.top import SELF, TOTAL
from otel_modtrack.view.tree import lay_out

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_modtrack.view.choose import Units
    from otel_modtrack.view.collectives import Launches
    from otel_modtrack.view.diff import Change, PerStep, Side
    from otel_modtrack.view.model import Collectives, Node
    from otel_modtrack.view.narrow import Kept
    from otel_modtrack.view.top import Row
    from otel_modtrack.view.tree import Line


__all__ = ["VERSION", "as_changes", "as_launches", "as_part", "as_rows", "as_side", "as_units"]

# Raised when a key is taken away or means something else.
VERSION: Final = 1


def as_part(
    roots: Sequence[Node], *, depth: int | None = None, kept: Kept | None = None
) -> dict[str, Any]:
    """A step or trace of one rank, with its tree as a list from top to bottom."""
    first = roots[0].span
    spans = [node.span for root in roots for _, node in root.walk()]
    duration_ns = sum(root.span.duration_ns for root in roots)
    return {
        "rank": first.process.rank,
        "world_size": first.process.world_size,
        "service": first.process.service,
        "step": first.step if len(roots) == 1 else None,
        "trace_id": first.trace_id,
        "start_unix_ns": str(first.start_ns),  # larger than a double is exact
        "duration_ms": _ms(duration_ns),
        "span_count": len(spans),
        "collectives": [_as_collectives(one) for one in sum_collectives(spans)],
        "spans": [
            _as_line(line, first.start_ns, duration_ns)
            for line in lay_out(roots, depth=depth, kept=kept)
        ],
    }


def _as_line(line: Line, start_ns: int, whole_ns: int) -> dict[str, Any]:
    span = line.node.span
    return {
        "depth": line.depth,
        "span_id": span.span_id,
        "parent_id": span.parent_id or None,
        "name": span.name,
        "label": span.label,
        "phase": span.category,
        "fqn": span.fqn,
        "template": span.template,
        "type": span.module_type,
        "call_index": _whole(span.attributes.get(semconv.MODULE_CALL_INDEX)),
        "start_ms": _ms(span.start_ns - start_ns),
        "duration_ms": _ms(span.duration_ns),
        "self_ms": _ms(line.node.self_ns),
        "share": _share(span.duration_ns, whole_ns),
        "error": str(span.attributes.get(semconv.ERROR_TYPE, "error")) if span.failed else None,
        "is_context": line.is_context,
        "hidden": line.hidden,
        "collectives": [_as_collectives(one) for one in line.collectives],
    }


def _as_collectives(one: Collectives) -> dict[str, Any]:
    return {
        "operation": one.operation,
        "group": one.group or None,
        "count": one.count,
        "size_bytes": one.size_bytes,
    }


def as_units(units: Units) -> dict[str, Any]:
    """What is summed up."""
    return {
        "unit": units.what,
        "unit_count": units.count,
        "ranks": units.ranks,
        "duration_ms": _ms(units.duration_ns),
        "span_count": units.spans,
        "outside_span_count": units.outside,
    }


def as_rows(rows: Sequence[Row], whole_ns: int, count: int) -> list[dict[str, Any]]:
    """The rows of a table of modules.

    Args:
        rows: In order.
        whole_ns: What shares are of.
        count: Of steps or traces.
    """
    return [
        {
            "name": row.name,
            "phase": row.category,
            "module": row.module or None,
            "calls": row.calls,
            "self_ms": _ms(row.self_ns),
            "self_share": _share(row.self_ns, whole_ns),
            "self_ms_per_unit": _ms(row.self_ns / count),
            "total_ms": _ms(row.total_ns),
            "total_share": _share(row.total_ns, whole_ns),
            "total_ms_per_unit": _ms(row.total_ns / count),
            "mean_ms": _ms(row.mean_ns),
            "longest_ms": _ms(row.longest_ns),
        }
        for row in rows
    ]


def as_launches(launches: Sequence[Launches]) -> list[dict[str, Any]]:
    """The rows of the table of collectives."""
    return [
        {
            "operation": one.operation,
            "group": one.group or None,
            "group_size": one.group_size,
            "name": one.name,
            "phase": one.category,
            "module": one.module or None,
            "count": one.count,
            "size_bytes": one.size_bytes,
            "duration_ms": _ms(one.duration_ns) if one.timed else None,
            "timed_count": one.timed,
        }
        for one in launches
    ]


def as_side(side: Side) -> dict[str, Any]:
    """One of two runs."""
    return {
        **as_units(side.units),
        "left_out_count": side.left_out,
        "mean_ms": _ms(side.mean_ns),
        "median_ms": _ms(side.median_ns),
    }


def as_changes(changes: Sequence[Change]) -> list[dict[str, Any]]:
    """The rows of the table of differences. Times and calls are per step or trace."""
    return [
        {
            "name": change.name,
            "phase": change.category,
            "module": change.module or None,
            "before": _as_times(change.before),
            "after": _as_times(change.after),
            "self_difference_ms": _ms(change.difference_ns(SELF)),
            "self_median_difference_ms": _ms(change.median_difference_ns(SELF)),
            "total_difference_ms": _ms(change.difference_ns(TOTAL)),
            "total_median_difference_ms": _ms(change.median_difference_ns(TOTAL)),
        }
        for change in changes
    ]


def _as_times(times: PerStep | None) -> dict[str, Any] | None:
    if times is None:
        return None
    return {
        "self_ms": _ms(times.self_ns),
        "self_median_ms": _ms(times.self_median_ns),
        "total_ms": _ms(times.total_ns),
        "total_median_ms": _ms(times.total_median_ns),
        "calls": round(times.calls, 6),
    }


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) else None


def _ms(duration_ns: float) -> float:
    return round(duration_ns / 1e6, 6)


def _share(part_ns: int, whole_ns: int) -> float:
    return round(part_ns / whole_ns, 6) if whole_ns else 0.0
