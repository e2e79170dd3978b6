"""Makes the pictures of the README, from a run of the demo: the page, light and dark, and a tree.

Needs Chromium and the extra `test`. Writes into docs/pictures/.
"""

from __future__ import annotations

import html
import os
import pathlib
import pty
import re
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING, Final

from browser import open_browser

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

__all__: list[str] = []

ROOT: Final = pathlib.Path(__file__).parents[1]
PICTURES: Final = ROOT / "docs" / "pictures"
_FILE: Final = "modtrack-demo.jsonl"
_PAGE: Final = "modtrack.html"
# Select Graphic Rendition: the codes that the terminal's output uses, and how they are shown.
_CODES: Final = {
    "1": "font-weight: bold",
    "2": "opacity: 0.65",
    "31": "color: #ff7b72",
    "32": "color: #6fcf8e",
    "33": "color: #e3b341",
    "34": "color: #79b8ff",
    "35": "color: #d2a8ff",
    "36": "color: #56d4dd",
}
_COLOURS: Final = re.compile(r"\x1b\[([0-9;]*)m")
_TERMINAL: Final = """<!doctype html><meta charset="utf-8"><style>
body {{ margin: 0; background: #14171c; color: #e4e8ed; width: max-content; }}
pre {{ margin: 0; padding: 16px 20px; font: 13px/1.35 "DejaVu Sans Mono", monospace; }}
</style><pre>{}</pre>"""


def _run(*arguments: str, folder: str) -> None:
    command = [sys.executable, "-m", "otel_modtrack", *arguments]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)  # noqa: S603


def _run_on_terminal(*arguments: str, folder: str) -> str:
    """Return what a command writes to a terminal."""
    command = [sys.executable, "-m", "otel_modtrack", *arguments]
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "40"}
    environment.pop("NO_COLOR", None)
    with subprocess.Popen(command, cwd=folder, stdout=theirs, env=environment):  # noqa: S603
        os.close(theirs)
        parts = []
        while part := _read(ours):
            parts.append(part)
    os.close(ours)
    return b"".join(parts).decode().replace("\r\n", "\n")


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65_536)
    except OSError:  # Linux's way to say that the other end is closed
        return b""


def _to_html(text: str) -> str:
    """Turn a terminal's colours into spans."""
    parts = _COLOURS.split(text)
    written = [html.escape(parts[0])]
    styles: list[str] = []
    for codes, content in zip(parts[1::2], parts[2::2], strict=True):
        for code in codes.split(";"):
            styles = [*styles, _CODES[code]] if code in _CODES else []
        escaped = html.escape(content)
        style = "; ".join(styles)
        written.append(f'<span style="{style}">{escaped}</span>' if styles else escaped)
    return "".join(written)


def _take_tree(browser: Browser, folder: str) -> None:
    command = ["view", "--depth", "4", _FILE]
    shown = f"$ otel-modtrack {' '.join(command)}\n{_run_on_terminal(*command, folder=folder)}"
    page = browser.new_page()
    page.set_content(_TERMINAL.format(_to_html(shown.rstrip())))
    page.locator("pre").screenshot(path=PICTURES / "tree.png")
    page.close()


def _take_page(browser: Browser, folder: str, scheme: str) -> None:
    page = browser.new_page(
        viewport={"width": 1280, "height": 800},
        color_scheme="dark" if scheme == "dark" else "light",
    )
    page.goto((pathlib.Path(folder) / _PAGE).as_uri())
    page.wait_for_selector("html[data-ready]", state="attached")
    _choose(page)
    page.screenshot(path=PICTURES / f"page-{scheme}.png")
    page.close()


def _choose(page: Page) -> None:
    """Look at a step, and at the backward of a module in it."""
    page.select_option("#step", "15")
    page.fill("#search", '"backward GPT.layers.1.mlp"')
    page.press("#search", "Enter")
    page.fill("#search", "")
    page.select_option("#step", "15")
    page.evaluate("() => document.activeElement.blur()")
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")


def main() -> None:
    """Run the demo, and take the pictures."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, open_browser() as browser:
        _run("demo", "--checkpointing", "--out", _FILE, folder=folder)
        _run("view", _FILE, "--html", _PAGE, folder=folder)
        _take_tree(browser, folder)
        for scheme in ("light", "dark"):
            _take_page(browser, folder, scheme)
    for picture in sorted(PICTURES.glob("*.png")):
        print(f"{picture.relative_to(ROOT)}  {picture.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
