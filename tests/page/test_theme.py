"""Light and dark: as the system has it, switched by hand, and legible in both."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.page.made import training

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.page.shown import Shown

BACKGROUNDS = {"light": (255, 255, 255), "dark": (20, 23, 28)}


def luminance(colour: tuple[int, ...]) -> float:
    """Relative luminance, as WCAG 2 defines it."""
    parts = [part / 255 for part in colour]
    red, green, blue = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    ]
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: tuple[int, ...], other: tuple[int, ...]) -> float:
    """Contrast ratio, as WCAG 2 defines it."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def colour(text: str) -> tuple[int, ...]:
    """``rgb(1, 2, 3)`` as numbers."""
    return tuple(int(part) for part in text[4:-1].split(","))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_as_the_system(show: Callable[..., Shown], scheme: str) -> None:
    """The page and the canvas take the system's scheme, and follow it when it changes."""
    shown = show(training(), scheme=scheme)
    host = shown.page.locator("#timeline").bounding_box()
    corner = host["x"] + 3, host["y"] + host["height"] - 3
    assert shown.ask("theme") == scheme
    assert shown.pixel(*corner) == BACKGROUNDS[scheme]
    other = "dark" if scheme == "light" else "light"
    shown.page.emulate_media(color_scheme=other)
    shown.settle()
    assert shown.pixel(*corner) == BACKGROUNDS[other]


def test_by_hand(show: Callable[..., Shown]) -> None:
    """The button and the key t switch."""
    shown = show(training())
    shown.page.click("#theme")
    assert shown.ask("theme") == "dark"
    shown.focus_timeline()
    shown.press("t")
    assert shown.ask("theme") == "light"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast_of_texts(show: Callable[..., Shown], scheme: str) -> None:
    """Every text that is shown has 4.5:1 with what is behind it (WCAG AA)."""
    shown = show(training(), scheme=scheme)
    shown.select("r0s0b2")
    shown.page.click("#tab-modules")
    texts = shown.page.evaluate(
        """() => {
          const found = [];
          const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
          for (let node; (node = walker.nextNode()); ) {
            const at = node.parentElement;
            if (!node.textContent.trim() || !at.checkVisibility() || at.closest(".unseen, .chip")
                || at.closest("script, :disabled")) continue;
            let behind = at;
            while (getComputedStyle(behind).backgroundColor === "rgba(0, 0, 0, 0)") {
              behind = behind.parentElement;
            }
            found.push([node.textContent, getComputedStyle(at).color,
                getComputedStyle(behind).backgroundColor]);
          }
          return found;
        }"""
    )
    assert len(texts) > 50
    weak = [text for text, front, back in texts if contrast(colour(front), colour(back)) < 4.5]
    assert weak == []


def test_contrast_of_kinds(show: Callable[..., Shown]) -> None:
    """Blocks stand out from both backgrounds by 3:1, and their text from them by 4.5:1."""
    shown = show(training())
    shown.page.select_option("#step", "0")
    shown.settle()
    for key in ("", "f1", "b2", "c1", "o"):
        box = shown.box(f"r0s0{key}")
        points = [(box["x"] + box["width"] - 4 - x, box["y"] + 3) for x in range(8)]
        block = max(shown.pixels(points), key=luminance)  # between the pattern's lines
        assert contrast(block, (11, 15, 20)) >= 4.5
        assert contrast(block, BACKGROUNDS["light"]) >= 3
        assert contrast(block, BACKGROUNDS["dark"]) >= 3
