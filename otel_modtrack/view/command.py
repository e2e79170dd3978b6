"""What ``otel-modtrack view`` does: choose a step and print it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from otel_modtrack.sizes import render_size
from otel_modtrack.usage import UsageError
from otel_modtrack.view.model import build_trees, find_steps, sum_collectives
from otel_modtrack.view.reader import from_sdk, read_trace_file
from otel_modtrack.view.terminal import render_slowest, render_tree

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from opentelemetry.sdk.trace import ReadableSpan

    from otel_modtrack.view.model import Node, Span


__all__ = ["view_file", "view_spans"]


def view_file(
    path: str | Path,
    *,
    step: int | None = None,
    depth: int | None = None,
    top: int = 10,
    colour: bool = False,
) -> None:
    """Print a step of a trace file: what it is, its tree, its slowest spans.

    Args:
        path: A file of OTLP JSON lines.
        step: Number of the training step; the last one, or the last trace of a file without steps,
            if None.
        depth: Levels of the tree; all if None.
        top: Rows of the table; 0 for no table.
        colour: Whether to use a terminal's colours.

    Raises:
        UsageError: If the file cannot be read, has no spans, or not that step.
    """
    found = read_trace_file(path)
    if found.bad_lines:
        print(
            f"otel-modtrack view: skipped what could not be read in {path}, "
            f"{_lines(found.bad_lines)}",
            file=sys.stderr,
        )
    roots = _choose(build_trees(found.spans), step, str(path))
    _print(roots, depth=depth, top=top, colour=colour)


def view_spans(
    spans: Iterable[ReadableSpan],
    *,
    step: int | None = None,
    depth: int | None = None,
    top: int = 10,
    colour: bool = False,
) -> None:
    """Print a step of the SDK's finished spans, as an in-memory exporter holds them.

    Args:
        spans: In any order.
        step: As for `view_file`, and so is the rest.
        depth: Levels of the tree; all if None.
        top: Rows of the table; 0 for no table.
        colour: Whether to use a terminal's colours.

    Raises:
        UsageError: If there is no span, or not that step.
    """
    trees = build_trees(map(from_sdk, spans))
    if not trees:
        raise UsageError("there are no spans; was the tracker on, with this provider?")
    roots = _choose(trees, step, "the program")
    _print(roots, depth=depth, top=top, colour=colour)


def _print(roots: list[Node], *, depth: int | None, top: int, colour: bool) -> None:
    print(_headline(roots))
    print()
    print(render_tree(roots, depth=depth, colour=colour))
    if top:
        print()
        print("Slowest by time of their own:")
        print()
        print(render_slowest(roots, top=top, colour=colour))


def _choose(trees: list[Node], step: int | None, source: str) -> list[Node]:
    """Return the step that was asked for, or the last one, or the last trace."""
    steps = find_steps(trees)
    if step is not None:
        matching = [node for node in steps if node.span.step == step]
        if not matching:
            raise UsageError(f"{source} has no step {step}; {_which_steps(steps)}")
        return matching[-1:]
    if steps:
        return steps[-1:]
    last = trees[-1].span.trace_id
    return [tree for tree in trees if tree.span.trace_id == last]


def _which_steps(steps: list[Node]) -> str:
    numbers = sorted(node.span.step for node in steps if node.span.step is not None)
    if not numbers:
        return "it has no steps at all: leave --step out to see its last trace"
    if numbers[0] == numbers[-1]:
        return f"its only step is {numbers[0]}"
    return f"its steps run from {numbers[0]} to {numbers[-1]}"


def _headline(roots: list[Node]) -> str:
    first = roots[0].span
    spans = [node.span for root in roots for _, node in root.walk()]
    duration_ms = sum(root.span.duration_ns for root in roots) / 1e6
    what = f"Trace {first.trace_id}" if first.step is None else f"Step {first.step}"
    # The SDK's name for a service that has none says nothing.
    is_named = first.service and not first.service.startswith("unknown_service")
    service = f" of {first.service}" if is_named else ""
    rank = "" if first.rank is None else ", rank {} of {}".format(*first.rank)
    return (
        f"{what}{service}{rank}: {_plural(len(spans), 'span')}, {duration_ms:.1f} ms"
        f"{_launched(spans)}"
    )


def _launched(spans: list[Span]) -> str:
    found = sum_collectives(spans)
    if not found:
        return ""
    count = sum(one.count for one in found)
    size = render_size(sum(one.size_bytes for one in found))
    return f", {_plural(count, 'collective')} of {size}"


def _plural(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _lines(numbers: list[int], *, shown: int = 5) -> str:
    listed = ", ".join(str(number) for number in numbers[:shown])
    more = f" and {len(numbers) - shown} more" if len(numbers) > shown else ""
    return f"line{'s' if len(numbers) > 1 else ''} {listed}{more}"
