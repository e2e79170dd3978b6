"""ModTracker: the class that users meet."""

from __future__ import annotations

import operator
import weakref
from typing import TYPE_CHECKING, Any

import torch
from opentelemetry import metrics as metrics_api, trace

from otel_modtrack import calls, carrier, options, userhooks, where
from otel_modtrack.activation import ACTIVATION, Entry
from otel_modtrack.collectives import Collectives
from otel_modtrack.comm.ledger import Ledger
from otel_modtrack.comm.telling import OFF
from otel_modtrack.control import Control
from otel_modtrack.core import CORE, THREADS
from otel_modtrack.methods import MethodSwap
from otel_modtrack.metrics import Meter
from otel_modtrack.names import Names
from otel_modtrack.on_signal import SignalSwap
from otel_modtrack.order.recording import OrderRecording
from otel_modtrack.policy import Policy
from otel_modtrack.regions import CALLS
from otel_modtrack.sinks import LateSink
from otel_modtrack.spans import SpanSink, make_sink
from otel_modtrack.stepping import Stepper
from otel_modtrack.steps import Evaluation, Step
from otel_modtrack.swap import undo_all
from otel_modtrack.version import __version__

if TYPE_CHECKING:
    import types
    from collections.abc import Callable, Mapping

    from opentelemetry.util.types import AttributeValue
    from torch import nn
    from typing_extensions import Self

    from otel_modtrack.order.execution import ExecutionOrder
    from otel_modtrack.order.positions import Report
    from otel_modtrack.order.watch import OrderWatch

__all__ = ["ModTracker", "Step"]

