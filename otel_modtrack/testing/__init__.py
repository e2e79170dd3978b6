"""Assert in tests what a model's spans and collectives are; `docs/testing.md` shows all of it.

With pytest there is a fixture ``modtrack``; elsewhere:

>>> from otel_modtrack.testing import capture
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from otel_modtrack.usage import UsageError

if TYPE_CHECKING:
    from otel_modtrack.testing.capturing import Capture, capture
    from otel_modtrack.testing.collectives import CapturedCollectives
    from otel_modtrack.testing.spans import Spans
    from otel_modtrack.testing.tree import Tree, assert_tree_equals

__all__ = ["Capture", "CapturedCollectives", "Spans", "Tree", "assert_tree_equals", "capture"]

_PLACES = {
    "Capture": "capturing",
    "CapturedCollectives": "collectives",
    "Spans": "spans",
    "Tree": "tree",
    "assert_tree_equals": "tree",
    "capture": "capturing",
}


def __getattr__(name: str) -> Any:
    """Load torch only when a name is wanted: pytest imports the plugin in every run."""
    __tracebackhide__ = True
    place = _PLACES.get(name)
    if place is None:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    try:
        return getattr(importlib.import_module(f"{__name__}.{place}"), name)
    except ModuleNotFoundError as error:
        if not str(error.name).startswith("opentelemetry"):
            raise
        raise UsageError(
            "otel_modtrack.testing wants opentelemetry-sdk, which is not installed; install it"
            " with pip install 'otel_modtrack[otlp]'"
        ) from None
