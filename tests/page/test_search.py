"""Search: what it finds, how it is told, and going from one to the next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.page.made import module, training

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.page.shown import Shown

# Of two ranks and three steps.
TIMES = 2 * 3


# How many spans each query finds.
QUERIES = {
    "layers.0": 2 * TIMES,  # forward and backward
    "LAYERS.1": 3 * TIMES,  # and recompute
    "Net.layers.*": 5 * TIMES,
    "layers.?": 5 * TIMES,  # its last parts, as of --module
    "layers.[!0]": 3 * TIMES,
    "backward Net.layers.*": 2 * TIMES,
    '"Net"': 2 * TIMES,  # and nothing below it
    '"backward Net.layers.*"': 2 * TIMES,  # the name
    "backward": 4 * TIMES,  # also the engine's run
    "optimizer": TIMES,
    "[z-a]": 0,
    "(": 0,
    "no such module": 0,
}


def test_finds(show: Callable[..., Shown]) -> None:
    """A part of the fqn, a glob, or an exact name."""
    shown = show(training())
    for query, count in QUERIES.items():
        shown.page.fill("#search", query)
        assert (query, shown.ask("found")) == (query, count)
        assert shown.text("#found") == f"{count} found"
        assert shown.page.is_enabled("#find-next") == (count > 0)


def test_next_and_previous(show: Callable[..., Shown]) -> None:
    """Enter, buttons and n go through what is found, in order of time and around."""
    shown = show(training(ranks=1, steps=2))
    shown.page.fill("#search", "Net.layers.0")
    visited = []
    for _ in range(3):
        shown.press("Enter")
        visited.append((shown.selected(), shown.text("#found")))
    shown.page.click("#find-next")
    visited.append((shown.selected(), shown.text("#found")))
    shown.page.click("#find-next")
    shown.page.click("#find-previous")
    visited.append((shown.selected(), shown.text("#found")))
    assert visited == [
        ("r0s0f1", "1 of 4"),
        ("r0s0b2", "2 of 4"),
        ("r0s1f1", "3 of 4"),
        ("r0s1b2", "4 of 4"),
        ("r0s1b2", "4 of 4"),
    ]
    shown.focus_timeline()
    shown.press("N")
    assert shown.selected() == "r0s1f1"
    shown.press("n", "n")
    assert shown.selected() == "r0s0f1"


def test_jumps_into_view(show: Callable[..., Shown]) -> None:
    """What is found is brought into view: in time, and from below."""
    shown = show(training(ranks=8, steps=40))
    shown.page.select_option("#step", "0")
    shown.page.fill("#search", '"forward Net"')
    shown.press("Shift+Enter")
    assert shown.selected() == "r7s39f0"
    host = shown.page.locator("#timeline").bounding_box()
    box = shown.box("r7s39f0")
    assert host["x"] <= box["x"]
    assert box["x"] + box["width"] <= host["x"] + host["width"]
    assert host["y"] + 24 <= box["y"]
    assert box["y"] + box["height"] <= host["y"] + host["height"]


def test_others_are_dimmed(show: Callable[..., Shown]) -> None:
    """What is found keeps its colour, what is not loses it; without a query all have theirs."""
    shown = show(
        [module("f0", "forward", "Net.a", 0, 10), module("f1", "forward", "Net.b", 20, 30)]
    )

    def colours() -> list[tuple[int, ...]]:
        boxes = [shown.box(key) for key in ("f0", "f1")]
        return shown.pixels([(box["x"] + box["width"] - 20, box["y"] + 8) for box in boxes])

    blue, grey = (75, 152, 230), (227, 230, 234)
    assert colours() == [blue, blue]
    shown.page.fill("#search", "Net.b")
    shown.settle()
    assert colours() == [grey, blue]
    shown.press("Escape")
    assert colours() == [blue, blue]
    assert shown.page.input_value("#search") == ""
    assert shown.text("#found") == ""
