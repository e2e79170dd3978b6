"""torch.compile under tracking: the same frames, graphs and breaks, one region per callable."""

from __future__ import annotations

import logging
import re
from inspect import cleandoc
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch._dynamo as dynamo
from torch import nn
from torch._dynamo import compiled_autograd
from torch._dynamo.testing import CompileCounterWithBackend
from torch._dynamo.utils import counters
from torch.utils.checkpoint import checkpoint

from otel_modtrack import ModTracker, region
from otel_modtrack.testing import Tree, assert_tree_equals
from tests.conftest import spans_of
from tests.intervals import check_intervals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

# torch's own: its compiler uses what it deprecates.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:Dynamo:UserWarning"),
    pytest.mark.filterwarnings("ignore:In CPython:UserWarning"),
    pytest.mark.filterwarnings(r"ignore:The \.grad attribute of a Tensor:UserWarning"),
]


@pytest.fixture(scope="module", autouse=True)
def warm_compiler() -> None:
    """The compiler starts threads of its own when it is first used."""
    model = Net()
    train(torch.compile(model, backend="aot_eager"), model)


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    """Nothing compiled stays from one test to the next."""
    dynamo.reset()
    yield
    dynamo.reset()


class Net(nn.Module):
    """Two layers, with a graph break between them if one is wanted."""

    def __init__(self, *, breaks: bool = False) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.breaks = breaks

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.a(x).relu()
        if self.breaks:
            dynamo.graph_break()
        return self.b(x)


class Blocks(nn.Module):
    """Two blocks and a head."""

    def __init__(self, *, breaks: bool = False) -> None:
        super().__init__()
        self.one, self.two = Net(), Net(breaks=breaks)
        self.head = nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.two(self.one(x)))


class Checkpointed(nn.Module):
    """A block that is checkpointed inside what is compiled."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Net()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.block, x, use_reentrant=False)


X = torch.ones(2, 4)


class Result:
    """What one run of a program compiled, and what it computed."""

    def __init__(self, values: Any, backend: CompileCounterWithBackend) -> None:
        self.values = values
        self.graphs = backend.frame_count
        self.operations = backend.op_count
        self.counters = {
            key: dict(counters[key])
            for key in ("frames", "graph_break", "recompiles", "unimplemented", "stats")
        }

    @property
    def compiled(self) -> Any:
        """All that must not change."""
        return self.graphs, self.operations, self.counters


def train(call: Callable[[torch.Tensor], torch.Tensor], *parts: nn.Module, times: int = 2) -> Any:
    """Forward and backward, `times`; outputs and gradients, as bytes."""
    found = []
    for _ in range(times):
        out = call(X)
        out.sum().backward()
        found.append(out.detach().numpy().tobytes())
        for part in parts:
            found += [one.grad.numpy().tobytes() for one in part.parameters()]
    return found


def whole(backend: Any) -> Any:
    """`torch.compile(model)`."""
    model = Net()
    return train(torch.compile(model, backend=backend), model)


def in_place(backend: Any) -> Any:
    """`model.compile()`, with fullgraph."""
    model = Net()
    model.compile(backend=backend, fullgraph=True)
    return train(model, model)


def broken(backend: Any) -> Any:
    """A graph break in the middle."""
    model = Net(breaks=True)
    return train(torch.compile(model, backend=backend), model)


def by_block(backend: Any) -> Any:
    """Each block on its own, in a model that is not compiled."""
    model = Blocks()
    model.one.compile(backend=backend)
    model.two = torch.compile(model.two, backend=backend)
    return train(model, model)


def by_block_broken(backend: Any) -> Any:
    """Blocks, one of them with a break."""
    model = Blocks(breaks=True)
    model.one.compile(backend=backend)
    model.two.compile(backend=backend)
    return train(model, model)


def function(backend: Any) -> Any:
    """A compiled function that calls a module."""
    model = Net()
    return train(torch.compile(lambda x: model(x) * 2, backend=backend), model)


def function_broken(backend: Any) -> Any:
    """A compiled function that calls a module with a break in it."""
    model = Net(breaks=True)
    return train(torch.compile(lambda x: model(x) * 2, backend=backend), model)


def second_instance(backend: Any) -> Any:
    """Another instance of the class afterwards, compiled and not."""
    model, other, plain = Net(), Net(), Net()
    compiled = torch.compile(model, backend=backend)
    found = train(compiled, model)
    found += train(torch.compile(other, backend=backend), other)
    return found + train(plain, plain) + train(compiled, model)


def checkpointed(backend: Any) -> Any:
    """A checkpoint inside what is compiled."""
    model = Checkpointed()
    return train(torch.compile(model, backend=backend), model)


def checkpoint_around(backend: Any) -> Any:
    """A checkpoint around what is compiled."""
    model = Net()
    compiled = torch.compile(model, backend=backend)
    return train(lambda x: checkpoint(compiled, x, use_reentrant=False), model)


def optimizer_step(backend: Any) -> Any:
    """A compiled optimizer step."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = torch.compile(lambda: optimizer.step(), backend=backend)  # noqa: PLW0108
    found = []
    for _ in range(3):
        found += train(model, model, times=1)
        step()
        optimizer.zero_grad()
    return found


