"""The step picker: a list, buttons, bars and keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from otel_modtrack.view.model import Process
from tests.page.made import module, span, training

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.page.shown import Shown


def sees_step(shown: Shown, step: int) -> bool:
    """Whether the view is that step of both ranks, with a margin."""
    length = 115 + (10 if step == 1 else 0) - 10
    start_ms, end_ms = shown.view_ms()
    assert shown.page.input_value("#step") == str(step)
    return (start_ms, end_ms) == pytest.approx(
        (120 * step - 0.02 * length, 120 * step + 1.02 * length)
    )


def test_list(show: Callable[..., Shown]) -> None:
    """All steps, and each with its time on the slowest rank, however their clocks differ."""
    shown = show(training())
    options = [option.inner_text() for option in shown.page.query_selector_all("#step option")]
    assert options == [
        "All steps (3)",
        "step 0, 100.0 ms",
        "step 1, 110.0 ms",
        "step 2, 100.0 ms",
    ]
    shown.page.select_option("#step", "1")
    assert sees_step(shown, 1)
    everything = -3.45, 345 + 3.45
    shown.page.select_option("#step", "-1")
    assert shown.view_ms() == pytest.approx(everything)


def test_buttons_and_keys(show: Callable[..., Shown]) -> None:
    """To the next and the one before; not beyond the ends."""
    shown = show(training())
    shown.page.click("#step-next")
    assert sees_step(shown, 0)
    shown.focus_timeline()
    shown.press("]", "]", "]", "]")
    assert sees_step(shown, 2)
    shown.press("[")
    assert sees_step(shown, 1)
    shown.page.click("#step-previous")
    assert sees_step(shown, 0)


def test_bars(show: Callable[..., Shown]) -> None:
    """A bar for each step: clicked, and by arrow keys; said to who cannot see them."""
    shown = show(training())
    bars = shown.page.locator("#step-bars")
    bars.click(position={"x": 30, "y": 20})  # 20 pixels each
    assert sees_step(shown, 1)
    assert bars.get_attribute("aria-valuetext") == "step 1, 110.0 ms"
    bars.focus()
    shown.press("ArrowRight")
    assert sees_step(shown, 2)
    shown.press("Home")
    assert sees_step(shown, 0)
    assert bars.get_attribute("aria-valuenow") == "0"


def test_slowest_are_named(show: Callable[..., Shown]) -> None:
    """While nothing is selected, the slowest steps are listed; a click goes there."""
    shown = show(training())
    listed = shown.page.locator("#details .links button").all_inner_texts()
    assert listed[0] == "step 1"
    shown.page.click("#details .links button >> nth=0")
    assert shown.selected() == "r0s1"


def test_choosing_sums_up_that_step(show: Callable[..., Shown]) -> None:
    """Icicle and table are of the chosen step; a jump into another step takes them along."""
    shown = show(training())
    assert shown.text("#scope") == "all steps"
    assert shown.ask("icicle")[0]["calls"] == 6
    shown.page.select_option("#step", "1")
    assert shown.text("#scope") == "step 1"
    assert shown.ask("icicle")[0]["calls"] == 2
    shown.page.fill("#search", "r")
    shown.page.fill("#search", "optimizer")
    shown.press("Enter", "Enter", "Enter")
    assert shown.selected() == "r0s2o"
    assert shown.text("#scope") == "step 2"


def test_resumed(show: Callable[..., Shown]) -> None:
    """A step that a process ran twice is two."""
    process = Process("trainer", 0, 1)
    shown = show(
        [
            span(f"s{turn}", "train_step", at, at + 10, process=process, attributes=attributes)
            for turn, at in enumerate((0, 100))
            for attributes in [{"modtrack.step.number": 7}]
        ]
    )
    options = [option.inner_text() for option in shown.page.query_selector_all("#step option")]
    assert options == ["All steps (2)", "step 7, 10.00 ms", "step 7 (2), 10.00 ms"]


def test_resumed_by_another_process(show: Callable[..., Shown]) -> None:
    """A rank that was restarted is one rank with two lanes, and steps that it repeats are two."""
    first, second = (Process("trainer", 0, 1, "run.jsonl", {"process.pid": pid}) for pid in (1, 2))
    shown = show(
        [
            span(f"s{at}", "train_step", at, at + 10, process=process, attributes=attributes)
            for process, number, at in ((first, 6, 0), (first, 7, 20), (second, 7, 3_600_000))
            for attributes in [{"modtrack.step.number": number}]
        ]
    )
    options = [option.inner_text() for option in shown.page.query_selector_all("#step option")]
    assert options[1:] == ["step 6, 10.00 ms", "step 7, 10.00 ms", "step 7 (2), 10.00 ms"]
    assert shown.text("#facts").startswith("1 rank · 3 steps · 3 spans")
    lanes = [lane.inner_text() for lane in shown.page.query_selector_all(".lane")]
    assert lanes == ["▾ rank 0 · trainer · #1 · 2 spans", "▾ rank 0 · trainer · #2 · 1 span"]
    choices = [option.inner_text() for option in shown.page.query_selector_all("#process option")]
    assert choices[1:] == ["rank 0 · trainer · #1", "rank 0 · trainer · #2"]


def test_without_steps(show: Callable[..., Shown]) -> None:
    """Traces are chosen in their place."""
    shown = show(
        [
            module("a", "forward", "Net", 0, 10, trace="one"),
            module("b", "forward", "Net", 50, 70, trace="two"),
        ]
    )
    assert "2 traces" in shown.text("#facts")
    shown.page.click("#step-next")
    shown.page.click("#step-next")
    assert shown.view_ms() == pytest.approx((49.6, 70.4))
    assert shown.text("#scope") == "trace forward Net two-----"
