"""The order that is recorded from a real forward and backward."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import nn
from torch.distributed.fsdp._trace_utils import _ExecOrderTracer
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

from otel_modtrack import ModTracker, Policy
from otel_modtrack.core import CORE
from otel_modtrack.order import using
from tests.conftest import patched_state, spans_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    from otel_modtrack.order.execution import ExecutionOrder


def compiles(test: Any) -> Any:
    """What torch's compiler itself warns of."""
    for one in (
        "ignore::DeprecationWarning",
        "ignore::FutureWarning",
        "ignore:Dynamo:UserWarning",
        "ignore:In CPython:UserWarning",
        r"ignore:The \.grad attribute of a Tensor:UserWarning",
    ):
        test = pytest.mark.filterwarnings(one)(test)
    return test


class Mixed(nn.Module):
    """Parameters used directly and by children, one child twice, one parameter never."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.w1 = nn.Parameter(torch.randn(3, 3))
        self.w2 = nn.Parameter(torch.randn(3, 3))
        self.pair = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3))
        self.unused = nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert self.unused.dtype is not None  # asked about, not used
        x = self.pair(x)
        x = x @ self.w1
        x = self.first(x)
        x = x @ self.w2
        x = self.pair(x)
        return x @ self.w1


def record(model: nn.Module, run: Callable[[], Any]) -> ExecutionOrder:
    """The order of one run."""
    with ModTracker(model) as tracker:
        with tracker.record_order():
            run()
        return tracker.execution_order


def test_it_is_what_torchs_tracer_finds() -> None:
    """On a model that both can follow, the recorded order is FSDP's, object by object."""
    model = Mixed()
    order = record(model, lambda: model(torch.randn(2, 3)))
    tracer, torchs = torch.fx.Tracer(), _ExecOrderTracer()
    with torchs.patch_tracer(tracer, model):
        tracer.trace(model)
    info = torchs.exec_info
    assert info is not None
    assert order.module_forward_order == info.module_forward_order
    assert all(
        a is b for a, b in zip(order.param_forward_order, info.param_forward_order, strict=True)
    )
    assert order.visited_params == info.visited_params
    assert order.curr_module is info.curr_module is model
    assert list(order.module_to_param_usage_infos) == list(info.module_to_param_usage_infos)
    for module, usages in info.module_to_param_usage_infos.items():
        ours = order.module_to_param_usage_infos[module]
        assert [(one.module, [n for n, _ in one.named_params]) for one in ours] == [
            (one.module, [n for n, _ in one.named_params]) for one in usages
        ]
        for one, other in zip(ours, usages, strict=True):
            pairs = zip(one.named_params, other.named_params, strict=True)
            assert all(a is b for (_, a), (_, b) in pairs)


def test_names_stand_beside_the_objects() -> None:
    """Each call, parameter and gradient by its fqn, in the order in which it came."""
    model = Mixed()
    order = record(model, lambda: model(torch.randn(2, 3)).sum().backward())
    pair = ["Mixed.pair", "Mixed.pair.0", "Mixed.pair.1", "Mixed.pair.2"]
    assert order.module_forward_fqns == ["Mixed", *pair, "Mixed.first", *pair]
    assert [call.parent for call in order.forward or ()] == [None, 0, 1, 1, 1, 0, 0, 6, 6, 6]
    ends = [f"Mixed.pair.{n}.{kind}" for n in (0, 2) for kind in ("weight", "bias")]
    assert order.parameters == [
        *ends,
        "Mixed.w1",
        "Mixed.first.weight",
        "Mixed.first.bias",
        "Mixed.w2",
    ]
    backward = ["Mixed.pair", "Mixed.pair.2", "Mixed.pair.1", "Mixed.pair.0"]
    assert order.module_backward_fqns == ["Mixed", *backward, "Mixed.first", *backward]
    assert order.module_backward_order[5] is model.first
    # A parameter that is used twice has its gradient when both uses are done: the earlier one last.
    assert sorted(order.gradients or ()) == sorted(order.parameters)
    got = order.gradients or []
    assert got.index("Mixed.w2") < got.index("Mixed.first.weight") < got.index("Mixed.w1")
    assert (
        got.index("Mixed.w1") < got.index("Mixed.pair.2.weight") < got.index("Mixed.pair.0.weight")
    )
    assert order.param_backward_order[got.index("Mixed.w2")] is model.w2
    usages = order.module_to_param_usage_infos[model]
    assert [(one.fqn, one.param_fqns) for one in usages[1:3]] == [
        ("Mixed", ["Mixed.w1"]),
        ("Mixed.first", ["Mixed.first.weight", "Mixed.first.bias"]),
    ]


