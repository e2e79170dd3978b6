"""What ``otel-modtrack view`` does: read files, show what was chosen, write other files."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

from otel_modtrack import semconv
from otel_modtrack.usage import UsageError
from otel_modtrack.view import asjson
from otel_modtrack.view.choose import Selection, select
from otel_modtrack.view.model import build_trees
from otel_modtrack.view.options import COLLECTIVES, DIFF, TOP, TREE, Options
from otel_modtrack.view.printing import (
    as_document,
    name_files,
    named_stdout,
    say,
    say_skipped,
)
from otel_modtrack.view.reader import from_sdk, read_files
from otel_modtrack.view.shows import show_collectives, show_diff, show_top, show_tree
from otel_modtrack.view.writing import open_files

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from opentelemetry.sdk.trace import ReadableSpan

    from otel_modtrack.view.model import Node, Span
    from otel_modtrack.view.reader import Fault


__all__ = ["view_files", "view_spans"]


def view_files(paths: Sequence[str], options: Options | None = None) -> None:
    """Print what trace files hold, or write it for other viewers.

    Args:
        paths: Files of OTLP JSON lines, compressed by gzip or not; ``-`` for stdin.
        options: What is shown of them; the tree of the last step, if None.

    Raises:
        UsageError: If a file cannot be read or written, has no spans, or nothing of what was
            chosen; or if options contradict each other.
    """
    options = options or Options()
    options.check()
    inputs = [*paths, *options.diff]
    if inputs.count("-") > 1:
        raise UsageError("stdin can be read once only; give - once")
    with open_files(options.exports, inputs) as writer:
        trees, faults = _read(paths)
        source = name_files(paths)
        content: str | dict[str, Any] = ""
        shows = options.shows
        if shows == DIFF:
            later_trees, later_faults = _read(options.diff)
            faults = [*faults, *later_faults]
            content = show_diff(trees, source, later_trees, name_files(options.diff), options)
        elif shows is not None:
            content = _SHOW[shows](trees, source, options)
        written = []
        if options.exports:
            written = writer.write(select(trees, options.selection, source), faults)
    text = content
    if isinstance(content, dict):
        head = {"view": shows, "version": asjson.VERSION}
        files = [paths, options.diff] if options.diff else [paths]
        text = as_document(head, files, faults, content)
    with named_stdout():
        if text:
            print(text)
        if text and written and not options.as_json:
            print()
        for line in written:
            print(line, file=sys.stderr if options.as_json else sys.stdout)
        sys.stdout.flush()


_SHOW: Final = {TREE: show_tree, TOP: show_top, COLLECTIVES: show_collectives}


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
        step: Number of the training step; the last one, or the last trace if there are no steps,
            if None.
        depth: Levels of the tree; all if None.
        top: Rows of the table of the slowest; 0 for no table.
        colour: Whether to use a terminal's colours.

    Raises:
        UsageError: If there is no span, or not that step.
    """
    trees = build_trees(from_sdk(spans))
    if not trees:
        raise UsageError("there are no spans; was the tracker on, with this provider?")
    options = Options(selection=Selection(step), depth=depth, slowest=top, colour=colour)
    print(show_tree(trees, "the program", options))


def _read(paths: Sequence[str]) -> tuple[list[Node], list[Fault]]:
    """Read files, say on stderr what is amiss, and build the trees."""
    found = read_files(paths, "view")
    say_skipped("view", found.faults)
    for path in _without_ours(found.spans):
        say("view", f"no span in {path} is of otel_modtrack's; they are shown as they are")
    return build_trees(found.spans), found.faults


def _without_ours(spans: Iterable[Span]) -> list[str]:
    """Return the files in which no span was made by otel_modtrack, or says anything of a module."""
    files: dict[str, bool] = {}
    for span in spans:
        source = span.process.source
        if not files.get(source):
            files[source] = span.scope == semconv.SCOPE_NAME or any(
                name.startswith("modtrack.") for name in span.attributes
            )
    return [path for path, has_ours in files.items() if not has_ours]
