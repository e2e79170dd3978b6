"""The details of a span, and jumping from one to another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_modtrack.view.model import Event, Link
from tests.page.made import EPOCH_NS, MS, module, span, training

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.page.shown import Shown


def told(shown: Shown, section: str) -> dict[str, str]:
    """A section's names and values."""
    return shown.page.evaluate(
        """(name) => {
          const all = [...document.querySelectorAll("#details section")];
          const one = all.find((section) => section.firstChild.textContent === name);
          return Object.fromEntries([...one.querySelectorAll(":scope > dl > dt")].map(
              (dt) => [dt.title, dt.nextSibling.textContent]));
        }""",
        section,
    )


def related(shown: Shown) -> list[list[str]]:
    """How other spans are related, which, and how long they took."""
    return shown.page.evaluate(
        "() => [...document.querySelectorAll('#details .links li')].map("
        "(li) => [...li.children].map((part) => part.textContent))"
    )


def test_times(show: Callable[..., Shown]) -> None:
    """Duration, own time, shares, and the start: in the step, in all, and by the clock."""
    shown = show(training())
    shown.select("r1s1b0")
    assert told(shown, "Time") == {
        "duration": "48.00 ms",
        # 20 ms and 26 ms are its children's.
        "self": "2.000 ms, 4.2%",
        "of the parent": "96.0%",
        "of the step": "43.6%",
        "start in the step": "43.00 ms",
        "start": "168.0 ms",
        "at": "2027-01-15 08:00:00.168000000 UTC",
    }


def test_identity_and_attributes(show: Callable[..., Shown]) -> None:
    """All attributes; ids, process and file."""
    shown = show(training())
    shown.select("r1s1f1")
    assert shown.text("#details h2") == "F forward Net.layers.0"
    assert told(shown, "Attributes") == {
        "modtrack.phase": "forward",
        "modtrack.module.fqn": "Net.layers.0",
        "modtrack.module.template": "Net.layers.*",
        "modtrack.module.type": "Linear",
    }
    assert told(shown, "Identity") == {
        "name": "forward Net.layers.*",
        "process": "rank 1",
        "service": "trainer",
        "step": "1",
        "span id": "r1s1f1----------",
        "trace id": "r1s1".ljust(32, "-"),
        "scope": "otel_modtrack",
        "kind": "internal",
        "file": "rank1.jsonl",
    }


def test_values_as_they_are(show: Callable[..., Shown]) -> None:
    """Large integers to the last digit, lists, booleans, what is no number."""
    attributes = {
        "app.large": 2**63 - 1,
        "app.list": ("a", "b"),
        "app.flag": False,
        "app.nan": float("nan"),
        "app.third": 1 / 3,
        "app.none": None,
        "app.nested": {"a": [1, {"b": 2**60}]},
    }
    shown = show([span("a", "work", 0, 1, attributes=attributes)])
    shown.select("a")
    assert told(shown, "Attributes") == {
        "app.large": "9223372036854775807",
        "app.list": "a, b",
        "app.flag": "false",
        "app.nan": "nan",
        "app.third": "0.3333333333333333",
        "app.none": "null",
        "app.nested": '{"a":[1,{"b":"1152921504606846976"}]}',
    }


def test_from_backward_to_forward_and_back(show: Callable[..., Shown]) -> None:
    """The link of a backward leads to its forward, and from there back, by mouse and by key."""
    shown = show(training())
    shown.page.select_option("#step", "2")
    shown.settle()
    shown.select("r1s2b2")
    assert related(shown) == [
        ["links to", "forward Net.layers.0", "18.00 ms"],
        ["parent", "backward Net", "48.00 ms"],
    ]
    shown.page.click("#details .links button >> nth=0")
    assert shown.selected() == "r1s2f1"
    assert related(shown)[0] == ["linked from", "backward Net.layers.0", "26.00 ms"]
    shown.page.click("#details .links button >> nth=0")
    assert shown.selected() == "r1s2b2"
    shown.focus_timeline()
    shown.press("l")
    assert shown.selected() == "r1s2f1"
    shown.press("l")
    assert shown.selected() == "r1s2b2"


def test_parents_and_children(show: Callable[..., Shown]) -> None:
    """Both are named, and a click goes there."""
    shown = show(training())
    shown.select("r0s0f0")
    assert related(shown)[1:] == [
        ["parent", "train_step 0", "100.0 ms"],
        ["child", "forward Net.layers.0", "18.00 ms"],
        ["child", "forward Net.layers.1", "20.00 ms"],
    ]
    shown.page.click("#details .links button >> nth=2")
    assert shown.selected() == "r0s0f1"


def test_many_children(show: Callable[..., Shown]) -> None:
    """The first thirty, and how many more there are."""
    children = [span(f"c{n}", "part", n, n + 1, parent="all") for n in range(33)]
    shown = show([span("all", "whole", 0, 40), *children])
    shown.select("all")
    assert len(related(shown)) == 31
    assert shown.text("#details .links li:last-child") == "and 3 more children"


def test_link_to_elsewhere(show: Callable[..., Shown]) -> None:
    """A link to a span of another file is told, and leads nowhere."""
    shown = show([span("a", "work", 0, 1, links=(Link("t" * 32, "s" * 16),))])
    shown.select("a")
    assert "span ssssssssssssssss, not in this file" in shown.text("#details .links")
    assert shown.page.locator("#details .links button").count() == 0


def test_events(show: Callable[..., Shown]) -> None:
    """Each with its time in the span and its attributes; a collective in short."""
    noted = Event("app.noted", EPOCH_NS + 3 * MS, {"app.tokens": 7})
    launched = Event(
        "modtrack.collective",
        EPOCH_NS + 4 * MS,
        {
            "modtrack.collective.operation": "all_gather",
            "modtrack.collective.count": 2,
            "modtrack.collective.size": 3_000_000,
            "modtrack.collective.group.description": "mesh_tp",
        },
    )
    shown = show([module("a", "forward", "Net", 1, 9, events=(noted, launched))])
    box = shown.box("a")
    shown.page.mouse.click(box["x"] + box["width"] * 0.9, box["y"] + 8)
    said = shown.page.locator("#details .events > li > div").all_inner_texts()
    assert [" ".join(line.split()) for line in said] == [
        "○ app.noted +2.000 ms",
        "◆ all_gather x2 2.9 MiB (mesh_tp) +3.000 ms",
    ]
    assert "app.tokens" in shown.text("#details .events")


def test_collectives_are_summed(show: Callable[..., Shown]) -> None:
    """While nothing is selected: how many of each operation, and how much."""
    shown = show(training())
    assert told(shown, "Collectives") == {"": "6, 1.5 MiB"}
    assert "all_reduce" in shown.text("#details")
