"""Where the time goes: the icicle and the table, against sums made by another road."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import pytest

from otel_modtrack.view.model import build_trees
from tests.page.made import MS, module, training

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.page.shown import Shown


def table(shown: Shown) -> list[list[str]]:
    """The cells of the table's rows; of the own time the milliseconds only."""
    shown.page.click("#tab-modules")
    return shown.page.evaluate(
        "() => [...document.querySelectorAll('#modules tbody tr')].map((row) => "
        "[row.querySelector('button').textContent, ...[...row.children].slice(1).map("
        "(cell) => cell.firstChild.textContent)])"
    )


def test_icicle(show: Callable[..., Shown]) -> None:
    """Each call path with its calls, total and own time; the largest first."""
    shown = show(training())
    found = {
        (node["depth"], node["name"]): (node["calls"], node["total"] / MS, node["self"] / MS)
        for node in shown.ask("icicle")
    }
    assert found == {
        (0, "train_step"): (6, 620, 6 * (100 - 40 - 50 - 5)),
        (1, "backward"): (6, 300, 12),
        (2, "backward Net"): (6, 288, 12),
        (3, "backward Net.layers.*"): (12, 276, 216),
        (4, "recompute Net.layers.*"): (6, 60, 60),
        (1, "forward Net"): (6, 240, 12),
        (2, "forward Net.layers.*"): (12, 228, 228),
        (1, "optimizer_step AdamW"): (6, 50, 50),
    }
    boxes = {node["name"]: node["box"] for node in shown.ask("icicle")}
    whole = boxes["train_step"]["width"]
    assert boxes["backward"]["width"] == pytest.approx(whole * 300 / 620, abs=0.5)
    assert boxes["backward"]["x"] < boxes["forward Net"]["x"] < boxes["optimizer_step AdamW"]["x"]


def test_icicle_of_one_rank_and_step(show: Callable[..., Shown]) -> None:
    """The sums are of the chosen process and step."""
    shown = show(training())
    shown.page.select_option("#process", label="rank 1")
    shown.page.select_option("#step", "1")
    root = shown.ask("icicle")[0]
    assert (root["calls"], root["total"]) == (1, 110 * MS)


def test_icicle_by_mouse_and_keys(show: Callable[..., Shown]) -> None:
    """A click looks into a block; arrows go around; Enter finds it in the timeline."""
    shown = show(training())
    before = {node["name"]: node["box"] for node in shown.ask("icicle")}
    box = before["forward Net"]
    shown.page.mouse.click(box["x"] + box["width"] / 2, box["y"] + 8)
    shown.settle()
    assert shown.text("#path") == "forward Net · 240.0 ms in 6 calls, 38.7% · self 12.00 ms, 1.9%"
    after = {node["name"]: node["box"] for node in shown.ask("icicle")}
    assert after["forward Net"]["width"] == pytest.approx(before["train_step"]["width"], abs=1)
    shown.press("ArrowDown")
    assert shown.text("#path").startswith("forward Net.layers.* · 228.0 ms in 12 calls")
    shown.press("ArrowUp", "ArrowLeft")
    assert shown.text("#path").startswith("backward · ")
    shown.press("ArrowRight", "ArrowDown", "Enter")
    assert shown.ask("found") == 12
    assert shown.selected() == "r0s0f2"  # the longest
    shown.page.click("#icicle-all")
    shown.settle()
    again = {node["name"]: node["box"] for node in shown.ask("icicle")}
    assert again == before


def test_icicle_of_what_overlaps(show: Callable[..., Shown]) -> None:
    """Children that run at once are side by side, and their parent is as wide as both."""
    spans = [
        module("a", "forward", "Net", 0, 10),
        module("b", "forward", "Net.x", 1, 9, parent="a"),
        module("c", "forward", "Net.y", 2, 10, parent="a"),
    ]
    root, *parts = show(spans).ask("icicle")
    assert root["self"] == 1 * MS
    assert root["box"]["width"] == pytest.approx(940, abs=2)
    assert [part["box"]["width"] for part in parts] == pytest.approx([940 * 8 / 17] * 2, abs=1)


def test_table(show: Callable[..., Shown]) -> None:
    """By template: calls, own, total, mean and longest; most own time first."""
    assert table(show(training())) == [
        ["forward Net.layers.*", "12", "228.000", "228.000", "19.000", "20.000"],
        ["backward Net.layers.*", "12", "216.000", "276.000", "23.000", "26.000"],
        ["recompute Net.layers.*", "6", "60.000", "60.000", "10.000", "10.000"],
        ["optimizer_step AdamW", "6", "50.000", "50.000", "8.333", "15.000"],
        ["train_step", "6", "30.000", "620.000", "103.333", "110.000"],
        ["backward", "6", "12.000", "300.000", "50.000", "50.000"],
        ["backward Net", "6", "12.000", "288.000", "48.000", "48.000"],
        ["forward Net", "6", "12.000", "240.000", "40.000", "40.000"],
    ]


