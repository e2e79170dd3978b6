"""How large the page of `otel-modtrack view --html` is, how fast it opens, and how fluent it stays.

Writes pages of made-up spans, opens them in a real Chromium, zooms and pans. Prints a line for each
size: seconds to write it, its megabytes, seconds until it is shown, frames per second. See
README.md beside this file.
"""

from __future__ import annotations

import argparse
import pathlib
import random
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

ROOT = pathlib.Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

from browser import open_browser  # noqa: E402 - found by the line above

from otel_modtrack import semconv  # noqa: E402 - likewise
from otel_modtrack.view.html import render_page  # noqa: E402 - likewise
from otel_modtrack.view.model import Event, Link, Process, Span, build_trees  # noqa: E402 - likewise

if TYPE_CHECKING:
    from collections.abc import Mapping

    from playwright.sync_api import Browser

__all__ = ["make_spans"]

_LAYERS = 31
_MS = 1_000_000
# Fires the wheel once a frame: in, to and fro, out. Returns the milliseconds of each frame.
_DRIVE = """async () => {
  const timeline = document.querySelector("#timeline");
  const frame = () => new Promise((done) => requestAnimationFrame(done));
  const turn = (deltaX, deltaY) => timeline.firstElementChild.dispatchEvent(new WheelEvent("wheel",
      {deltaX, deltaY, clientX: 500, clientY: 200, bubbles: true, cancelable: true}));
  const frames = [];
  let last = await frame();
  for (let k = 0; k < 240; k++) {
    if (k < 60) turn(0, -40); else if (k < 180) turn(k % 60 < 30 ? 60 : -60, 0); else turn(0, 40);
    const now = await frame();
    frames.push(now - last);
    last = now;
  }
  return frames;
}"""


def make_spans(count: int, ranks: int = 2) -> list[Span]:
    """Make about that many spans of a training: steps of 439 spans on each rank."""
    steps = max(1, round(count / ranks / 439))
    spans: list[Span] = []
    for rank in range(ranks):
        maker = _Maker(rank, ranks, spans)
        for step in range(steps):
            maker.add_step(step)
    return spans


