"""A clock and ids that are the same in every run."""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
import re
import time
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from torch import nn

import otel_modtrack
from otel_modtrack.testing import Capture, capture
from otel_modtrack.testing.fixed import CLOCKS
from otel_modtrack.usage import UsageError
from tests.testing.models import Net, X, train

if TYPE_CHECKING:
    from pathlib import Path


def exported(provider: TracerProvider | None = None) -> list[dict[str, Any]]:
    """Everything that two steps export, with a span of the user's own."""
    net = Net()
    with capture(provider) as modtrack:
        modtrack.fix_clock_and_ids()
        tracer = modtrack.provider.get_tracer("mine")
        with modtrack.track(net) as tracker:
            for number in range(2):
                with tracker.step(number):
                    train(net)
                    trace.get_current_span().add_event("trained")
                    with tracer.start_as_current_span("log"):
                        pass
        spans = modtrack.spans
        assert spans.durations_ns == [span.end_time - span.start_time for span in spans]
        return [
            {"name": span.name, "context": span.context, "start": span.start_time,
             "end": span.end_time, "parent": span.parent,
             "events": [event.timestamp for event in span.events],
             "links": [link.context for link in span.links]}
            for span in spans
        ]  # fmt: skip


def test_the_same_in_every_run() -> None:
    """Ids, times, events and links; the clock begins in 2000 and ticks microseconds."""
    first = exported()
    assert first == exported()
    contexts = [span["context"] for span in first]
    assert sorted(context.span_id for context in contexts) == list(range(1, 27))
    assert [context.trace_id for context in contexts] == [1] * 13 + [2] * 13
    times = [one[key] for one in first for key in ("start", "end")]
    assert min(times) == 946_684_800_000_000_000
    assert all(at % 1_000 == 0 and at < 946_684_801_000_000_000 for at in times)


def test_ids_of_the_users_provider_are_fixed_too() -> None:
    """Also where a tracker used it before; its own are back afterwards."""
    provider = TracerProvider(shutdown_on_exit=False)
    generator = provider.id_generator
    with capture(provider) as modtrack, modtrack.track():
        nn.Linear(2, 2)(X)
        assert modtrack.spans[0].context.span_id > 1_000
    assert exported(provider) == exported()
    assert provider.id_generator is generator
    assert provider.get_tracer("mine").id_generator is generator


def test_a_span_that_was_asked_for(modtrack: Capture) -> None:
    """A span that the user's code reads while its module runs has the id that it has elsewhere."""
    seen = []

    class Asking(nn.Module):
        def forward(self, x: Any) -> Any:
            seen.append(trace.get_current_span().get_span_context())
            return x * 2

    modtrack.fix_clock_and_ids()
    model = nn.Sequential(nn.Linear(2, 2), Asking())
    with modtrack.track(model):
        train(model)
    found = modtrack.select("Sequential.1", phase="forward").one()
    assert [found.context.span_id] == [one.span_id for one in seen]
    (link,) = modtrack.select("Sequential.1", phase="backward").one().links
    assert link.context == found.context
    assert modtrack.select("Sequential", phase="forward").one().context == found.parent
    assert not int(found.context.trace_flags) & ~1, "these ids are not random"


def test_order_of_our_spans_and_the_users(modtrack: Capture) -> None:
    """Both are on the one clock."""
    modtrack.fix_clock_and_ids()
    tracer = modtrack.provider.get_tracer("mine")
    with modtrack.track(), tracer.start_as_current_span("request"):
        with tracer.start_as_current_span("before"):
            pass
        nn.Linear(2, 2)(X)
        with tracer.start_as_current_span("after"):
            pass
    modtrack.tree.assert_equals("request\n  before\n  forward Linear\n  after")


@pytest.mark.parametrize("when", ["twice", "late"])
def test_it_is_too_late(modtrack: Capture, when: str) -> None:
    """Some spans would be of one clock and some of the other."""
    if when == "twice":
        modtrack.fix_clock_and_ids()
    else:
        with modtrack.track():
            pass
    with pytest.raises(UsageError, match=r"comes once, before the first modtrack.track\(\)$"):
        modtrack.fix_clock_and_ids()


