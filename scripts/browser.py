"""Chromium without a window, for the tests, the benchmark and the pictures of the page."""

from __future__ import annotations

import contextlib
import shutil
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser

__all__ = ["find_chromium", "open_browser"]

_PROGRAMS: Final = ("chromium", "chromium-browser", "google-chrome")
# No sandbox, as containers have none; and none of the services that would use a network.
_FLAGS: Final = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def find_chromium() -> str | None:
    """Return the path of a Chromium that is installed, or None."""
    return next(filter(None, map(shutil.which, _PROGRAMS)), None)


@contextlib.contextmanager
def open_browser() -> Iterator[Browser]:
    """Start a browser, with a profile of its own; close it at the end.

    Raises:
        FileNotFoundError: If there is no Chromium on the PATH.
    """
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - an extra

    program = find_chromium()
    if program is None:
        raise FileNotFoundError(f"none of {', '.join(_PROGRAMS)} is on the PATH; install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(_FLAGS))
        try:
            yield browser
        finally:
            browser.close()
