"""`ModTrackInstrumentor` in a program that uses it itself."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import distribution, entry_points
from typing import TYPE_CHECKING, Any

import pytest
import torch
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from packaging.requirements import Requirement
from torch import nn

from otel_modtrack import ConfigurationError, ModTracker, Policy
from otel_modtrack.auto import ending
from otel_modtrack.auto.arming import AUTO
from otel_modtrack.auto.importing import ImportWatch
from otel_modtrack.instrumentor import ModTrackInstrumentor
from tests.conftest import patched_state, spans_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LOADER = "opentelemetry.instrumentation.auto_instrumentation"


@pytest.fixture
def instrumentor(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModTrackInstrumentor]:
    """The one that there is; off afterwards."""
    monkeypatch.setattr(ending, "_said", set())
    monkeypatch.delitem(sys.modules, LOADER, raising=False)
    instrumentor = ModTrackInstrumentor()
    yield instrumentor
    if instrumentor.is_instrumented_by_opentelemetry:
        instrumentor.uninstrument()
    assert AUTO.settings is AUTO.tracker is None


def train(steps: int = 2) -> None:
    """Train a small model."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(steps):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_what_is_instrumented() -> None:
    """The entry point is ours, and its dependencies are the extra ``instruments``."""
    (entry,) = entry_points(group="opentelemetry_instrumentor", name="modtrack")
    assert entry.load() is ModTrackInstrumentor
    wanted = {
        Requirement(line.partition(";")[0]).name
        + str(Requirement(line.partition(";")[0]).specifier)
        for line in distribution("otel_modtrack").requires or ()
        if "instruments" in line.partition(";")[2]
    }
    given = map(Requirement, ModTrackInstrumentor().instrumentation_dependencies())
    assert {one.name + str(one.specifier) for one in given} == wanted != set()


def test_the_same_spans_as_the_tracker(
    instrumentor: ModTrackInstrumentor, exporter: InMemorySpanExporter, provider: TracerProvider
) -> None:
    """Instrumented, uninstrumented and instrumented again; nothing is left in between."""

    def seen() -> list[str]:
        names = [span.name for span in spans_of(exporter)]
        exporter.clear()
        return names

    with ModTracker(tracer_provider=provider):
        train()
    expected = seen()
    before = patched_state()
    for _ in range(2):
        instrumentor.instrument(tracer_provider=provider)
        train()
        instrumentor.uninstrument()  # ends the step that is open
        assert patched_state() == before
        assert ending._ends == []
        assert not any(isinstance(one, ImportWatch) for one in sys.meta_path)
        assert seen() == expected
        train()
        assert seen() == []


