"""docs/testing.md says what there is."""

from __future__ import annotations

from pathlib import Path

import pytest

from otel_modtrack import testing
from otel_modtrack.testing import Capture, CapturedCollectives, Spans, Tree

PAGE = (Path(__file__).parents[2] / "docs" / "testing.md").read_text()
# Of the fixture's own making: `close` by `capture`, `written` by the plugin.
NOT_FOR_USERS = {"close", "written"}


@pytest.mark.parametrize("kind", [Capture, CapturedCollectives, Spans, Tree])
def test_every_method_has_its_example(kind: type) -> None:
    """No public name is missing."""
    names = {name for name in vars(kind) if not name.startswith("_")} - NOT_FOR_USERS
    assert [name for name in sorted(names) if f".{name}" not in PAGE] == []


def test_every_public_name_is_told() -> None:
    """Nor one of the package's."""
    assert [name for name in testing.__all__ if name not in PAGE] == []
