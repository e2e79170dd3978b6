"""Trees become the right text."""

from __future__ import annotations

from dataclasses import replace

import pytest

from otel_modtrack.sizes import render_size
from otel_modtrack.view.model import Process, build_trees
from otel_modtrack.view.tree import render_headline, render_tree
from tests.view.making import launched, make_parallel_step, make_span, make_step


def test_tree_text() -> None:
    """The tree shows durations, own times, shares of the step and full names."""
    assert render_tree(build_trees(make_step())) == (
        " total ms    self ms   share  span\n"
        "   10.000      2.000  100.0%  train_step 7\n"
        "    4.000      1.000   40.0%  ├─ forward Net\n"
        "    1.000      1.000   10.0%  │  ├─ forward Net.l.0\n"
        "    2.000      2.000   20.0%  │  └─ forward Net.l.1\n"
        "    4.000      1.000   40.0%  └─ backward\n"
        "    3.000      3.000   30.0%     └─ backward Net"
    )


def test_depth_cuts_and_says_what_it_hides() -> None:
    """Levels below the depth are counted, not shown."""
    assert render_tree(build_trees(make_step()), depth=2).splitlines()[1:] == [
        "   10.000      2.000  100.0%  train_step 7",
        "    4.000      1.000   40.0%  ├─ forward Net (+2 below)",
        "    4.000      1.000   40.0%  └─ backward (+1 below)",
    ]
    assert render_tree(build_trees(make_step()), depth=1).splitlines()[1:] == [
        "   10.000      2.000  100.0%  train_step 7 (+5 below)",
    ]


def test_deep_trees_stay_narrow() -> None:
    """From the 42nd level on a line has the level's number, and stands below the one before."""
    deep = 50_000
    spans = [make_span(f"s{i}", f"s{i - 1}" if i else "", "work", 0, 1) for i in range(deep)]
    lines = render_tree(build_trees(spans)).splitlines()[1:]
    indent = lines[1].index("└")
    assert lines[40].index("└") == indent + 39 * 3
    assert lines[40].endswith("└─ work")
    assert lines[41].index("└") == indent + 39 * 3
    assert lines[41].endswith("└─ (level 42) work")
    assert lines[-1].endswith("└─ (level 50,000) work")
    assert len(lines) == deep


def test_failed_span_names_its_error() -> None:
    """A span with an error says which."""
    spans = [make_span("a", "", "forward R", 0, 4, error="ValueError")]
    assert render_tree(build_trees(spans)).endswith("forward R ! ValueError")


def test_colour_only_adds_escapes() -> None:
    """Without colour there is no escape sequence; with it the text is the same."""
    roots = build_trees(make_step())
    plain = render_tree(roots)
    coloured = render_tree(roots, colour=True)
    assert "\033" not in plain
    assert "\033[34mforward\033[0m Net" in coloured
    for code in ("0", "1", "2", "33", "34"):
        coloured = coloured.replace(f"\033[{code}m", "")
    assert coloured == plain


def test_names_cannot_command_the_terminal() -> None:
    """Control characters of a name from a file are not printed."""
    roots = build_trees([make_span("a", "", "evil\033[2J\r\n", 0, 1)])
    assert render_tree(roots).endswith("evil?[2J??")


def test_span_without_duration_has_no_share() -> None:
    """A trace of zero length does not divide by zero."""
    assert "  0.0%" in render_tree(build_trees([make_span("a", "", "instant", 1, 1)]))


def test_headline_of_another_traces_ids_cannot_command_the_terminal() -> None:
    """Nor can ids and services of a file, which are printed above the tree."""
    span = replace(make_span("a", "", "s", 0, 1), trace_id="t\033c", process=Process("svc\r"))
    assert render_headline(build_trees([span])) == "Trace t?c of svc?: 1 span, 1.0 ms"


def test_service_without_a_name_is_not_named() -> None:
    """What the SDK calls a service that has no name says nothing."""
    span = replace(make_step()[-1], process=Process("unknown_service:python"))
    assert render_headline(build_trees([span])) == "Step 7: 1 span, 10.0 ms"


def test_thousands_are_set_apart() -> None:
    """A large number of spans is readable."""
    spans = [make_span("r", "", "root", 0, 10)]
    spans += [make_span(f"s{i}", "r", "s", 1, 2) for i in range(1234)]
    assert render_headline(build_trees(spans)) == "Trace t of svc: 1,235 spans, 10.0 ms"


def test_tree_shows_what_a_span_launched() -> None:
    """Collectives stand behind their span: operation, number, size and a group that has a name."""
    launches = "  all_gather x4 3.0 KiB, all_reduce x2 64 B (mesh_tp)"
    assert render_tree(build_trees(make_parallel_step())).splitlines()[1:] == [
        "   10.000      2.000  100.0%  train_step 7",
        "    4.000      1.000   40.0%  ├─ forward Net",
        "    1.000      1.000   10.0%  │  ├─ forward Net.l.0",
        "    2.000      2.000   20.0%  │  └─ forward Net.l.1" + launches,
        "    4.000      1.000   40.0%  └─ backward",
        "    3.000      3.000   30.0%     └─ backward Net  reduce_scatter 1.4 MiB, barrier",
    ]


def test_depth_keeps_the_collectives_of_what_it_hides() -> None:
    """A line that stands for spans below it has their collectives."""
    launches = "  all_gather x4 3.0 KiB, all_reduce x2 64 B (mesh_tp)"
    assert render_tree(build_trees(make_parallel_step()), depth=2).splitlines()[1:] == [
        "   10.000      2.000  100.0%  train_step 7",
        "    4.000      1.000   40.0%  ├─ forward Net (+2 below)" + launches,
        "    4.000      1.000   40.0%  └─ backward (+1 below)  reduce_scatter 1.4 MiB, barrier",
    ]


def test_names_of_collectives_cannot_command_the_terminal() -> None:
    """Nor can names that stand in events."""
    events = (launched("all\033[2J", 1, 1, "group\r"),)
    (root,) = build_trees([replace(make_span("a", "", "s", 0, 1), events=events)])
    assert render_tree([root]).endswith("  s  all?[2J 1 B (group?)")
    assert "\033[36mall?[2J" in render_tree([root], colour=True)


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1024**2 - 1, "1.0 MiB"),
        (5 * 1024**3 // 2, "2.5 GiB"),
        (3000 * 1024**4, "3,000.0 TiB"),
    ],
)
def test_size_text(size_bytes: int, text: str) -> None:
    """Sizes have three digits or so and a binary unit."""
    assert render_size(size_bytes) == text
