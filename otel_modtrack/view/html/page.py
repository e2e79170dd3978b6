"""Spans -> the page."""

from __future__ import annotations

import html
from importlib import resources
from typing import TYPE_CHECKING, Final

from otel_modtrack.version import __version__
from otel_modtrack.view.html.binary import encode
from otel_modtrack.view.html.columns import encode_trees

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from otel_modtrack.view.model import Node, Process
    from otel_modtrack.view.reader import Fault

__all__ = ["render_page"]

_TITLE: Final = "<!--title-->"
_DATA: Final = "<!--data-->"


def render_page(
    roots: Sequence[Node],
    *,
    faults: Sequence[Fault] = (),
    report: Callable[[int, int], None] | None = None,
) -> str:
    """Return the page that shows the spans of trees: complete HTML, which loads nothing.

    Args:
        roots: The trees, of any number of processes.
        faults: What was skipped in their files; the page says so.
        report: Called now and then with how many spans are done, and of how many.
    """
    title = _name([node.span.process for root in roots for _, node in root.walk()])
    meta = {
        "title": title,
        "version": __version__,
        "faults": [f"{fault.path}: {fault.reason}, {fault.where}" for fault in faults],
    }
    data = encode_trees(roots, meta, report)
    page = resources.files("otel_modtrack.view.html").joinpath("page.html").read_text("utf-8")
    head, rest = page.split(_TITLE)
    middle, tail = rest.split(_DATA)
    return f"{head}{html.escape(title)}{middle}{data}{tail}"


def _name(spans: Sequence[Process]) -> str:
    """Return the services, or else the files, of spans whose processes these are."""
    processes = dict.fromkeys(spans)
    services = [process.own_service for process in processes if process.own_service]
    names = list(dict.fromkeys(services or [process.source for process in processes]))
    return encode(", ".join(filter(None, names))).decode() or "spans"
