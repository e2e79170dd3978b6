"""Property: a program cannot tell from its results whether it is tracked.

Random programs are run without a tracker and with one. Outputs, gradients, random numbers, the
exceptions with the text of their tracebacks, warnings, the order of the user's hooks, and the
autograd graph must be the same bit for bit, and nothing may be left afterwards.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import copy
import gc
import inspect
import io
import json
import os
import pickle
import random
import re
import sys
import threading
import traceback
import warnings
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings, strategies as st
from opentelemetry import context as context_api, trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from otel_modtrack import ModTracker, region
from otel_modtrack.testing import Tree
from tests.conftest import keep_from_collections, patched_state
from tests.intervals import check_intervals
from tests.same import generators, graph_of

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Callable, Iterator

# More examples, drawn anew each time, for a search that takes longer than a test may.
SEARCH = int(os.environ.get("MODTRACK_EXAMPLES", "0"))
PROPERTY = settings(
    max_examples=SEARCH or 50,
    derandomize=not SEARCH,
    print_blob=True,
    # Shrinking what failed takes minutes: for a search only.
    phases=[Phase.generate, Phase.shrink] if SEARCH else [Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

WIDTH = 4
# Of parts in an iteration; shared parts called twice by shared parts are soon very many.
MOST_CALLS = 50


@pytest.fixture(scope="module", autouse=True)
def quick_collections() -> None:
    """After a program that makes torch import what it imports late."""
    for kind in ("checkpoint", "reentrant"):
        run((0, (kind, 0, (("layer", 0, ()),)), ("backward", "edge"), True, False))
    keep_from_collections()


# -- random programs ------------------------------------------------------------------------------


class Canary:
    """Dies with the autograd node that holds it."""


class Oops(Exception):  # noqa: N818 - an exception like a user's
    """An exception of the user's."""


class Mute(Exception):  # noqa: N818
    """An exception that cannot be printed."""

    def __str__(self) -> str:
        raise ValueError


RAISED = (Oops, Mute, KeyError, RuntimeError, StopIteration, KeyboardInterrupt, SystemExit)


class Log:
    """What a run of a program shows to its user, in order."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.calls = 0
        self.canaries: list[weakref.ref[Canary]] = []

    def add(self, *what: Any) -> None:
        self.seen.append(what)


class Hold(torch.autograd.Function):
    """The identity, whose node holds a canary and may raise."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, log: Log, error: Any) -> torch.Tensor:
        ctx.canary = Canary()
        ctx.error = error
        log.canaries.append(weakref.ref(ctx.canary))
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        if ctx.error is not None:
            raise ctx.error("in backward", 1)
        return grad * 1.5, None, None


def noise() -> float:
    """One number from every generator that there is."""
    return random.random() + np.random.rand() + torch.rand(()).item()  # noqa: NPY002, S311


