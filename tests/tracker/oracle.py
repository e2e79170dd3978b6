"""The oracle: says which module call made each autograd node, and whether the spans agree.

It shares nothing with the tracker. torch itself tells it of every node at the moment it is made:
in anomaly mode each node's constructor calls ``torch.fx.traceback.format_stack``, in whatever
thread, and keeps what it returns. The oracle's own stack of calls, kept by replacing
``nn.Module.__call__``, gives the label. A hook before and after every node that runs takes the
time; afterwards the exported span that was innermost at that time must be the label's.

Source: torch/csrc/autograd/python_anomaly_mode.cpp, `PyAnomalyMetadata::store_stack` (2.8 to 2.15).
"""

from __future__ import annotations

import contextlib
import functools
import logging
import re
import sys
import threading
import time
import types
import weakref
from typing import TYPE_CHECKING, Any

import torch
import torch.fx.traceback as torch_traceback
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from torch import nn
from torch.autograd import Variable

from otel_modtrack import ModTracker, Policy, region
from otel_modtrack.testing import Tree
from tests.intervals import check_intervals
from tests.tracker.verdict import Verdict, judge

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    from opentelemetry.sdk.trace import ReadableSpan

__all__ = ["Call", "Oracle", "Running", "Watched", "watched"]

_ROOT = re.compile(r"(?:forward|backward|recompute) (\w+)(?:#(\d+))?")
_LABEL = "traceback_"  # torch's key for what `format_stack` returned
_FQN = "modtrack.module.fqn"
# Wrappers are one region with what they wrap: class name, and the name of the wrapped child.
_WRAPPERS = {
    "AveragedModel": "module",
    "CheckpointWrapper": "_checkpoint_wrapped_module",
    "DataParallel": "module",
    "OffloadWrapper": "_checkpoint_wrapped_module",
    "OptimizedModule": "_orig_mod",
}
_PREFIXES = {*_WRAPPERS.values(), "_fsdp_wrapped_module"}


class Call:
    """One call of a module (or one named region), as the oracle saw it.

    Attributes:
        number: in order of beginning, from 1.
        key: what tells modules apart: the ``id`` of the innermost wrapped module, or a name.
        fqns: the names it may have; empty if the oracle does not know.
        parent: the call that it ran in, within the same pass; None for an outermost call.
        before_ns, inside_ns: the tracker's region begins between them.
        leaving_ns, after_ns: and ends between them.
        body: it returned a generator or coroutine, so that it ends later.
        session: while which stay of trackers it began; 0 for none.
    """

    def __init__(
        self, number: int, key: object, fqns: set[str], parent: Call | None, session: int
    ) -> None:
        self.number = number
        self.session = session
        self.key = key
        self.fqns = fqns
        self.parent = parent
        self.before_ns = time.perf_counter_ns()
        self.inside_ns = self.leaving_ns = self.after_ns = 0
        self.body = False
        self.outer: nn.Module | None = None  # the module, while it runs

    def __repr__(self) -> str:
        return f"call {self.number} of {'/'.join(sorted(self.fqns)) or self.key}"


class Running:
    """One node while it runs in one engine run.

    Attributes:
        label: number of the call that made it; "0" if it was made outside of any, and None if the
            oracle was not there.
        inherited: for a node of a nested run, the label of the node inside which the run was begun.
        session: while which stay of trackers it ran; None if that is not the one in which the
            engine run began.
    """

    def __init__(self, name: str, label: str | None, inherited: str, session: int | None) -> None:
        self.name = name
        self.label = label
        self.inherited = inherited
        self.session = session
        self.run = torch._C._current_graph_task_id()
        self.before_ns = time.perf_counter_ns()
        self.after_ns = 0


