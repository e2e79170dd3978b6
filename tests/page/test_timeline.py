"""The timeline: where spans are drawn, as what, and moving in it by mouse."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from otel_modtrack.view.reader import Fault
from tests.page.made import EPOCH_NS, MS, module, training

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.page.shown import Shown

# As in frontend/src/kinds.ts.
BLUE, ORANGE, PURPLE, GREEN, GREY = (
    (75, 152, 230),
    (214, 126, 45),
    (173, 126, 218),
    (51, 166, 124),
    (138, 150, 166),
)


def near(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Whether a colour is another, or that darkened by a pattern."""
    return any(
        all(abs(a - b * shade) <= 6 for a, b in zip(one, other, strict=True))
        for shade in (1, 0.95, 0.9, 0.85, 0.8)
    )


def test_head(show: Callable[..., Shown]) -> None:
    """The head says what the page is of."""
    shown = show(training(ranks=2, steps=3))
    assert shown.text("#service") == "trainer"
    assert shown.text("#facts") == "2 ranks · 3 steps · 60 spans · 345.0 ms"
    assert shown.page.title() == "trainer · otel-modtrack"
    lanes = [lane.inner_text() for lane in shown.page.query_selector_all(".lane")]
    assert lanes == ["▾ rank 0 · trainer · 30 spans", "▾ rank 1 · trainer · 30 spans"]


def test_legend_has_what_there_is(show: Callable[..., Shown]) -> None:
    """Kinds by letter and word; recompute only where there is some."""
    everything = show(training(ranks=1))
    legend = "F forward\nB backward\nR recompute\nO optimizer\n◆ collective"
    assert everything.text("#legend").split() == legend.split()
    assert show([module("f", "forward", "Net", 0, 1)]).text("#legend") == "F forward"


def test_faults(show: Callable[..., Shown]) -> None:
    """What could not be read is told in the head, and named when it is opened."""
    faults = [Fault("a.jsonl", "no OTLP JSON", [3]), Fault("b.jsonl", "torn", [*range(1, 9)])]
    shown = show(training(), faults=faults)
    assert shown.text("#badges summary") == "⚠ 2 faults while reading"
    shown.page.click("#badges summary")
    assert shown.text("#faults ul").splitlines() == [
        "a.jsonl: no OTLP JSON, line 3",
        "b.jsonl: torn, lines 1, 2, 3, 4, 5 and 3 more",
    ]


def test_blocks_are_where_their_times_are(show: Callable[..., Shown]) -> None:
    """Start and duration of every span, to a pixel."""
    spans = training()
    shown = show(spans)
    start_ms, end_ms = shown.view_ms()
    host = shown.page.locator("#timeline").bounding_box()
    per_ms = host["width"] / (end_ms - start_ms)
    for one in spans:
        box = shown.box(one.span_id)
        after_ms = (one.start_ns - EPOCH_NS) / MS
        assert box["x"] == pytest.approx(host["x"] + (after_ms - start_ms) * per_ms, abs=1)
        assert box["width"] == pytest.approx(one.duration_ns / MS * per_ms, abs=1)


def test_rows(show: Callable[..., Shown]) -> None:
    """Children are below their parents, and a rank's lane below the other's."""
    shown = show(training())
    rows = {key: shown.ask("rowOf", f"r0s0{key}".ljust(16, "-")) for key in ("", "f0", "f1", "f2")}
    assert rows == {"": 0, "f0": 1, "f1": 2, "f2": 2}
    assert shown.box("r0s0f1")["y"] == shown.box("r0s0")["y"] + 36
    assert shown.box("r1s0")["y"] > shown.box("r0s0c1")["y"]


def test_kinds_by_colour(show: Callable[..., Shown]) -> None:
    """Each kind has its colour, also where it has a pattern."""
    shown = show(training())
    shown.page.select_option("#step", "0")
    shown.settle()
    expected = {"": GREY, "f1": BLUE, "b2": ORANGE, "c1": PURPLE, "o": GREEN}
    for key, colour in expected.items():
        box = shown.box(f"r0s0{key}")
        found = shown.pixel(box["x"] + box["width"] * 0.7, box["y"] + 3)
        assert near(found, colour), (key, found)


