"""Another library's ``nn.Module.__call__``, which does or does not come by torch's own function."""

from __future__ import annotations

import functools
import inspect
import logging
import traceback
from inspect import cleandoc
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from otel_modtrack import ModTracker
from otel_modtrack.testing import Tree

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

WANTED = cleandoc(
    """
    forward Sequential
      forward Sequential.0
    backward
      backward Sequential
        backward Sequential.0
    """
)


@pytest.fixture
def replaced() -> Iterator[None]:
    """A `__call__` that goes to `forward` on a road of its own."""
    original = nn.Module.__call__

    def __call__(self: nn.Module, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
        return self._call_impl(*args, **kwargs)

    nn.Module.__call__ = __call__
    yield
    assert nn.Module.__call__ is __call__
    nn.Module.__call__ = original


@pytest.mark.usefixtures("replaced")
def test_a_call_that_does_not_come_by(
    provider: TracerProvider, exporter: InMemorySpanExporter, caplog: pytest.LogCaptureFixture
) -> None:
    """It is wrapped: the tree is whole, errors pass, and what it costs is said once."""
    model = nn.Sequential(nn.Linear(2, 2))
    with caplog.at_level(logging.WARNING), ModTracker(model, tracer_provider=provider):
        model(torch.ones(1, 2)).sum().backward()
        with pytest.raises(RuntimeError, match="shapes"):
            model(torch.ones(1, 3))
    assert str(Tree(exporter.get_finished_spans())) == (
        WANTED + "\nforward Sequential!\n  forward Sequential.0!"
    )
    (record,) = caplog.records
    assert "not torch's own: it is wrapped" in record.message


def test_a_call_that_comes_by(
    provider: TracerProvider, exporter: InMemorySpanExporter, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever wraps torch's function is left in peace, and each call is seen once."""
    original = nn.Module.__call__

    @functools.wraps(original)
    def patched(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return original(self, *args, **kwargs)

    nn.Module.__call__ = patched
    try:
        model = nn.Sequential(nn.Linear(2, 2))
        with ModTracker(model, tracer_provider=provider):
            assert nn.Module.__call__ is patched
            model(torch.ones(1, 2)).sum().backward()
    finally:
        nn.Module.__call__ = original
    Tree(exporter.get_finished_spans()).assert_equals(WANTED)
    assert caplog.records == []


def test_source_and_traceback_read_as_before(provider: TracerProvider) -> None:
    """What debuggers and error reports show of torch's function is torch's."""
    model = nn.Sequential(nn.Linear(2, 2))

    def told() -> str:
        try:
            model(torch.ones(1, 3))
        except RuntimeError:
            return traceback.format_exc()
        return ""

    source, before = inspect.getsource(nn.Module.__call__), told()
    with ModTracker(model, tracer_provider=provider):
        assert inspect.getsource(nn.Module.__call__) == source
        assert told() == before
