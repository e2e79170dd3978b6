"""Spans as text: what a line says, what hangs where, what is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import otel_modtrack
from otel_modtrack.testing import Tree, assert_tree_equals
from otel_modtrack.usage import UsageError
from tests.testing.models import Net, X, train

if TYPE_CHECKING:
    from otel_modtrack.testing import Capture

WHOLE = """
    forward Net
      forward Net.encoder
        forward Net.encoder.0
        forward Net.encoder.1
      forward Net.head
    backward
      backward Net
        backward Net.head
        backward Net.encoder
          backward Net.encoder.1
          backward Net.encoder.0
"""


def test_whole(modtrack: Capture) -> None:
    """Every span is a line, in order of start, two spaces deeper than its parent."""
    net = Net()
    with modtrack.track(net):
        train(net)
    modtrack.tree.assert_equals(WHOLE)
    assert str(modtrack.tree).splitlines()[1] == "  forward Net.encoder"
    assert str(modtrack.tree).splitlines()[5] == "backward"


def test_without_runs_of_the_engine(modtrack: Capture) -> None:
    """A text without any ``backward`` line is compared with the tree without them."""
    net = Net()
    with modtrack.track(net):
        train(net)
    modtrack.tree.assert_equals("""
        forward Net
          forward Net.encoder
            forward Net.encoder.0
            forward Net.encoder.1
          forward Net.head
        backward Net
          backward Net.head
          backward Net.encoder
            backward Net.encoder.1
            backward Net.encoder.0
    """)


def test_all_kinds_of_spans(modtrack: Capture) -> None:
    """Steps, named regions, recomputation, optimizers and the user's own spans have their lines."""
    layer = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(layer.parameters())
    tracer = modtrack.provider.get_tracer("mine")
    with modtrack.track(layer) as tracker, tracker.step(3):
        out = checkpoint(layer, X, use_reentrant=False)
        with otel_modtrack.region("loss"):
            loss = out.sum()
        loss.backward()
        optimizer.step()
        with tracer.start_as_current_span("log"):
            pass
    modtrack.tree.assert_equals("""
        train_step
          forward Linear
          forward loss
          backward
            backward loss
            backward Linear
              recompute Linear
          optimizer_step SGD
          log
    """)


