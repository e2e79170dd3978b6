"""Everything is done by keys alone, and said to who cannot see it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.page.made import module, training

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.page.shown import Shown


def test_arrows_walk(show: Callable[..., Shown]) -> None:
    """From the first root: down to a child, sideways to siblings, up to the parent."""
    shown = show(training())
    shown.focus_timeline()
    visited = []
    for key in (
        "ArrowDown",  # nothing is selected: the first root
        "ArrowDown",
        "ArrowDown",
        "ArrowRight",
        "ArrowUp",
        "ArrowRight",
        "ArrowRight",
        "ArrowUp",
        "ArrowRight",  # a root's siblings are in its row
        "ArrowLeft",
    ):
        shown.press(key)
        visited.append(shown.selected())
    assert visited == [
        "r0s0",
        "r0s0f0",
        "r0s0f1",
        "r0s0f2",
        "r0s0f0",
        "r0s0b",
        "r0s0o",
        "r0s0",
        "r0s1",
        "r0s0",
    ]
    assert shown.text("#said") == "train_step 0, 100.0 ms, rank 0"


def test_zoom_and_pan(show: Callable[..., Shown]) -> None:
    """Plus, minus, 0, z; a, d and shift with arrows."""
    shown = show(training())
    shown.focus_timeline()
    before = shown.view_ms()
    size_ms = before[1] - before[0]
    shown.press("+", "+")
    start_ms, end_ms = shown.view_ms()
    assert end_ms - start_ms == pytest.approx(size_ms / 1.5**2)
    assert (start_ms + end_ms) / 2 == pytest.approx((before[0] + before[1]) / 2)
    shown.press("d")
    assert shown.view_ms()[0] == pytest.approx(start_ms + 0.2 * (end_ms - start_ms))
    shown.press("a", "Shift+ArrowLeft", "Shift+ArrowRight")
    assert shown.view_ms() == pytest.approx((start_ms, end_ms))
    shown.press("-")
    assert shown.view_ms()[1] - shown.view_ms()[0] == pytest.approx(size_ms / 1.5)
    shown.press("0")
    assert shown.view_ms() == pytest.approx(before)
    shown.press("ArrowDown", "ArrowDown", "z")
    assert shown.view_ms() == pytest.approx((1 - 2, 41 + 2))


def test_scroll_and_fold(show: Callable[..., Shown]) -> None:
    """Page down and up scroll; f leaves the first row of each rank, and brings all back."""
    shown = show(training(ranks=8, steps=1))
    shown.focus_timeline()
    shown.press("PageDown")
    assert shown.ask("scrollTop") > 100
    shown.press("PageUp")
    assert shown.ask("scrollTop") == 0
    unfolded = shown.box("r7s0")["y"]
    shown.press("f")
    assert shown.box("r7s0")["y"] == unfolded - 7 * 4 * 18
    shown.press("f")
    assert shown.box("r7s0")["y"] == unfolded


def test_slash_searches_and_escape_leaves(show: Callable[..., Shown]) -> None:
    """Letters that are typed are text; Escape forgets the search first, then the selection."""
    shown = show(training())
    shown.press("/")
    shown.page.keyboard.type("Net.layers.0")
    shown.press("Enter")
    assert shown.page.input_value("#search") == "Net.layers.0"
    assert shown.selected() == "r0s0f1"
    shown.press("Escape")
    assert shown.page.input_value("#search") == ""
    assert shown.page.evaluate("() => document.activeElement.id") == "timeline"
    assert shown.selected() == "r0s0f1"
    shown.press("Escape")
    assert shown.selected() is None


def test_enter_goes_to_the_details(show: Callable[..., Shown]) -> None:
    """And the tabulator from there to the links, which Enter follows."""
    shown = show(training())
    shown.select("r0s0b2")
    shown.press("Enter")
    assert shown.page.evaluate("() => document.activeElement.id") == "details"
    shown.press("Tab", "Enter")
    assert shown.selected() == "r0s0f1"


def test_next_error(show: Callable[..., Shown]) -> None:
    """The key e goes from error to error."""
    spans = [
        module(f"m{n}", "forward", "Net", 10 * n, 10 * n + 5, failed=n in (1, 3)) for n in range(5)
    ]
    shown = show(spans)
    shown.focus_timeline()
    visited = []
    for _ in range(3):
        shown.press("e")
        visited.append(shown.selected())
    assert visited == ["m1", "m3", "m1"]


def test_help(show: Callable[..., Shown]) -> None:
    """The question mark lists all keys; Escape closes the list and does nothing else."""
    shown = show(training())
    shown.select("r0s0f1")
    shown.press("?")
    listed = shown.text("#help")
    assert "zoom to the selected span" in listed
    assert shown.page.evaluate("() => document.querySelector('#help').open")
    shown.press("Escape")
    assert not shown.page.evaluate("() => document.querySelector('#help').open")
    assert shown.selected() == "r0s0f1"


def test_reached_by_the_tabulator(show: Callable[..., Shown]) -> None:
    """Whatever can be used is reached, shows that it is, and has a name."""
    shown = show(training())
    reached = {}
    for _ in range(60):
        shown.page.keyboard.press("Tab")
        found = shown.page.evaluate(
            """() => {
              const at = document.activeElement;
              const name = at.getAttribute("aria-label") ?? at.labels?.[0]?.textContent
                  ?? at.textContent;
              const style = getComputedStyle(at);
              return [at.id || at.className || at.tagName, name.trim(),
                  style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2];
            }"""
        )
        if found[0] == "BODY":
            break
        reached[found[0]] = found[1:]
    wanted = {
        *("theme", "show-help", "step-previous", "step", "step-next", "step-bars", "search"),
        *("zoom-in", "zoom-out", "fit", "timeline", "lane", "splitter", "tab-icicle"),
        *("tab-modules", "process", "icicle-all", "icicle-find", "icicle"),
    }
    assert wanted <= reached.keys()
    assert {key for key, (name, _) in reached.items() if not name} == set()
    assert {key for key, (_, is_seen) in reached.items() if not is_seen} == set()
