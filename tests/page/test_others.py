"""What is not as expected: hostile names, foreign spans, nothing, and a real model's trace."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from torch import nn
from torch.utils.checkpoint import checkpoint

from otel_modtrack import ModTracker
from otel_modtrack.view.model import Event, Process, build_trees
from otel_modtrack.view.reader import from_sdk
from tests.page.made import EPOCH_NS, span

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.page.shown import Shown

HOSTILE = "</script><img src=x onerror=alert(1)><b>&amp;\u2028'\"`"


def test_names_are_text(show: Callable[..., Shown]) -> None:
    """Whatever a file says is shown as it is, and never becomes part of the page."""
    process = Process(HOSTILE, 0, 1, HOSTILE, {HOSTILE: HOSTILE})
    event = Event(HOSTILE, EPOCH_NS, {HOSTILE: [HOSTILE]})
    attributes = {HOSTILE: HOSTILE, "modtrack.step.number": 1}
    shown = show(
        [
            span("a", HOSTILE, 0, 9, process=process, attributes=attributes, events=(event,)),
            span(
                "b", HOSTILE, 1, 8, parent="a", process=process, failed=True, status_message=HOSTILE
            ),
        ]
    )
    alerts: list[str] = []
    shown.page.on("dialog", lambda dialog: alerts.append(dialog.message) or dialog.dismiss())
    x, y = shown.middle("a")
    shown.page.mouse.move(x, y)
    assert shown.page.text_content("#tooltip .title") == f"{HOSTILE} 1"
    shown.page.mouse.click(x, y)
    assert HOSTILE in shown.page.text_content("#details")
    shown.select("b")
    assert HOSTILE in shown.page.text_content("#details .failed")
    shown.page.click("#tab-modules")
    shown.page.fill("#search", HOSTILE)
    assert shown.ask("found") == 2
    assert shown.page.locator("img, b").count() == 0
    assert alerts == []
    assert HOSTILE in shown.page.text_content("#service")


def test_half_a_character(show: Callable[..., Shown]) -> None:
    """Half of a surrogate pair, which JSON can hold and UTF-8 cannot, costs that character only."""
    half = "a\ud800b"
    process = Process(half, 0, 1, half, {half: half})
    event = Event(half, EPOCH_NS, {half: half})
    attributes = {half: half}
    shown = show(
        [span("a", half, 0, 9, process=process, attributes=attributes, events=(event,))],
    )
    assert shown.page.title() == "a?b · otel-modtrack"
    shown.select("a")
    assert shown.text("#details h2") == "other a?b"
    assert shown.text(".lane") == "▾ rank 0 · a?b · 1 span"
    assert shown.text("#details").count("a?b") == 10


def test_very_deep(show: Callable[..., Shown]) -> None:
    """A tree that is deeper than a browser recurses is summed up as any other."""
    deep = 20_000
    shown = show(
        [
            span(f"s{level}", f"work {level}", 0, 9, parent=f"s{level - 1}" if level else "")
            for level in range(deep)
        ]
    )
    nodes = shown.ask("icicle")
    assert [node["depth"] for node in nodes] == list(range(deep))
    assert shown.faults == []


def test_policy_forbids_the_network(show: Callable[..., Shown]) -> None:
    """Whatever runs on the page, its policy lets nothing be loaded or sent."""
    shown = show([span("a", "work", 0, 1)])
    found = shown.page.evaluate(
        """async () => {
          try { await fetch("http://127.0.0.1:9/"); return "sent"; } catch { return "refused"; }
        }"""
    )
    assert found == "refused"
    assert len(shown.faults) == 2  # the policy says so, and fetch
    assert all("Content Security Policy" in fault for fault in shown.faults)
    shown.faults.clear()


def test_spans_of_others(show: Callable[..., Shown]) -> None:
    """A trace of other libraries, without a word of modtrack's, is a trace all the same."""
    web, base = Process("web"), Process("db")
    shown = show(
        [
            span("a", "GET /", 0, 50, process=web, attributes={"http.route": "/"}, kind=2),
            span("b", "SELECT", 10, 30, parent="a", process=base, kind=3),
            span("c", "render", 35, 45, parent="a", process=web),
        ]
    )
    assert shown.text("#service") == "web, db"
    assert shown.text("#facts") == "2 processes · 1 trace · 3 spans · 50.00 ms"
    assert [shown.ask("rowOf", key.ljust(16, "-")) for key in "abc"] == [0, 0, 1]
    shown.select("b")
    assert "parent" in shown.text("#details .links")
    assert "client" in shown.text("#details")
    shown.page.fill("#search", "select")
    assert shown.ask("found") == 1
    assert [node["name"] for node in shown.ask("icicle")] == ["GET /", "SELECT", "render"]


def test_one_span_of_no_duration(show: Callable[..., Shown]) -> None:
    """A moment is shown, and can be clicked."""
    shown = show([span("a", "tick", 0, 0)])
    box = shown.box("a")
    shown.page.mouse.click(box["x"] + 1, box["y"] + 8)
    assert shown.selected() == "a"
    assert "0 ns" in shown.text("#details")


def test_nothing(show: Callable[..., Shown]) -> None:
    """A page without spans opens, and its keys do no harm."""
    shown = show([])
    assert shown.text("#facts") == "0 traces · 0 spans · 0 ns"
    shown.focus_timeline()
    shown.press("ArrowDown", "+", "n", "e", "l", "]", "z", "0")
    assert shown.selected() is None


def test_hours(show: Callable[..., Shown]) -> None:
    """A microsecond of a day's trace is shown where it is."""
    day_ms = 86_400_000
    shown = show(
        [span("a", "begin", 0, 1), span("b", "end", day_ms, day_ms + 0.001), span("c", "x", 9, 10)]
    )
    shown.page.fill("#search", "end")
    shown.press("Enter")
    shown.focus_timeline()
    shown.press("z")
    start_ms, end_ms = shown.view_ms()
    assert end_ms - start_ms < 0.0012
    host = shown.page.locator("#timeline").bounding_box()
    assert shown.box("b")["width"] > 0.85 * host["width"]


class Block(nn.Module):
    """Two linears, checkpointed."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(4, 8)
        self.down = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(lambda y: self.down(self.up(y)), x, use_reentrant=False)


def test_a_real_model(show: Callable[..., Shown]) -> None:
    """What the tracker recorded: all spans, own times as Python has them, links both ways."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    model = nn.Sequential(Block(), Block())
    with ModTracker(model, tracer_provider=provider) as tracker:
        for step in range(2):
            with tracker.step(step):
                model(torch.randn(2, 4)).sum().backward()
    spans = from_sdk(exporter.get_finished_spans())
    shown = show(spans)
    assert shown.ask("count") == len(spans)
    assert "R recompute" in shown.text("#legend")
    for root in build_trees(spans):
        for _, node in root.walk():
            assert shown.ask("selfOf", node.span.span_id) == node.self_ns
    shown.page.fill("#search", "backward Sequential.0")
    shown.press("Enter")
    backward = shown.ask("selected")
    shown.focus_timeline()
    shown.press("l")
    assert shown.text("#details h2") == "F forward Sequential.0"
    shown.press("l")
    assert shown.ask("selected") == backward