class Part(nn.Module):
    """A module of a random program: what it does is told by `kind` and `arg`."""

    def __init__(self, log: Log, kind: str, arg: int, children: list[nn.Module]) -> None:
        super().__init__()
        self.log, self.kind, self.arg, self.calls = log, kind, arg, 0
        self.parts = nn.ModuleList(children)

    def forward(self, x: torch.Tensor) -> Any:
        self.calls += 1
        self.log.calls += 1
        if self.log.calls > MOST_CALLS:
            return x
        return getattr(self, f"do_{self.kind}")(x)

    def run(self, x: torch.Tensor) -> torch.Tensor:
        for part in self.parts:
            x = plain(part(x))
        return x

    # Leaves.

    def do_noise(self, x: torch.Tensor) -> torch.Tensor:
        return x + noise()

    def do_view(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(-1).view_as(x) if self.arg % 2 else x.t().t()

    def do_inplace(self, x: torch.Tensor) -> torch.Tensor:
        x = x * 1.25
        part = x[:, : 1 + self.arg % WIDTH]
        part.mul_(0.5)
        return x.add_(1.0) if self.arg % 2 else x

    def do_detach(self, x: torch.Tensor) -> torch.Tensor:
        return x.detach().requires_grad_(self.arg % 2 == 0)

    def do_hold(self, x: torch.Tensor) -> torch.Tensor:
        return Hold.apply(x, self.log, None)

    def do_boom(self, x: torch.Tensor) -> torch.Tensor:
        error = RAISED[self.arg % len(RAISED)]
        where = self.arg // len(RAISED) % 4
        if self.calls != 1 + self.arg // 28 % 2:
            return x * 2
        if where == 0:
            raise error("in forward", 1)
        if where == 1:
            return Hold.apply(x, self.log, error)
        if where == 2 and x.requires_grad:
            x = x * 2

            def hook(_: torch.Tensor) -> None:
                raise error("in a hook", 1)

            x.register_hook(hook)
        return x * 2

    # What has parts.

    def do_chain(self, x: torch.Tensor) -> torch.Tensor:
        return self.run(x)

    def do_residual(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.run(x)

    def do_twice(self, x: torch.Tensor) -> torch.Tensor:
        return self.run(self.run(x))

    def do_recursion(self, x: torch.Tensor) -> torch.Tensor:
        depth = self.calls % 4
        return self(x) if depth else self.run(x)

    def do_keywords(self, x: torch.Tensor) -> torch.Tensor:
        for part in self.parts:
            x = plain(part(x=x) if isinstance(part, Part) else part(x))
        return x

    def do_no_grad(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            extra = self.run(x)
        return x * 1.5 + extra

    def do_dict(self, x: torch.Tensor) -> dict[str, Any]:
        out = self.run(x)
        return {"out": out, "more": [(out * 2, "text"), None]}

    def do_pair(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.run(x), x

    def do_checkpoint(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.run, x, use_reentrant=False)

    def do_reentrant(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.run, x, use_reentrant=True)

    def do_scope(self, x: torch.Tensor) -> torch.Tensor:
        with region("scope"):
            return self.run(x)

    def do_decorated(self, x: torch.Tensor) -> torch.Tensor:
        return region("decorated.1")(self.run)(x)

    def do_direct(self, x: torch.Tensor) -> torch.Tensor:
        for part in self.parts:
            x = plain(part.forward(x))
        return x

    def do_swallow(self, x: torch.Tensor) -> torch.Tensor:
        try:
            return self.run(x)
        except Exception as error:  # noqa: BLE001
            self.log.add("swallowed", describe(error))
            return x * 3

    def do_penalty(self, x: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            inner = x.detach().requires_grad_()
            out = Hold.apply(self.run(inner), self.log, None)
            if not out.requires_grad:
                return out
            (grad,) = torch.autograd.grad(out.sum(), inner, create_graph=True, allow_unused=True)
        return out if grad is None else out + grad * 0.1

    def do_tensor_hook(self, x: torch.Tensor) -> torch.Tensor:
        x = self.run(x) * 1.0
        if x.requires_grad:
            x.register_hook(lambda grad: self.log.add("grad", bits(grad)))
            x.register_hook(lambda grad: grad * 2 if self.arg % 2 else None)
            x.grad_fn.register_prehook(lambda grads: self.log.add("node", bits(grads)))
        return x

    def do_module_hooks(self, x: torch.Tensor) -> torch.Tensor:
        log, handles = self.log, []
        for part in self.parts:
            handles += [
                part.register_forward_pre_hook(lambda _, args: log.add("pre", bits(args))),
                part.register_forward_hook(lambda _, __, out: log.add("post", bits(out))),
                part.register_full_backward_hook(lambda _, __, out: log.add("bw", bits(out))),
                part.register_full_backward_pre_hook(lambda _, out: log.add("pre bw", bits(out))),
            ]
        try:
            return self.run(x)
        finally:
            for handle in handles[self.arg % 4 :]:
                handle.remove()


LEAVES = ("noise", "view", "inplace", "detach", "hold", "boom")
LAYERS: tuple[Callable[[], nn.Module], ...] = (
    lambda: nn.Linear(WIDTH, WIDTH),
    lambda: nn.Dropout(0.5),
    lambda: nn.ReLU(inplace=True),
    lambda: nn.LayerNorm(WIDTH),
    nn.Identity,
    lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH)),
)
INNER = tuple(
    name.removeprefix("do_")
    for name in vars(Part)
    if name.startswith("do_") and name.removeprefix("do_") not in LEAVES
)

Spec = tuple[str, int, tuple[Any, ...]]

leaves = st.one_of(
    st.tuples(st.just("layer"), st.integers(0, len(LAYERS) - 1), st.just(())),
    st.tuples(st.sampled_from(LEAVES), st.integers(0, 55), st.just(())),
    st.tuples(st.just("again"), st.integers(0, 9), st.just(())),
)
specs = st.recursive(
    leaves,
    lambda below: st.tuples(
        st.sampled_from(INNER),
        st.integers(0, 7),
        st.lists(below, min_size=1, max_size=3).map(tuple),
    ),
    max_leaves=10,
)
ENDINGS = ("backward", "retain", "partial", "double", "no_grad", "forget", "edge")


@st.composite
def programs(draw: st.DrawFn) -> tuple[int, Spec, tuple[str, ...], bool, bool]:
    """Seed, module tree, how the iterations end, whether the input is a leaf, eval mode."""
    roots = draw(st.lists(specs, min_size=1, max_size=3))
    return (
        draw(st.integers(0, 99)),
        ("chain", 0, tuple(roots)),
        tuple(draw(st.lists(st.sampled_from(ENDINGS), min_size=1, max_size=3))),
        draw(st.booleans()),
        draw(st.booleans()),
    )


def build(log: Log, spec: Spec, made: list[nn.Module]) -> nn.Module:
    """The module of a spec; "again" is one that was made before, shared."""
    kind, arg, below = spec
    if kind == "layer" or (kind == "again" and not made):
        module = LAYERS[arg % len(LAYERS)]()
    elif kind == "again":
        module = made[arg % len(made)]
    else:
        module = Part(log, kind, arg, [build(log, one, made) for one in below])
    made.append(module)
    return module


def plain(out: Any) -> torch.Tensor:
    """The tensor that a part gave."""
    if isinstance(out, dict):
        return out["out"] + out["more"][0][0]
    return out[0] + out[1] if isinstance(out, tuple) else out


# -- what is compared -----------------------------------------------------------------------------


def bits(value: Any) -> Any:
    """Tensors as bytes, in whatever they are packed."""
    if isinstance(value, torch.Tensor):
        return value.detach().numpy().tobytes(), tuple(value.shape), value.requires_grad
    if isinstance(value, (list, tuple)):
        return [bits(one) for one in value]
    if isinstance(value, dict):
        return {key: bits(one) for key, one in value.items()}
    return value


def describe(error: BaseException) -> Any:
    """All that a user sees of an exception; no addresses."""
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    return type(error), error.args, re.sub(r"0x[0-9a-f]+", "0x", text)


def finish(log: Log, how: str, model: nn.Module, x: torch.Tensor, out: torch.Tensor) -> None:
    """End an iteration in one of the ways that there are."""
    weights = list(model.parameters())
    if not out.requires_grad:
        log.add("nothing to do")
    elif how == "backward":
        out.sum().backward()
    elif how == "retain":
        loss = out.pow(2).sum()
        loss.backward(retain_graph=True)
        loss.backward()
    elif how == "partial":
        some = [*weights[: 1 + len(weights) // 2], *([x] if x.requires_grad else [])]
        if some:
            log.add("grads", bits(torch.autograd.grad(out.sum(), some, allow_unused=True)))
    elif how == "double":
        wanted = [x] if x.requires_grad else weights
        grads = torch.autograd.grad(out.pow(2).sum(), wanted, create_graph=True, allow_unused=True)
        norms = [grad.pow(2).sum() for grad in grads if grad is not None and grad.requires_grad]
        if norms:
            torch.stack(norms).sum().backward()
    elif how == "edge":
        torch.autograd.backward([out, out.pow(2)], [torch.ones_like(out)] * 2)


def iteration(log: Log, how: str, model: nn.Module, x: torch.Tensor) -> None:
    """One iteration of a user's loop."""
    base, log.calls = torch._C._autograd._get_sequence_nr(), 0
    try:
        with contextlib.ExitStack() as stack:
            if how == "no_grad":
                stack.enter_context(torch.no_grad())
            out = plain(model(x))
        log.add("out", bits(out), graph_of(out, base))
        finish(log, how, model, x, out)
    except BaseException as error:  # noqa: BLE001
        log.add("raised", describe(error))
    log.add("nodes", torch._C._autograd._get_sequence_nr() - base)
    log.add("state", generators(), bits([one.grad for one in [x, *model.parameters()]]))


def run(program: Any, around: Callable[[nn.Module], Any] | None = None) -> Log:
    """Run a program, inside what `around` gives; its model and graphs should be gone in the end."""
    seed, spec, endings, leaf, evaluated = program
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    torch.manual_seed(seed)
    log = Log()
    model = build(log, spec, [])
    model.train(not evaluated)
    x = torch.randn(3, WIDTH, requires_grad=leaf)
    died = weakref.ref(model)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with around(model) if around is not None else contextlib.nullcontext():
            for how in endings:
                iteration(log, how, model, x)
            del model, x
            gc.collect()
            # What torch itself leaks where a checkpoint fails is not ours to mend.
            log.add("held", died() is not None, [ref() is not None for ref in log.canaries])
    log.add(
        "warnings", [(one.category, str(one.message), one.filename, one.lineno) for one in caught]
    )
    return log


def compare(tracked: Log, untracked: Log) -> None:
    """Fail at the first thing that differs."""
    for ours, theirs in zip(tracked.seen, untracked.seen, strict=True):
        assert ours == theirs


class Kept:
    """A provider of the SDK's and what it exported."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))


@contextlib.contextmanager
def unsampled() -> Iterator[None]:
    """A parent whose sampling decision was no."""
    parent = trace.NonRecordingSpan(
        trace.SpanContext(7, 7, is_remote=True, trace_flags=trace.TraceFlags(0))
    )
    with trace.use_span(parent):
        yield


# -- the properties -------------------------------------------------------------------------------


@PROPERTY
@given(programs())
def test_a_tracked_program_computes_the_same(program: Any) -> None:
    """With every span recorded, nothing that a program can see of its own is different."""
    kept, before = Kept(), patched_state()
    untracked = run(program)
    tracked = run(program, lambda model: ModTracker(model, tracer_provider=kept.provider))
    compare(tracked, untracked)
    assert patched_state() == before
    spans = kept.exporter.get_finished_spans()
    assert spans
    check_intervals(spans)


@PROPERTY
@given(programs())
def test_a_program_in_steps_computes_the_same(program: Any) -> None:
    """With a step around the loop, and the trackers nested, it is the same."""
    kept, before = Kept(), patched_state()

    @contextlib.contextmanager
    def around(model: nn.Module) -> Iterator[None]:
        inner = ModTracker(model)
        del model
        with ModTracker(tracer_provider=kept.provider) as tracker, tracker.step(1), inner:
            yield

    compare(run(program, around), run(program))
    assert patched_state() == before
    check_intervals(kept.exporter.get_finished_spans())


@PROPERTY
@given(programs())
def test_an_unsampled_program_computes_the_same(program: Any) -> None:
    """Under a parent that is not sampled, and without a provider, it is the same, without spans."""
    kept, before = Kept(), patched_state()

    @contextlib.contextmanager
    def under_unsampled(model: nn.Module) -> Iterator[None]:
        tracker = ModTracker(model, tracer_provider=kept.provider)
        del model
        with unsampled(), tracker:
            yield

    untracked = run(program)
    compare(run(program, under_unsampled), untracked)
    compare(run(program, ModTracker), untracked)
    assert patched_state() == before
    assert not kept.exporter.get_finished_spans()


# -- one by one: what a user could notice ---------------------------------------------------------


class Net(nn.Module):
    """Two layers with dropout between."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.drop, self.b = nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(self.drop(torch.relu(self.a(x))))


class Call(nn.Module):
    """A module that does what it is given."""

    def __init__(self, does: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.does = does
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> Any:
        return self.does(self.layer(x))


X = torch.ones(2, 4)


def both_ways(program: Callable[[], Any], kept: Kept | None = None) -> Any:
    """What `program` gives; it must be the same untracked and tracked."""
    results = []
    for around in (
        contextlib.nullcontext(),
        ModTracker(tracer_provider=(kept or Kept()).provider),
    ):
        torch.manual_seed(0)
        with around:
            results.append(program())
    assert results[1] == results[0]
    return results[0]


def test_function_modes_see_their_own_calls_only() -> None:
    """A TorchFunctionMode, a subclass and a dispatch mode are not told of anything of ours."""
    seen: list[str] = []

    class Mode(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(f"mode {func.__name__}")
            return func(*args, **(kwargs or {}))

    class Dispatch(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(f"dispatch {func}")
            return func(*args, **(kwargs or {}))

    class Mine(torch.Tensor):
        @classmethod
        def __torch_function__(
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(f"class {func.__name__}")
            return super().__torch_function__(func, types, args, kwargs or {})

    def program() -> list[str]:
        seen.clear()
        model = Net()
        for around in (Mode(), Dispatch(), contextlib.nullcontext()):
            for x in (X, X.as_subclass(Mine), X.clone().requires_grad_()):
                with around:
                    model(x).sum().backward()
                    torch.autograd.backward([model(x).sum()])
                    torch.autograd.grad([model(x).sum()], list(model.parameters()))
        return list(seen)

    assert any("class" in one for one in both_ways(program))


@pytest.mark.filterwarnings(
    "ignore:`torch.jit:FutureWarning", "ignore:`torch.jit:DeprecationWarning"
)
def test_transforms_give_the_same() -> None:
    """torch.func's grad, vmap, Jacobians and Hessians through modules are unchanged."""

    def program() -> Any:
        model = Net().eval()
        weights = dict(model.named_parameters())
        grads = torch.func.grad(
            lambda given: torch.func.functional_call(model, given, (X,)).pow(2).sum()
        )(weights)
        return bits(
            [
                *grads.values(),
                torch.func.vmap(model)(torch.ones(3, 2, 4)),
                torch.func.jacrev(model)(X),
                torch.func.jacfwd(model)(X),
                torch.func.hessian(lambda x: model(x).pow(2).sum())(X),
            ]
        )

    both_ways(program)


@pytest.mark.filterwarnings(
    "ignore:`torch.jit:FutureWarning", "ignore:`torch.jit:DeprecationWarning"
)
def test_traced_and_exported_graphs_are_the_same() -> None:
    """torch.fx, torch.jit and make_fx record the same graphs while tracking."""
    from torch.fx import symbolic_trace  # noqa: PLC0415
    from torch.fx.experimental.proxy_tensor import make_fx  # noqa: PLC0415

    def program() -> list[str]:
        model = Net().eval()
        graphs = [
            symbolic_trace(model).graph,
            torch.jit.trace(model, X).inlined_graph,
            torch.jit.script(model).inlined_graph,
            make_fx(model)(X).graph,
        ]
        return [re.sub(r"___torch_mangle_\d+\.|#.*", "", str(graph)).strip() for graph in graphs]

    both_ways(program)


def test_warnings_name_the_same_lines() -> None:
    """A warning's stack level leads to the same file and line."""

    def program() -> Any:
        found = []
        for level in range(1, 12):
            model = nn.Sequential(Call(lambda x: warnings.warn("x", stacklevel=level) or x))  # noqa: B023
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                model(X)
            found.append((caught[0].filename, caught[0].lineno))
        return found

    both_ways(program)


def test_stacks_are_as_deep_and_read_the_same() -> None:
    """Inside forward and backward, the Python stack has the same frames, lines and text."""

    def program() -> Any:
        stacks = []

        def look(x: torch.Tensor) -> torch.Tensor:
            stacks.append(
                [(f.filename, f.lineno, f.name, f.line) for f in traceback.extract_stack()]
            )
            return x

        def hooked(x: torch.Tensor) -> torch.Tensor:
            x.register_hook(look)
            return look(x)

        nn.Sequential(nn.ReLU(), Call(hooked))(X).sum().backward()
        return stacks

    assert len(both_ways(program)) == 2


def test_sources_read_the_same() -> None:
    """inspect finds the source and signature of torch's functions while ours are in."""

    def program() -> Any:
        functions = (nn.Module.__call__, torch.autograd.graph._engine_run_backward)
        return [(inspect.getsource(one), str(inspect.signature(one))) for one in functions]

    both_ways(program)


def test_recursion_ends_where_it_did() -> None:
    """A nesting that just fits the recursion limit still does; one frame less is too deep."""
    if sys.gettrace() is not None:  # `make test-oldest` runs it
        pytest.skip("a tracer is on (coverage), which calls functions of its own from ours")

    def nested() -> nn.Module:
        model: nn.Module = nn.Linear(4, 4)
        for _ in range(60):
            model = nn.Sequential(model)
        return model

    def outcome(limit: int, model: nn.Module) -> str:
        before = sys.getrecursionlimit()
        sys.setrecursionlimit(limit)
        try:
            model(X).sum().backward()
        except RecursionError:
            return "too deep"
        finally:
            sys.setrecursionlimit(before)
        return "fits"

    depth = len(inspect.stack(0))
    model = nested()
    least = depth + 600
    while outcome(least - 1, model) == "fits":
        least -= 1
    for limit in range(least - 4, least + 16):
        kept = Kept()
        with ModTracker(tracer_provider=kept.provider):
            assert outcome(limit, nested()) == ("fits" if limit >= least else "too deep"), limit
            kept.exporter.clear()
            model = nested()
            assert outcome(1000, model) == "fits"
        assert len(kept.exporter.get_finished_spans()) == 123, limit  # 61 twice, and `backward`


def test_deep_nesting_knows_where_it_is() -> None:
    """Five hundred modules deep, the current span is the innermost module's, and records."""
    found: list[trace.Span] = []

    class Deep(nn.Module):
        def __init__(self, inner: nn.Module | None) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.inner is not None:
                return self.inner(x)
            found.append(trace.get_current_span())
            found[-1].set_attribute("deep", True)
            return x * 2

    model = Deep(None)
    for _ in range(499):
        model = Deep(model)
    kept, before = Kept(), sys.getrecursionlimit()
    sys.setrecursionlimit(2 * before + 1000)
    try:
        with ModTracker(model, tracer_provider=kept.provider):
            model(X)
    finally:
        sys.setrecursionlimit(before)
    spans = kept.exporter.get_finished_spans()
    assert len(spans) == 500
    (marked,) = (span for span in spans if "deep" in span.attributes)
    assert marked.context == found[0].get_span_context()
    assert marked.attributes["modtrack.module.fqn"] == "Deep" + ".inner" * 499


def test_anomaly_detection_tells_the_same() -> None:
    """The traceback that detect_anomaly prints, and its error, are unchanged."""

    class Nan(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            return grad * float("nan")

    def program() -> Any:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with torch.autograd.detect_anomaly():
                model = nn.Sequential(Call(Nan.apply), nn.Tanh())
                with pytest.raises(RuntimeError) as raised:
                    model(X).sum().backward()
        return describe(raised.value), [str(one.message) for one in caught]

    assert "returned nan" in str(both_ways(program))


def test_checkpoint_determinism_checks_decide_the_same() -> None:
    """A recomputation that differs is told by torch in the same words."""

    def program() -> Any:
        calls = []

        def vary(x: torch.Tensor) -> torch.Tensor:
            calls.append(1)
            return (x if len(calls) == 1 else x[:1]).relu()

        with pytest.raises(torch.utils.checkpoint.CheckpointError) as raised:
            checkpoint(Call(vary), X.clone().requires_grad_(), use_reentrant=False).sum().backward()
        return describe(raised.value)

    both_ways(program)


def test_saved_tensor_hooks_and_profilers_see_the_same() -> None:
    """saved_tensors_hooks, deterministic algorithms, and sys.setprofile's user are undisturbed."""

    def program() -> Any:
        seen: list[Any] = []

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            seen.append(tuple(tensor.shape))
            return tensor

        def unpack(tensor: torch.Tensor) -> torch.Tensor:
            seen.append("unpacked")
            return tensor

        torch.use_deterministic_algorithms(mode=True)
        try:
            with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
                Net()(X).sum().backward()
        finally:
            torch.use_deterministic_algorithms(mode=False)
        return seen

    both_ways(program)


def test_user_outputs_are_not_run() -> None:
    """Looking through what a module returns runs no code of the user's classes."""

    def program() -> list[str]:
        ran: list[str] = []

        class Touchy:
            def __getattribute__(self, name: str) -> Any:
                ran.append(name)
                return object.__getattribute__(self, name)

            @property
            def __dict__(self) -> Any:
                ran.append("dict")
                raise RuntimeError

        class Mapping(dict[str, Any]):
            def __iter__(self) -> Any:
                ran.append("iter")
                return super().__iter__()

        class Items(list[Any]):
            def __iter__(self) -> Any:
                ran.append("list iter")
                return super().__iter__()

        for out in (Touchy(), Mapping(a=1), Items([1]), [Touchy(), Mapping(a=Items([1]))]):
            Call(lambda _: out)(X)  # noqa: B023
        # torch's own call looks for none of them but the class.
        return [name for name in ran if name != "__class__"]

    assert both_ways(program) == []


def test_module_tricks_are_not_set_off() -> None:
    """Unhashable modules, strange metaclasses, __bool__, __len__ and __getattr__ are left alone."""

    class Meta(type):
        def __hash__(cls) -> int:
            raise TypeError

        def __eq__(cls, other: object) -> bool:
            raise RuntimeError

    class Tricky(nn.Module, metaclass=Meta):
        __hash__ = None  # type: ignore[assignment]

        def __init__(self) -> None:
            super().__init__()
            self.asked: list[str] = []
            self.layer = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x)

        def __eq__(self, other: object) -> bool:
            raise RuntimeError

        def __bool__(self) -> bool:
            raise RuntimeError

        def __len__(self) -> int:
            raise RuntimeError

        def __getattr__(self, name: str) -> Any:
            self.__dict__["asked"].append(name)
            return super().__getattr__(name)

    def program() -> Any:
        model = Tricky()
        model.asked.clear()
        model(X).sum().backward()
        return list(model.asked), bits(model.layer.weight.grad)

    kept = Kept()
    both_ways(program, kept)
    assert "backward Tricky.layer" in str(Tree(kept.exporter.get_finished_spans()))


def test_generators_behave_the_same() -> None:
    """A generator forward can be sent to, thrown into, closed early and dropped as before."""

    def program() -> Any:
        log: list[Any] = []

        class Gen(Call):
            def forward(self, x: torch.Tensor) -> Any:
                try:
                    for at in range(5):
                        log.append((at, (yield bits(self.layer(x)))))
                except GeneratorExit:
                    log.append("closed")
                    raise
                finally:
                    log.append("over")
                return "done"

        def make() -> Any:
            return Gen(lambda x: x)(X)

        log += [type(make()), inspect.isgenerator(make()), inspect.getgeneratorstate(make())]
        log += [make().__name__, make().__qualname__, list(make())]
        one = make()
        log += [next(one), one.send(3)]
        one.close()
        one = make()
        next(one)
        with pytest.raises(Oops) as raised:
            one.throw(Oops("thrown"))
        log.append(raised.value.args)
        one = make()
        next(one)
        del one
        gc.collect()
        return log

    both_ways(program)


def test_coroutines_behave_the_same() -> None:
    """A coroutine forward returns, raises and is cancelled as before; unawaited, it warns once."""

    class Coro(Call):
        async def forward(self, x: torch.Tensor) -> Any:
            await asyncio.sleep(0)
            return self.does(self.layer(x))

    def boom(x: torch.Tensor) -> torch.Tensor:
        raise Oops(x.shape)

    async def main() -> Any:
        log: list[Any] = [bits(await Coro(lambda x: x * 2)(X))]
        done = await asyncio.gather(*(Coro(boom)(X) for _ in range(3)), return_exceptions=True)
        log += [(type(one), one.args) for one in done]
        task = asyncio.ensure_future(Coro(boom)(X))
        await asyncio.sleep(0)
        task.cancel()
        log += [type(one) for one in await asyncio.gather(task, return_exceptions=True)]
        return log

    def program() -> Any:
        log = asyncio.run(main())
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            Coro(boom)(X)
            gc.collect()
        return log, [str(one.message) for one in caught]

    both_ways(program)
    gc.collect()


def test_copies_made_in_the_middle_work() -> None:
    """A model copied or pickled during its own forward or backward gives models that work."""

    def program() -> Any:
        copies: list[nn.Module] = []
        model = nn.Sequential(nn.Linear(4, 4), Net())

        def take(*_: Any) -> None:
            copies.append(copy.deepcopy(model[1]))
            copies.append(pickle.loads(pickle.dumps(model[0])))  # noqa: S301

        handle = model[1].register_forward_hook(take)
        out = model(X)
        handle.remove()
        out.register_hook(take)
        out.sum().backward()
        return bits([one(X) for one in copies])

    assert len(both_ways(program)) == 6  # those made in the forward have the hook themselves


def test_context_copies_serialise() -> None:
    """The current context inside a module copies, pickles and compares like any other."""

    def look(x: torch.Tensor) -> torch.Tensor:
        current = context_api.get_current()
        current = context_api.set_value("mine", 1, current)
        assert context_api.get_value("mine", current) == 1
        assert copy.copy(context_api.get_current()) == context_api.get_current()
        assert dict(context_api.get_current()) == context_api.get_current().copy()
        return x

    both_ways(lambda: bits(Call(look)(X)))


def test_threads_train_side_by_side() -> None:
    """Backwards of several threads at once give each thread its own gradients."""

    def program() -> Any:
        models = [Net().eval() for _ in range(4)]

        def train(model: nn.Module) -> None:
            for _ in range(20):
                model(X).sum().backward()

        threads = [threading.Thread(target=train, args=(model,)) for model in models]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return bits([[one.grad for one in model.parameters()] for model in models])

    kept = Kept()
    both_ways(program, kept)
    spans = kept.exporter.get_finished_spans()
    assert len(spans) == 4 * 20 * (4 + 4)  # dropout in eval makes no node
    check_intervals(spans)


def test_one_region_in_many_threads() -> None:
    """A region object that threads share is each thread's own while it is in it."""
    shared, model, together = region("shared"), Net().eval(), threading.Barrier(2)

    def work() -> None:
        for _ in range(20):
            with shared:
                together.wait()
                model(X).sum().backward()

    kept = Kept()
    with ModTracker(model, tracer_provider=kept.provider):
        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    spans = kept.exporter.get_finished_spans()
    check_intervals(spans)
    names = collections.Counter(span.name for span in spans)
    assert set(names.values()) == {40}
    assert len(names) == 10


def test_the_profiler_sees_modules(tmp_path: pathlib.Path) -> None:
    """torch.profiler finds the module calls in its stacks as it does untracked."""

    def program() -> list[str]:
        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), Net().eval())
        activities = [torch.profiler.ProfilerActivity.CPU]
        with torch.profiler.profile(activities=activities, with_stack=True) as profiler:
            model(X).sum().backward()
        profiler.export_chrome_trace(str(tmp_path / "trace.json"))
        events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
        names = (event.get("name", "") for event in events)
        return sorted(name for name in names if name.startswith("nn.Module:"))

    untracked = program()
    assert len(untracked) == 7
    assert both_ways(program) == untracked
    assert program() == untracked


# -- left and entered at odd moments --------------------------------------------------------------


def works_again() -> None:
    """A tracker that is entered now sees one iteration whole."""
    kept = Kept()
    with ModTracker(tracer_provider=kept.provider):
        Net()(X).sum().backward()
    spans = kept.exporter.get_finished_spans()
    check_intervals(spans)
    text = re.sub(r"#\d+", "", str(Tree(spans)))
    assert text.splitlines() == [
        "forward Net",
        "  forward Net.a",
        "  forward Net.drop",
        "  forward Net.b",
        "backward",
        "  backward Net",
        "    backward Net.b",
        "    backward Net.drop",
        "    backward Net.a",
    ]


@pytest.mark.parametrize("where", ["forward", "tensor hook", "node hook", "module hook", "thread"])
def test_left_in_the_middle(where: str) -> None:
    """A tracker may be left inside a forward, a hook of a backward, or in another thread."""
    before = patched_state()
    tracker = ModTracker(tracer_provider=Kept().provider)
    left: list[bool] = []

    def leave(*_: Any) -> None:
        if not left:
            left.append(True)
            tracker.__exit__(None, None, None)
            now = patched_state()
            assert (now["call code"], now["engine code"]) == (
                before["call code"],
                before["engine code"],
            )

    def does(x: torch.Tensor) -> torch.Tensor:
        if where == "forward":
            leave()
        elif where == "thread":
            thread = threading.Thread(target=leave)
            thread.start()
            thread.join()
        elif where == "tensor hook":
            x.register_hook(leave)
        elif where == "node hook":
            x.grad_fn.register_prehook(leave)
        return x * 2

    def program(model: nn.Module) -> Any:
        out = model(X)
        out.sum().backward()
        return bits([out, *(one.grad for one in model.parameters())])

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), Call(does), nn.Linear(4, 4))
    if where == "module hook":
        model[1].register_full_backward_hook(leave)
    untracked = copy.deepcopy(model)
    tracker.__enter__()
    tracked = program(model)
    assert left
    assert tracked == program(untracked)
    works_again()


@pytest.mark.parametrize("where", ["forward", "hook"])
def test_entered_in_the_middle(where: str) -> None:
    """A tracker may be entered inside a forward or inside a hook of a backward."""
    kept = Kept()
    with contextlib.ExitStack() as stack:

        def enter(*_: Any) -> None:
            stack.enter_context(ModTracker(tracer_provider=kept.provider))

        def does(x: torch.Tensor) -> torch.Tensor:
            if where == "forward":
                enter()
            else:
                x.register_hook(enter)
            return x * 2

        nn.Sequential(nn.Linear(4, 4), Call(does), nn.Linear(4, 4))(X).sum().backward()
        kept.exporter.clear()
        Net()(X).sum().backward()
    spans = kept.exporter.get_finished_spans()
    assert len(spans) == 9
    check_intervals(spans)
    works_again()


def test_a_patch_made_while_tracking_stays() -> None:
    """Another library may wrap nn.Module.__call__ while we are on; leaving does not undo it."""
    original = nn.Module.__call__
    calls = []

    def wrapper(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        calls.append(type(self).__name__)
        return original(self, *args, **kwargs)

    kept = Kept()
    try:
        with ModTracker(tracer_provider=kept.provider):
            nn.Module.__call__ = wrapper
            Net()(X)
        assert nn.Module.__call__ is wrapper
        Net()(X)
    finally:
        nn.Module.__call__ = original
    assert calls == ["Net", "Linear", "Dropout", "Linear"] * 2
    assert len(kept.exporter.get_finished_spans()) == 4


def test_entered_and_left_while_others_train() -> None:
    """Trackers come and go while other threads train: every gradient is right."""
    torch.manual_seed(0)
    original = Net().eval()
    wrong: list[Any] = []
    over = threading.Event()

    def gradients(model: nn.Module) -> Any:
        model.zero_grad()
        model(X).sum().backward()
        return bits([one.grad for one in model.parameters()])

    def train(model: nn.Module) -> None:
        while not over.is_set():
            try:
                found = gradients(model)
            except Exception as error:  # noqa: BLE001
                wrong.append(describe(error))
            else:
                wrong.extend([found] * (found != right))

    right = gradients(original)
    threads = [threading.Thread(target=train, args=(copy.deepcopy(original),)) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for number in range(200):
            with ModTracker(tracer_provider=Kept().provider) as tracker, tracker.step(number):
                assert gradients(original) == right
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert not wrong
    works_again()


# -- what is kept ---------------------------------------------------------------------------------


def test_nothing_holds_a_model_or_its_graph() -> None:
    """After a step, the tracker still on, a model that is let go is gone, and its graph too."""
    log = Log()
    model = nn.Sequential(Part(log, "hold", 0, []), nn.Linear(4, 4), Part(log, "penalty", 0, []))
    ref = weakref.ref(model)
    with ModTracker(model, tracer_provider=Kept().provider) as tracker:
        with tracker.step(0):
            out = model(X)
            out.sum().backward()
        del model, out
        gc.collect()
        assert ref() is None
        assert len(log.canaries) == 2
        assert not any(one() for one in log.canaries)


def test_forwards_without_backward_free_their_graphs_at_once() -> None:
    """Without a collection: the graph goes when its output does, as untracked."""
    log = Log()
    model = nn.Sequential(nn.Linear(4, 4), Part(log, "hold", 0, []), nn.Linear(4, 4))
    gc.disable()
    try:
        with ModTracker(model, tracer_provider=Kept().provider):
            for _ in range(3):
                out = model(X)
                assert log.canaries[-1]() is not None
                del out
                assert log.canaries[-1]() is None
    finally:
        gc.enable()


def test_exceptions_are_not_held() -> None:
    """Neither a caught nor an escaped exception keeps its frames, nor what lives in them."""
    held: list[weakref.ref[Canary]] = []

    def boom(_: torch.Tensor) -> torch.Tensor:
        canary = Canary()
        held.append(weakref.ref(canary))
        raise Oops

    child = Call(boom)

    def swallow(x: torch.Tensor) -> torch.Tensor:
        with contextlib.suppress(Oops):
            child(x)
        return x

    def escape(model: nn.Module) -> None:
        with contextlib.suppress(Oops):
            model(X)

    with ModTracker(tracer_provider=Kept().provider) as tracker:
        with tracker.step(1):
            Call(swallow)(X).sum().backward()
            escape(child)
        for model in (Call(swallow), child, nn.Sequential(Call(swallow), child)):
            escape(model)
            gc.collect()
            assert not any(ref() for ref in held)
        with region("around"):
            escape(child)
        gc.collect()
        assert not any(ref() for ref in held)
    assert len(held) == 7


def test_no_hooks_stay_on_graphs_that_live_on() -> None:
    """A retained graph runs no code of ours once the tracker is left."""
    model = Net().eval()
    x = X.clone().requires_grad_()
    with ModTracker(model, tracer_provider=Kept().provider):
        loss = model(x).sum()
        loss.backward(retain_graph=True)
    ran: list[str] = []

    def profile(frame: Any, event: str, _: Any) -> None:
        if event == "call":
            ran.append(frame.f_code.co_filename)

    sys.setprofile(profile)
    try:
        loss.backward()
    finally:
        sys.setprofile(None)
    assert ran
    assert not [name for name in ran if "otel_modtrack" in name]


def test_log_output_is_silent() -> None:
    """Nothing is printed, and nothing logged, by a tracker that works."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        works_again()
    assert (out.getvalue(), err.getvalue()) == ("", "")
