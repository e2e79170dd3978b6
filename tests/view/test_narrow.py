"""What --phase and --module leave of a tree."""

from __future__ import annotations

from dataclasses import replace

import pytest

from otel_modtrack.usage import UsageError
from otel_modtrack.view.model import Node, build_trees
from otel_modtrack.view.narrow import Narrowing
from otel_modtrack.view.tree import lay_out, render_headline, render_tree
from tests.view.making import launched, make_parallel_step, make_span, make_step


def draw(roots: list[Node], *phases: str, module: str = "") -> list[str]:
    """Return the labels that are shown, those that fit with a star."""
    kept = Narrowing(phases, [module] if module else []).keep(roots)
    return [
        f"{line.node.span.label}{'' if line.is_context else '*'}"
        for line in lay_out(roots, kept=kept)
    ]


def test_phase_keeps_the_way_down() -> None:
    """Spans of the phase are shown, in the spans that they are in."""
    roots = build_trees(make_step())
    assert draw(roots, "backward") == ["train_step 7", "backward*", "backward Net*"]
    assert draw(roots, "forward") == [
        "train_step 7",
        "forward Net*",
        "forward Net.l.0*",
        "forward Net.l.1*",
    ]
    assert draw(roots, "step") == ["train_step 7*"]
    assert len(draw(roots, "forward", "backward", "step")) == 6


def test_recomputation_is_shown_in_its_backward() -> None:
    """A phase inside another is found, and the other is only the way down."""
    inner = make_span("r", "f", "recompute Net", 7, 8, phase="recompute", fqn="Net")
    roots = build_trees([*make_step(), inner])
    shown = ["train_step 7", "backward", "backward Net", "recompute Net*"]
    assert draw(roots, "recompute") == shown
    assert "recompute Net*" not in draw(roots, "backward")


def test_span_of_the_users_own_is_of_the_phase_that_it_is_in() -> None:
    """What has no phase itself is shown with what it is in; in no phase it is other."""
    inner = make_span("x", "c", "tokenize", 1, 2)
    outer = make_span("y", "a", "load", 0, 1)
    roots = build_trees([*make_step(), inner, outer])
    assert "tokenize*" in draw(roots, "forward")
    assert draw(roots, "other") == ["train_step 7", "load*"]


@pytest.mark.parametrize(
    ("pattern", "fits"),
    [
        ("Net.l.0", ["forward Net.l.0"]),
        ("l.0", ["forward Net.l.0"]),
        ("0", ["forward Net.l.0"]),
        ("Net.l.*", ["forward Net.l.0", "forward Net.l.1"]),
        ("l.?", ["forward Net.l.0", "forward Net.l.1"]),
        ("l.[!0]", ["forward Net.l.1"]),
        ("*.l.*", ["forward Net.l.0", "forward Net.l.1"]),
        ("Net", ["forward Net", "forward Net.l.0", "forward Net.l.1", "backward Net"]),
    ],
)
def test_module_fits_as_a_whole_or_by_its_last_parts(pattern: str, fits: list[str]) -> None:
    """A pattern is for an fqn, a template or what they end with; what is inside is shown too."""
    shown = draw(build_trees(make_step()), module=pattern)
    assert [label[:-1] for label in shown if label.endswith("*")] == fits


def test_question_mark_is_one_digit() -> None:
    """The star of a template is not what a question mark stands for; a template itself fits."""
    names = {"phase": "forward", "fqn": "Net#2.l.10", "template": "Net.l.*"}
    roots = build_trees([make_span("a", "", "forward Net.l.*", 0, 1, **names)])
    for pattern in ("l.?", "l.[!0]"):
        with pytest.raises(UsageError, match="no module fits"):
            draw(roots, module=pattern)
    assert draw(roots, module="Net.l.*") == ["forward Net#2.l.10*"]


def test_pattern_does_not_fit_in_the_middle_of_a_name() -> None:
    """The last parts of a name are whole parts."""
    with pytest.raises(UsageError, match="no module fits et: the modules there are"):
        draw(build_trees(make_step()), module="et")


def test_phase_and_module_both_have_to_fit() -> None:
    """Both options together leave what fits both."""
    roots = build_trees(make_step())
    assert draw(roots, "backward", module="Net") == ["train_step 7", "backward", "backward Net*"]


@pytest.mark.parametrize(
    ("narrowing", "says"),
    [
        (
            Narrowing(modules=["GPT", "m*"]),
            "no module fits GPT or m*: the modules there are Net, Net.l.*",
        ),
        (
            Narrowing(phases=["recompute"]),
            "no span fits --phase recompute: the phases there are forward, backward, step",
        ),
        (
            Narrowing(["backward"], ["l.*"]),
            "no span fits --phase backward --module l.*: the phases there are forward",
        ),
    ],
)
def test_nothing_that_fits_is_answered_with_what_there_is(narrowing: Narrowing, says: str) -> None:
    """A pattern for nothing is answered with the modules, a phase with the phases."""
    with pytest.raises(UsageError) as caught:
        narrowing.keep(build_trees(make_step()))
    assert str(caught.value) == says


def test_file_without_modules_says_so() -> None:
    """Somebody else's spans are of no module."""
    with pytest.raises(UsageError, match="no module fits x: no span is of a module"):
        Narrowing(modules=["x"]).keep(build_trees([make_span("a", "", "s", 0, 1)]))


def test_text_of_what_is_left() -> None:
    """Times and shares are as in the whole tree, and the headline says what was asked for."""
    roots = build_trees(make_step())
    narrowing = Narrowing(modules=["l.1"])
    kept = narrowing.keep(roots)
    assert render_headline(roots, kept=kept, text=narrowing.text).splitlines() == [
        "Step 7 of svc: 6 spans, 10.0 ms",
        "1 span fits --module l.1, and what they are in is shown",
    ]
    assert render_tree(roots, kept=kept).splitlines()[1:] == [
        "   10.000      2.000  100.0%  train_step 7",
        "    4.000      1.000   40.0%  └─ forward Net",
        "    2.000      2.000   20.0%     └─ forward Net.l.1",
    ]


def test_depth_counts_only_what_would_be_shown() -> None:
    """Spans that do not fit are not below the cut either, nor are their collectives."""
    spans = make_parallel_step()
    spans[0] = replace(spans[0], events=(launched("broadcast", 1, 8),))
    roots = build_trees(spans)
    kept = Narrowing(modules=["l.1"]).keep(roots)
    launches = "  all_gather x4 3.0 KiB, all_reduce x2 64 B (mesh_tp)"
    assert render_tree(roots, depth=2, kept=kept).splitlines()[2:] == [
        "    4.000      1.000   40.0%  └─ forward Net (+1 below)" + launches
    ]


def test_way_down_is_dim_on_a_terminal() -> None:
    """What is shown only for what is in it is told apart by colour."""
    roots = build_trees(make_step())
    kept = Narrowing(modules=["l.1"]).keep(roots)
    text = render_tree(roots, kept=kept, colour=True)
    assert "\033[2mforward Net\033[0m" in text
    assert "\033[34mforward\033[0m Net.l.1" in text
