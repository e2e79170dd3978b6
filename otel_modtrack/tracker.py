"""ModTracker: the class that users meet."""

from __future__ import annotations

import logging
import operator
import os
import weakref
from typing import TYPE_CHECKING, Any

import torch
from opentelemetry import context as context_api, trace

from otel_modtrack import calls, carrier, optimizers, semconv, userhooks, where
from otel_modtrack.activation import ACTIVATION, Entry
from otel_modtrack.collectives import Collectives
from otel_modtrack.comm.ledger import Ledger
from otel_modtrack.comm.telling import EACH, OFF, SUMMED
from otel_modtrack.core import CORE, THREADS
from otel_modtrack.names import Names
from otel_modtrack.regions import CALLS, Unit
from otel_modtrack.saying import tell
from otel_modtrack.spans import Scope, SpanSink, make_sink
from otel_modtrack.version import __version__

if TYPE_CHECKING:
    import types
    from collections.abc import Callable

    from torch import nn
    from typing_extensions import Self

__all__ = ["ModTracker", "Step"]

logger = logging.getLogger("otel_modtrack")


class ModTracker:
    """Makes every module's forward, backward and recomputation an OpenTelemetry span.

    A context manager: while it is on, each ``nn.Module`` call of the process is a region and each
    region one span, nested as the calls nest, under the trace that is active. It takes
    the place of `torch.distributed._tools.mod_tracker.ModTracker`: ``parents``, ``is_bw``,
    ``get_known_fqn``, ``register_user_hooks`` and ``clear_user_hooks`` mean what they mean there,
    and work without any tracer provider.

    Args:
        model: names its modules from the start: ``GPT.layers.0`` also where a submodule is called
            by itself. Without it, the outermost module that is called is the root of the names.
        tracer_provider: where the spans go; the global provider if None. It is asked for when the
            tracker is entered.
        collectives: ``"summed"``: one event per operation and process group on each span.
            ``"each"``: one event per collective, with shapes, duration and reason. ``"off"``: they
            are not looked at.

    Raises:
        TypeError: if `model` is not a module or `tracer_provider` not a tracer provider.
        ValueError: if `collectives` is none of the three.

    Example:
        >>> model = torch.nn.Linear(2, 2)
        >>> with ModTracker(model) as tracker:
        ...     for number in range(2):
        ...         with tracker.step(number):
        ...             model(torch.ones(1, 2)).sum().backward()

    Limits:
        Off in forked children. Compiled autograd has no backward regions. Where several trackers
        are on at once, the spans go to the provider of the first that has one.
    """

    def __init__(
        self,
        model: nn.Module | None = None,
        *,
        tracer_provider: trace.TracerProvider | None = None,
        collectives: str = SUMMED,
    ) -> None:
        if model is not None and not isinstance(model, torch.nn.Module):
            msg = f"ModTracker(model): a torch.nn.Module is wanted, not {type(model).__name__}"
            raise TypeError(msg)
        if tracer_provider is not None and not isinstance(tracer_provider, trace.TracerProvider):
            msg = (
                "ModTracker(tracer_provider=...): an opentelemetry.trace.TracerProvider is wanted,"
                f" not {type(tracer_provider).__name__}"
            )
            raise TypeError(msg)
        if collectives not in (SUMMED, EACH, OFF):
            msg = (
                "ModTracker(collectives=...): 'summed', 'each' or 'off' is wanted,"
                f" not {collectives!r}"
            )
            raise ValueError(msg)
        self._model = weakref.ref(model) if model is not None else None
        self._provider = tracer_provider
        self._names = Names()
        self._hooks = userhooks.UserHooks()
        self._entries: list[Entry] = []
        self._mode = collectives
        self._collectives = Collectives(Ledger())

    def __enter__(self) -> Self:
        """Switch tracking on."""
        entry = Entry(self._mode)
        try:
            if not self._entries:
                self._count()
            self._entries.append(entry)
            carrier.read()
            entry.sink = make_sink(self._provider, __version__)
            if entry.sink is not None:
                entry.sink.collectives = self._mode
            self._names = ACTIVATION.add(entry, self._names)
            model = self._model() if self._model is not None else None
            if model is not None:
                self._names.name(model)
            self._hooks.install()
        except BaseException:  # a signal handler's: the `with` block is not entered
            self._leave(entry)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace_: types.TracebackType | None,
    ) -> None:
        """Switch it off; the last tracker to leave takes everything away."""
        if not self._entries:
            return
        entry = self._entries[-1]
        try:
            self._leave(entry)
        except BaseException:  # a signal handler's: leave all the same
            self._leave(entry)
            raise

    def _leave(self, entry: Entry) -> None:
        """Take one entry back; again: does nothing."""
        ACTIVATION.discard(entry)
        self._entries[:] = [one for one in self._entries if one is not entry]
        if not self._entries:
            self._hooks.remove()
            ledger = self._collectives.ledger
            CORE.ledgers = tuple(one for one in CORE.ledgers if one is not ledger)

    def _count(self) -> None:
        """Count collectives from here on."""
        ledger = Ledger()
        self._collectives = Collectives(ledger)
        if self._mode != OFF:
            CORE.ledgers = (*CORE.ledgers, ledger)

    @property
    def collectives(self) -> Collectives:
        """What was launched since the tracker was entered last: counts, bytes, a table."""
        return self._collectives

    def step(self, number: int) -> Step:
        """A training step: everything in it is exported together, under a span ``train_step``.

        Args:
            number: of the step, as you count it.

        Returns:
            A context manager that gives the step's span.

        Limits:
            One at a time per thread: of two that are open at once (asyncio tasks), the calls go to
            the one begun last.

        Raises:
            TypeError: if `number` is not an integer.
            RuntimeError: if the tracker is not on.
        """
        try:
            number = operator.index(number)
        except TypeError:
            msg = f"step(number): an integer is wanted, not {type(number).__name__}"
            raise TypeError(msg) from None
        if not self._entries:
            msg = "step() works inside `with ModTracker(...) as tracker:` only"
            raise RuntimeError(msg)
        return Step(number)

    @property
    def parents(self) -> set[str]:
        """Fqns of the modules that run now on this thread, forward or backward, and "Global".

        Where nothing is recorded (the parent span is not sampled), the forward is still told.
        """
        found = {"Global"}
        if not self._entries:
            return found
        found |= userhooks.INSIDE.fqns
        state = THREADS.state
        region = where.region(state)
        if region is not None:
            found |= {one.subject.fqn for one in region.chain() if one.subject.kind in CALLS}
        elif state.skip:
            found |= where.fqns_on_stack()
        return found

    @property
    def is_bw(self) -> bool:
        """Whether this thread is in a backward."""
        return torch._C._current_graph_task_id() != -1  # noqa: SLF001

    def get_known_fqn(self, mod: nn.Module) -> str | None:
        """The fqn of a module, or None if it was never seen."""
        return self._names.fqn(mod)

    def register_user_hooks(
        self,
        pre_fw_hook: Callable[[nn.Module, Any], None] | None = None,
        post_fw_hook: Callable[[nn.Module, Any, Any], None] | None = None,
        pre_bw_hook: Callable[[nn.Module | None, Any], None] | None = None,
        post_bw_hook: Callable[[nn.Module | None, Any], None] | None = None,
    ) -> None:
        """Be called around each module's forward and backward.

        In every hook the module's fqn is in `parents` and `is_bw` is right. A module that is no
        longer alive in its backward is given as None. What a hook raises reaches your program.
        Compiled modules run eagerly while hooks are registered, as with any global module hook.

        Args:
            pre_fw_hook: called with (module, input).
            post_fw_hook: called with (module, input, output).
            pre_bw_hook: called with (module, grad_output), when the first gradient of an output is
                there.
            post_bw_hook: called with (module, grad_input), when the gradients of all inputs
                are there, or at the end of the backward where no input has one.

        Raises:
            AssertionError: if a hook of the same kind is registered already.
        """
        self._hooks.register(
            pre_fw_hook=pre_fw_hook,
            post_fw_hook=post_fw_hook,
            pre_bw_hook=pre_bw_hook,
            post_bw_hook=post_bw_hook,
        )
        if self._entries:
            self._hooks.install()

    def clear_user_hooks(self) -> None:
        """Forget the hooks of `register_user_hooks`."""
        self._hooks.clear()
        self._hooks.remove()