def test_gradients_arrive_as_hooks_of_the_users_see_them() -> None:
    """The witness: the program's own hooks on every parameter."""
    model = Mixed()
    names = {id(p): f"Mixed.{n}" for n, p in model.named_parameters()}
    seen: list[str] = []
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda p: seen.append(names[id(p)]))
    order = record(model, lambda: model(torch.randn(2, 3)).sum().backward())
    assert order.gradients == seen
    assert len(seen) == 8


def test_every_way_of_using_a_parameter_counts() -> None:
    """By keyword, in a list, transposed, in place, through another module; not by asking."""

    class Ways(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name in "abcdefg":
                setattr(self, name, nn.Parameter(torch.ones(2, 2)))
            self.table = nn.Embedding(2, 2)
            self.one = nn.Parameter(torch.ones(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            assert self.g.shape == (2, 2)
            assert self.g.grad is None
            x = F.linear(x, weight=self.d)
            x = x @ torch.cat([self.c, self.b], 1)[:, :2]
            x = x @ self.a.T
            x = x + F.layer_norm(x, (2,), weight=self.one)
            x = F.linear(x, self.table.weight)
            return torch.addmm(self.f, x, self.e)

    model = Ways()
    order = record(model, lambda: model(torch.ones(2, 2)))
    told = [(one.fqn, one.param_fqns) for one in order.module_to_param_usage_infos[model]]
    assert told == [
        ("Ways", ["Ways.d"]),
        ("Ways", ["Ways.c", "Ways.b"]),
        ("Ways", ["Ways.a"]),
        ("Ways", ["Ways.one"]),
        ("Ways", ["Ways.table.weight"]),
        ("Ways", ["Ways.f", "Ways.e"]),
    ]
    assert [fqn[5:] for fqn in order.parameters or ()] == [
        "d",
        "c",
        "b",
        "a",
        "one",
        "table.weight",
        "f",
        "e",
    ]


def test_a_tied_parameter_has_its_first_name() -> None:
    """However it is reached."""

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(3, 2)
            self.head = nn.Linear(2, 3, bias=False)
            self.head.weight = self.table.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.table(x))

    model = Tied()
    order = record(model, lambda: model(torch.tensor([0, 2])).sum().backward())
    assert order.parameters == ["Tied.table.weight"]
    assert order.gradients == ["Tied.table.weight"]


@pytest.mark.parametrize("grad", [True, False])
def test_modules_of_torch_take_the_way_they_take_without_us(*, grad: bool) -> None:
    """A function mode keeps nn.TransformerEncoderLayer from its fast path: none is on there."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
    model = nn.Sequential(
        nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(4, 2)
    )
    model.eval()
    x = torch.randn(2, 3, 4)
    with torch.set_grad_enabled(grad):
        plain = model(x)
        found: list[torch.Tensor] = []
        order = record(model, lambda: found.append(model(x)))
    assert torch.equal(found[0], plain)
    ran = order.module_forward_fqns
    assert ("Sequential.0.layers.0.linear1" in ran) == grad  # the fast path calls no children
    assert set(order.parameters or ()) == {f"Sequential.{n}" for n, _ in model.named_parameters()}


@compiles
def test_what_is_compiled_is_not_compiled_again() -> None:
    """Recording costs a compiled function, called in a forward, no recompilation and no break."""
    compiled: list[int] = []

    def backend(graph: Any, inputs: Any) -> Any:
        del inputs
        compiled.append(len(graph.graph.nodes))
        return graph.forward

    @torch.compile(backend=backend, fullgraph=True)
    def fused(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.relu(x @ w) + 1

    class Uses(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.ones(2, 2))
            self.after = nn.Parameter(torch.ones(2, 2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return fused(x, self.w) @ self.after

    model = Uses()
    x = torch.ones(2, 2)
    plain = model(x)
    assert len(compiled) == 1
    found: list[torch.Tensor] = []
    order = record(model, lambda: found.append(model(x)))
    assert torch.equal(found[0], plain)
    assert len(compiled) == 1
    # What compiled code uses is seen where it hands it to torch itself, as with this backend.
    assert (order.parameters or ())[-1] == "Uses.after"
    model(x)
    assert len(compiled) == 1


@compiles
def test_a_compiled_module_uses_all_it_has() -> None:
    """Its children's calls are not to be seen: it is a leaf."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x).relu()

    model = nn.Sequential(nn.Linear(2, 2), Block())
    model[1].compile(backend="eager")
    order = record(model, lambda: model(torch.ones(1, 2)))
    assert order.module_forward_fqns == ["Sequential", "Sequential.0", "Sequential.1"]
    assert [call.leaf for call in order.forward or ()] == [False, False, True]
    assert order.parameters == [f"Sequential.{n}" for n, _ in model.named_parameters()]


def test_recomputation_is_told_apart() -> None:
    """What runs again in the backward is no part of the forward's order."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.b(checkpoint(self.a, x, use_reentrant=False))

    model = Net()
    order = record(model, lambda: model(torch.ones(1, 2)).sum().backward())
    assert order.module_forward_fqns == ["Net", "Net.a", "Net.b"]
    assert [call.fqn for call in order.recompute or ()] == ["Net.a"]
    assert order.module_backward_fqns == ["Net", "Net.b", "Net.a"]
    assert order.parameters == [f"Net.{n}" for n, _ in model.named_parameters()]


class _Counting(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen += 1
        return func(*args, **(kwargs or {}))


def test_modes_of_the_program_stay_where_they_are() -> None:
    """Around the model, and inside it around calls of children, which are told as well."""

    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.ones(2, 2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ self.w

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.plain, self.inner = nn.Linear(2, 2), Inner()
            self.block = nn.Sequential(Inner())
            self.w = nn.Parameter(torch.ones(2, 2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with _Counting() as inside:
                before = torch.overrides._get_current_function_mode()
                x = self.block(self.inner(self.plain(x)))
                assert torch.overrides._get_current_function_mode() is before is inside
            return x @ self.w

    def run(model: nn.Module) -> int:
        with _Counting() as around:
            model(torch.ones(1, 2))
            assert torch.overrides._get_current_function_mode() is around
        assert torch.overrides._len_torch_function_stack() == 0
        return around.seen

    model = Outer()
    wanted = run(model)
    seen: list[int] = []
    order = record(model, lambda: seen.append(run(model)))
    assert seen == [wanted]
    names = ["plain.weight", "plain.bias", "inner.w", "block.0.w", "w"]
    assert order.parameters == [f"Outer.{n}" for n in names]


def test_nothing_is_left_behind() -> None:
    """No hook on a parameter, no mode, torch's own code: after the block, or an exception."""
    model = Mixed()
    mine = model.w1.register_post_accumulate_grad_hook(lambda p: None)

    def run(*, broken: bool) -> None:
        with ModTracker(model) as tracker, tracker.record_order():
            model(torch.randn(2, 3)).sum().backward()
            if broken:
                model(torch.randn(2, 4))

    with ModTracker(model):
        model(torch.randn(2, 3)).sum().backward()
        on = patched_state()
    off = patched_state()
    run(broken=False)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        run(broken=True)
    assert patched_state() == off != on
    assert torch.overrides._len_torch_function_stack() == 0
    assert CORE.recorders == ()
    hooks = [p._post_accumulate_grad_hooks for p in model.parameters()]
    assert [len(one) for one in hooks if one is not None] == [1]
    mine.remove()


def test_results_are_the_same_bit_for_bit() -> None:
    """Outputs and gradients, with recording on."""

    def run(*, recorded: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = Mixed()
        x = torch.randn(4, 3)
        out: list[torch.Tensor] = []

        def step() -> None:
            y = model(x)
            y.square().sum().backward()
            out.append(y.detach())

        if recorded:
            record(model, step)
        else:
            step()
        return out + [p.grad for p in model.parameters() if p.grad is not None]

    for one, other in zip(run(recorded=True), run(recorded=False), strict=True):
        assert torch.equal(one, other)


def test_of_one_thread_alone() -> None:
    """Another thread's calls are no part of it."""
    model, other = Mixed(), nn.Linear(2, 2)

    def both() -> None:
        thread = threading.Thread(target=lambda: other(torch.ones(1, 2)))
        thread.start()
        thread.join()
        model(torch.randn(2, 3))

    order = record(model, both)
    assert set(order.module_forward_order) == set(model.modules())


def test_a_block_in_a_step_is_a_part_of_it(
    provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    """What ran in the step before the block, or after it, does not count; spans are as ever."""
    model = Mixed()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ModTracker(model, tracer_provider=provider) as tracker:
        for _ in range(2):
            with tracker.record_order():
                loss = model(torch.randn(2, 3)).sum()
            loss.backward()
            optimizer.step()
        order = tracker.execution_order
    assert len(order.forward or ()) == 10
    assert order.backward == []
    assert order.step == 1
    assert len([span for span in spans_of(exporter) if span.name == "train_step"]) == 2


@pytest.mark.parametrize("policy", [Policy(every=0), Policy(every=2)])
def test_it_sees_what_no_span_is_made_of(policy: Policy, provider: TracerProvider) -> None:
    """A policy that leaves a step out does not leave it out of a recording."""
    model = Mixed()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ModTracker(model, tracer_provider=provider, policy=policy) as tracker:
        for _ in range(4):
            with tracker.record_order():
                model(torch.randn(2, 3)).sum().backward()
                optimizer.step()
            assert len(tracker.execution_order.forward or ()) == 10
            assert len(tracker.execution_order.gradients or ()) == 8


@compiles
@pytest.mark.parametrize("fullgraph", [False, True])
def test_what_is_compiled_for_the_first_time(*, fullgraph: bool) -> None:
    """Dynamo may be at work in the middle of a forward: it must not find the mode there."""

    class Cold(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.ones(2))
            self.after = nn.Parameter(torch.ones(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            fused = torch.compile(lambda y: y * 2 + 1, backend="eager", fullgraph=fullgraph)
            return fused(x * self.w) * self.after

    order = record(model := Cold(), lambda: model(torch.ones(2)))
    assert order.parameters == ["Cold.w", "Cold.after"]


def test_a_mode_of_the_program_that_calls_modules() -> None:
    """While torch has set ours aside, it is left alone: no mode stays on for good."""
    adapter = nn.Linear(2, 2)

    class Adapts(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            return adapter(args[0]) if func is torch.mul else func(*args, **(kwargs or {}))

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w, self.v = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.mul(x, self.w) + self.v

    def run() -> None:
        with Adapts():
            model(torch.ones(1, 2))
        assert torch.overrides._len_torch_function_stack() == 0

    model = Net()
    order = record(model, run)
    assert "Net.v" in (order.parameters or ())


def test_the_default_device_may_be_set_in_a_forward() -> None:
    """Its mode has to be the lowest of all, and ours is not in its way."""

    class Sets(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w, self.lin = nn.Parameter(torch.ones(2)), nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x * self.w
            torch.set_default_device("cpu")
            y = self.lin(y)
            torch.set_default_device(None)
            return y * self.w

    order = record(model := Sets(), lambda: model(torch.ones(1, 2)))
    # Older torch takes None for a device, where one was set and taken back.
    vars(torch._GLOBAL_DEVICE_CONTEXT).pop("device_context")
    assert order.parameters == ["Sets.w", "Sets.lin.weight", "Sets.lin.bias"]


def test_bodies_that_run_on_later() -> None:
    """A generator's uses are its own, and what its consumer does meanwhile is nobody's."""

    class Streams(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w, self.v = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
            self.lin = nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> Any:
            y = x * self.w
            yield y
            yield self.lin(y) * self.v

    def run() -> None:
        for _ in model(torch.ones(1, 2)):
            assert torch.overrides._len_torch_function_stack() == 0

    order = record(model := Streams(), run)
    names = ["w", "lin.weight", "lin.bias", "v"]
    assert order.parameters == [f"Streams.{name}" for name in names]


def test_parameters_frozen_before_the_backward() -> None:
    """They get no gradient, and torch says nothing of it."""
    model = Mixed()

    def run() -> None:
        loss = model(torch.randn(2, 3)).sum()
        model.pair.requires_grad_(requires_grad=False)
        loss.backward()

    order = record(model, run)
    assert sorted(order.gradients or ()) == [
        "Mixed.first.bias",
        "Mixed.first.weight",
        "Mixed.w1",
        "Mixed.w2",
    ]
    assert CORE.on is False


@compiles
def test_two_threads_record_at_once() -> None:
    """Each its own; with the last of them, dynamo has its functions back."""
    from torch._dynamo import eval_frame  # noqa: PLC0415 - slow to import

    before = (eval_frame.set_eval_frame, eval_frame._maybe_set_eval_frame)
    models = [Mixed(), nn.Sequential(nn.Linear(3, 3))]
    orders: list[ExecutionOrder] = []
    entered, done = threading.Barrier(2, timeout=30), threading.Event()

    def run(tracker: ModTracker, which: int) -> None:
        with tracker.record_order():
            entered.wait()
            models[which](torch.randn(2, 3))
            if which:  # entered in any order, left the other way round for one of them
                done.wait(30)
        if not which:
            orders.append(tracker.execution_order)
            done.set()

    with ModTracker() as tracker:
        threads = [threading.Thread(target=run, args=(tracker, which)) for which in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        orders.append(tracker.execution_order)
    assert [len(order.forward or ()) for order in orders] == [10, 2]
    assert (eval_frame.set_eval_frame, eval_frame._maybe_set_eval_frame) == before


def test_modules_are_never_asked_for_their_truth() -> None:
    """Their length may raise."""

    class Sized(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.ones(2))

        def __len__(self) -> int:
            raise TypeError("it has none")

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.w

    order = record(model := Sized(), lambda: model(torch.ones(2)).sum().backward())
    assert order.module_forward_order == order.module_backward_order == [model]


def test_a_block_that_begins_inside_a_forward() -> None:
    """What began before it is not known; nothing is on when the outermost call has ended."""
    model = nn.Sequential(Mixed())

    with ModTracker(model) as tracker:
        block = tracker.record_order()
        handle = model[0].pair.register_forward_pre_hook(lambda *_: enter())
        entered: list[bool] = []

        def enter() -> None:
            if not entered:
                entered.append(True)
                block.__enter__()

        model(torch.randn(2, 3))
        assert torch.overrides._len_torch_function_stack() == 0
        block.__exit__(None, None, None)
        handle.remove()
        order = tracker.execution_order
    assert [call.fqn for call in order.forward or ()][-4:] == [
        "Sequential.0.pair",
        *(f"Sequential.0.pair.{at}" for at in range(3)),
    ]


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_scripted_module_uses_all_it_has() -> None:
    """What it calls is not to be seen."""
    model = torch.jit.script(nn.Sequential(nn.Linear(2, 2), nn.ReLU()))
    order = record(model, lambda: model(torch.ones(1, 2)).sum().backward())
    assert set(order.gradients or ()) == set(order.parameters or ())
    assert len(order.parameters or ()) == 2


def test_what_gives_no_tensor_may_be_a_use() -> None:
    """As a number does; being printed, or asked for its shape, is none."""

    class Scales(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Parameter(torch.ones(())), nn.Parameter(torch.ones(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            assert repr(self.b).startswith("Parameter")
            assert (self.b.dim(), self.b.is_leaf, self.b.numel()) == (0, True, 1)
            return x * self.a.item()

    order = record(model := Scales(), lambda: model(torch.ones(2)))
    assert order.parameters == ["Scales.a"]


def test_a_model_goes_as_soon_as_nobody_has_it() -> None:
    """Nothing of a recording waits for a collection."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        model = Mixed()
        alive = weakref.ref(model)
        tracker = ModTracker(model)
        with tracker, tracker.record_order():
            model(torch.randn(2, 3)).sum().backward()
        del tracker, model
        assert alive() is None
    finally:
        if collecting:
            gc.enable()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_has_nothing_of_it() -> None:
    """No hook, no mode: its parent records."""
    model = Mixed()
    with ModTracker(model) as tracker, tracker.record_order():
        model(torch.randn(2, 3)).sum().backward()
        child = os.fork()
        if not child:
            left = [p._post_accumulate_grad_hooks for p in model.parameters()]
            clean = not any(left) and not torch.overrides._len_torch_function_stack()
            os._exit(0 if clean and not CORE.recorders else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(tracker.execution_order.gradients or ()) == 8


def test_a_torch_without_the_stack_of_modes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What is lost is said once; the rest is told."""
    monkeypatch.setattr(using, "_STACK", ("_no_such_thing",))
    monkeypatch.setattr(using, "_said", [])
    model = Mixed()
    for _ in range(2):
        order = record(model, lambda: model(torch.randn(2, 3)).sum().backward())
    assert len(order.forward or ()) == 10
    assert "Mixed.first.weight" in (order.parameters or ())
    assert "Mixed.w1" not in (order.parameters or ())
    assert len(order.gradients or ()) == 8
    (said,) = [one.getMessage() for one in caplog.records if one.name == "otel_modtrack"]
    assert said.startswith(
        "this torch has no stack of function modes that is known: an order tells"
    )


def test_what_cannot_be_recorded_is_said() -> None:
    """Outside of the tracker, twice at once, before anything ran, without a call."""
    tracker = ModTracker()
    with pytest.raises(RuntimeError, match="inside `with ModTracker"), tracker.record_order():
        pass
    with pytest.raises(RuntimeError, match=r"with tracker.record_order\(\)"):
        _ = tracker.execution_order
    with tracker:
        with (
            tracker.record_order(),
            pytest.raises(RuntimeError, match="under way on this thread"),
            tracker.record_order(),
        ):
            pass
        with pytest.raises(RuntimeError, match="no module was called"):
            _ = tracker.execution_order
