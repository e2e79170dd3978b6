"""The order that is traced symbolically: FSDP's, object by object, and where it tells more."""

from __future__ import annotations

import contextlib
import functools
import random
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import distributed, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import FullyShardedDataParallel, _trace_utils, fully_shard
from torch.nn.parallel import DistributedDataParallel

from otel_modtrack import ModTracker, Policy, region
from otel_modtrack.core import CORE, THREADS
from otel_modtrack.order import (
    Call,
    ExecutionOrder,
    OrderError,
    TracingConfig,
    read_order,
    trace_execution_order,
)
from otel_modtrack.usage import UsageError
from tests.conftest import spans_of
from tests.order import models

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

Named = list[tuple[str, nn.Parameter]]


class IntoLinear(torch.fx.Tracer):
    """Looks into nn.Linear."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return not isinstance(m, nn.Linear) and super().is_leaf_module(m, module_qualified_name)


class OverBlocks(torch.fx.Tracer):
    """Does not look into blocks."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, models.Block) or super().is_leaf_module(m, module_qualified_name)


def of_torch(
    model: nn.Module, tracer: torch.fx.Tracer, concrete_args: dict[str, Any] | None
) -> _trace_utils._ExecutionInfo:
    """What FSDP's own tracer finds."""
    torchs = _trace_utils._ExecOrderTracer()
    with torchs.patch_tracer(tracer, model):
        tracer.trace(model, concrete_args)
    assert torchs.exec_info is not None
    return torchs.exec_info


def ids(objects: Any) -> list[int]:
    """To compare by identity: a tensor's == is of elements."""
    return [id(one) for one in objects]


def usages(found: dict[nn.Module, Any]) -> list[Any]:
    """What each module used, to be compared by identity."""
    return [
        (id(user), [(id(one[0]), [(name, id(p)) for name, p in one[1]]) for one in used])
        for user, used in found.items()
    ]


def check_same(order: ExecutionOrder, info: _trace_utils._ExecutionInfo) -> None:
    """All that torch's tells is told, and nothing else, object by object."""
    assert order.curr_module is info.curr_module
    assert ids(order.module_forward_order) == ids(info.module_forward_order)
    assert ids(order.param_forward_order) == ids(info.param_forward_order)
    assert order.visited_params == info.visited_params
    assert usages(order.module_to_param_usage_infos) == usages(info.module_to_param_usage_infos)


def check_names(order: ExecutionOrder, model: nn.Module) -> None:
    """Names stand for the objects beside them."""
    root = type(model).__name__
    modules = {id(m): f"{root}.{n}".rstrip(".") for n, m in model.named_modules()}
    parameters = {id(p): f"{root}.{n}" for n, p in model.named_parameters()}
    assert order.module_forward_fqns == [modules[id(m)] for m in order.module_forward_order]
    assert order.parameters == [parameters[id(p)] for p in order.param_forward_order]
    for used in order.module_to_param_usage_infos.values():
        for one in used:
            assert one.fqn == modules[id(one.module)]
            assert one.param_fqns == [parameters[id(p)] for _, p in one.named_params]


MODELS: dict[str, tuple[Callable[[], nn.Module], dict[str, Any] | None]] = {
    "torch's own": (models.Forks, {"run_all_layers": True}),
    "torch's own, cut": (models.Forks, {"run_all_layers": False}),
    "nested": (models.Nested, None),
    "itself": (models.Recurs, {"depth": None}),
    "itself, below another": (models.Holds, None),
    "together": (models.Together, None),
    "tied": (models.Tied, None),
    "a leaf as the root": (lambda: nn.Linear(3, 2), None),
    "a sequential as the root": (lambda: nn.Sequential(nn.Linear(2, 2), nn.ReLU()), None),
    "nothing to use": (nn.Identity, None),
    "a convolutional net": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2)
        ),
        None,
    ),
    "a graph": (lambda: torch.fx.symbolic_trace(models.Nested()), None),
}
TRACERS = [torch.fx.Tracer, IntoLinear, OverBlocks]


@pytest.mark.parametrize("tracer", TRACERS)
@pytest.mark.parametrize("which", MODELS)
def test_it_is_what_fsdps_tracer_finds(which: str, tracer: type[torch.fx.Tracer]) -> None:
    """Modules, parameters, what each module used, the root: the same objects in the same order."""
    make, concrete_args = MODELS[which]
    model = make()
    order = trace_execution_order(model, TracingConfig(tracer(), concrete_args))
    check_same(order, of_torch(model, tracer(), concrete_args))
    check_names(order, model)


