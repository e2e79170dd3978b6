"""Which collectives were launched: by operation, group and module."""

from __future__ import annotations

from dataclasses import replace

import pytest

from otel_modtrack.view.collectives import Launches, render_collectives, sum_launches
from otel_modtrack.view.model import Node, build_trees
from otel_modtrack.view.narrow import Narrowing
from otel_modtrack.view.top import FQN, TEMPLATE
from tests.view.making import launched, make_span, make_step


def make_trees(*, timed: bool = True) -> list[Node]:
    """Make a step with collectives in both layers and in the backward."""
    duration = {"duration": 0.25} if timed else {}
    events = {
        "c": [launched("all_gather", 1, 1024, "mesh_tp", group_size=4, duration=0.5)],
        "d": [
            launched("all_gather", 2, 2048, "mesh_tp", group_size=4, **duration),
            launched("all_gather", 1, 8, group_name="0", group_size=8, **duration),
        ],
        "f": [
            launched("all_reduce", 1, 4096, "default_pg", group_size=8, duration=1),
            launched("barrier", 3, 0, "default_pg", group_size=8, duration=0.125),
        ],
    }
    return build_trees(replace(span, events=events.get(span.span_id, ())) for span in make_step())


def test_every_number_by_fqn() -> None:
    """Each operation, group and module is a row, the most bytes first; durations are in ms."""
    rows = sum_launches(make_trees(), by=FQN)
    tp, forward = ("all_gather", "mesh_tp", 4), "forward Net.l.1"
    backward = ("backward Net", "backward", "Net")
    assert rows == [
        Launches("all_reduce", "default_pg", 8, *backward, 1, 4096, 1e9, 1),
        Launches(*tp, forward, "forward", "Net.l.1", 2, 2048, 0.25e9, 2),
        Launches(*tp, "forward Net.l.0", "forward", "Net.l.0", 1, 1024, 0.5e9, 1),
        Launches("all_gather", "0", 8, forward, "forward", "Net.l.1", 1, 8, 0.25e9, 1),
        Launches("barrier", "default_pg", 8, *backward, 3, 0, 0.125e9, 3),
    ]


def test_layers_of_a_stack_are_one_row_by_template() -> None:
    """Counts, bytes and durations of the layers are added."""
    (row,) = [one for one in sum_launches(make_trees(), by=TEMPLATE) if one.group == "mesh_tp"]
    assert (row.name, row.module) == ("forward Net.l.*", "Net.l.*")
    assert (row.count, row.size_bytes, row.duration_ns, row.timed) == (3, 3072, 0.75e9, 3)


def test_text() -> None:
    """Each operation and group has a line with its sum, and below it who launched them."""
    assert render_collectives(sum_launches(make_trees(), by=FQN)).splitlines() == [
        " count        size         ms  operation, group, span",
        "     1     4.0 KiB   1000.000  all_reduce, default_pg of 8 ranks",
        "     1     4.0 KiB   1000.000    backward Net",
        "     3     3.0 KiB    750.000  all_gather, mesh_tp of 4 ranks",
        "     2     2.0 KiB    250.000    forward Net.l.1",
        "     1     1.0 KiB    500.000    forward Net.l.0",
        "     1         8 B    250.000  all_gather, 0 of 8 ranks",
        "     1         8 B    250.000    forward Net.l.1",
        "     3         0 B    125.000  barrier, default_pg of 8 ranks",
        "     3         0 B    125.000    backward Net",
    ]


@pytest.mark.parametrize("told", [float("nan"), float("inf"), "1"])
def test_durations_that_are_none_are_not_told(told: object) -> None:
    """A duration that is no number is as good as none; the launch counts."""
    spans = [
        replace(make_span("a", "", "s", 0, 1), events=[launched("send", 2, 64, duration=told)])
    ]
    (row,) = sum_launches(build_trees(spans), by=FQN)
    assert (row.count, row.duration_ns, row.timed) == (2, 0.0, 0)


def test_durations_that_are_not_told_are_no_zeros() -> None:
    """Where a backend tells none there is a dash, and where it tells some it is said which."""
    text = render_collectives(sum_launches(make_trees(timed=False), by=TEMPLATE))
    assert text.endswith(
        "\n\nThe durations are those of 5 of 8 launches: nothing tells the others'."
    )
    spans = [replace(make_span("a", "", "s", 0, 1), events=[launched("send", 2, 64)])]
    assert render_collectives(sum_launches(build_trees(spans), by=FQN)).splitlines()[1:] == [
        "     2        64 B          -  send, group without a name",
        "     2        64 B          -    s",
    ]


def test_only_what_fits_is_counted() -> None:
    """--phase and --module leave out what other spans launched."""
    roots = make_trees()
    kept = Narrowing(modules=["l.0"]).keep(roots)
    assert [one.size_bytes for one in sum_launches(roots, by=FQN, kept=kept)] == [1024]


@pytest.mark.parametrize("by", [TEMPLATE, FQN])
def test_other_events_are_none(by: str) -> None:
    """An exception is no collective; nor is an event without a count."""
    events = [replace(launched("x", 1, 1), name="exception"), launched("x", "1", 1)]  # type: ignore[arg-type]
    spans = [replace(make_span("a", "", "s", 0, 1), events=events)]
    assert sum_launches(build_trees(spans), by=by) == []


def test_names_cannot_command_the_terminal() -> None:
    """Control characters of groups and operations from a file are not printed."""
    events = [launched("all\033[2J", 1, 1, "group\r")]
    spans = [replace(make_span("a", "", "s", 0, 1), events=events)]
    rows = sum_launches(build_trees(spans), by=FQN)
    assert "all?[2J, group?" in render_collectives(rows)
    assert "\033[1mall?[2J, group?" in render_collectives(rows, colour=True)
