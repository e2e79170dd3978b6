"""Spans -> one page for a browser that needs nothing else: no server, no network.

``layout`` places spans in rows, ``columns`` turns spans into numbers, ``binary`` numbers into few
bytes, ``page`` puts them into ``page.html``, which is built from ``frontend/``.
"""

from otel_modtrack.view.html.page import render_page

__all__ = ["render_page"]