def test_kinds_by_pattern(show: Callable[..., Shown]) -> None:
    """Backward, recompute and optimizer have two shades, forward has one."""
    shown = show(training())
    shown.page.select_option("#step", "0")
    shown.settle()
    shades = {}
    for key in ("f1", "b2", "c1", "o"):
        box = shown.box(f"r0s0{key}")
        edge = box["x"] + box["width"] - 18
        # Off the text, which is at the left; the whole height of the block is one colour or two.
        points = [(edge + x, box["y"] + y) for x in range(12) for y in (2, 4, 6)]
        shades[key] = len(set(shown.pixels(points))) > 1
    assert shades == {"f1": False, "b2": True, "c1": True, "o": True}


def test_sharp_on_dense_screens(show: Callable[..., Shown]) -> None:
    """The canvas has a pixel for each of the screen's, and clicks find what is seen."""
    shown = show(training(), scale=2)
    size = shown.page.evaluate(
        "() => [...'wh'].map((_, k) => { const c = document.querySelector('#timeline canvas');"
        " return k ? c.height / c.clientHeight : c.width / c.clientWidth })"
    )
    assert size == [2, 2]
    shown.select("r0s1b2")
    assert shown.selected() == "r0s1b2"


def test_what_runs_at_once_is_apart(show: Callable[..., Shown]) -> None:
    """Requests that overlap are each to be seen and clicked."""
    requests = [
        module(f"f{number}", "forward", f"Net.{number}", number, number + 50, trace=f"t{number}")
        for number in range(6)
    ]
    shown = show(requests)
    boxes = [shown.box(f"f{number}") for number in range(6)]
    assert len({box["y"] for box in boxes}) == 6
    for number in range(6):
        shown.select(f"f{number}")
        assert shown.selected() == f"f{number}"


def test_click_and_tooltip(show: Callable[..., Shown]) -> None:
    """The pointer says what is under it; a click selects it, one beside everything nothing."""
    shown = show(training())
    x, y = shown.middle("r1s2f2")
    shown.page.mouse.move(x, y)
    assert shown.text("#tooltip").splitlines() == [
        "forward Net.layers.1",
        "20.00 ms, self 20.00 ms",
    ]
    shown.page.mouse.click(x, y)
    assert shown.selected() == "r1s2f2"
    assert shown.text("#said") == "forward Net.layers.1, 20.00 ms, rank 1"
    lane = shown.page.locator("#timeline").bounding_box()
    shown.page.mouse.click(lane["x"] + 2, lane["y"] + lane["height"] - 3)
    assert shown.selected() is None


def test_wheel_zooms_at_the_pointer(show: Callable[..., Shown]) -> None:
    """What is under the pointer stays there; nothing beyond the ends is shown."""
    shown = show(training())
    x, y = map(round, shown.middle("r0s1b2"))  # the wheel knows whole pixels only
    at = (x - shown.box("r0s1b2")["x"]) / shown.box("r0s1b2")["width"]
    before = shown.view_ms()
    shown.page.mouse.move(x, y)
    for _ in range(6):
        shown.page.mouse.wheel(0, -100)
    shown.settle()
    start_ms, end_ms = shown.view_ms()
    assert end_ms - start_ms == pytest.approx((before[1] - before[0]) / 1.25**6)
    box = shown.box("r0s1b2")
    assert box["x"] + at * box["width"] == pytest.approx(x, abs=0.1)
    for _ in range(20):
        shown.page.mouse.wheel(0, 100)
    shown.settle()
    assert shown.view_ms() == pytest.approx(before)


def test_drag_pans(show: Callable[..., Shown]) -> None:
    """A drag moves the view by as much, and selects nothing."""
    shown = show(training())
    shown.page.select_option("#step", "1")
    shown.settle()
    x, y = shown.middle("r0s1b2")
    shown.page.mouse.move(x, y)
    shown.page.mouse.down()
    shown.page.mouse.move(x - 60, y, steps=3)
    shown.page.mouse.move(x - 150, y, steps=3)
    shown.page.mouse.up()
    shown.settle()
    assert shown.middle("r0s1b2")[0] == pytest.approx(x - 150, abs=1)
    assert shown.selected() is None