def test_a_span_that_is_open(modtrack: Capture) -> None:
    """It would begin by the one clock, and end by the other."""
    with (
        modtrack.provider.get_tracer("mine").start_as_current_span("request"),
        pytest.raises(UsageError, match=r"comes before the span that is open"),
    ):
        modtrack.fix_clock_and_ids()
    assert modtrack.spans[0].end_time > 1_500_000_000_000_000_000


def test_another_provider_comes_before(modtrack: Capture, provider: TracerProvider) -> None:
    """Its ids would not be fixed."""
    modtrack.fix_clock_and_ids()
    with pytest.raises(UsageError, match=r"^modtrack.use\(\) comes before modtrack.fix_clock"):
        modtrack.use(provider)
    modtrack.use(modtrack.provider)


def test_no_clock_is_forgotten() -> None:
    """Whatever module of ours reads the time of a span reads a clock that can be fixed.

    Those that do not are named here: they time other things than spans.
    """
    others = {"regions"}  # the offset between two clocks, which is fixed as a whole
    others |= {"sdk_metrics"}  # when a value was taken, as the SDK has it
    others |= {"otlp", "replay", "demo", "pipeline", "leaving", "cli", "view", "progress", "bars"}
    others |= {"auto"}  # its sitecustomize is Python's to import
    known = {(holder.__name__, name) for holder, name in CLOCKS}
    for found in pkgutil.walk_packages(otel_modtrack.__path__, "otel_modtrack."):
        if found.name.split(".")[1] in others or "__main__" in found.name:
            continue
        module = importlib.import_module(found.name)
        held = [n for n, value in vars(module).items() if value is time.perf_counter_ns]
        assert {(found.name, name) for name in held} <= known, found.name
        source = re.sub(r"`[^`]*`", "", inspect.getsource(module))
        reads = re.findall(r"time\.(?:perf_counter|time)(?:_ns)?\(", source)
        assert not reads, found.name


def test_golden_export(tmp_path: Path) -> None:
    """The whole export is a file; a time that differs is shown where it stands."""

    def run(*, update: bool, calls: int) -> None:
        layer = nn.Linear(2, 2)
        with capture(golden=tmp_path, update=update) as modtrack:
            modtrack.fix_clock_and_ids()
            with modtrack.track(layer):
                for _ in range(calls):
                    layer(X)
                with pytest.raises(RuntimeError):
                    layer(X.T)
            modtrack.spans.assert_golden("export")

    run(update=True, calls=1)
    text = (tmp_path / "export.json").read_text()
    assert '"exception.type": "RuntimeError"' in text
    assert "stacktrace" not in text
    first, failed = json.loads(text)
    assert list(first) == [
        "name",
        "trace_id",
        "span_id",
        "parent_id",
        "kind",
        "scope",
        "start_ns",
        "end_ns",
        "attributes",
        "failed",
        "status_message",
        "events",
        "links",
    ]
    assert (first["kind"], first["scope"], first["status_message"]) == (1, "otel_modtrack", "")
    assert "shapes cannot be multiplied" in failed["status_message"]
    run(update=False, calls=1)
    with pytest.raises(AssertionError) as raised:
        run(update=False, calls=2)
    assert str(raised.value).startswith(
        f"the export is not that of {tmp_path / 'export.json'} (pytest --modtrack-update, or"
        " capture(update=True), writes it): "
    )
    assert '+     "span_id": "0000000000000003",' in str(raised.value)


def test_golden_export_of_another_clock(modtrack: Capture) -> None:
    """It could not be the same twice."""
    with modtrack.track():
        nn.Linear(2, 2)(X)
    with pytest.raises(UsageError, match=r"call modtrack.fix_clock_and_ids\(\) before the first"):
        modtrack.spans.assert_golden("export")