def test_table_by_fqn_against_the_trees(show: Callable[..., Shown]) -> None:
    """By fqn: the same as what Python's trees add up to."""
    spans = training()
    sums: dict[str, list[float]] = defaultdict(lambda: [0, 0, 0])
    for root in build_trees(spans):
        for _, node in root.walk():
            one = sums[f"{node.span.phase} {node.span.fqn}" if node.span.fqn else node.span.name]
            one[0] += 1
            one[1] += node.self_ns / MS
            one[2] += node.span.duration_ns / MS
    shown = show(spans)
    shown.page.click("#tab-modules")
    shown.page.select_option("#modules-by", "fqn")
    found = {row[0]: [float(cell) for cell in row[1:4]] for row in table(shown)}
    assert found == {key: pytest.approx(value) for key, value in sums.items()}


def test_module_within_itself(show: Callable[..., Shown]) -> None:
    """A total counts the outermost call only, as in the terminal."""
    spans = [
        module("a", "forward", "Net", 0, 10),
        module("b", "forward", "Net", 2, 8, parent="a"),
    ]
    assert table(show(spans)) == [["forward Net", "2", "10.000", "10.000", "5.000", "10.000"]]


def test_sorting(show: Callable[..., Shown]) -> None:
    """A head sorts by its column, again the other way; the sorted one says so."""
    shown = show(training())
    shown.page.click("#tab-modules")
    for head, first, last in (
        ("calls", "backward Net.layers.*", "train_step"),
        ("calls", "backward", "forward Net.layers.*"),
        ("total", "train_step", "optimizer_step AdamW"),
        ("label", "backward", "train_step"),
    ):
        shown.page.click(f"#modules th [data-order={head}]")
        names = [row[0] for row in table(shown)]
        assert (names[0], names[-1]) == (first, last)
    heads = shown.page.locator("#modules th[aria-sort=ascending]")
    assert heads.all_inner_texts() == ["module ▲"]


def test_row_finds_its_calls(show: Callable[..., Shown]) -> None:
    """A click finds the calls of that row and no others, and goes to the longest."""
    shown = show(training())
    shown.page.click("#tab-modules")
    shown.page.click("#modules >> text=backward Net.layers.*")
    assert shown.ask("found") == 12
    assert shown.selected() == "r0s0b2"
    shown.page.select_option("#modules-by", "fqn")
    shown.page.click("#modules >> text=forward Net.layers.1")
    assert shown.ask("found") == 6
    assert shown.page.input_value("#search") == '"forward Net.layers.1"'


def test_many_rows(show: Callable[..., Shown]) -> None:
    """A hundred rows, and the rest on demand."""
    spans = [module(f"m{n}", "forward", f"Net.part{n}", n, n + 1) for n in range(130)]
    shown = show(spans)
    assert len(table(shown)) == 100
    shown.page.click("text=Show 30 more rows")
    assert len(table(shown)) == 130


def test_tabs_by_keys(show: Callable[..., Shown]) -> None:
    """Arrows go from one summary to the other."""
    shown = show(training())
    shown.page.focus("#tab-icicle")
    shown.press("ArrowRight")
    assert shown.page.is_visible("#panel-modules")
    assert not shown.page.is_visible("#panel-icicle")
    assert shown.page.get_attribute("#tab-modules", "aria-selected") == "true"
    shown.press("ArrowLeft")
    assert shown.page.is_visible("#panel-icicle")


def test_height_of_the_summary(show: Callable[..., Shown]) -> None:
    """The edge between timeline and summary is moved by mouse and by keys."""
    shown = show(training())
    before = shown.page.locator("#summary").bounding_box()["height"]
    edge = shown.page.locator("#splitter").bounding_box()
    shown.page.mouse.move(600, edge["y"] + 3)
    shown.page.mouse.down()
    shown.page.mouse.move(600, edge["y"] + 53)
    shown.page.mouse.up()
    lower = shown.page.locator("#summary").bounding_box()["height"]
    assert lower == pytest.approx(before - 50, abs=4)
    shown.page.focus("#splitter")
    shown.press("ArrowUp")
    assert shown.page.locator("#summary").bounding_box()["height"] > lower