def test_what_torchs_own_test_wants() -> None:
    """By hand: layer0 is called twice, its parameters count once; the one never used is absent."""
    model = models.Forks()
    order = trace_execution_order(model, {"run_all_layers": True})
    relu, zero = "Forks.relu", "Forks.layer0"
    two = ["Forks.layer2", *(f"Forks.layer2.{n}" for n in range(3))]
    wanted = ["Forks", zero, relu, *two, relu, "Forks.layer1", relu, zero, relu]
    assert order.module_forward_fqns == wanted
    layer0: Named = [("weight", model.layer0.weight), ("bias", model.layer0.bias)]
    layer2: Named = [("0.weight", model.layer2[0].weight), ("2.weight", model.layer2[2].weight)]
    infos = order.module_to_param_usage_infos
    assert [one[:2] for one in infos[model]] == [
        (model.layer0, layer0),
        (model.layer2, layer2),
        (model, [("weight1", model.weight1)]),
        (model.layer1, [("weight", model.layer1.weight)]),
        (model, [("weight2", model.weight2)]),
        (model.layer0, layer0),
    ]
    assert [one[:2] for one in infos[model.layer0]] == [(model.layer0, layer0)]
    assert infos[model.layer2][1].param_fqns == ["Forks.layer2.2.weight"]
    assert infos[model.relu] == infos[model.layer2[1]] == []
    names = ["layer0.weight", "layer0.bias", "layer2.0.weight", "layer2.2.weight", "weight1"]
    assert order.parameters == [f"Forks.{n}" for n in [*names, "layer1.weight", "weight2"]]
    assert id(model.weight_unused) not in ids(order.visited_params)
    assert order.curr_module is model


def test_calls_say_what_they_are_in_and_what_was_not_looked_into() -> None:
    """The tracer's leaves are leaves; the forward is all that is known."""
    order = trace_execution_order(models.Holds())
    assert list(order.forward or ()) == [
        Call("Holds"),
        Call("Holds.rec", 0),
        Call("Holds.rec.lin", 1, leaf=True),
        Call("Holds.rec", 1),
        Call("Holds.rec.lin", 3, leaf=True),
        Call("Holds.out", 0, leaf=True),
    ]
    assert (order.name, order.recompute, order.backward, order.gradients) == (
        "symbolic",
        *[None] * 3,
    )
    assert trace_execution_order(models.Holds(), name="traced").name == "traced"
    inside = trace_execution_order(models.Holds(), TracingConfig(IntoLinear()))
    assert not any(call.leaf for call in inside.forward or ())
    rec = inside.module_forward_order[1]
    assert rec is not None
    # Of the last call, the inner one: what it used until then, and what the outer one used after.
    told = [(one.fqn, one.param_fqns) for one in inside.module_to_param_usage_infos[rec]]
    lin = ["Holds.rec.lin.weight", "Holds.rec.lin.bias"]
    w = ("Holds.rec", ["Holds.rec.w"])
    assert told == [w, ("Holds.rec.lin", lin), w, w]


def test_an_order_is_written_and_read(tmp_path: Path) -> None:
    """As any other."""
    order = trace_execution_order(models.Nested())
    order.save(tmp_path / "order.json")
    assert order.diff(read_order(tmp_path / "order.json")) is None


# -- against a real run ---------------------------------------------------------------------------


RUNS: dict[str, tuple[Callable[[], nn.Module], dict[str, Any] | None, Callable[[Any], Any]]] = {
    "torch's own": (models.Forks, {"run_all_layers": True}, lambda m: m(torch.randn(2, 6), True)),
    "nested": (models.Nested, None, lambda m: m(torch.randn(2, 4))),
    "recursive": (models.Holds, None, lambda m: m(torch.randn(2, 4))),
    "together": (models.Together, None, lambda m: m(torch.randn(2, 4))),
    "tied": (models.Tied, None, lambda m: m(torch.tensor([1, 2]))),
    "asked": (models.Asks, None, lambda m: m(torch.randn(2, 2))),
    "checkpointed": (
        lambda: nn.Sequential(checkpoint_wrapper(models.Block()), nn.Linear(4, 1)),
        None,
        lambda m: m(torch.randn(2, 4)),
    ),
}


@pytest.mark.parametrize("which", RUNS)
def test_a_real_run_goes_the_same_way(which: str) -> None:
    """What is recorded agrees in all that both know."""
    make, concrete_args, run = RUNS[which]
    model = make()
    with ModTracker(model) as tracker:
        with tracker.record_order():
            run(model)
        recorded = tracker.execution_order
    symbolic = trace_execution_order(model, concrete_args)
    assert symbolic.diff(recorded) is None
    assert symbolic.parameters == recorded.parameters


def test_where_a_run_goes_another_way() -> None:
    """What was traced for one value of an argument differs from what runs for another."""
    model = models.Decides()
    symbolic = trace_execution_order(model, {"flag": True})
    with ModTracker(model) as tracker:
        with tracker.record_order():
            model(torch.ones(1, 2), False)
        difference = symbolic.diff(tracker.execution_order)
    assert difference is not None
    assert [side.fqn for side in difference.sides] == [
        "Decides.blocks.1.yes",
        "Decides.blocks.1.no",
    ]


# -- what torch's tracer misses or mistakes -------------------------------------------------------


def test_every_way_of_handing_over_counts() -> None:
    """By keyword, in lists, tuples and slices, an attribute of it, a module with all it has."""
    model = models.Ways()
    order = trace_execution_order(model)
    used = [one.param_fqns for one in order.module_to_param_usage_infos[model]]
    wanted = ["d", "c b", "a", "one", "lin.weight", "f e", "g", "h", "last.weight", "i"]
    assert used == [[f"Ways.{n}" for n in names.split()] for names in wanted]
    assert order.parameters == [f"Ways.{n}" for names in wanted for n in names.split()]
    assert order.module_to_param_usage_infos[model][1].named_params[1] == ("b", model.b)
    info = of_torch(model, torch.fx.Tracer(), None)
    seen = [model.a, model.lin.weight, model.f, model.g, model.i]
    assert ids(info.param_forward_order) == ids(seen)