def test_options_by_name(
    instrumentor: ModTrackInstrumentor,
    exporter: InMemorySpanExporter,
    provider: TracerProvider,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An argument holds whatever the environment says, which holds otherwise."""
    monkeypatch.setenv("OTEL_PYTHON_MODTRACK_STEPS", "explicit")
    monkeypatch.setenv("OTEL_PYTHON_MODTRACK_DEPTH", "2")
    instrumentor.instrument(tracer_provider=provider, depth=1)
    train()
    names = {span.name for span in spans_of(exporter)}
    assert names == {"forward Sequential", "backward", "backward Sequential", "optimizer_step SGD"}


def test_a_policy(
    instrumentor: ModTrackInstrumentor, exporter: InMemorySpanExporter, provider: TracerProvider
) -> None:
    """A policy is taken whole."""
    instrumentor.instrument(tracer_provider=provider, policy=Policy(first=1))
    train()
    instrumentor.uninstrument()
    assert [span.name for span in spans_of(exporter)].count("train_step") == 1


@pytest.mark.parametrize(
    ("arguments", "error", "sentence"),
    [
        ({"bugdet": 3}, TypeError, r"instrument\(bugdet=...\): there is no such option"),
        ({"budget": "3"}, TypeError, "Policy"),
        ({"depth": 0}, ValueError, "Policy"),
        ({"steps": "some"}, ValueError, "auto or explicit"),
        ({"policy": 3}, TypeError, "a Policy is wanted, not int"),
        ({"policy": Policy(), "depth": 1}, TypeError, "one of them says it all"),
        ({}, ConfigurationError, "OTEL_PYTHON_MODTRACK_EVERY=x cannot be used"),
    ],
)
def test_what_cannot_be_used(
    instrumentor: ModTrackInstrumentor,
    arguments: dict[str, Any],
    error: type[Exception],
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A program that instruments itself is told at once."""
    if not arguments:
        monkeypatch.setenv("OTEL_PYTHON_MODTRACK_EVERY", "x")
    with pytest.raises(error, match=sentence):
        instrumentor.instrument(**arguments)
    assert not instrumentor.is_instrumented_by_opentelemetry


def test_a_wrong_variable_under_opentelemetry_instrument(
    instrumentor: ModTrackInstrumentor,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Is one sentence in the log, and the program runs without spans."""
    monkeypatch.setitem(sys.modules, LOADER, sys)
    monkeypatch.setenv("OTEL_PYTHON_MODTRACK_EVERY", "x")
    instrumentor.instrument()
    train()
    (record,) = caplog.records
    assert record.getMessage().startswith(
        "otel_modtrack: no spans: OTEL_PYTHON_MODTRACK_EVERY=x cannot be used; set it to a whole"
    )
    assert AUTO.tracker is None


def test_without_any_provider(
    instrumentor: ModTrackInstrumentor, caplog: pytest.LogCaptureFixture
) -> None:
    """What to do is said once."""
    instrumentor.instrument()
    train(3)
    (record,) = caplog.records
    assert "no tracer provider is set" in record.getMessage()
    assert "`otel-modtrack run`" in record.getMessage()


def test_a_fault_of_ours(
    instrumentor: ModTrackInstrumentor,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Is one sentence in the log, and the program goes on."""

    def enter(*_: object) -> None:
        msg = "odd"
        raise RuntimeError(msg)

    monkeypatch.setattr(ending, "enter", enter)
    instrumentor.instrument()
    train()
    assert [one.getMessage() for one in caplog.records] == [
        "otel_modtrack: no spans: RuntimeError: odd"
    ]


def test_before_torch(tmp_path: Path) -> None:
    """Does not import torch; taken back before that, it has nothing to do with its import."""
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\n"
        "from otel_modtrack.instrumentor import ModTrackInstrumentor\n"
        "from otel_modtrack.auto.arming import AUTO\n"
        "before = list(sys.meta_path)\n"
        "instrumentor = ModTrackInstrumentor()\n"
        "instrumentor.instrument()\n"
        "assert 'torch' not in sys.modules\n"
        "instrumentor.uninstrument()\n"
        "assert sys.meta_path == before\n"
        "instrumentor.instrument()\n"
        "sys.modules['torch'] = None\n"
        "try: import torch\n"
        "except ImportError: del sys.modules['torch']\n"
        "assert AUTO.tracker is None\n"
        "import torch\n"
        "assert AUTO.tracker.is_on\n"
        "assert not [one for one in sys.meta_path if 'modtrack' in type(one).__module__]\n"
        "assert 'exec_module' not in vars(torch.__spec__.loader)\n"
        "instrumentor.uninstrument()\n"
        "import inspect\n"
        "assert 'import' in inspect.getsource(torch)\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)  # noqa: S603
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_an_import_that_fails_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module is told of when it is really there; a fault of ours is said, and goes no further."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "fails_first.py").write_text("import there_later\n")
    told: list[str] = []

    def tell() -> None:
        told.append("there")
        raise ValueError

    watch = ImportWatch()
    watch.on("fails_first", tell)
    with pytest.raises(ImportError):
        __import__("fails_first")
    assert told == []
    monkeypatch.setitem(sys.modules, "there_later", sys)
    __import__("fails_first")
    assert told == ["there"]
    assert watch not in sys.meta_path
    del sys.modules["fails_first"]


def test_the_programs_own_tracker_comes_first(
    instrumentor: ModTrackInstrumentor,
    exporter: InMemorySpanExporter,
    provider: TracerProvider,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """While a program has a tracker of its own on, its spans go where that one wants them."""
    own = InMemorySpanExporter()
    its = TracerProvider(shutdown_on_exit=False)
    its.add_span_processor(SimpleSpanProcessor(own))
    instrumentor.instrument(tracer_provider=provider)
    train(1)
    before = len(exporter.get_finished_spans())
    assert before
    with ModTracker(tracer_provider=its) as tracker, tracker.step(7):
        train(1)
    assert len(exporter.get_finished_spans()) == before
    assert "train_step" in [span.name for span in own.get_finished_spans()]
    train(1)
    assert len(exporter.get_finished_spans()) == 2 * before
    assert not caplog.records
