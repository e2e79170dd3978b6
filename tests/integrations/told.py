"""What the spans of a training tell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opentelemetry import trace

from otel_modtrack import semconv
from otel_modtrack.core import CORE, THREADS
from tests.conftest import spans_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

__all__ = ["Told", "assert_nothing_is_open"]

# What a wrapper would leave in a name.
WRAPPERS = ("module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")


class Told:
    """The finished spans, and who is in whom.

    Args:
        exporter: that has them.
    """

    def __init__(self, exporter: InMemorySpanExporter) -> None:
        self.spans = spans_of(exporter)
        self._by_id = {span.context.span_id: span for span in self.spans}

    def named(self, name: str) -> list[ReadableSpan]:
        """The spans of that name, oldest first."""
        return [span for span in self.spans if span.name == name]

    @property
    def steps(self) -> list[ReadableSpan]:
        """The steps."""
        return self.named(semconv.TRAIN_STEP_SPAN)

    @property
    def evaluations(self) -> list[ReadableSpan]:
        """The evaluations."""
        return self.named(semconv.EVALUATION_SPAN)

    @property
    def numbers(self) -> list[int]:
        """Of the steps."""
        return self.of_steps(semconv.STEP_NUMBER)

    @property
    def epochs(self) -> list[int]:
        """Of the steps."""
        return self.of_steps(semconv.EPOCH)

    def of_steps(self, attribute: str) -> list[Any]:
        """An attribute of each step; None where it has none."""
        return [span.attributes.get(attribute) for span in self.steps]

    @property
    def kinds(self) -> list[str]:
        """Of the evaluations."""
        return [span.attributes[semconv.EVALUATION_KIND] for span in self.evaluations]

    @property
    def order(self) -> list[Any]:
        """The steps, by their number, and the evaluations, by their kind, in order of start."""
        return [
            span.attributes.get(semconv.STEP_NUMBER, span.attributes.get(semconv.EVALUATION_KIND))
            for span in self.spans
            if span.name in {semconv.TRAIN_STEP_SPAN, semconv.EVALUATION_SPAN}
        ]

    def top_of(self, span: ReadableSpan) -> ReadableSpan:
        """The outermost span around one."""
        while span.parent is not None:
            span = self._by_id[span.parent.span_id]
        return span

    def inside(self, top: ReadableSpan) -> list[ReadableSpan]:
        """All that is in an outermost span."""
        return [span for span in self.spans if span is not top and self.top_of(span) is top]

    def counts(self, tops: Iterable[ReadableSpan], name: str) -> list[int]:
        """How many spans of that name are in each of some outermost spans."""
        return [[span.name for span in self.inside(top)].count(name) for top in tops]

    def outside(self) -> list[str]:
        """The names of the outermost spans that are neither a step nor an evaluation.

        What was loaded for a step is beside it, in its trace.
        """
        of_steps = {span.context.trace_id for span in self.steps}
        return [
            span.name
            for span in self.spans
            if span.parent is None
            and span.name not in {semconv.TRAIN_STEP_SPAN, semconv.EVALUATION_SPAN}
            and not (span.name == semconv.DATA_LOAD_SPAN and span.context.trace_id in of_steps)
        ]

    @property
    def fqns(self) -> set[str]:
        """Of all modules."""
        return fqns_of(self.spans)

    def assert_inside_their_parents(self) -> None:
        """Each span of a module begins and ends within the one that it is in."""
        for span in self.spans:
            if span.parent is not None:
                around = self._by_id[span.parent.span_id]
                assert around.start_time <= span.start_time, (span.name, around.name)
                assert span.end_time <= around.end_time, (span.name, around.name)


def fqns_of(spans: Iterable[ReadableSpan]) -> set[str]:
    """The fqns of the modules."""
    found = {span.attributes.get(semconv.MODULE_FQN) for span in spans}
    return found - {None}


def phases_of(spans: Iterable[ReadableSpan]) -> set[str]:
    """The phases of the modules."""
    return {span.attributes.get(semconv.PHASE) for span in spans} - {None}


def assert_no_wrappers(fqns: Iterable[str], root: str) -> None:
    """No wrapper shows in a name, and all begin with the model's class."""
    for fqn in fqns:
        parts = fqn.split(".")
        assert parts[0] == root, fqn
        assert not set(parts) & set(WRAPPERS), fqn


def assert_nothing_is_open() -> None:
    """No span is current, no tracker is on, and nothing is under way on this thread."""
    assert not trace.get_current_span().get_span_context().is_valid
    assert not CORE.on
    state = THREADS.state
    assert state.unit is None
    assert state.running is None
    assert not state.progress.evaluating