def test_wheel_with_shift_scrolls(show: Callable[..., Shown]) -> None:
    """Many ranks are more than fit: the lanes scroll, and stop at the last."""
    shown = show(training(ranks=8, steps=1))
    shown.page.hover("#timeline")
    shown.page.keyboard.down("Shift")
    shown.page.mouse.wheel(0, 200)
    shown.settle()
    assert shown.ask("scrollTop") == 200
    for _ in range(20):
        shown.page.mouse.wheel(0, 400)
    shown.settle()
    host = shown.page.locator("#timeline").bounding_box()
    # Five rows of 18 and a header of 22 in each lane, and 8 below it.
    lanes = 8 * (5 * 18 + 22 + 8)
    assert shown.ask("scrollTop") == pytest.approx(lanes - (host["height"] - 24), abs=1)
    shown.select("r7s0f1")
    assert shown.selected() == "r7s0f1"


def test_buttons(show: Callable[..., Shown]) -> None:
    """In, out and everything."""
    shown = show(training())
    before = shown.view_ms()
    shown.page.click("#zoom-in")
    shown.page.click("#zoom-in")
    shown.settle()
    start_ms, end_ms = shown.view_ms()
    assert end_ms - start_ms == pytest.approx((before[1] - before[0]) / 1.5**2)
    shown.page.click("#zoom-out")
    shown.settle()
    start_ms, end_ms = shown.view_ms()
    assert end_ms - start_ms == pytest.approx((before[1] - before[0]) / 1.5)
    shown.page.click("#fit")
    assert shown.view_ms() == pytest.approx(before)


def test_fold(show: Callable[..., Shown]) -> None:
    """A folded rank keeps its first row; what is jumped to in it unfolds it."""
    shown = show(training())
    lane = shown.page.locator(".lane").first
    second = shown.box("r1s0")["y"]
    lane.click()
    shown.settle()
    assert lane.get_attribute("aria-expanded") == "false"
    assert shown.box("r1s0")["y"] == second - 4 * 18
    assert shown.box("r0s0f1") is None
    assert shown.box("r0s0") is not None
    shown.page.fill("#search", "r0 does not matter")
    shown.page.fill("#search", "Net.layers.0")
    shown.press("Enter")
    assert lane.get_attribute("aria-expanded") == "true"
    assert shown.box("r1s0")["y"] == second


def test_draws_only_when_something_changed(show: Callable[..., Shown]) -> None:
    """A page that is left alone costs nothing."""
    shown = show(training())
    before = shown.ask("frames")
    shown.page.wait_for_timeout(300)
    assert shown.ask("frames") == before
    shown.page.click("#zoom-in")
    shown.settle()
    assert shown.ask("frames") == before + 1


def test_resize(show: Callable[..., Shown]) -> None:
    """A larger window shows the same time, larger."""
    shown = show(training())
    shown.page.select_option("#step", "1")
    shown.settle()
    before, width = shown.view_ms(), shown.box("r0s1")["width"]
    shown.page.set_viewport_size({"width": 1440, "height": 900})
    shown.settle()
    assert shown.view_ms() == pytest.approx(before)
    assert shown.box("r0s1")["width"] == pytest.approx(width * 1100 / 940, rel=0.01)
    shown.select("r0s1b2")
    assert shown.selected() == "r0s1b2"


def test_many_spans_below_a_pixel(show: Callable[..., Shown]) -> None:
    """Nothing vanishes: 20,000 spans in one row leave no gap where there is none."""
    shown = show(
        [module(f"{number:x}", "forward", "Net", number, number + 1) for number in range(20_000)]
    )
    host = shown.page.locator("#timeline").bounding_box()
    y = shown.box("1")["y"] + 8
    points = [(host["x"] + x, y) for x in range(15, int(host["width"]) - 15)]
    assert set(shown.pixels(points)) == {BLUE}