class Failing(nn.Module):
    """Raises."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise KeyError(x)


def test_errors(modtrack: Capture) -> None:
    """An exception is "!" on every span that it left; a test goes on after it."""
    with modtrack.track(), pytest.raises(KeyError):
        nn.Sequential(nn.Identity(), Failing())(X)
    modtrack.tree.assert_equals("""
        forward Sequential!
          forward Sequential.0
          forward Sequential.1!
    """)


def test_a_run_of_the_engine_that_failed_is_not_left_out(modtrack: Capture) -> None:
    """``backward!`` has to be expected."""

    def fail(_: torch.Tensor) -> None:
        raise KeyError

    layer = nn.Linear(2, 2)
    with modtrack.track(layer):
        out = layer(X)
        out.register_hook(fail)
        with pytest.raises(KeyError):
            out.sum().backward()
    with pytest.raises(AssertionError, match=r"\+ backward!"):
        modtrack.tree.assert_equals("""
            forward Linear
            backward Linear!
        """)


def test_depth(modtrack: Capture) -> None:
    """As many levels as are asked for, with and without runs of the engine."""
    net = Net()
    with modtrack.track(net):
        train(net)
    modtrack.tree.assert_equals("forward Net\nbackward", depth=1)
    modtrack.tree.assert_equals("forward Net\nbackward Net", depth=1)
    assert modtrack.tree.render(depth=2).splitlines() == [
        "forward Net",
        "  forward Net.encoder",
        "  forward Net.head",
        "backward",
        "  backward Net",
    ]


def test_call_index(modtrack: Capture) -> None:
    """Calls of one module are told apart on demand."""
    layer = nn.Linear(2, 2)
    with modtrack.track(layer) as tracker, tracker.step(0):
        layer(layer(X))
    modtrack.tree.assert_equals("train_step\n  forward Linear\n  forward Linear")
    modtrack.tree.assert_equals(
        "train_step\n  forward Linear #0\n  forward Linear #1", call_index=True
    )


def test_some_spans(modtrack: Capture) -> None:
    """A span whose parent is left out hangs under the next that is not."""
    net = Net()
    with modtrack.track(net):
        train(net)
    modtrack.select("Net*", phase="forward").select("Net.*.1").tree.assert_equals(
        "forward Net.encoder.1"
    )
    kept = [span for span in modtrack.spans if not span.name.endswith(".encoder")]
    lines = str(Tree(kept, among=modtrack.spans)).splitlines()
    assert lines[:4] == [
        "forward Net",
        "  forward Net.encoder.0",
        "  forward Net.encoder.1",
        "  forward Net.head",
    ]
    assert str(Tree(kept)).splitlines()[2] == "forward Net.encoder.0"


def test_a_span_that_was_exported_twice(modtrack: Capture) -> None:
    """It is not shown as if nothing were wrong."""
    with modtrack.track():
        nn.Linear(2, 2)(X)
    with pytest.raises(AssertionError, match=r"^a span was exported twice: forward Linear$"):
        Tree([*modtrack.spans, *modtrack.spans])


def test_a_tree_of_another_process() -> None:
    """One that came as text is compared like any other."""
    assert_tree_equals("forward A\n  forward A.b", "    forward A\n      forward A.b\n")
    with pytest.raises(AssertionError, match=r"1 line too many \(\+\)\n  forward A\n\+   forward"):
        assert_tree_equals("forward A\n  forward A.b", "forward A")


@pytest.mark.parametrize(
    ("indent", "said"),
    [
        (" ", "1 spaces: two a level are wanted, and at most one level more than the line before"),
        (
            "    ",
            "4 spaces: two a level are wanted, and at most one level more than the line before",
        ),
        ("\t\t", "something else than spaces: two of them a level are wanted"),
    ],
    ids=["odd", "two levels", "tabs"],
)
def test_a_text_that_is_not_indented_properly(indent: str, said: str) -> None:
    """It says which line, and what is wanted."""
    with pytest.raises(UsageError) as raised:
        Tree([]).assert_equals(f"forward A\n{indent}forward A.b")
    assert str(raised.value) == f"the tree's line 2, 'forward A.b', is indented by {said}"


@pytest.mark.parametrize("text", [None, 3, ["forward A"]])
def test_what_is_no_text(text: Any) -> None:
    """It is refused, whichever of the two it is."""
    for use in (
        lambda: Tree([]).assert_equals(text),
        lambda: assert_tree_equals("forward A", text),
        lambda: assert_tree_equals(text, "forward A"),
    ):
        with pytest.raises(UsageError, match=rf"^a tree is a text, not {type(text).__name__}$"):
            use()


def test_runs_of_the_engine_in_a_tree_of_another_process(modtrack: Capture) -> None:
    """They may be left out of the expected text there, too; one with nothing in it may not."""
    net = Net()
    with modtrack.track(net):
        train(net)
    found = modtrack.tree.render()
    assert "\nbackward\n  backward Net\n    backward Net.head\n" in found
    wanted = """
        forward Net
          forward Net.encoder
            forward Net.encoder.0
            forward Net.encoder.1
          forward Net.head
        backward Net
          backward Net.head
          backward Net.encoder
            backward Net.encoder.1
            backward Net.encoder.0
    """
    assert_tree_equals(found, wanted)
    assert_tree_equals(found, WHOLE)
    assert_tree_equals(
        "train_step\n  backward\n    backward A\n  B", "train_step\n  backward A\n  B"
    )
    with pytest.raises(AssertionError, match=r": 1 line too many \(\+\)\n[^+]*\n\+ backward$"):
        assert_tree_equals(f"{found}\nbackward", wanted)


def test_a_run_of_the_engine_alone_is_not_left_out(modtrack: Capture) -> None:
    """Where what is in it is not selected, it is all that there is to see."""
    with modtrack.track():
        train(nn.Linear(2, 2))
    run = modtrack.select(name="backward").tree
    run.assert_equals("backward")
    with pytest.raises(AssertionError, match=r": 1 line too many \(\+\)\n\+ backward$"):
        run.assert_equals("")


def test_a_span_of_the_users_that_is_called_backward(modtrack: Capture) -> None:
    """It is no run of the engine, and has to be expected."""
    layer = nn.Linear(2, 2)
    with modtrack.track(layer):
        out = layer(X).sum()
        with modtrack.provider.get_tracer("mine").start_as_current_span("backward"):
            out.backward()
    with pytest.raises(AssertionError, match=r"\n\+ backward\n"):
        modtrack.tree.assert_equals("forward Linear\nbackward Linear")


def test_names_that_are_not_one_line(modtrack: Capture) -> None:
    """Whatever a span of the user's is called, its line can be written down."""
    tracer = modtrack.provider.get_tracer("mine")
    for name in ("SELECT *\n  FROM runs", " trailing ", "", "two  spaces"):
        with tracer.start_as_current_span(name):
            pass
    text = "SELECT * FROM runs\ntrailing\n(no name)\ntwo  spaces"
    assert str(modtrack.tree) == text
    modtrack.tree.assert_equals(text)


@pytest.mark.parametrize("depth", [0, "1"])
def test_a_depth_that_is_none(depth: object) -> None:
    """One sentence says what a depth is."""
    with pytest.raises(UsageError, match=r"^depth is a number of levels, 1 or more, not '?\d'?$"):
        Tree([]).render(depth=depth)
