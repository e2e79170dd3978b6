"""Capturing: providers, what is left behind, and use outside of pytest."""

from __future__ import annotations

import contextlib
import threading
import time
import unittest
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SynchronousMultiSpanProcessor, TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from torch import nn

from otel_modtrack import ModTracker, testing
from otel_modtrack.core import CORE
from otel_modtrack.testing import Capture, capture
from otel_modtrack.testing.fixed import CLOCKS
from otel_modtrack.usage import UsageError
from tests.testing.models import Net, X, train

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


# -- nothing ran ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "use"),
    [
        ("tree", lambda modtrack: modtrack.tree),
        ("spans", lambda modtrack: modtrack.spans),
        ("collectives", lambda modtrack: modtrack.collectives),
        ("select()", lambda modtrack: modtrack.select("Net")),
        ("select()", lambda modtrack: modtrack.assert_budget(spans=0)),
    ],
)
@pytest.mark.parametrize("cleared", [False, True], ids=["at first", "cleared"])
def test_before_anything_ran(modtrack: Capture, what: str, use: Any, cleared: bool) -> None:
    """Asserting then would pass without having seen anything."""
    if cleared:
        with modtrack.track():
            nn.Linear(2, 2)(X)
        modtrack.clear()
    with pytest.raises(UsageError) as raised:
        use(modtrack)
    assert str(raised.value) == (
        f"modtrack.{what}: nothing was tracked yet; run the model inside"
        " `with modtrack.track(model):` first"
    )


def test_a_track_in_which_nothing_ran(modtrack: Capture) -> None:
    """That is an empty tree."""
    with modtrack.track():
        pass
    modtrack.tree.assert_equals("")
    assert (repr(modtrack), repr(modtrack.tree)) == ("<modtrack: 0 spans>", "<Tree of 0 spans>")


def test_not_a_model(modtrack: Capture) -> None:
    """What the tracker refuses is refused with its words, and tracks nothing."""
    with pytest.raises(TypeError, match=r"a torch\.nn\.Module is wanted, not int"):
        modtrack.track(1).__enter__()  # type: ignore[arg-type]
    with pytest.raises(UsageError):
        modtrack.tree  # noqa: B018 - it raises


# -- providers -----------------------------------------------------------------------------------


def test_a_provider_of_the_users(provider: TracerProvider, exporter: InMemorySpanExporter) -> None:
    """It keeps its own processors, and has no more than these afterwards."""
    processors = provider._active_span_processor._span_processors
    with capture(provider) as modtrack, modtrack.track() as tracker:
        assert modtrack.provider is provider
        with provider.get_tracer("mine").start_as_current_span("request"):
            nn.Linear(2, 2)(X)
        modtrack.tree.assert_equals("request\n  forward Linear")
        del tracker
    assert provider._active_span_processor._span_processors == processors
    nn.Linear(2, 2)(X)
    with provider.get_tracer("mine").start_as_current_span("later"):
        pass
    assert [span.name for span in exporter.get_finished_spans()] == [
        "forward Linear",
        "request",
        "later",
    ]
    assert len(modtrack._exporter.get_finished_spans()) == 2


def test_using_it_twice(modtrack: Capture, provider: TracerProvider) -> None:
    """Its spans are there once; those of the provider before are there, too."""
    first = modtrack.provider
    modtrack.use(provider)
    modtrack.use(provider)
    with modtrack.track(), first.get_tracer("mine").start_as_current_span("mine"):
        nn.Linear(2, 2)(X)
    modtrack.tree.assert_equals("mine\n  forward Linear")
    assert len(modtrack.spans) == 2


def test_a_tracker_in_the_users_code(modtrack: Capture, provider: TracerProvider) -> None:
    """What the program tracks itself is captured, if its provider is used."""
    modtrack.use(provider)
    with ModTracker(tracer_provider=provider):
        nn.Linear(2, 2)(X)
    modtrack.tree.assert_equals("forward Linear")
    assert modtrack.collectives.total == 0


def test_a_processor_of_processors_that_is_not_the_sdks(modtrack: Capture) -> None:
    """Where the SDK's way to take a processor away is missing, it hears nothing any more."""

    class Mine(SynchronousMultiSpanProcessor):
        @property
        def _span_processors(self) -> tuple[Any, ...]:
            return ()

        @_span_processors.setter
        def _span_processors(self, _: object) -> None:
            """There are none."""

        def add_span_processor(self, span_processor: Any) -> None:
            self.on_end = span_processor.on_end

    provider = TracerProvider(active_span_processor=Mine(), shutdown_on_exit=False)
    with capture(provider) as inner:
        with provider.get_tracer("mine").start_as_current_span("seen"):
            pass
        assert str(inner.tree) == "seen"
    with provider.get_tracer("mine").start_as_current_span("unseen"):
        pass
    assert [span.name for span in inner._exporter.get_finished_spans()] == ["seen"]


def test_what_is_no_provider_of_the_sdk(modtrack: Capture) -> None:
    """The global one, for instance, before anybody has set it."""
    with pytest.raises(UsageError) as raised:
        modtrack.use(trace.ProxyTracerProvider())
    assert str(raised.value) == (
        "modtrack wants an opentelemetry.sdk.trace.TracerProvider,"
        " not opentelemetry.trace.ProxyTracerProvider; set the global one first"
    )
    with pytest.raises(UsageError, match=r"TracerProvider, not builtins\.str$"):
        modtrack.use("mine")  # type: ignore[arg-type]