class Step:
    """One training step, as a context manager; see `ModTracker.step`."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._span: trace.Span = trace.INVALID_SPAN
        self._unit: Unit | None = None
        self._token: Any = None
        self._saved: Any = None
        self._state: Any = None

    def __enter__(self) -> trace.Span:
        """Begin the step; its span is the current one."""
        try:
            self._begin()
        except Exception as error:  # noqa: BLE001 - nothing of ours may reach the user
            CORE.fault("the start of a step", error)
        return self._span

    def _begin(self) -> None:
        sink = CORE.sink
        if not CORE.on or not isinstance(sink, SpanSink):
            return
        unit = Unit(sink)
        begun_ns = unit.now_wall_ns()
        context = context_api.get_current()
        if context.get(sink.suppress_key):
            self._enter_state(None)
            return
        context = carrier.around(context)
        self._span = sink.start(
            semconv.TRAIN_STEP_SPAN,
            context,
            begun_ns,
            {semconv.STEP_NUMBER: self._number, **_ranks()},
        )
        context = trace.set_span_in_context(self._span, context)
        self._token = context_api.attach(context)
        if self._span.is_recording():
            unit.scope = Scope(context, self._span.get_span_context())
            self._unit = unit
        self._enter_state(self._unit)

    def _enter_state(self, unit: Unit | None) -> None:
        self._state = state = THREADS.state
        self._saved = state.suspend()
        state.unit = unit
        state.skip = unit is None or not CORE.on

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace_: types.TracebackType | None,
    ) -> None:
        """End the step and hand its spans on."""
        try:
            self._end(error)
        except Exception as fault:  # noqa: BLE001 - nothing of ours may reach the user
            CORE.fault("the end of a step", fault)

    def _end(self, error: BaseException | None) -> None:
        if self._token is not None:
            context_api.detach(self._token)
            self._token = None
        if self._state is None:
            return
        state, self._state = self._state, None
        failure = calls.describe(error) if error is not None else None
        optimizers.check(state, failure)
        state.resume(self._saved)
        unit, span = self._unit, self._span
        if unit is None:
            span.end()
            return
        sink = unit.sink
        if not isinstance(sink, SpanSink):  # this is a forked child, and the step its parent's
            return
        dropped = sink.dropped
        try:
            CORE.flush(unit)
            dropped = sink.dropped - dropped
            if dropped:
                span.set_attribute(semconv.SPANS_DROPPED, dropped)
            if unit.told is not None:
                sink.tell_collectives(span, unit, None, spare=failure is not None)
            if failure is not None:
                tell(span, failure, unit)
        finally:
            sink.end(span, unit.now_wall_ns())


def _ranks() -> dict[str, int]:
    """Which of all processes this is, where torch.distributed is initialised."""
    rank, world_size = where.process()
    if not world_size:
        return {}
    found = {semconv.RANK: rank, semconv.WORLD_SIZE: world_size}
    local = os.environ.get("LOCAL_RANK", "")
    if local.isdecimal():
        found[semconv.LOCAL_RANK] = int(local)
    return found