def test_to_ask_for_a_shape_is_no_use() -> None:
    """Nor for a dtype; torch's takes it for one."""
    model = models.Asks()
    order = trace_execution_order(model)
    assert order.parameters == ["Asks.used", "Asks.lin.weight", "Asks.lin.bias"]
    info = of_torch(model, torch.fx.Tracer(), None)
    assert ids(info.param_forward_order)[:2] == ids([model.shape, model.lin.weight])


def test_a_child_that_fails_is_over() -> None:
    """Who catches that goes on with parameters of its own; torch's says the child does."""
    model = models.Catches()
    order = trace_execution_order(model)
    infos = order.module_to_param_usage_infos
    assert [one.fqn for one in infos[model]] == ["Catches.fails", "Catches"]
    assert [one.fqn for one in infos[model.fails]] == ["Catches.fails.lin"]
    assert order.module_forward_fqns == ["Catches", "Catches.fails", "Catches.fails.lin"]
    info = of_torch(model, torch.fx.Tracer(), None)
    assert info.curr_module is model.fails
    assert info.module_to_param_usage_infos[model.fails][-1].named_params == [("w", model.w)]


class Shadows(nn.Module):
    """An argument is called as a parameter is."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(2))

    def forward(self, w: Any) -> Any:
        return w * 2


def test_an_argument_is_no_parameter_of_the_same_name() -> None:
    """torch's goes by the name."""
    model = Shadows()
    assert trace_execution_order(model).parameters == []
    assert ids(of_torch(model, torch.fx.Tracer(), None).param_forward_order) == ids([model.w])


class ByItsPath(torch.fx.Tracer):
    """Gives each parameter the name under which it was asked for."""

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        if isinstance(attr_val, nn.Parameter):
            return self.create_proxy("get_attr", self.asked, (), {})
        return super().getattr(attr, attr_val, parameter_proxy_cache)

    asked = "head.weight"


class Borrows(models.Tied):
    """Uses the tied weight directly, by its second name."""

    def forward(self, x: Any) -> Any:
        return x @ self.head.weight


def test_a_tied_parameter_has_its_first_name() -> None:
    """However it is reached; torch's does not know it by its second name."""
    model = Borrows()
    for tracer in (torch.fx.Tracer(), ByItsPath()):
        order = trace_execution_order(model, TracingConfig(tracer))
        assert order.parameters == ["Borrows.table.weight"]
        (used,) = order.module_to_param_usage_infos[model]
        assert used.named_params == [("table.weight", model.table.weight)]
    assert of_torch(model, ByItsPath(), None).param_forward_order == []


class Unproxied(torch.fx.Tracer):
    """Leaves parameters what they are."""

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        return attr_val


def test_a_parameter_that_is_no_proxy() -> None:
    """As some tracers leave it; torch's sees proxies alone."""
    model = models.Together()
    order = trace_execution_order(model, TracingConfig(Unproxied()))
    names = ["a", "b", "child.inner.weight", "child.inner.bias", "child.norm.weight"]
    wanted = [f"Together.{n}" for n in [*names, "child.norm.bias", "child.scale"]]
    assert order.parameters == wanted
    assert model.a not in of_torch(model, Unproxied(), None).visited_params


class HandsOver(nn.Module):
    """Gives a child the transpose of a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(2, 2))
        self.lin = nn.Linear(2, 2)

    def forward(self, x: Any) -> Any:
        return self.lin(self.w.T) + x


def test_what_is_handed_to_a_child_is_used_by_who_hands_it_over() -> None:
    """torch's says that the child does, for fx looks at it there only."""
    model = HandsOver()
    order = trace_execution_order(model)
    infos = order.module_to_param_usage_infos
    lin = ["HandsOver.lin.weight", "HandsOver.lin.bias"]
    assert [one.param_fqns for one in infos[model]] == [["HandsOver.w"], lin]
    assert [one.param_fqns for one in infos[model.lin]] == [lin]
    info = of_torch(model, torch.fx.Tracer(), None)
    assert info.module_to_param_usage_infos[model.lin][0].named_params == [("w", model.w)]


class Tries(torch.fx.Tracer):
    """Runs what is a leaf on meta tensors, as HFTracer does, and passes over what that raises."""

    trying = False

    def call_module(self, m: nn.Module, forward: Any, args: Any, kwargs: Any) -> Any:
        if self.trying:
            return forward(*args, **kwargs)
        self.run = forward
        return super().call_module(m, forward, args, kwargs)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, models.Catches | models.Fails)

    def create_proxy(self, kind: str, *args: Any, **kwargs: Any) -> Any:
        proxy = super().create_proxy(kind, *args, **kwargs)
        if kind == "call_module":
            self.trying = True
            with contextlib.suppress(ArithmeticError):
                self.run(torch.ones(1, 2))
            self.trying = False
        return proxy

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        return attr_val if self.trying else super().getattr(attr, attr_val, parameter_proxy_cache)


