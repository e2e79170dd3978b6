"""What is marked on spans: collectives and errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_modtrack.view.model import Event
from tests.page.made import EPOCH_NS, MS, module, training

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.page.shown import Shown

BLUE = (75, 152, 230)  # of a forward


def test_collectives_are_marks(show: Callable[..., Shown]) -> None:
    """A mark at the time of the launch: white in the middle, and it says what it is."""
    shown = show(training())
    shown.page.select_option("#step", "0")
    shown.settle()
    box = shown.box("r0s0b1")
    x = box["x"] + box["width"] * (60 - 44) / 20
    y = box["y"] + 8.5
    assert shown.pixel(x, y) == (255, 255, 255)
    shown.page.mouse.move(x, y)
    assert shown.text("#tooltip").splitlines() == [
        "all_reduce 256.0 KiB",
        "16.00 ms into backward Net.layers.1",
    ]
    shown.page.mouse.click(x, y)
    assert shown.selected() == "r0s0b1"


def test_errors(show: Callable[..., Shown]) -> None:
    """A span that failed has a red frame and a sign, and is found from the head."""
    raised = Event(
        "exception", EPOCH_NS + 5 * MS, {"exception.type": "ValueError", "exception.message": "no"}
    )
    failing = module(
        "bad", "forward", "Net", 0, 10, failed=True, status_message="no", events=(raised,)
    )
    shown = show([failing, *(module("good", "forward", "Net", 20, 30),)])
    box = shown.box("bad")
    red = (194, 31, 50)
    assert shown.pixel(box["x"] + box["width"] / 4, box["y"] + 1) == red  # the frame
    assert shown.pixel(box["x"] + 2, box["y"] + 8) == red  # behind the !
    assert shown.pixel(shown.box("good")["x"] + 2, box["y"] + 8) == BLUE
    assert "! forward Net\nat 0 ns" in shown.text("#details")  # when, not how long
    shown.page.click("text=! 1 error")
    assert shown.selected() == "bad"
    assert "! no" in shown.text("#details")
    assert "exception.message" in shown.page.inner_html("#details")
