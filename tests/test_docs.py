"""The documentation says what the code does."""

from __future__ import annotations

import re
from pathlib import Path

from otel_modtrack import semconv

ROOT = Path(__file__).parent.parent


def test_every_attribute_is_documented() -> None:
    """docs/attributes.md has each attribute and event of the registry, and no other of ours."""
    text = (ROOT / "docs" / "attributes.md").read_text()
    documented = set(re.findall(r"`((?:modtrack|error|exception)\.[a-z_.]+)`", text))
    events = {
        semconv.COLLECTIVE_EVENT,
        semconv.FOLDED_EVENT,
        semconv.ORDER_CHANGED_EVENT,
        semconv.ORDER_DIVERGED_EVENT,
    }
    assert documented == set(semconv.ATTRIBUTES) | events


def test_every_span_is_documented() -> None:
    """docs/attributes.md has each span name of the registry."""
    text = (ROOT / "docs" / "attributes.md").read_text()
    for name in (
        semconv.TRAIN_STEP_SPAN,
        semconv.BACKWARD_SPAN,
        semconv.OPTIMIZER_STEP_SPAN,
        semconv.DATA_LOAD_SPAN,
        semconv.EVALUATION_SPAN,
    ):
        assert f"| `{name}" in text


def test_the_files_that_the_readme_names_are_there() -> None:
    """No path in the README is stale."""
    text = (ROOT / "README.md").read_text()
    named = re.findall(r"`((?:docs|examples|benchmarks)/[\w./]+|[A-Z]+\.md|LICENSE)`", text)
    assert named
    for name in named:
        assert (ROOT / name).exists(), name
