"""Orders: where several first differ, how that is told, and their files."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from otel_modtrack.order import Call, Order, first_difference, read_order
from otel_modtrack.usage import UsageError

if TYPE_CHECKING:
    from pathlib import Path


def order(name: str, *fqns: str, leaves: tuple[str, ...] = (), **more: Any) -> Order:
    """An order whose calls are nested as their names are."""
    calls: list[Call] = []
    for fqn in fqns:
        above = [at for at, one in enumerate(calls) if fqn.startswith(f"{one.fqn}.")]
        calls.append(Call(fqn, above[-1] if above else None, fqn in leaves))
    return Order(name, forward=calls, **more)


def test_equal_orders_differ_nowhere() -> None:
    """Nor does one from itself, nor one alone, nor empty ones."""
    one, other = order("a", "N", "N.a"), order("b", "N", "N.a")
    assert one.diff(other) is None
    assert one.diff(one) is None
    assert first_difference([one]) is None
    assert Order("a", forward=[]).diff(Order("b", forward=[])) is None
    with pytest.raises(ValueError, match="one or more"):
        first_difference([])
    with pytest.raises(TypeError, match=r"an Order is wanted, not str; .* read_order\(\)"):
        one.diff("order.json")


def test_the_first_position_with_what_is_around_it() -> None:
    """Three ranks, two ways; and what all of them are in."""
    fqns = ["M", "M.a", "M.moe", "M.moe.router", "M.moe.experts.0", "M.moe.experts.0.up", "M.b"]
    others = [fqn.replace("experts.0", "experts.1") for fqn in fqns]
    found = order("rank 0", *fqns).diff(order("rank 1", *others), order("rank 2", *fqns))
    assert found is not None
    assert (found.sequence, found.position) == ("forward", 4)
    assert found.before == ("M.a", "M.moe", "M.moe.router")
    assert found.inside == ("M", "M.moe")
    assert [side.names for side in found.sides] == [("rank 0", "rank 2"), ("rank 1",)]
    assert found.sides[1].fqn == "M.moe.experts.1"
    assert found.sides[1].after == ("M.moe.experts.1.up", "M.b")
    assert str(found).splitlines() == [
        (
            "the forward differs at position 4, in M.moe, after M.moe.router: "
            "rank 0, rank 2: M.moe.experts.0; rank 1: M.moe.experts.1"
        ),
        "",
        "     rank 0, rank 2      rank 1",
        "  1  M.a                 =",
        "  2  M.moe               =",
        "  3  M.moe.router        =",
        "> 4  M.moe.experts.0     M.moe.experts.1",
        "  5  M.moe.experts.0.up  M.moe.experts.1.up",
        "  6  M.b                 M.b",
    ]
    assert json.loads(json.dumps(found.as_dict()))["sides"][1]["names"] == ["rank 1"]


def test_one_that_ends_sooner() -> None:
    """Nothing comes there any more."""
    found = order("a", "N", "N.a").diff(order("b", "N"))
    assert found is not None
    assert [side.fqn for side in found.sides] == ["N.a", None]
    assert found.sentence.endswith("after N: a: N.a; b: (the end)")
    assert found.inside == ("N",)


@pytest.mark.parametrize("sequence", ["recompute", "backward"])
def test_other_phases_are_compared_as_well(sequence: str) -> None:
    """Where the forward is the same."""
    one, other = order("a", "N"), order("b", "N")
    setattr(one, sequence, [Call("N"), Call("N.a", 0)])
    setattr(other, sequence, [Call("N"), Call("N.b", 0)])
    found = one.diff(other)
    assert found is not None
    assert (found.sequence, found.position) == (sequence, 1)


def test_parameters_and_gradients_are_compared_last() -> None:
    """And only where both know them."""
    one = order("a", "N", parameters=["N.x", "N.y"], gradients=["N.y", "N.x"])
    other = order("b", "N", parameters=["N.x", "N.y"], gradients=["N.x", "N.y"])
    found = one.diff(other)
    assert found is not None
    assert (found.sequence, found.position) == ("gradients", 0)
    assert str(found).startswith("gradients arrive in another order at position 0: a: N.y; b: N.x")
    assert one.diff(order("b", "N", parameters=["N.x", "N.y"])) is None
    found = one.diff(order("b", "N", parameters=["N.y", "N.x"]))
    assert found is not None
    assert found.sequence == "parameters"


def test_what_a_leaf_calls_is_passed_over() -> None:
    """Either way round; positions are each order's own."""
    symbolic = order("symbolic", "N", "N.a", "N.b", leaves=("N.a", "N.b"))
    recorded = order("recorded", "N", "N.a", "N.a.x", "N.a.x.y", "N.b", "N.b.z")
    assert symbolic.diff(recorded) is None
    assert recorded.diff(symbolic) is None
    longer = order("recorded", "N", "N.a", "N.a.x", "N.a.x.y", "N.c")
    found = symbolic.diff(longer)
    assert found is not None
    assert found.position == 2
    assert [(side.fqn, side.position) for side in found.sides] == [("N.b", 2), ("N.c", 4)]


