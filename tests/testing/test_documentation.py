"""docs/testing.md says what there is."""

from __future__ import annotations

from pathlib import Path

import pytest

from otel_modtrack import testing
from otel_modtrack.testing import Capture, CapturedCollectives, Spans, Tree, assert_tree_equals

PAGE = (Path(__file__).parents[2] / "docs" / "testing.md").read_text()
# Of the fixture's own making: `close` by `capture`, `updates` by the plugin.
NOT_FOR_USERS = {"close", "updates"}


@pytest.mark.parametrize("kind", [Capture, CapturedCollectives, Spans, Tree])
def test_every_method_has_its_example(kind: type) -> None:
    """No public name is missing."""
    names = {name for name in vars(kind) if not name.startswith("_")} - NOT_FOR_USERS
    assert [name for name in sorted(names) if f".{name}" not in PAGE] == []


def test_the_failure_is_what_a_failure_looks_like() -> None:
    """Line by line."""
    layers = [f"    forward MyModel.layers.{i}" for i in range(6)]
    above = ["forward MyModel", "  forward MyModel.encoder", "  forward MyModel.layers", *layers]
    found = "\n".join([*above, "  forward MyModel.head"])
    with pytest.raises(AssertionError) as raised:
        assert_tree_equals(found, found.replace("head", "decoder"))
    assert f"```\nAssertionError: {raised.value}\n```" in PAGE


def test_every_public_name_is_told() -> None:
    """Nor one of the package's."""
    assert [name for name in testing.__all__ if name not in PAGE] == []
