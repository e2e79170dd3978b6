"""What ``otel-modtrack view`` shows: each as a text, or as a document for scripts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_modtrack.numerals import plural
from otel_modtrack.sizes import render_size
from otel_modtrack.view import asjson
from otel_modtrack.view.choose import choose_parts, choose_units
from otel_modtrack.view.collectives import render_collectives, sum_launches
from otel_modtrack.view.diff import compare, leave_out_warm_up, measure, render_changes
from otel_modtrack.view.paint import join_some
from otel_modtrack.view.top import (
    SELF,
    TEMPLATE,
    render_slowest,
    render_top,
    sort_rows,
    sum_rows,
)
from otel_modtrack.view.tree import describe_part, render_headline, render_tree

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_modtrack.view.choose import Units
    from otel_modtrack.view.diff import Side
    from otel_modtrack.view.model import Node
    from otel_modtrack.view.options import Options


__all__ = ["show_collectives", "show_diff", "show_top", "show_tree"]

Document = dict[str, Any]


def show_tree(trees: Sequence[Node], source: str, options: Options) -> str | Document:
    """A step or trace of each rank: what it is, its tree; last, what was slowest in all of them.

    Args:
        trees: Of all files.
        source: What the files are called in a message.
        options: What the user chose.

    Raises:
        UsageError: If nothing is what was chosen.
    """
    parts = choose_parts(trees, options.selection, source)
    roots = [root for part in parts for root in part]
    kept = options.narrowing.keep(roots)
    whole_ns = sum(root.span.duration_ns for root in roots)
    rows = sort_rows(sum_rows(roots, by=TEMPLATE, kept=kept), SELF)[: options.slowest]
    if options.as_json:
        return {
            "parts": [asjson.as_part(part, depth=options.depth, kept=kept) for part in parts],
            "slowest": asjson.as_rows(rows, whole_ns, len(parts)),
        }
    blocks = []
    for part in parts:
        blocks.append(render_headline(part, kept=kept, text=options.narrowing.text))
        blocks.append(render_tree(part, depth=options.depth, kept=kept, colour=options.colour))
    if rows:
        together = f", {len(parts)} ranks together" if len(parts) > 1 else ""
        blocks.append(f"Slowest by time of their own{together}:")
        blocks.append(render_slowest(rows, whole_ns, colour=options.colour))
    return "\n\n".join(blocks)


def show_top(trees: Sequence[Node], source: str, options: Options) -> str | Document:
    """The modules that took most time, over all steps. As `show_tree`."""
    units = choose_units(trees, options.selection, source)
    kept = options.narrowing.keep(units.roots)
    by, sort = options.by or TEMPLATE, options.sort or SELF
    rows = sort_rows(sum_rows(units.roots, by=by, kept=kept), sort)
    shown = rows[: options.top]
    if options.as_json:
        return {
            **asjson.as_units(units),
            "by": by,
            "sort": sort,
            "rows": asjson.as_rows(shown, units.duration_ns, units.count),
        }
    own = "time of their own" if sort == SELF else "time"
    which = f"{_some(len(shown), len(rows), 'row')} by {own}{_narrowed(options)}:"
    table = render_top(shown, units.duration_ns, colour=options.colour)
    return f"{_headline(units)}\n\n{which}\n\n{table}"


def show_collectives(trees: Sequence[Node], source: str, options: Options) -> str | Document:
    """The collectives of all steps. As `show_tree`."""
    units = choose_units(trees, options.selection, source)
    kept = options.narrowing.keep(units.roots)
    by = options.by or TEMPLATE
    launches = sum_launches(units.roots, by=by, kept=kept)
    if options.as_json:
        return {**asjson.as_units(units), "by": by, "rows": asjson.as_launches(launches)}
    if not launches:
        return f"{_headline(units)}\n\nNo collective was launched{_narrowed(options)}."
    count = sum(one.count for one in launches)
    size = render_size(sum(one.size_bytes for one in launches))
    which = f"{plural(count, 'collective')} of {size}{_narrowed(options)}:"
    table = render_collectives(launches, colour=options.colour)
    return f"{_headline(units)}\n\n{which}\n\n{table}"


def show_diff(
    trees: Sequence[Node],
    source: str,
    later_trees: Sequence[Node],
    later_source: str,
    options: Options,
) -> str | Document:
    """What takes longer or shorter per step in a later run. As `show_tree`."""
    chosen = [
        choose_units(trees, options.selection, source),
        choose_units(later_trees, options.selection, later_source),
    ]
    kept = options.narrowing.keep([root for units in chosen for root in units.roots])
    by, sort = options.by or TEMPLATE, options.sort or SELF
    sides = []
    for units in chosen:
        rest, left_out = units, 0
        if options.selection.step is None:
            rest, left_out = leave_out_warm_up(units)
        sides.append(measure(rest, left_out, by=by, kept=kept))
    before, after = sides
    changes = compare(before, after, sort=sort)
    rows = changes[: options.top]
    if options.as_json:
        return {
            "before": asjson.as_side(before),
            "after": asjson.as_side(after),
            "difference_ms": round((after.mean_ns - before.mean_ns) / 1e6, 6),
            "median_difference_ms": round((after.median_ns - before.median_ns) / 1e6, 6),
            "by": by,
            "sort": sort,
            "rows": asjson.as_changes(rows),
        }
    what = before.units.what
    own = "time of their own" if sort == SELF else "time"
    sums = (
        f"Before: {source}: {_side(before)}\n"
        f"After: {later_source}: {_side(after)}\n"
        f"Difference: {_change(before.mean_ns, after.mean_ns)} a {what}, "
        f"of the medians {_change(before.median_ns, after.median_ns)}"
    )
    shown = _some(len(rows), len(changes), "difference")
    which = f"{shown} in {own} a {what}{_narrowed(options)}:"
    return f"{sums}\n\n{which}\n\n{render_changes(rows, sort=sort, colour=options.colour)}"


def _headline(units: Units) -> str:
    """Tell what is summed up: ``20 steps of trainer: 1,620 spans, 1340.2 ms``."""
    outside = f"; {plural(units.outside, 'span')} in no step left out" if units.outside else ""
    return (
        f"{_count(units)}: {plural(units.spans, 'span')}, {units.duration_ns / 1e6:.1f} ms{outside}"
    )


def _count(units: Units) -> str:
    """Tell how many steps there are, of which services and ranks."""
    services = list(dict.fromkeys(describe_part([root])[1] for root in units.roots))
    of = join_some([service for service in services if service], shown=3)
    ranks = dict.fromkeys(root.span.rank for root in units.roots)
    first = next(iter(ranks))
    told = ""
    if len(units.ranks) > 1:
        told = f" on {len(units.ranks)} ranks"
    elif first is not None:
        told = ", rank {} of {}".format(*first)
    return f"{plural(units.count, units.what)}{f' of {of}' if of else ''}{told}"


def _side(side: Side) -> str:
    left_out = ""
    if side.left_out == 1:
        left_out = ", without the first"
    elif side.left_out:
        left_out = ", without the first of each process"
    what = side.units.what
    return (
        f"{_count(side.units)}{left_out}: {side.mean_ns / 1e6:.3f} ms a {what}, "
        f"median {side.median_ns / 1e6:.3f} ms"
    )


def _change(before_ns: float, after_ns: float) -> str:
    """Tell a difference: ``+1.000 ms (+10.0%)``."""
    difference_ns = after_ns - before_ns
    relative = f" ({difference_ns / before_ns:+.1%})" if before_ns else ""
    return f"{difference_ns / 1e6:+.3f} ms{relative}"


def _some(shown: int, of: int, what: str) -> str:
    """``All 12 rows``, ``The first 5 of 12 rows``."""
    if shown == of:
        return f"All {plural(of, what)}" if of != 1 else f"The only {what}"
    return f"The first {shown:,} of {plural(of, what)}"


def _narrowed(options: Options) -> str:
    return f", {options.narrowing.text} only" if options.narrowing.text else ""