def test_parameters_of_a_leaf_have_no_order() -> None:
    """A leaf uses all that it has, together; between leaves the order counts."""
    leaves = ("N.a", "N.b")
    first = ["N.a.w", "N.a.b", "N.w", "N.b.w"]
    symbolic = order("s", "N", "N.a", "N.b", leaves=leaves, parameters=first)
    recorded = order("r", "N", "N.a", "N.b", parameters=["N.a.b", "N.a.w", "N.w", "N.b.w"])
    assert symbolic.diff(recorded) is None
    moved = order("r", "N", "N.a", "N.b", parameters=["N.w", "N.a.b", "N.a.w", "N.b.w"])
    found = symbolic.diff(moved)
    assert found is not None
    assert found.sequence == "parameters"


def test_calls_that_are_not_known_differ_from_nothing() -> None:
    """Their spans were folded; what comes after them is compared all the same."""
    whole = order("whole", "N", "N.a", "N.b", "N.c")
    folded = Order("folded", forward=[Call("N"), Call(""), Call(""), Call("N.c", 0)])
    assert whole.diff(folded) is None
    folded.forward = [Call("N"), Call(""), Call(""), Call("N.d", 0)]
    found = whole.diff(folded)
    assert found is not None
    assert found.position == 3
    assert Order("short", forward=[Call("N")]).diff(folded) is not None  # they are something


def test_the_number_of_a_root_counts_among_namesakes_only() -> None:
    """Net#2 in one process is Net in another; Net and Net#2 in one process are two."""
    assert order("a", "Net#2", "Net#2.a").diff(order("b", "Net", "Net.a")) is None
    both, swapped = order("a", "Net", "Net#2"), order("b", "Net#2", "Net")
    assert both.diff(swapped) is not None


def test_a_file_holds_all_of_it(tmp_path: Path) -> None:
    """Whatever is known comes back, and what is not stays unknown."""
    path = tmp_path / "order.json"
    one = order("rank 1", "N", "N.a", leaves=("N.a",), parameters=["N.a.w"], step=7, rank=1)
    one.backward = []
    one.save(path)
    assert read_order(path) == one
    assert read_order(str(path)).gradients is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "Expecting"),
        ("[]", "it has no 'modtrack_order' of 1"),
        ('{"modtrack_order": 2}', "it has no 'modtrack_order' of 1"),
        ('{"modtrack_order": 1, "forward": 3}', "'forward' is no list"),
        ('{"modtrack_order": 1, "forward": [3]}', "'forward' has something that is no call"),
        ('{"modtrack_order": 1, "forward": [["N", 0]]}', "a call in one that comes later"),
        ('{"modtrack_order": 1, "forward": [[1]]}', "something that is no name"),
        ('{"modtrack_order": 1, "step": "x"}', "'step' is no number"),
        ('{"modtrack_order": 1, "gradients": [1]}', "something that is no name"),
        ("[" * 100_000, "is no order"),
        ("\ud800", "it is no text"),
    ],
)
def test_what_is_no_order_is_said(text: str, reason: str, tmp_path: Path) -> None:
    """With the file, what is wrong, and the mend."""
    path = tmp_path / "bad.json"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(UsageError, match=r"bad\.json is no order: .*Order\.save") as raised:
        read_order(path)
    assert reason in str(raised.value)


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    """Likewise."""
    with pytest.raises(UsageError, match=r"cannot read .*none\.json: No such file"):
        read_order(tmp_path / "none.json")