def optimizer_method(backend: Any) -> Any:
    """The same, put over the method."""
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    optimizer.step = torch.compile(optimizer.step, backend=backend)  # type: ignore[method-assign]
    found = []
    for _ in range(3):
        found += train(model, model, times=1)
        optimizer.step()
        optimizer.zero_grad()
    return found


def backward_inside(backend: Any) -> Any:
    """A training step, backward included, in a compiled function."""
    model = Net()

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = model(x).sum()
        loss.backward()
        return loss

    compiled = torch.compile(step, backend=backend)
    return [
        *(compiled(X).detach().numpy().tobytes() for _ in range(2)),
        *(one.grad.numpy().tobytes() for one in model.parameters()),
    ]


def named_region(backend: Any) -> Any:
    """A named region around and inside of what is compiled, fullgraph."""
    model = Net()

    @torch.compile(backend=backend, fullgraph=True)
    def inside(x: torch.Tensor) -> torch.Tensor:
        with region("inside"):
            return model(x) * 2

    @region("around")
    def around(x: torch.Tensor) -> torch.Tensor:
        return inside(x)

    return train(around, model)


def decorated(backend: Any) -> Any:
    """A compiled function that is decorated as a region."""
    model = Net()
    return train(
        torch.compile(region("loss")(lambda x: model(x) * 2), backend=backend, fullgraph=True),
        model,
    )


def inference(backend: Any) -> Any:
    """Under no_grad, of two shapes."""
    model = torch.compile(Net(), backend=backend)
    with torch.no_grad():
        return [model(torch.ones(size, 4)).numpy().tobytes() for size in (2, 2, 3, 5)]


PROGRAMS = [
    whole,
    in_place,
    broken,
    by_block,
    by_block_broken,
    function,
    function_broken,
    second_instance,
    checkpointed,
    checkpoint_around,
    backward_inside,
    named_region,
    decorated,
    inference,
]


def run(program: Callable[[Any], Any], backend: str) -> Result:
    """Run a program with nothing compiled before."""
    dynamo.reset()
    counters.clear()
    torch.manual_seed(0)
    counting = CompileCounterWithBackend(backend)
    return Result(program(counting), counting)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_the_same_is_compiled(
    program: Callable[[Any], Any], backend: str, provider: TracerProvider
) -> None:
    """Frames, graphs, operations, breaks and recompilations are those of the untracked run."""
    untracked = run(program, backend)
    with ModTracker(tracer_provider=provider):
        tracked = run(program, backend)
    after = run(program, backend)
    assert untracked.graphs
    assert tracked.compiled == untracked.compiled
    assert tracked.values == untracked.values
    assert after.compiled == untracked.compiled
    assert after.values == untracked.values


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("program", [optimizer_step, optimizer_method])
def test_a_compiled_optimizer(
    program: Callable[[Any], Any], backend: str, provider: TracerProvider
) -> None:
    """A compiled optimizer step has the same graphs, operations, breaks and no recompilation.

    The number of frames that dynamo looks at may differ: torch runs through its optimizer hooks.
    """

    def facts(result: Result) -> Any:
        return result.graphs, result.operations, result.counters | {"frames": None}

    untracked = run(program, backend)
    with ModTracker(tracer_provider=provider):
        tracked = run(program, backend)
    assert facts(tracked) == facts(untracked)
    assert tracked.values == untracked.values
    assert run(program, backend).compiled == untracked.compiled