class _Maker:
    """Adds the spans of one rank."""

    def __init__(self, rank: int, ranks: int, spans: list[Span]) -> None:
        self._process = Process("synthetic", rank, ranks, f"rank{rank}.jsonl")
        self._random = random.Random(rank)  # noqa: S311 - the same spans each time
        self._spans = spans
        self._known: dict[tuple[str, str], Mapping[str, Any]] = {}
        self._forwards: dict[str, str] = {}
        self._trace_id = ""

    def add_step(self, number: int) -> None:
        """Add a step of about 100 ms: forward, backward, optimizer."""
        self._trace_id = f"{self._random.getrandbits(128):032x}"
        start_ns = (1_800_000_000_000 + 110 * number) * _MS + self._random.randrange(_MS)
        attributes = {semconv.STEP_NUMBER: number}
        step = self._add("", "train_step", start_ns, 100 * _MS, attributes)
        self._add_pass("forward", step, start_ns, 40 * _MS)
        backward = self._add(step, "backward", start_ns + 45 * _MS, 50 * _MS, {})
        self._add_pass("backward", backward, start_ns + 45 * _MS, 50 * _MS)
        self._add(step, "optimizer_step AdamW", start_ns + 96 * _MS, 3 * _MS, {})

    def _add_pass(self, phase: str, parent: str, start_ns: int, size_ns: int) -> None:
        root = self._add_module(phase, "GPT", parent, start_ns, size_ns)
        each_ns = size_ns // _LAYERS
        for turn in range(_LAYERS):
            layer = turn if phase == "forward" else _LAYERS - 1 - turn
            at_ns = start_ns + turn * each_ns
            self._add_layer(phase, f"GPT.layers.{layer}", root, at_ns, each_ns)

    def _add_layer(self, phase: str, fqn: str, root: str, at_ns: int, each_ns: int) -> None:
        took_ns = int(each_ns * self._random.uniform(0.85, 0.95))
        block = self._add_module(phase, fqn, root, at_ns, took_ns)
        half_ns = took_ns // 2
        for turn, name in enumerate(("attn", "mlp")):
            inner_ns = at_ns + turn * half_ns
            module = self._add_module(phase, f"{fqn}.{name}", block, inner_ns, half_ns)
            for part, leaf in enumerate(("up", "down")):
                leaf_ns = inner_ns + part * half_ns // 2
                self._add_module(phase, f"{fqn}.{name}.{leaf}", module, leaf_ns, half_ns // 3)

    def _add_module(self, phase: str, fqn: str, parent: str, at_ns: int, took_ns: int) -> str:
        template = ".".join("*" if part.isdigit() else part for part in fqn.split("."))
        attributes = self._known.setdefault(
            (phase, fqn),
            {
                semconv.PHASE: phase,
                semconv.MODULE_FQN: fqn,
                semconv.MODULE_TEMPLATE: template,
                semconv.MODULE_TYPE: "Module",
            },
        )
        links = () if phase == "forward" else (Link(self._trace_id, self._forwards[fqn]),)
        is_block = phase == "backward" and template == "GPT.layers.*"
        events = (_all_reduce(at_ns + took_ns // 2),) if is_block else ()
        span_id = self._add(
            parent, f"{phase} {template}", at_ns, took_ns, attributes, events=events, links=links
        )
        self._forwards.setdefault(fqn, span_id)
        if phase == "forward":
            self._forwards[fqn] = span_id
        return span_id

    def _add(
        self,
        parent: str,
        name: str,
        at_ns: int,
        took_ns: int,
        attributes: Mapping[str, Any],
        **more: Any,
    ) -> str:
        span_id = f"{self._random.getrandbits(64):016x}"
        span = Span(
            self._trace_id,
            span_id,
            parent,
            name,
            at_ns,
            at_ns + took_ns,
            attributes,
            scope=semconv.SCOPE_NAME,
            process=self._process,
            **more,
        )
        self._spans.append(span)
        return span_id


def _all_reduce(time_ns: int) -> Event:
    return Event(
        semconv.COLLECTIVE_EVENT,
        time_ns,
        {
            semconv.COLLECTIVE_OPERATION: "all_reduce",
            semconv.COLLECTIVE_COUNT: 1,
            semconv.COLLECTIVE_SIZE: 262_144,
            semconv.COLLECTIVE_GROUP_NAME: "0",
            semconv.COLLECTIVE_BACKEND: "gloo",
        },
    )


@dataclass(frozen=True)
class _Figures:
    """What was measured of one page."""

    spans: int
    write_s: float
    size_mb: float
    open_s: float
    frames_per_s: float
    slow_frame_ms: float  # one in twenty is slower

    def line(self) -> str:
        return (
            f"{self.spans:>9,}  {self.write_s:>7.2f}  {self.size_mb:>6.2f}  {self.open_s:>6.2f}  "
            f"{self.frames_per_s:>8.1f}  {self.slow_frame_ms:>18.1f}"
        )


_HEAD = "    spans  write s      MB  open s  frames/s  slow frame (p95) ms"


def _measure(browser: Browser, count: int, folder: pathlib.Path) -> _Figures:
    spans = make_spans(count)
    started_s = time.perf_counter()
    content = render_page(build_trees(spans)).encode()
    write_s = time.perf_counter() - started_s
    path = folder / "page.html"
    path.write_bytes(content)
    page = browser.new_page(viewport={"width": 1280, "height": 720})
    started_s = time.perf_counter()
    page.goto(path.as_uri())
    page.wait_for_selector("html[data-ready]", state="attached")
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")
    open_s = time.perf_counter() - started_s
    frames_ms = page.evaluate(_DRIVE)
    page.close()
    return _Figures(
        spans=len(spans),
        write_s=write_s,
        size_mb=len(content) / 1e6,
        open_s=open_s,
        frames_per_s=1000 / statistics.fmean(frames_ms),
        slow_frame_ms=statistics.quantiles(frames_ms, n=20)[-1],
    )


def main() -> None:
    """Measure pages of the sizes that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "spans", nargs="*", type=int, default=[2_000, 20_000, 200_000], help="sizes to measure"
    )
    sizes = parser.parse_args().spans
    print(_HEAD, flush=True)
    with open_browser() as browser, tempfile.TemporaryDirectory() as folder:
        for size in sizes:
            print(_measure(browser, size, pathlib.Path(folder)).line(), flush=True)


if __name__ == "__main__":
    main()
