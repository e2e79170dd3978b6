"""Spans -> the page."""

from __future__ import annotations

import html
from importlib import resources
from typing import TYPE_CHECKING, Final

from otel_modtrack.version import __version__
from otel_modtrack.view.html.binary import encode
from otel_modtrack.view.html.columns import encode_spans

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from otel_modtrack.view.model import Span
    from otel_modtrack.view.reader import Fault

__all__ = ["render_page"]

_TITLE: Final = "<!--title-->"
_DATA: Final = "<!--data-->"
_SHOWN_LINES: Final = 5


def render_page(
    spans: Sequence[Span],
    *,
    faults: Sequence[Fault] = (),
    report: Callable[[int, int], None] | None = None,
) -> str:
    """Return the page that shows the spans: complete HTML, which loads nothing.

    Args:
        spans: Of any number of processes, in any order.
        faults: What was skipped in their files; the page says so.
        report: Called now and then with how many spans are done, and of how many.
    """
    title = _name(spans)
    meta = {
        "title": title,
        "version": __version__,
        "faults": [_tell(fault) for fault in faults],
    }
    data = encode_spans(spans, meta, report)
    page = resources.files("otel_modtrack.view.html").joinpath("page.html").read_text("utf-8")
    head, rest = page.split(_TITLE)
    middle, tail = rest.split(_DATA)
    return f"{head}{html.escape(title)}{middle}{data}{tail}"


def _name(spans: Sequence[Span]) -> str:
    """Return the services, or else the files, that the spans are of."""
    processes = dict.fromkeys(span.process for span in spans)
    # The SDK's name for a service that has none says nothing.
    services = [
        process.service
        for process in processes
        if process.service and not process.service.startswith("unknown_service")
    ]
    names = list(dict.fromkeys(services or [process.source for process in processes]))
    return encode(", ".join(filter(None, names))).decode() or "spans"


def _tell(fault: Fault) -> str:
    """Say what was skipped: ``run.jsonl: no OTLP JSON, lines 3, 7``."""
    numbers = ", ".join(str(number) for number in fault.lines[:_SHOWN_LINES])
    more = len(fault.lines) - _SHOWN_LINES
    word = "line" if len(fault.lines) == 1 else "lines"
    return f"{fault.path}: {fault.reason}, {word} {numbers}" + (
        f" and {more} more" if more > 0 else ""
    )