AUTO = "auto"


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
        meter_provider: where metrics go; the global provider if None.
        collectives: ``"summed"``: one event per operation and process group on each span.
            ``"each"``: one event per collective, with shapes, duration and reason. ``"off"``: they
            are not looked at.
        steps: ``"auto"``: training steps are recognised, until `step` is used (docs/steps.md).
            ``"explicit"``: there are those of `step` alone.
        policy: which steps and modules get spans, and how many.
        metrics: whether durations and collectives are metrics, too (docs/metrics.md).

    What is None is as the ``OTEL_PYTHON_MODTRACK_*`` variables say (docs/configuration.md); they
    say "summed", "auto", everything within a budget, and no metrics if they are not set.

    Raises:
        TypeError: if an argument is of the wrong type.
        ValueError: if an argument is none that can be used.
        ConfigurationError: if a variable cannot be used.

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

    def __init__(  # noqa: PLR0913 - all but the model by keyword
        self,
        model: nn.Module | None = None,
        *,
        tracer_provider: trace.TracerProvider | None = None,
        meter_provider: metrics_api.MeterProvider | None = None,
        collectives: str | None = None,
        steps: str | None = None,
        policy: Policy | None = None,
        metrics: bool | None = None,
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
        if meter_provider is not None and not isinstance(meter_provider, metrics_api.MeterProvider):
            msg = (
                "ModTracker(meter_provider=...): an opentelemetry.metrics.MeterProvider is wanted,"
                f" not {type(meter_provider).__name__}"
            )
            raise TypeError(msg)
        if policy is not None and not isinstance(policy, Policy):
            msg = f"ModTracker(policy=...): a Policy is wanted, not {type(policy).__name__}"
            raise TypeError(msg)
        self._model = weakref.ref(model) if model is not None else None
        self._provider = tracer_provider
        self._meter_provider = meter_provider
        self._mode = options.resolve("collectives", collectives)
        self._steps = options.resolve("steps", steps)
        self._metrics = options.resolve("metrics", metrics)
        self._policy = policy if policy is not None else options.read_policy()
        self._control = Control(self._policy, where.rank)
        self._methods = MethodSwap(self._policy.methods) if self._policy.methods else None
        self._names = self._new_names()
        self._hooks = userhooks.UserHooks()
        self._entries: list[Entry] = []
        self._collectives = Collectives(Ledger())
        self._order: ExecutionOrder | None = None
        self._undo: list[Callable[[], None]] = []
        # Called once, before it is looked up where spans go, which is then done late.
        self._prepare: Callable[[], None] | None = None

    def _new_names(self) -> Names:
        wanted = self._policy.wants_module if self._policy.selects_modules else None
        return Names(wanted, self._methods.seen if self._methods is not None else None)

    def __enter__(self) -> Self:
        """Switch tracking on."""
        steps = Stepper() if self._steps == AUTO else None
        entry = Entry(self._mode, steps, lambda: self._hooks.any)
        try:
            first = not self._entries
            if first:
                self._count()
            self._entries.append(entry)
            carrier.read()
            late = entry.automatic = self._prepare is not None
            entry.sink = self._late_sink(entry) if late else self._make_sink()
            self._names = ACTIVATION.add(entry, self._names)
            if first:
                self._install()
            model = self._model() if self._model is not None else None
            if model is not None:
                self._names.name(model)
            self._hooks.install()
        except BaseException:  # a signal handler's: the `with` block is not entered
            self._leave(entry, None)
            raise
        return self

    def _install(self) -> None:
        """What this tracker alone needs."""
        if self._methods is not None:
            self._undo.append(self._methods.remove)
            self._methods.install()
        number = self._policy.signal_number
        if number is not None:
            swap = SignalSwap(number, lambda: self._control.ask(self._policy.signal_steps))
            self._undo.append(swap.remove)
            swap.install()

    def _make_sink(self) -> SpanSink | None:
        """Where spans and metrics go, if anywhere."""
        meter = None
        if self._metrics:
            meter = Meter(self._meter_provider or metrics_api.get_meter_provider(), __version__)
        sink = make_sink(self._provider, __version__, measures=meter is not None)
        if sink is not None:
            sink.collectives, sink.control, sink.meter = self._mode, self._control, meter
            hooks = weakref.ref(self._hooks)  # a sink lives as long as a subject's cache holds it
            sink.sees_all = lambda: CORE.sees_all or ((found := hooks()) is not None and found.any)
            if meter is not None:
                meter.watch_dropped(lambda: sink.dropped)
        return sink

    def _late_sink(self, entry: Entry) -> LateSink:
        def find() -> Any:
            prepare, self._prepare = self._prepare, None
            if prepare is not None:
                prepare()
            sink = self._make_sink()
            return ACTIVATION.replace(entry, sink) if sink is not None else None

        return LateSink(self._control, find)

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
            self._leave(entry, error)
        except BaseException:  # a signal handler's: leave all the same
            self._leave(entry, error)
            raise

    def _leave(self, entry: Entry, error: BaseException | None) -> None:
        """Take one entry back; again: does nothing."""
        ACTIVATION.discard(entry, calls.describe(error) if error is not None else None)
        self._entries[:] = [one for one in self._entries if one is not entry]
        if not self._entries:
            self._hooks.remove()
            undo_all(self._undo)
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

    @property
    def is_on(self) -> bool:
        """Whether it was entered and not left."""
        return bool(self._entries)

    def record_next(self, steps: int = 1) -> None:
        """Record the next steps in full, whatever the policy says. From any thread.

        Args:
            steps: how many.

        Raises:
            TypeError: if `steps` is not an integer.
            ValueError: if it is less than 1.
        """
        if isinstance(steps, bool) or not isinstance(steps, int):
            msg = f"record_next(steps): an integer is wanted, not {type(steps).__name__}"
            raise TypeError(msg)
        if steps < 1:
            msg = f"record_next({steps}): 1 or more steps are wanted"
            raise ValueError(msg)
        self._control.ask(steps)

    def evaluation(self, *, attributes: Mapping[str, AttributeValue] | None = None) -> Evaluation:
        """An evaluation: the model's calls in it hang under a span ``evaluation``.

        Each is exported as it ends, so that the evaluation may be as long as it likes.

        Args:
            attributes: that the span has.

        Returns:
            A context manager that gives the span.

        Raises:
            RuntimeError: if the tracker is not on.
        """
        if not self._entries:
            msg = "evaluation() works inside `with ModTracker(...) as tracker:` only"
            raise RuntimeError(msg)
        return Evaluation(attributes)

    def step(self, number: int, *, attributes: Mapping[str, AttributeValue] | None = None) -> Step:
        """A training step: everything in it is exported together, under a span ``train_step``.

        Args:
            number: of the step, as you count it.
            attributes: that its span has besides.

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
        return Step(number, attributes)

    def record_order(self, name: str | None = None) -> OrderRecording:
        """Record in which order modules run and parameters are used, for `execution_order`.

        What this thread does in the block, and the backwards that it starts there. It costs some
        microseconds per call and operation, in the block alone.

        Args:
            name: of the order in reports; "step 3", "rank 1", or "recorded" if None.

        Returns:
            A context manager.

        Raises:
            RuntimeError: from its `__enter__`, if the tracker is not on, or an order is being
                recorded on this thread.
        """
        return OrderRecording(lambda: self.is_on, self._keep_order, name)

    def _keep_order(self, order: ExecutionOrder) -> None:
        self._order = order

    @property
    def execution_order(self) -> ExecutionOrder:
        """What the last block of `record_order` has recorded. It holds the modules.

        Raises:
            RuntimeError: if there was none, or no module was called in it.
        """
        order = self._order
        if order is None:
            msg = "nothing was recorded: run a forward inside `with tracker.record_order():`"
            raise RuntimeError(msg)
        if not order.forward:
            msg = (
                "no module was called inside record_order(), on its thread: begin it before the"
                " forward, and before the step if a policy leaves that step out"
            )
            raise RuntimeError(msg)
        return order

    def watch_order(
        self,
        after: float = 10.0,
        *,
        answer: float = 5.0,
        on_difference: Callable[[Report], object] | None = None,
    ) -> OrderWatch:
        """Say which rank went where, while ranks wait for each other; see `OrderWatch`.

        Args:
            after: how long nothing begins and nothing ends before the others are asked, in seconds.
            answer: how long the others have to answer, in seconds.
            on_difference: called with each report of different ways, on a thread of ours.

        Returns:
            A context manager, for each rank to be in.

        Raises:
            TypeError: if an argument is of the wrong type.
            ValueError: if a time is not a positive number.
            RuntimeError: if the tracker is not on.
        """
        if not self._entries:
            msg = "watch_order() works inside `with ModTracker(...) as tracker:` only"
            raise RuntimeError(msg)
        # What talks to other processes is loaded where it is wanted.
        from otel_modtrack.order.watch import OrderWatch  # noqa: PLC0415

        return OrderWatch(after, answer=answer, on_difference=on_difference)

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
            CORE.wake()

    def clear_user_hooks(self) -> None:
        """Forget the hooks of `register_user_hooks`."""
        self._hooks.clear()
        self._hooks.remove()