def test_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sampler set there drops nothing; a switched off SDK is told."""
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    with capture() as modtrack:
        with modtrack.track():
            nn.Linear(2, 2)(X)
        modtrack.tree.assert_equals("forward Linear")
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    with pytest.raises(UsageError, match=r"^OTEL_SDK_DISABLED is set"), capture():
        pass


def test_an_own_sampler(modtrack: Capture) -> None:
    """What a provider of the user's does not sample is not there."""
    modtrack.use(TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False))
    with modtrack.track():
        nn.Linear(2, 2)(X)
    modtrack.tree.assert_equals("")


def test_the_resource_is_the_providers(modtrack: Capture) -> None:
    """Of a provider of the user's, too."""
    resource = Resource({"service.name": "mine"})
    modtrack.use(TracerProvider(resource=resource, shutdown_on_exit=False))
    with modtrack.track():
        nn.Linear(2, 2)(X)
    assert modtrack.spans.select("Linear").one().resource is resource


def test_a_tracker_of_another_provider_is_on(modtrack: Capture, provider: TracerProvider) -> None:
    """All spans would go there, and a budget would pass without having seen one."""
    with ModTracker(tracer_provider=provider) as outer:
        with pytest.raises(UsageError, match=r"modtrack\.use\(provider\), or leave the tracker$"):
            modtrack.track().__enter__()
        modtrack.use(provider)
        with modtrack.track():
            nn.Linear(2, 2)(X)
        del outer
    modtrack.tree.assert_equals("forward Linear")


def test_a_tracker_without_a_provider_is_on(modtrack: Capture) -> None:
    """It takes no spans away."""
    with ModTracker(), modtrack.track():
        nn.Linear(2, 2)(X)
    modtrack.tree.assert_equals("forward Linear")


def test_a_tracker_of_the_provider_before(modtrack: Capture, provider: TracerProvider) -> None:
    """What it records is captured still."""
    with modtrack.track():
        modtrack.use(provider)
        with modtrack.track():
            nn.Linear(2, 2)(X)
    modtrack.tree.assert_equals("forward Linear")


# -- what is running -----------------------------------------------------------------------------


@pytest.mark.parametrize("within", ["step", "module"])
def test_while_it_runs(modtrack: Capture, within: str) -> None:
    """The spans of a step or a module come when it ends: nothing is asserted before."""

    class Asserting(nn.Module):
        def forward(self, x: Any) -> Any:
            nn.Linear(2, 2)(x)
            with pytest.raises(UsageError) as raised:
                modtrack.assert_budget(spans=0)
            assert str(raised.value) == (
                "modtrack.select(): a step or a module is still running here, and its spans come"
                " when it ends; assert after it"
            )
            return x

    with modtrack.track() as tracker:
        if within == "module":
            Asserting()(X)
        else:
            with tracker.step(0):
                nn.Linear(2, 2)(X)
                with pytest.raises(UsageError, match=r"^modtrack\.tree: a step or a module is"):
                    modtrack.tree.assert_equals("")
        modtrack.select(type="Linear").assert_count(1)


# -- what is left --------------------------------------------------------------------------------


def test_nothing_is_left_of_a_failure() -> None:
    """Not where the block raises, and not where a tracker was never left."""
    ledgers = CORE.ledgers

    def fail() -> None:
        with capture() as modtrack:
            modtrack.fix_clock_and_ids()
            modtrack.track(Net()).__enter__()
            stack = contextlib.ExitStack()
            stack.enter_context(modtrack.track(Net()))
            assert CORE.on
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert not CORE.on
    assert CORE.ledgers == ledgers
    assert all(getattr(holder, name)() > 0 for holder, name in CLOCKS)
    assert abs(CLOCKS[0][0]._clock() - time.perf_counter_ns()) < 10**9


def test_a_model_may_go_while_it_is_tracked(modtrack: Capture) -> None:
    """The next of its class gets its name."""
    model = Net()
    with modtrack.track(model):
        del model
        train(Net())
    modtrack.select("Net").assert_count(2)


def test_one_in_the_other(modtrack: Capture) -> None:
    """The spans are those of the first; what the other leaves is left."""
    with modtrack.track():
        with capture() as inner:
            with inner.provider.get_tracer("mine").start_as_current_span("mine"):
                pass
            assert str(inner.tree) == "mine"
        nn.Linear(2, 2)(X)
    modtrack.tree.assert_equals("forward Linear")


def test_threads(modtrack: Capture) -> None:
    """What other threads run is captured."""
    layers = [nn.Linear(2, 2) for _ in range(4)]
    with modtrack.track():
        threads = [threading.Thread(target=train, args=(layer,)) for layer in layers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    modtrack.select(phase="forward").assert_count(4)
    modtrack.select(type="Linear", phase="backward").assert_count(4)


class ATestCase(unittest.TestCase):
    """As a user of unittest writes it."""

    def setUp(self) -> None:
        stack = contextlib.ExitStack()
        self.modtrack = stack.enter_context(capture())
        self.addCleanup(stack.close)

    def test_forward(self) -> None:
        """A forward."""
        with self.modtrack.track():
            nn.Linear(2, 2)(X)
        self.modtrack.tree.assert_equals("forward Linear")


def test_unittest() -> None:
    """It needs no pytest."""
    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(ATestCase).run(result)
    assert (result.testsRun, result.errors, result.failures) == (1, [], [])


def test_names() -> None:
    """What is public is there; anything else is not."""
    assert all(hasattr(testing, name) for name in testing.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'captured'"):
        testing.captured  # noqa: B018 - it raises