def test_what_a_tracer_tries_is_no_call() -> None:
    """It did not look into that module; torch's tells of calls that were never made."""
    model = nn.Sequential(models.Catches(), models.Fails())
    order = trace_execution_order(model, TracingConfig(Tries()))
    assert order.module_forward_fqns == ["Sequential", "Sequential.0", "Sequential.1"]
    assert [call.leaf for call in order.forward or ()] == [False, True, True]
    assert order.parameters == [f"Sequential.{n}" for n, _ in model.named_parameters()]
    assert model[0].fails.lin in of_torch(model, Tries(), None).module_forward_order


# -- names ----------------------------------------------------------------------------------------


def test_names_are_those_that_spans_have(
    provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    """The second model of a class has a number, and a part that is traced alone its whole name."""
    first, second = models.Nested(), models.Nested()
    with ModTracker(first, tracer_provider=provider), ModTracker(second):
        first(torch.ones(1, 4))
        second(torch.ones(1, 4))
        second.late = nn.Linear(2, 2)  # not met yet
        order = trace_execution_order(second)
        part = trace_execution_order(second.deep)
    names = {span.attributes["modtrack.module.fqn"] for span in spans_of(exporter)}
    assert "Nested#2.deep.0.1" in order.module_forward_fqns
    assert set(order.module_forward_fqns) < names
    assert part.module_forward_fqns[:3] == ["Nested#2.deep", "Nested#2.deep.0", "Nested#2.deep.0.0"]
    assert (part.parameters or ())[0] == "Nested#2.deep.0.0.weight"
    assert CORE.names.fqn(second.late) is None
    (used,) = part.module_to_param_usage_infos[second.deep[0]]
    assert used.named_params[0][0] == "weight"


def test_what_was_added_since_is_named_below_its_owner() -> None:
    """Of a model that is known already."""
    other, model = nn.Sequential(), nn.Sequential(nn.Linear(2, 2))
    with ModTracker(other), ModTracker(model):
        model.append(models.Block(2))
        order = trace_execution_order(model)
    below = ["0", "1", "1.inner", "1.norm"]
    assert order.module_forward_fqns == ["Sequential#2", *(f"Sequential#2.{n}" for n in below)]


def test_a_module_of_two_models_has_the_name_it_got_first(
    provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    """As in spans."""
    first = nn.Sequential(nn.Linear(2, 2))
    second = nn.Sequential(first[0], nn.ReLU())
    with ModTracker(first, tracer_provider=provider), ModTracker(second):
        second(torch.ones(1, 2))
        order = trace_execution_order(second)
    calls = ["Sequential#2", "Sequential.0", "Sequential#2.1"]
    assert order.module_forward_fqns == calls
    assert [span.attributes["modtrack.module.fqn"] for span in spans_of(exporter)] == calls
    assert order.parameters == ["Sequential.0.weight", "Sequential.0.bias"]


@pytest.fixture
def process_group() -> Iterator[None]:
    """A gloo group of this process alone."""
    distributed.init_process_group("gloo", rank=0, world_size=1, store=distributed.HashStore())
    yield
    distributed.destroy_process_group()


def fsdp1(module: nn.Module, *, flat: bool = False) -> nn.Module:
    """Sharded by FSDP, on the CPU."""
    return FullyShardedDataParallel(module, use_orig_params=not flat, device_id=torch.device("cpu"))


def fsdp2(model: nn.Module) -> nn.Module:
    """Sharded in place."""
    mesh = distributed.device_mesh.init_device_mesh("cpu", (1,))
    fully_shard(model.block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def around_the_block(wrap: Callable[[nn.Module], nn.Module]) -> Callable[[nn.Module], nn.Module]:
    """Wraps one part."""

    def wrapped(model: nn.Module) -> nn.Module:
        model.block = model.deep[1] = wrap(model.block)
        return model

    return wrapped


def compiled_in_place(module: nn.Module) -> nn.Module:
    """As `torch.compile`, without a wrapper."""
    module.compile(backend="eager")
    return module


WRAPPED: dict[str, Callable[[nn.Module], nn.Module]] = {
    "DDP": DistributedDataParallel,
    "a part in DDP": around_the_block(DistributedDataParallel),
    "DataParallel": nn.DataParallel,
    "compiled": lambda model: torch.compile(model, backend="eager"),
    "a compiled part": around_the_block(lambda part: torch.compile(part, backend="eager")),
    "compiled in place": compiled_in_place,
    "a part compiled in place": around_the_block(compiled_in_place),
    "checkpointed": checkpoint_wrapper,
    "a checkpointed part": around_the_block(checkpoint_wrapper),
    "FSDP": fsdp1,
    "a part in FSDP, too": lambda model: fsdp1(around_the_block(fsdp1)(model)),
    "fully_shard": fsdp2,
    "averaged": torch.optim.swa_utils.AveragedModel,
}


@pytest.mark.usefixtures("process_group")
@pytest.mark.filterwarnings("ignore:::torch")
@pytest.mark.parametrize("which", WRAPPED)
def test_wrappers_are_looked_through(which: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The names of the plain model, each call once; nothing is gathered, and hooks stay."""
    plain = trace_execution_order(models.Nested())
    model = WRAPPED[which](models.Nested())
    hooks = [(list(m._forward_pre_hooks), list(m._forward_hooks)) for m in model.modules()]
    with monkeypatch.context() as patch:
        for name in ("all_gather_into_tensor", "broadcast", "all_reduce"):
            patch.setattr(distributed.distributed_c10d, name, None)
        order = trace_execution_order(model)
    assert list(order.forward or ()) == list(plain.forward or ())
    assert order.parameters == plain.parameters
    mine = {id(p) for p in model.parameters()}
    assert all(id(p) in mine for p in order.visited_params)
    assert [(list(m._forward_pre_hooks), list(m._forward_hooks)) for m in model.modules()] == hooks
    held = [used.named_params for used in order.module_to_param_usage_infos[order.curr_module]]
    assert len(held) == 5


@pytest.mark.usefixtures("process_group")
@pytest.mark.filterwarnings("ignore:::torch")
def test_flat_parameters_cannot_be_told_apart() -> None:
    """FSDP without use_orig_params: an error, instead of no parameters."""
    wrapped = around_the_block(lambda part: fsdp1(part, flat=True))(models.Nested())
    with pytest.raises(OrderError, match=r"^Nested\.block \(Block\).*use_orig_params=True.*record"):
        trace_execution_order(wrapped)
    with pytest.raises(OrderError, match=r"^Nested \(Nested\) cannot be traced: FullySharded"):
        trace_execution_order(fsdp1(models.Nested(), flat=True))


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit:FutureWarning")
def test_what_is_scripted_is_not_looked_into() -> None:
    """A child that is TorchScript uses all it has; a model that is cannot be traced."""
    model = nn.Sequential(nn.Linear(2, 2), torch.jit.script(nn.Linear(2, 2)))
    order = trace_execution_order(model)
    assert order.parameters == [f"Sequential.{n}" for n, _ in model.named_parameters()]
    assert [call.leaf for call in order.forward or ()] == [False, True, True]
    with pytest.raises(OrderError, match=r"^Linear \(RecursiveScriptModule\) cannot be traced:"):
        trace_execution_order(torch.jit.script(nn.Linear(2, 2)))


# -- what cannot be traced ------------------------------------------------------------------------

MENDS = (
    "; give concrete_args for what this depends on, or another tracer, or record a real forward"
    " with ModTracker.record_order()"
)


def line_of(text: str, path: str) -> int:
    """The number of the one line that is `text`."""
    with open(path, encoding="utf-8") as file:  # noqa: PTH123
        (number,) = [at for at, line in enumerate(file, 1) if line.strip() == text]
    return number


def test_the_error_says_where_and_what_to_do() -> None:
    """Module, class, file, line, what is there, the cause, the mend; in one sentence."""
    path = str(models.__file__)
    with pytest.raises(OrderError) as caught:
        trace_execution_order(models.Decides())
    at = f"{path}:{line_of('if flag:', path)} (`if flag:`)"
    why = "TraceError: symbolically traced variables cannot be used as inputs to control flow"
    what = "Decides.blocks.1 (Decider) cannot be traced"
    assert str(caught.value) == f"{what} at {at}: {why}{MENDS}"
    assert isinstance(caught.value, UsageError)
    assert isinstance(caught.value.__cause__, torch.fx.proxy.TraceError)
    assert trace_execution_order(models.Decides(), {"flag": False}).forward


def test_a_fault_of_the_models_own_is_told_as_such() -> None:
    """With the class of its exception and the first line of what that says."""
    path = str(models.__file__)
    with pytest.raises(OrderError) as caught:
        trace_execution_order(nn.Sequential(models.Fails()), TracingConfig(IntoLinear()))
    at = f"{path}:{line_of('raise self.error', path)} (`raise self.error`)"
    what = "Sequential.0 (Fails) cannot be traced by IntoLinear"
    assert str(caught.value) == f"{what} at {at}: ArithmeticError: no such number{MENDS}"


class Silent(nn.Module):
    """Raises something that says nothing."""

    def forward(self, x: Any) -> Any:
        raise KeyError


class Spends(nn.Module):
    """Recurses without end."""

    def forward(self, x: Any) -> Any:
        return self(x)


def decorated(function: Any) -> Any:
    """As transformers decorates: fx looks at what is inside, and calls what is around."""

    def around(self: Any, *args: Any, **kwargs: Any) -> Any:
        return function(self, *args, **kwargs)

    around.__wrapped__ = function
    return around


class Decorated(nn.Module):
    """A forward that fx cannot call."""

    @decorated
    def forward(self, x: Any, y: Any = None, *, z: Any = None, **more: Any) -> Any:
        return x


class Loops(nn.Module):
    """A length that is not known."""

    def forward(self, x: Any) -> Any:
        for _ in range(len(x)):
            x = x + 1
        return x


class MakesOne(nn.Module):
    """A module that is nowhere in the model."""

    def forward(self, x: Any) -> Any:
        return nn.Linear(2, 2)(x)


@pytest.mark.parametrize(
    ("make", "wanted"),
    [
        (Silent, r"^Silent \(Silent\) cannot be traced at \S+:\d+ \(`raise KeyError`\): KeyError;"),
        (Spends, r"^Spends \(Spends\) .*`return self\(x\)`\): RecursionError: "),
        (Loops, r"`for _ in range\(len\(x\)\):`\): RuntimeError: 'len' is not supported"),
        (
            MakesOne,
            r"^MakesOne \(MakesOne\) .*`return nn.Linear\(2, 2\)\(x\)`\): NameError: module is not",
        ),
        (
            Decorated,
            r"^Decorated \(Decorated\) .*py:\d+ \(`@decorated`\): its forward is decorated and ",
        ),
        (lambda: nn.LSTM(2, 2), r"^LSTM \(LSTM\) cannot be traced at \S+rnn.py:\d+ \(`if "),
        (nn.Module, r"^Module \(Module\) cannot be traced at .*NotImplementedError"),
    ],
)
def test_whatever_fx_cannot_do_is_one_error(make: Callable[[], nn.Module], wanted: str) -> None:
    """Always an OrderError, of one line, with the mend."""
    with pytest.raises(OrderError, match=wanted) as caught:
        trace_execution_order(make())
    assert str(caught.value).endswith(MENDS)
    assert "\n" not in str(caught.value)
    assert caught.value.__cause__ is not None


def test_an_argument_that_there_is_not() -> None:
    """fx passes over it in silence."""
    with pytest.raises(OrderError) as caught:
        trace_execution_order(models.Decides(), {"flagg": True})
    assert str(caught.value) == (
        "Decides (Decides) cannot be traced: concrete_args names 'flagg', which is no argument of"
        " its forward; name one of x, flag"
    )
    with pytest.raises(OrderError, match="names 'self', which"):
        trace_execution_order(models.Decides(), {"self": None})


class Bare:
    """Traces, and nothing else."""

    def trace(self, root: nn.Module) -> None:
        """Trace."""


@dataclass
class Otherwise:
    """Another's configuration."""

    tracer: Any
    concrete_args: Any = None


@pytest.mark.parametrize(
    ("model", "config", "wanted"),
    [
        (
            lambda x: x,
            None,
            r"trace_execution_order\(model\): a torch.nn.Module is wanted, not fun",
        ),
        (nn.Linear, None, r"\(model\): a torch.nn.Module is wanted, not the class Linear$"),
        (
            nn.Identity(),
            "x",
            r"\(model, config\): a TracingConfig or a dict of .* wanted, not str$",
        ),
        (nn.Identity(), torch.fx.Tracer(), r"a TracingConfig or a dict .* wanted, not Tracer$"),
        (
            nn.Identity(),
            Otherwise(Bare()),
            r"of torch.fx.Tracer is wanted, not Bare, which has no c",
        ),
        (
            nn.Identity(),
            Otherwise(None),
            r"tracer=\.\.\.\): an instance .* not NoneType, which has ",
        ),
        (
            nn.Identity(),
            Otherwise(torch.fx.Tracer),
            r"an instance .* wanted, not the class Tracer$",
        ),
        (nn.Identity(), Otherwise(torch.fx.Tracer(), ("x",)), r"a dict of .* wanted, not tuple$"),
    ],
)
def test_wrong_arguments_are_said(model: Any, config: Any, wanted: str) -> None:
    """Each in one sentence."""
    with pytest.raises(TypeError, match=wanted):
        trace_execution_order(model, config)


def test_torchs_own_configuration_will_do() -> None:
    """And any with its two attributes; what it holds is not changed."""
    for make in (_trace_utils.TracingConfig, Otherwise, TracingConfig):
        given = {"run_all_layers": False}
        config = make(torch.fx.Tracer(), given)
        order = trace_execution_order(models.Forks(), config)
        assert len(order.forward or ()) == 8
        assert given == {"run_all_layers": False}
    config = TracingConfig()
    assert type(config.tracer) is torch.fx.Tracer
    assert config.concrete_args is None
    assert config.tracer is not TracingConfig().tracer


class Forgets(torch.fx.Tracer):
    """Takes the arguments out of what it is given."""

    def trace(self, root: Any, concrete_args: Any = None) -> Any:
        mine = {name: concrete_args.pop(name) for name in list(concrete_args)}
        return super().trace(root, mine)


def test_any_value_may_be_given() -> None:
    """Of a tensor fx would warn; what is given is not changed."""
    given = {"flag": torch.tensor(0)}
    order = trace_execution_order(models.Decides(), TracingConfig(Forgets(), given))
    assert order.module_forward_fqns[-1] == "Decides.blocks.1.no"
    assert list(given) == ["flag"]


# -- what is as before ----------------------------------------------------------------------------


def shallow(owner: object) -> dict[str, Any]:
    """The attributes of something, and copies of the containers among them."""
    kinds = (dict, list, set)
    return {
        name: (id(value), list(value) if isinstance(value, kinds) else None)
        for name, value in vars(owner).items()
    }


def test_the_tracer_has_its_own_methods_again() -> None:
    """torch's leaves them on the instance. The graph is there, and the tracer can be used again."""
    tracer = torch.fx.Tracer()
    mine = tracer.create_proxy
    vars(tracer)["create_proxy"] = mine  # somebody's own
    model = models.Nested()
    first = trace_execution_order(model, TracingConfig(tracer))
    assert not {"call_module", "getattr"} & set(vars(tracer))
    assert vars(tracer)["create_proxy"] is mine
    assert [node.op for node in tracer.graph.nodes].count("call_module") == 7
    again = trace_execution_order(model, TracingConfig(tracer))
    assert again.as_dict() == first.as_dict()
    torchs = torch.fx.Tracer()
    of_torch(model, torchs, None)
    assert {"call_module", "create_proxy"} <= set(vars(torchs))


@pytest.mark.parametrize("error", [ArithmeticError("no"), KeyboardInterrupt(), SystemExit(3)])
def test_after_a_failure_all_is_as_it_was(error: BaseException) -> None:
    """The tracer, nn.Module, the thread; what is no fault passes as it is."""
    calls = nn.Module.__call__, nn.Module.__getattr__, torch.arange
    tracer = torch.fx.Tracer()
    good = trace_execution_order(models.Holds(), TracingConfig(tracer))
    before = shallow(tracer)
    model = nn.Sequential(models.Block(2), models.Fails(error))
    with pytest.raises(OrderError if isinstance(error, Exception) else type(error)) as caught:
        trace_execution_order(model, TracingConfig(tracer))
    assert error in (caught.value, caught.value.__cause__)
    assert shallow(tracer) == before
    assert (nn.Module.__call__, nn.Module.__getattr__, torch.arange) == calls
    assert THREADS.state.skip == (not CORE.on)
    assert not torch.fx._symbolic_trace.is_fx_tracing()
    again = trace_execution_order(models.Holds(), TracingConfig(tracer))
    assert again.as_dict() == good.as_dict()


class Replaces(torch.fx.Tracer):
    """Puts functions of its own into modules, and does not take them out if it fails."""

    def trace(self, root: Any, concrete_args: Any = None) -> Any:
        arange, block = torch.arange, models.Block
        torch.arange = functools.partial(arange)
        models.Block = type("Block", (models.Block,), {})
        graph = super().trace(root, concrete_args)
        torch.arange, models.Block = arange, block
        return graph


def test_what_a_tracer_leaves_when_it_fails_is_taken_out() -> None:
    """HFTracer leaves wrappers in torch and in the model's file."""
    before = torch.arange, models.Block
    with pytest.raises(OrderError):
        trace_execution_order(models.Decides(), TracingConfig(Replaces()))
    assert (torch.arange, models.Block) == before


@pytest.mark.parametrize("fails", [False, True])
def test_the_model_is_as_it_was(fails: bool) -> None:
    """Parameters, buffers, flags, hooks, attributes, and random numbers; after an error as well."""
    model = models.Untidy()
    hook = model.register_forward_hook(lambda module, args, out: None)
    if fails:
        model.add_module("norm", models.Fails())
        model.norm.lin = nn.Linear(4, 4)
    attributes = [shallow(module) for module in model.modules()]
    values = {name: value.clone() for name, value in model.state_dict().items()}
    states = torch.get_rng_state(), random.getstate()
    if fails:
        with pytest.raises(OrderError, match="ArithmeticError"):
            trace_execution_order(model)
    else:
        order = trace_execution_order(model)
        assert len(order.parameters or ()) == 4
    assert [shallow(module) for module in model.modules()] == attributes
    for name, value in model.state_dict().items():
        assert torch.equal(value, values[name])
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert model.training
    assert list(model._forward_hooks.values()) == [hook.hooks_dict_ref()[hook.id]]


def test_buffers_made_in_inference_mode_are_put_back() -> None:
    """torch does not count how often those are changed."""
    with torch.inference_mode():
        model = models.Untidy()
    with torch.inference_mode():
        trace_execution_order(model)
    assert model.seen.item() == 0


# -- while a tracker is on ------------------------------------------------------------------------


class Around(nn.Module):
    """Traces another model in its forward."""

    def __init__(self, run: Callable[[], Any]) -> None:
        super().__init__()
        self.lin = nn.Linear(2, 2)
        self.run = run

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.lin(x)
        self.run()
        return self.lin(x)


class Regional(nn.Module):
    """A named region, with a module in it."""

    def __init__(self) -> None:
        super().__init__()
        self.block = models.Block(2)

    def forward(self, x: Any) -> Any:
        with region("loss"):
            return self.block(x)


def good() -> Callable[[], None]:
    """Makes what traces with success."""
    model = Regional()

    def run() -> None:
        calls = trace_execution_order(model).module_forward_fqns
        assert calls == [
            "Regional",
            *(f"Regional.{n}" for n in ("block", "block.inner", "block.norm")),
        ]

    return run


def bad(error: BaseException | None = None) -> Callable[[], None]:
    """Makes what traces, and fails in a child."""
    model = nn.Sequential(Regional(), models.Fails(error))

    def run() -> None:
        with pytest.raises(OrderError if error is None else KeyboardInterrupt):
            trace_execution_order(model)

    return run


TRACES = [good, bad, functools.partial(bad, KeyboardInterrupt())]
CALLED = ["Around", "Around.lin", "Around.lin"]


def told(exporter: InMemorySpanExporter) -> list[str]:
    """The names of the spans, sorted."""
    return sorted(span.name for span in spans_of(exporter))


@pytest.mark.parametrize("make", TRACES)
def test_no_span_is_made_of_it(
    make: Callable[[], Callable[[], None]],
    provider: TracerProvider,
    exporter: InMemorySpanExporter,
) -> None:
    """Outside of calls, in a step, in a forward of another module; and tracking goes on."""
    run = make()
    model = Around(run)
    x = torch.ones(1, 2)
    forward = [f"forward {fqn}" for fqn in CALLED]
    backward = ["backward", *(f"backward {fqn}" for fqn in CALLED)]
    with ModTracker(model, tracer_provider=provider) as tracker:
        run()
        assert told(exporter) == []
        model(x)
        assert told(exporter) == sorted(forward)
        exporter.clear()
        with tracker.step(0):
            run()
            model(x).sum().backward()
            run()
        assert told(exporter) == sorted([*forward, *backward, "train_step"])
        with tracker.record_order():
            model(x)
        assert tracker.execution_order.module_forward_fqns == CALLED
        assert tracker.execution_order.parameters == ["Around.lin.weight", "Around.lin.bias"]
    assert THREADS.state.skip
    run()


def test_the_trace_of_a_model_in_its_own_forward(
    provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    """Its children's real calls are told, once each."""
    found: list[ExecutionOrder] = []

    class Looks(models.Block):
        def forward(self, x: Any) -> Any:
            if isinstance(x, torch.Tensor):
                found.append(trace_execution_order(self))
            return super().forward(x)

    model = Looks()
    with ModTracker(model, tracer_provider=provider):
        model(torch.ones(1, 4))
        model(torch.ones(1, 4))
    calls = ["Looks", "Looks.inner", "Looks.norm"]
    assert [order.module_forward_fqns for order in found] == [calls] * 2
    assert told(exporter) == sorted(f"forward {fqn}" for fqn in calls * 2)


@pytest.mark.parametrize("every", [0, 2])
def test_steps_that_are_not_recorded_stay_so(
    every: int, provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    """A policy's rest, and the end of it, are as without a trace."""
    run = good()
    model = Around(run)
    with ModTracker(model, tracer_provider=provider, policy=Policy(every=every)) as tracker:
        for number in range(4):
            with tracker.step(number):
                model(torch.ones(1, 2))
                run()
    steps = 4 // every if every else 0
    assert told(exporter).count("train_step") == steps
    assert told(exporter).count("forward Around.lin") == 2 * steps


def test_a_request_that_is_not_sampled_stays_so(
    provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    """The thread is quiet until the outermost call of it is over, and not longer."""
    from opentelemetry import context, trace  # noqa: PLC0415

    run, after = good(), []

    def run_and_look() -> None:
        run()
        after.append(THREADS.state.skip)

    model = Around(run_and_look)
    unsampled = trace.NonRecordingSpan(trace.SpanContext(1, 1, is_remote=False))
    with ModTracker(model, tracer_provider=provider):
        token = context.attach(trace.set_span_in_context(unsampled))
        model(torch.ones(1, 2))
        context.detach(token)
        assert told(exporter) == []
        model(torch.ones(1, 2))
    assert told(exporter) == sorted(f"forward {fqn}" for fqn in CALLED)
    assert after == [True, False]


def test_a_tracker_changes_nothing_of_the_order() -> None:
    """Nor do hooks of the user's on it."""
    model = models.Nested()
    without = trace_execution_order(model)
    seen: list[Any] = []
    tracker = ModTracker(model)
    tracker.register_user_hooks(pre_fw_hook=lambda module, args: seen.append(module))
    with tracker:
        with_one = trace_execution_order(model)
    assert with_one.as_dict() == without.as_dict()
    check_same(with_one, of_torch(model, torch.fx.Tracer(), None))
    assert seen == []


def test_calls_of_other_threads_are_left_alone() -> None:
    """fx patches nn.Module for all threads: another's call would end up in the graph."""
    model, other = models.Nested(), models.Block()
    found: list[Any] = []

    def elsewhere() -> None:
        found.extend([model.block(torch.ones(1, 4)), other(torch.ones(1, 4)), model.shift])

    class Meanwhile(nn.Module):
        def forward(self, x: Any) -> Any:
            thread = threading.Thread(target=elsewhere)
            thread.start()
            thread.join()
            return x

    model.deep.append(Meanwhile())
    order = trace_execution_order(model)
    assert [type(one) for one in found] == [torch.Tensor, torch.Tensor, nn.Parameter]
    assert torch.equal(found[0], model.block(torch.ones(1, 4)))
    assert "Nested.deep.2" in order.module_forward_fqns
    calls = [fqn for fqn in order.module_forward_fqns if fqn == "Nested.block"]
    assert len(calls) == 2