@pytest.mark.parametrize("program", [whole, in_place, broken, by_block, function, second_instance])
def test_compiled_is_eager(program: Callable[[Any], Any], provider: TracerProvider) -> None:
    """Tracked and compiled, the values are those of the eager model."""
    torch.manual_seed(0)
    with torch.compiler.set_stance("force_eager"):
        eager = program("eager")
    with ModTracker(tracer_provider=provider):
        assert run(program, "aot_eager").values == eager


def compiled_before() -> tuple[Callable[[], Any], list[Any]]:
    """Models compiled and run once, of every kind: what runs them all, and their backends."""
    backends = [CompileCounterWithBackend("aot_eager") for _ in range(5)]
    one, two, three, four = Net(), Net(breaks=True), Blocks(), Net()
    calls: list[Any] = [
        torch.compile(one, backend=backends[0]),
        torch.compile(two, backend=backends[1]),
        three,
        torch.compile(lambda x: four(x) * 2, backend=backends[4]),
    ]
    three.one.compile(backend=backends[2])
    three.two.compile(backend=backends[3])

    def all_of_them() -> None:
        for call in calls:
            call(X).sum().backward()

    return all_of_them, backends


@pytest.mark.parametrize("first", ["untracked", "tracked"])
def test_nothing_is_compiled_again(first: str, provider: TracerProvider) -> None:
    """What was compiled before, inside or after tracking is compiled once; never recompiled."""
    all_of_them, backends = compiled_before()
    if first == "untracked":
        all_of_them()
    else:
        with ModTracker(tracer_provider=provider):
            all_of_them()
    graphs = [backend.frame_count for backend in backends]
    assert graphs == [1, 2, 1, 1, 1]
    counters.clear()
    with dynamo.config.patch(error_on_recompile=True):
        for _ in range(2):
            with ModTracker(tracer_provider=provider):
                all_of_them()
            all_of_them()
    assert [backend.frame_count for backend in backends] == graphs
    assert not counters["frames"]
    assert not counters["recompiles"]


def test_hooks_of_the_user_cost_what_they_cost(provider: TracerProvider) -> None:
    """Entered and left many times, a tracker is never what a compiled model is guarded on."""
    backend = CompileCounterWithBackend("eager")
    model = torch.compile(Net(), backend=backend)
    with dynamo.config.patch(error_on_recompile=True, recompile_limit=1):
        for _ in range(5):
            model(X)
            with ModTracker(tracer_provider=provider), region("inside"):
                model(X)
    assert backend.frame_count == 1


# -- the regions ----------------------------------------------------------------------------------


def shown(exporter: InMemorySpanExporter) -> str:
    """The tree of the finished spans."""
    spans = exporter.get_finished_spans()
    check_intervals(spans)
    return str(Tree(spans))


