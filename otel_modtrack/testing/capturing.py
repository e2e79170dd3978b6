"""What the fixture `modtrack` gives: tracks models in a test, and asserts what they did."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from opentelemetry import trace
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from otel_modtrack.comm.telling import OFF, SUMMED
from otel_modtrack.core import CORE, THREADS
from otel_modtrack.policy import Policy
from otel_modtrack.testing.budget import Limits
from otel_modtrack.testing.collectives import CapturedCollectives
from otel_modtrack.testing.fixed import fixed
from otel_modtrack.testing.golden import Golden
from otel_modtrack.testing.providers import check_provider, make_provider, remove_processor
from otel_modtrack.testing.spans import Spans
from otel_modtrack.testing.trackers import Account, Tracker
from otel_modtrack.usage import UsageError

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Sequence

    from opentelemetry.sdk.trace import TracerProvider
    from torch import nn

    from otel_modtrack.testing.golden import Update
    from otel_modtrack.testing.tree import Tree
    from otel_modtrack.tracker import ModTracker

__all__ = ["Capture", "capture"]


@contextlib.contextmanager
def capture(
    provider: TracerProvider | None = None,
    *,
    golden: str | os.PathLike[str] | None = None,
    update: bool = False,
) -> Iterator[Capture]:
    """Capture spans and collectives until the block ends; nothing is left behind then.

    Args:
        provider: see `Capture.use`; one of its own if None.
        golden: folder of the golden files.
        update: whether these are written instead of compared.

    Raises:
        UsageError: if `provider` is not the SDK's, or is switched off.

    Example:
        >>> with capture() as modtrack:
        ...     with modtrack.track():
        ...         _ = torch.nn.Linear(2, 2)(torch.ones(1, 2))
        ...     modtrack.tree.assert_equals("forward Linear")
    """
    found = Capture(Golden(golden, update=update))
    try:
        found.use(make_provider() if provider is None else provider)
        yield found
    finally:
        found.close()


class Capture:
    """Spans and collectives of a test.

    Attributes:
        provider: that `track` gives to its trackers.
    """

    provider: TracerProvider

    def __init__(self, golden: Golden) -> None:
        self._golden = golden
        self._exporter = InMemorySpanExporter()
        self._providers: list[TracerProvider] = []
        self._modes: set[str] = set()  # of the trackers since the last `clear`
        self._is_fixed = False
        self._undo = contextlib.ExitStack()
        self._undo.callback(self._exporter.shutdown)
        self._ledger = Account()
        self._undo.callback(self._stop_counting)
        CORE.ledgers = (*CORE.ledgers, self._ledger)

    def close(self) -> None:
        """Leave the trackers that are still on, and everything as it was before."""
        self._undo.close()

    # -- to capture ------------------------------------------------------------------------------

    def track(
        self,
        model: nn.Module | None = None,
        *,
        collectives: str = SUMMED,
        steps: str = "auto",
        policy: Policy | None = None,
    ) -> ModTracker:
        """Track a model: ``with modtrack.track(model) as tracker:``.

        Everything that runs in the block is captured.

        Args:
            model: names its modules from the start.
            collectives: ``"summed"``, ``"each"`` or ``"off"``, as for `ModTracker`.
            steps: ``"auto"`` or ``"explicit"``, likewise.
            policy: likewise; everything if None. The environment has no say.

        Returns:
            A tracker, with its `step`; left when the test ends, if it is not before.

        Raises:
            TypeError: if `model` is not a module.
            ValueError: if `collectives` or `steps` is none that can be used.
            UsageError: when it is entered, if a `ModTracker` is on whose provider is not used.
        """

        def entered(tracker: ModTracker) -> None:
            self._undo.callback(tracker.__exit__, None, None, None)  # nothing where it was left
            self._modes.add(collectives)

        return Tracker(
            entered,
            self._providers,
            model,
            tracer_provider=self.provider,
            collectives=collectives,
            steps=steps,
            policy=policy or Policy(budget=0),
            metrics=False,
        )

    def use(self, provider: TracerProvider) -> None:
        """Capture the spans of a provider of yours; trackers give theirs to it from now on.

        Its processors, sampler, resource and ids stay as they are.

        Args:
            provider: of the SDK.

        Raises:
            UsageError: if it is not the SDK's, is switched off, or the ids are fixed already.
        """
        __tracebackhide__ = True
        check_provider(provider)
        is_new = not any(one is provider for one in self._providers)
        if is_new and self._is_fixed:
            raise UsageError("modtrack.use() comes before modtrack.fix_clock_and_ids()")
        self.provider = provider
        if not is_new:
            return
        processor = SimpleSpanProcessor(self._exporter)
        provider.add_span_processor(processor)
        self._undo.callback(remove_processor, provider, processor)
        self._providers.append(provider)

    def fix_clock_and_ids(self) -> None:
        """Give the same times and ids in every run, from now to the end of the test.

        Each reading of the clock is one microsecond after the last, from 2000-01-01 on. Trace and
        span ids count from 1. Also for spans that you start with a tracer of the provider.

        Raises:
            UsageError: if something was tracked already, or a span of yours is open.

        Limits:
            A program of one thread. The number of readings, and so the times, may change with the
            versions of torch, of the SDK and of this package.
        """
        __tracebackhide__ = True
        if self._is_fixed or self._has_run():
            raise UsageError(
                "modtrack.fix_clock_and_ids() comes once, before the first modtrack.track()"
            )
        if trace.get_current_span().is_recording():
            raise UsageError(
                "modtrack.fix_clock_and_ids() comes before the span that is open: it would end"
                " before it began"
            )
        self._undo.enter_context(fixed(self._providers))
        self._is_fixed = True

    def clear(self) -> None:
        """Forget what was captured so far, as after a warm-up."""
        self._exporter.clear()
        self._modes.clear()
        self._stop_counting()
        self._ledger = Account()
        CORE.ledgers = (*CORE.ledgers, self._ledger)

    # -- what was captured -----------------------------------------------------------------------

    @property
    def spans(self) -> Spans:
        """All finished spans, yours included, oldest first.

        Raises:
            UsageError: if nothing was tracked, or a step or a module is still running.
        """
        __tracebackhide__ = True
        self._check_has_run("spans")
        found = self._exporter.get_finished_spans()
        return Spans(found, found, self._golden, is_fixed=self._is_fixed)

    def select(  # noqa: PLR0913 - each may be left out
        self,
        fqn: str | None = None,
        *,
        phase: str | None = None,
        template: str | None = None,
        type: str | None = None,  # noqa: A002 - as the attribute modtrack.module.type
        name: str | None = None,
        within: str | None = None,
        step: int | None = None,
    ) -> Spans:
        """The spans that fit all that is given; see `Spans.select`.

        Raises:
            UsageError: if nothing was tracked, or there is no such phase, module or step.
        """
        __tracebackhide__ = True
        self._check_has_run("select()")
        return self.spans.select(
            fqn, phase=phase, template=template, type=type, name=name, within=within, step=step
        )

    @property
    def tree(self) -> Tree:
        """All finished spans as a tree.

        Raises:
            UsageError: if nothing was tracked.
        """
        __tracebackhide__ = True
        self._check_has_run("tree")
        return self.spans.tree

    @property
    def collectives(self) -> CapturedCollectives:
        """All collectives that were launched while a tracker was on.

        Raises:
            UsageError: if nothing was tracked, or without looking at collectives.
        """
        __tracebackhide__ = True
        if not (self._modes - {OFF} or self._ledger.looked):
            if not self._modes and not self._ledger.called:
                raise _nothing_ran("collectives")
            raise UsageError(
                "modtrack.collectives: they were not looked at; leave collectives='off' out of"
                " the tracker"
            )
        return CapturedCollectives(self._ledger)

    def assert_budget(
        self,
        fqn: str | None = None,
        *,
        phase: str | None = None,
        spans: int | None = None,
        collectives: int | None = None,
        size_bytes: int | None = None,
    ) -> None:
        """Assert how much there is at most, in all or in some modules or in a phase.

        Args:
            fqn: of a module or named region, or a pattern; what runs inside it counts, too.
            phase: ``forward``, ``backward``, ``recompute`` or ``optimizer``.
            spans: how many spans.
            collectives: how many collectives.
            size_bytes: payload of the collectives together, on this rank.

        Raises:
            AssertionError: if there is more. The message says of what, and where.
            UsageError: if nothing was tracked, there is no such phase or module, or no limit.
        """
        __tracebackhide__ = True
        Limits(spans, collectives, size_bytes).check(self, fqn, phase)

    @property
    def updates(self) -> Sequence[Update]:
        """What was written to golden files, or found there already."""
        return self._golden.updates

    def __repr__(self) -> str:
        return f"<modtrack: {len(self._exporter.get_finished_spans())} spans>"

    # -- inside ----------------------------------------------------------------------------------

    def _stop_counting(self) -> None:
        CORE.ledgers = tuple(one for one in CORE.ledgers if one is not self._ledger)

    def _has_run(self) -> bool:
        return bool(self._modes or self._exporter.get_finished_spans())

    def _check_has_run(self, what: str) -> None:
        __tracebackhide__ = True
        if THREADS.state.unit is not None:
            raise UsageError(
                f"modtrack.{what}: a step or a module is still running here, and its spans come"
                " when it ends; assert after it"
            )
        if not self._has_run():
            raise _nothing_ran(what)


def _nothing_ran(what: str) -> UsageError:
    return UsageError(
        f"modtrack.{what}: nothing was tracked yet; run the model inside"
        " `with modtrack.track(model):` first"
    )