class _Engine:
    """torch's engine, with the oracle told of each run: as near to the engine as Python comes.

    The oracle's hooks are thus the last to be put on a node, and the last to be called before it.
    """

    def __init__(self, oracle: Oracle, engine: Any) -> None:
        self._oracle, self._engine = oracle, engine

    def run_backward(self, outputs: Any, *args: Any, **kwargs: Any) -> Any:
        with self._oracle.engine_run(outputs):
            return self._engine.run_backward(outputs, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


class _Thread(threading.local):
    def __init__(self) -> None:
        self.stack: list[Call | None] = []  # None: an engine run
        self.runs: list[tuple[str, int]] = []  # label under which it was begun, session
        self.reading: tuple[types.FrameType, int] | None = None


class Oracle:
    """Watches module calls and backwards while it is entered. Enter it before the tracker.

    Args:
        models: roots whose modules' names are known from the start.
    """

    def __init__(self, *models: nn.Module) -> None:
        self._fqns: dict[int, set[str]] = {}
        self._refs: list[weakref.ref[nn.Module]] = []
        for model in models:
            self.learn(model)
        self.calls: list[Call] = []
        self.nodes: list[Running] = []
        self.session = self._sessions = self._trackers = 0
        self._thread = _Thread()
        self._entering = threading.RLock()
        self.offset = time.time_ns() - time.perf_counter_ns()
        self._undo: list[Callable[[], None]] = []

    def learn(self, model: nn.Module) -> None:
        """The names that the modules of `model` may have."""
        root = model
        while (child := _WRAPPERS.get(type(root).__name__)) is not None:
            root = root.get_submodule(child)
        for path, module in model.named_modules(remove_duplicate=False):
            names = [name for name in path.split(".") if name and name not in _PREFIXES]
            fqn = ".".join([type(root).__name__, *names])
            self._fqns.setdefault(id(module), set()).add(fqn)
            self._refs.append(weakref.ref(module))

    # -- watching --------------------------------------------------------------------------------

    def __enter__(self) -> Oracle:  # noqa: PYI034 - no typing.Self in Python 3.10
        """Begin to watch."""
        self._replace(torch_traceback, "format_stack", self.label)
        self._replace(nn.Module, "__call__", self._wrap_call(nn.Module.__call__))
        self._replace(nn.Module, "_call_impl", self._wrap_inner(nn.Module._call_impl))
        self._replace(Variable, "_execution_engine", _Engine(self, Variable._execution_engine))
        self._replace(ModTracker, "__enter__", self._count(ModTracker.__enter__, 1))
        self._replace(ModTracker, "__exit__", self._count(ModTracker.__exit__, -1))
        self._replace(time, "time_ns", self._time_ns)
        self._replace(time, "perf_counter_ns", self._wrap_clock(time.perf_counter_ns))
        anomaly = torch.autograd.set_detect_anomaly(True, check_nan=False)
        self._undo.append(anomaly.__exit__)
        return self

    def __exit__(self, *_: object) -> None:
        """Everything is as it was."""
        while self._undo:
            self._undo.pop()()

    def _count(self, original: Callable[..., Any], by: int) -> Callable[..., Any]:
        """Know when trackers are on: a backward has regions if its forward was in the same stay."""

        @functools.wraps(original)
        def counted(*args: Any) -> Any:
            done = original(*args)
            self._trackers += by
            if by == self._trackers == 1:
                self._sessions += 1
            self.session = self._sessions if self._trackers else 0
            return done

        return counted

    def _replace(self, owner: Any, name: str, new: object) -> None:
        self._undo.append(functools.partial(setattr, owner, name, getattr(owner, name)))
        setattr(owner, name, new)

    def _time_ns(self) -> int:
        """The wall clock: the monotonic one, moved.

        Two readings by one frame are one instant, so that whoever computes the distance of
        the clocks gets it exactly, and spans' times can be compared to the nanosecond.
        """
        now = self._clock()
        self._thread.reading = (sys._getframe(1), now)
        return now + self.offset

    def _wrap_clock(self, clock: Callable[[], int]) -> Callable[[], int]:
        self._clock = clock

        def perf_counter_ns() -> int:
            reading, self._thread.reading = self._thread.reading, None
            if reading is not None and reading[0] is sys._getframe(1):
                return reading[1]
            return clock()

        return perf_counter_ns

    def label(self) -> list[str]:
        """A node is being made on this thread: by whom?"""
        for call in reversed(self._thread.stack):
            if call is not None:
                return [str(call.number)]
        return ["0"]

    def _begin(self, key: object, fqns: set[str]) -> Call:
        stack = self._thread.stack
        above = stack[-1] if stack else None
        call = Call(len(self.calls) + 1, key, fqns, above, self.session)
        self.calls.append(call)
        return call

    def _wrap_call(self, original: Callable[..., Any]) -> Callable[..., Any]:
        thread = self._thread

        @functools.wraps(original)
        def __call__(module: nn.Module, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
            target = _unwrapped(module)
            above = thread.stack[-1] if thread.stack else None
            if above is not None and above.key == id(target) and target is not above.outer:
                return original(module, *args, **kwargs)  # one with its wrapper
            self._entering.acquire()  # two calls never begin at once: their times tell them apart
            call = self._begin(id(target), self._fqns.get(id(target), set()))
            call.outer = module
            depth = len(thread.stack)
            thread.stack.append(call)
            try:
                outs = original(module, *args, **kwargs)
            finally:
                call.outer = None
                call.leaving_ns = call.leaving_ns or time.perf_counter_ns()
                del thread.stack[depth:]
                call.after_ns = time.perf_counter_ns()
                self._inside(call)
            return self._follow(call, outs)

        return __call__

    def _inside(self, call: Call) -> None:
        if not call.inside_ns:
            call.inside_ns = time.perf_counter_ns()
            self._entering.release()

    def _wrap_inner(self, original: Callable[..., Any]) -> Callable[..., Any]:
        thread = self._thread

        @functools.wraps(original)
        def _call_impl(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            call = thread.stack[-1] if thread.stack else None
            if call is None or module is not call.outer:
                return original(module, *args, **kwargs)
            self._inside(call)
            try:
                return original(module, *args, **kwargs)
            finally:
                call.leaving_ns = time.perf_counter_ns()

        return _call_impl

    def _follow(self, call: Call, outs: Any) -> Any:
        """A body that runs later makes its nodes for the call that returned it.

        Those of an async generator are not followed: of it the times alone are compared.
        """
        if isinstance(outs, types.GeneratorType):
            call.body = True
            return self._drive(call, outs)
        if isinstance(outs, types.CoroutineType):
            call.body = True
            return self._await(call, outs)
        call.body = isinstance(outs, types.AsyncGeneratorType)
        return outs

    def _drive(self, call: Call, body: Any) -> Generator[Any, Any, Any]:
        stack, value = self._thread.stack, None
        try:
            while True:
                stack.append(call)
                try:
                    item = body.send(value)
                finally:
                    stack.pop()
                value = yield item
        except StopIteration as stop:
            return stop.value
        finally:
            body.close()

    async def _await(self, call: Call, body: Any) -> Any:
        @types.coroutine
        def steps() -> Generator[Any, Any, Any]:
            return (yield from self._drive(call, body))

        return await steps()

    @contextlib.contextmanager
    def region(self, name: str) -> Iterator[None]:
        """The tracker's named region, watched."""
        stack = self._thread.stack
        with self._entering:
            call = self._begin(name, {name})
            scope = region(name)
            scope.__enter__()
            call.inside_ns = time.perf_counter_ns()
        stack.append(call)
        try:
            yield
        finally:
            stack.pop()
            call.leaving_ns = time.perf_counter_ns()
            scope.__exit__(*sys.exc_info())
            call.after_ns = time.perf_counter_ns()

    @contextlib.contextmanager
    def engine_run(self, outputs: Any) -> Iterator[None]:
        """A run of the engine that begins at `outputs`."""
        node = torch._C._current_autograd_node()
        # Anew for each run, to be called after whatever the tracker has put on the node.
        handles = [
            handle for one in _reachable(outputs) if one is not node for handle in self._hook(one)
        ]
        label = node.metadata.get(_LABEL, ["0"])[0] if node is not None else "0"
        thread = self._thread
        if label == "0" and thread.runs:
            label = thread.runs[-1][0]
        thread.runs.append((label, self.session))
        thread.stack.append(None)
        try:
            yield
        finally:
            thread.stack.pop()
            thread.runs.pop()
            for handle in handles:
                handle.remove()

    def _hook(self, node: Any) -> list[Any]:
        """Be called before and after the node; AccumulateGrad has no label."""
        if node.name().endswith("AccumulateGrad"):
            return []
        name, label = node.name(), node.metadata.get(_LABEL, [None])[0]
        running: list[Running] = []

        def before(_: Any) -> None:
            inherited, session = self._thread.runs[-1]
            same = session if session == self.session else None
            one = Running(name, label, inherited, same)
            running.append(one)
            self.nodes.append(one)

        def after(*_: Any) -> None:
            one = running.pop()
            if one.session != self.session:
                one.session = None
            one.after_ns = time.perf_counter_ns()

        return [node.register_prehook(before), node.register_hook(after)]


def _unwrapped(module: nn.Module) -> nn.Module:
    while (child := _WRAPPERS.get(type(module).__name__)) is not None:
        module = module.get_submodule(child)
    return module


def _reachable(outputs: Any) -> list[Any]:
    """The nodes below the roots of an engine run."""
    stack = [o.grad_fn if isinstance(o, torch.Tensor) else o.node for o in outputs]
    found: dict[int, Any] = {}
    while stack:
        node = stack.pop()
        if node is not None and id(node) not in found:
            found[id(node)] = node
            stack.extend(below for below, _ in node.next_functions)
    return list(found.values())


class Watched:
    """A tracker with the oracle around it; see `watched`."""

    def __init__(self, tracker: ModTracker, oracle: Oracle, provider: TracerProvider) -> None:
        exporter = InMemorySpanExporter()
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        self.tracker = tracker
        self.provider = provider
        self.oracle = oracle
        self.region = oracle.region
        self.verdict = Verdict()
        self._exporter = exporter

    @property
    def spans(self) -> list[ReadableSpan]:
        """What was exported."""
        return list(self._exporter.get_finished_spans())

    def of(self, fqn: str) -> list[ReadableSpan]:
        """The spans of one module or named region, oldest first, whatever its root's number."""
        found = [s for s in self.spans if re.sub(r"#\d+", "", s.attributes.get(_FQN, "")) == fqn]
        return sorted(found, key=lambda span: span.start_time)

    @property
    def tree(self) -> str:
        """What was exported, as text; see `tree_of`."""
        return self.tree_of(self.spans)

    def tree_of(self, spans: Sequence[ReadableSpan]) -> str:
        """Some of the spans as text, in which models of one class are numbered within the run.

        Models of other tests may still be alive, and have the first numbers.
        """
        text, whole = str(Tree(spans)), str(Tree(self.spans))
        for root in {found[0] for found in _ROOT.findall(whole)}:
            numbers = sorted({int(n or 1) for r, n in _ROOT.findall(whole) if r == root})
            for number, old in enumerate(numbers, 1):
                before = rf" {root}(#{old})(?=[.!\n]|$)" if old > 1 else rf" {root}()(?=[.!\n]|$)"
                text = re.sub(before, f" {root}" + (f"#{number}" if number > 1 else ""), text)
        return text


class _Complaints(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(self.format(record))


@contextlib.contextmanager
def watched(
    *models: nn.Module, nodes: bool | None = True, partly: bool = False, threads: bool = False
) -> Iterator[Watched]:
    """Track what runs in the block, watched by the oracle; at its end nothing may be wrong.

    Args:
        models: their modules' names are known from the start; the tracker is told of the first.
        nodes: there is a backward, in which some node was made by a module; None: there may be.
        partly: the test switches the tracker on and off itself.
        threads: see `Oracle.judge`.
    """
    provider = TracerProvider(shutdown_on_exit=False)
    complaints = _Complaints()
    logger = logging.getLogger("otel_modtrack")
    logger.addHandler(complaints)
    every_call = Policy(budget=0)
    tracker = ModTracker(*models[:1], tracer_provider=provider, policy=every_call)
    try:
        with Oracle(*models) as oracle, contextlib.ExitStack() as stack:
            run = Watched(tracker, oracle, provider)
            if not partly:
                stack.enter_context(tracker)
            yield run
    finally:
        logger.removeHandler(complaints)
    assert not complaints.said
    check_intervals(run.spans)
    run.verdict = judge(oracle, run.spans, threads=threads)
    assert not run.verdict.wrong, "\n".join([run.tree, *run.verdict.wrong])
    assert nodes is None or bool(run.verdict.labelled) == nodes, (
        "no node was checked" if nodes else "a backward ran"
    )
