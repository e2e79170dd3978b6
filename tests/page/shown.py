"""A page in the browser, and what a person does with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Sequence

    from playwright.sync_api import Page

__all__ = ["Shown"]

# Read from a copy, which the browser keeps where reading costs nothing.
_PIXELS = """(points) => {
  const canvas = document.querySelector("#timeline canvas");
  const copy = new OffscreenCanvas(canvas.width, canvas.height);
  const ctx = copy.getContext("2d", {willReadFrequently: true});
  ctx.drawImage(canvas, 0, 0);
  const box = canvas.getBoundingClientRect();
  const scale = canvas.width / box.width;
  return points.map(([x, y]) => {
    const at = [Math.round((x - box.left) * scale), Math.round((y - box.top) * scale)];
    return [...ctx.getImageData(...at, 1, 1).data].slice(0, 3);
  });
}"""
_NEXT_FRAME = "() => new Promise((done) => requestAnimationFrame(() => setTimeout(done)))"


class Shown:
    """A page that is open.

    Attributes:
        page: Playwright's.
        faults: Errors on the page, and requests for anything but the page itself.
    """

    def __init__(self, page: Page, path: pathlib.Path) -> None:
        self.page = page
        self.faults: list[str] = []
        page.on("pageerror", lambda error: self.faults.append(str(error)))
        page.on("console", lambda message: self.faults.append(message.text))
        page.on("request", lambda request: self._note_request(request.url, path.as_uri()))
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-ready]", state="attached")
        self.settle()

    def _note_request(self, url: str, own: str) -> None:
        if url not in (own, "data:,"):
            self.faults.append(f"request for {url}")

    def settle(self) -> None:
        """Wait until what was asked for is drawn."""
        self.page.evaluate(_NEXT_FRAME)
        self.page.evaluate(_NEXT_FRAME)

    def ask(self, what: str, *arguments: Any) -> Any:
        """Call a function of `window.modtrack`."""
        return self.page.evaluate("([what, all]) => modtrack[what](...all)", [what, [*arguments]])

    def view_ms(self) -> tuple[float, float]:
        """What the timeline shows: milliseconds after the first start."""
        start_ns, end_ns = self.ask("view")
        return start_ns / 1e6, end_ns / 1e6

    def selected(self) -> str | None:
        """Id of the selected span, without the dashes that fill it up."""
        found = self.ask("selected")
        return found and found.rstrip("-")

    def select(self, span_id: str) -> None:
        """Click the middle of a span."""
        x, y = self.middle(span_id)
        self.page.mouse.click(x, y)
        self.settle()

    def box(self, span_id: str) -> dict[str, float]:
        """Where a span is in the page, in pixels."""
        found: dict[str, float] = self.ask("boxOf", span_id.ljust(16, "-"))
        return found

    def middle(self, span_id: str) -> tuple[float, float]:
        """The middle of a span, in pixels."""
        box = self.box(span_id)
        return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2

    def press(self, *keys: str) -> None:
        """Press keys, one after the other."""
        for key in keys:
            self.page.keyboard.press(key)
        self.settle()

    def focus_timeline(self) -> None:
        """Give the keys to the timeline."""
        self.page.focus("#timeline")

    def text(self, selector: str) -> str:
        """What an element says."""
        return self.page.inner_text(selector)

    def pixel(self, x: float, y: float) -> tuple[int, ...]:
        """Red, green and blue that the timeline has drawn at a point of the page."""
        return self.pixels([(x, y)])[0]

    def pixels(self, points: Sequence[tuple[float, float]]) -> list[tuple[int, ...]]:
        """The same of several points."""
        found = self.page.evaluate(_PIXELS, [list(point) for point in points])
        return [tuple(colour) for colour in found]