def compiled_ones(exporter: InMemorySpanExporter) -> list[tuple[str, Any]]:
    """Name and type of the regions that say that they were compiled."""
    spans: list[ReadableSpan] = spans_of(exporter)
    return [
        (span.name, span.attributes["modtrack.module.type"])
        for span in spans
        if span.attributes.get("modtrack.compiled")
    ]


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("how", ["torch.compile", "compile"])
@pytest.mark.parametrize("breaks", [False, True])
def test_one_region_for_a_compiled_model(
    how: str, breaks: bool, backend: str, provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    """A compiled model is one region named as if it were not, with one backward region."""
    model = Net(breaks=breaks)
    if how == "compile":
        model.compile(backend=backend)
        call: Any = model
    else:
        call = torch.compile(model, backend=backend)
    with ModTracker(tracer_provider=provider):
        for _ in range(2):
            call(X).sum().backward()
    one = "forward Net\nbackward\n  backward Net"
    assert_tree_equals(shown(exporter), f"{one}\n{one}")
    assert compiled_ones(exporter) == [("forward Net", "Net"), ("backward Net", "Net")] * 2


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_one_region_for_a_compiled_block(
    backend: str, provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    """Compiled blocks are regions in their eager model; no wrapper shows in their names."""
    model = Blocks(breaks=True)
    model.one = torch.compile(model.one, backend=backend)
    model.two.compile(backend=backend)
    with ModTracker(model, tracer_provider=provider):
        model(X).sum().backward()
    assert_tree_equals(
        shown(exporter),
        """
        forward Blocks
          forward Blocks.one
          forward Blocks.two
          forward Blocks.head
        backward
          backward Blocks
            backward Blocks.head
            backward Blocks.two
            backward Blocks.one
        """,
    )
    assert compiled_ones(exporter) == [
        ("forward Blocks.one", "Net"),
        ("forward Blocks.two", "Net"),
        ("backward Blocks.two", "Net"),
        ("backward Blocks.one", "Net"),
    ]


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_functions_are_their_callers(
    backend: str, provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    """A compiled function in a module or region belongs to it; nothing of the compiler's shows."""
    model = Net()
    double = torch.compile(lambda x: model(x) * 2, backend=backend)

    class Caller(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return double(x)

    with ModTracker(tracer_provider=provider):
        with region("loss"):
            double(X).sum().backward()
        Caller()(X).sum().backward()
        double(X).sum().backward()
    assert "GraphModule" not in shown(exporter)
    assert shown(exporter).startswith(
        cleandoc(
            """
            forward loss
              backward
                backward loss
            forward Caller
            backward
              backward Caller
            """
        )
    )


def test_a_compiled_optimizer_step_has_no_span(
    provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    """A compiled step is nobody's span, and nothing of the compiler's is one."""
    with ModTracker(tracer_provider=provider, steps="explicit"):
        run(optimizer_step, "eager")
    one = cleandoc(
        """
        forward Net
          forward Net.a
          forward Net.b
        backward
          backward Net
            backward Net.b
            backward Net.a
        """
    )
    assert_tree_equals(shown(exporter), "\n".join([one] * 3))


# -- other compilers of torch's -------------------------------------------------------------------


def test_export_is_unchanged(provider: TracerProvider) -> None:
    """torch.export gives the same graphs while tracking, strict or not."""

    def graphs() -> list[str]:
        torch.manual_seed(0)
        model = Blocks()
        found = [
            torch.export.export(model, (X,), strict=strict).graph_module.code
            for strict in (False, True)
        ]
        return [re.sub(r" *#.*", "", one) for one in found]

    untracked = graphs()
    with ModTracker(tracer_provider=provider):
        tracked = graphs()
    assert tracked == untracked


def test_jit_is_unchanged(provider: TracerProvider) -> None:
    """torch.jit traces and scripts the same graphs while tracking, and they run tracked."""

    def graphs() -> tuple[list[str], list[bytes]]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
        made = [torch.jit.trace(model, X), torch.jit.script(model)]
        text = [re.sub(r"___torch_mangle_\d+\.|#.*", "", str(one.inlined_graph)) for one in made]
        return text, [one(X).detach().numpy().tobytes() for one in made]

    untracked = graphs()
    with ModTracker(tracer_provider=provider):
        tracked = graphs()
    assert tracked == untracked


def test_compiled_autograd(
    provider: TracerProvider, exporter: InMemorySpanExporter, caplog: pytest.LogCaptureFixture
) -> None:
    """Under compiled autograd there are no backward regions; that is said once, and is no fault."""

    def program() -> Any:
        torch.manual_seed(0)
        model = Net()
        with compiled_autograd._enable(torch.compile(backend="eager")):
            found = train(model, model)
        return found, train(model, model)

    untracked = program()
    dynamo.reset()
    with ModTracker(tracer_provider=provider):
        assert program() == untracked
    forward = "forward Net\n  forward Net.a\n  forward Net.b\n"
    backward = "backward\n  backward Net\n    backward Net.b\n    backward Net.a\n"
    assert shown(exporter) + "\n" == forward * 2 + (forward + backward) * 2
    ours = [one for one in caplog.records if one.name == "otel_modtrack"]
    assert all(one.levelno == logging.WARNING for one in ours)
    assert len(ours) <= 1  # once in a process


def test_compiled_autograd_by_configuration(provider: TracerProvider) -> None:
    """The same where the configuration switches it on for a compiled training step."""

    def program() -> Any:
        dynamo.reset()
        torch.manual_seed(0)
        with dynamo.config.patch(compiled_autograd=True):
            return backward_inside("eager")

    untracked = program()
    with ModTracker(tracer_provider=provider):
        assert program() == untracked
