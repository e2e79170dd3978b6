"""A real browser, and pages in it. Whatever goes wrong on a page fails its test."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Literal

import pytest

from otel_modtrack.view.html import render_page
from otel_modtrack.view.model import build_trees
from scripts.browser import find_chromium, open_browser
from tests.page.shown import Shown

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Callable, Iterator, Sequence

    from playwright.sync_api import Browser

    from otel_modtrack.view.model import Span
    from otel_modtrack.view.reader import Fault


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """The browser that the tests of the page share; its event loop must not outlast them."""
    if importlib.util.find_spec("playwright") is None:
        pytest.skip("playwright is not installed: pip install 'otel_modtrack[test]'")
    if find_chromium() is None:
        pytest.skip("no chromium on the PATH: apt-get install chromium")
    with open_browser() as opened:
        yield opened


@pytest.fixture
def show(browser: Browser, tmp_path: pathlib.Path) -> Iterator[Callable[..., Shown]]:
    """Open a page of spans; at the end it must have had no error, and loaded nothing."""
    opened: list[Shown] = []

    def open_page(
        spans: Sequence[Span],
        *,
        faults: Sequence[Fault] = (),
        scheme: Literal["dark", "light"] = "light",
        scale: float = 1,
    ) -> Shown:
        path = tmp_path / f"page{len(opened)}.html"
        path.write_text(render_page(build_trees(spans), faults=faults), encoding="utf-8")
        context = browser.new_context(
            viewport={"width": 1280, "height": 720},
            color_scheme=scheme,
            device_scale_factor=scale,
        )
        shown = Shown(context.new_page(), path)
        opened.append(shown)
        return shown

    yield open_page
    for shown in opened:
        shown.page.context.close()
    assert [shown.faults for shown in opened] == [[] for _ in opened]
