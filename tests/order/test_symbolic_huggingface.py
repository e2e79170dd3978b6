"""Models of transformers, traced with its HFTracer, which transformers 5 has no more."""

from __future__ import annotations

import inspect
import random
import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.distributed.fsdp._trace_utils import _ExecOrderTracer

from otel_modtrack import ModTracker
from otel_modtrack.order import OrderError, TracingConfig, trace_execution_order
from tests.tracker import architectures

if TYPE_CHECKING:
    from torch import nn

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

INPUTS = {
    "llama": ["input_ids"],
    "bert": ["input_ids", "attention_mask"],
    "t5": ["input_ids", "decoder_input_ids"],
}
TEXT = architectures.TEXT


def made(which: str) -> nn.Module:
    """A small model with random weights."""
    make: Any = {
        "llama": lambda: architectures.llama(checkpointing=False),
        "bert": architectures.bert,
        "t5": architectures.t5,
    }[which]
    model: nn.Module = make()[0]
    model.config.use_cache = False
    return model


def concrete_args(model: nn.Module, which: str) -> dict[str, Any]:
    """Every argument that is no input, as transformers' own ``get_concrete_args`` has them."""
    arguments = inspect.signature(model.forward).parameters.values()
    return {one.name: one.default for one in arguments if one.name not in INPUTS[which]}


@pytest.fixture
def tracer() -> type[torch.fx.Tracer]:
    """HFTracer, where it is."""
    pytest.importorskip("transformers", reason="transformers is not installed")
    fx = pytest.importorskip(
        "transformers.utils.fx", reason="transformers 5 has no HFTracer: install transformers<5"
    )
    found: type[torch.fx.Tracer] = fx.HFTracer
    return found


def torchs_functions() -> dict[str, Any]:
    """What HFTracer replaces in torch."""
    return {name: getattr(torch, name) for name in ("arange", "zeros", "ones", "full", "tensor")}


def traceable(model: nn.Module, tracer: type[torch.fx.Tracer], which: str) -> None:
    """Skip where HFTracer itself cannot: 4.57 cannot trace a Llama, 4.46 can."""
    before = torchs_functions()
    try:
        tracer().trace(model, concrete_args(model, which))
    except ValueError as error:
        assert "varnames is too small" in str(error)  # noqa: PT017 - whether it is raised differs
        for name, function in before.items():
            setattr(torch, name, function)
        with pytest.raises(OrderError, match=r"by HFTracer at .*: its forward is decorated"):
            trace_execution_order(model, TracingConfig(tracer(), concrete_args(model, which)))
        assert torchs_functions() == before
        pytest.skip(f"HFTracer of this version of transformers cannot trace {which} itself")


@pytest.mark.parametrize("which", INPUTS)
def test_it_is_what_fsdps_tracer_finds(which: str, tracer: type[torch.fx.Tracer]) -> None:
    """With HFTracer and concrete_args; but that a question for a dtype is no use."""
    model = made(which)
    traceable(model, tracer, which)
    modules, states = list(model.modules()), (torch.get_rng_state(), random.getstate())
    given = concrete_args(model, which)
    order = trace_execution_order(model, TracingConfig(tracer(), given))
    assert list(model.modules()) == modules
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert given == concrete_args(model, which)

    used, torchs = tracer(), _ExecOrderTracer()
    with torchs.patch_tracer(used, model):
        used.trace(model, concrete_args(model, which))
    info = torchs.exec_info
    assert info is not None
    assert order.module_forward_order == info.module_forward_order
    assert [id(p) for p in order.param_forward_order] == [id(p) for p in info.param_forward_order]
    assert order.visited_params == info.visited_params
    assert list(order.module_to_param_usage_infos) == list(info.module_to_param_usage_infos)
    for module, usages in info.module_to_param_usage_infos.items():
        ours = order.module_to_param_usage_infos[module]
        theirs = [(one[0], [(name, id(p)) for name, p in one[1]]) for one in usages]
        left = iter(theirs)
        for one in ours:  # torch's has all of it, in this order
            assert (one.module, [(name, id(p)) for name, p in one.named_params]) in left
        if which != "t5":  # whose layers ask their weights for the dtype before they use them
            assert len(ours) == len(theirs)
    names = {id(p): name for name, p in model.named_parameters()}
    root = type(model).__name__
    assert order.parameters == [f"{root}.{names[id(p)]}" for p in order.param_forward_order]


@pytest.mark.parametrize("which", INPUTS)
def test_a_real_run_goes_the_same_way(which: str, tracer: type[torch.fx.Tracer]) -> None:
    """What is recorded agrees with what was traced, modules and parameters."""
    model = made(which)
    traceable(model, tracer, which)
    symbolic = trace_execution_order(model, TracingConfig(tracer(), concrete_args(model, which)))
    with ModTracker(model) as tracker:
        with tracker.record_order():
            model(**dict.fromkeys(INPUTS[which], TEXT), return_dict=True)
        recorded = tracker.execution_order
    assert symbolic.diff(recorded) is None
    assert len(symbolic.parameters or ()) > 20


def test_after_a_failure_transformers_is_as_it_was(tracer: type[torch.fx.Tracer]) -> None:
    """HFTracer leaves its functions in torch, and its caches in the model's file."""
    model = made("t5")
    space = vars(sys.modules[type(model).__module__])
    before, classes = torchs_functions(), {k: v for k, v in space.items() if isinstance(v, type)}
    used = tracer()
    with pytest.raises(OrderError, match=r"^T5ForConditionalGeneration.* by HFTracer"):
        trace_execution_order(model, TracingConfig(used, {"input_ids": "no ids"}))
    assert torchs_functions() == before
    assert {k: v for k, v in space.items() if isinstance(v, type)} == classes
    assert trace_execution_order(model, TracingConfig(used, concrete_args(model, "t5"))).forward


def test_a_dummy_input_that_is_missing_is_said(tracer: type[torch.fx.Tracer]) -> None:
    """HFTracer makes inputs for models of transformers alone."""
    with pytest.raises(OrderError, match="RuntimeError: Could not generate input named input"):
        trace_execution_order(torch.nn.Linear(2, 2), TracingConfig(tracer()))


@pytest.mark.parametrize("which", INPUTS)
def test_without_it_there_is_a_clear_error(which: str) -> None:
    """torch.fx's own tracer cannot trace them; where, and what to do instead, is said."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    model = made(which)
    with pytest.raises(OrderError) as caught:
        trace_execution_order(model)
    said = str(caught.value)
    assert said.startswith(type(model).__name__)
    assert "modeling_" in said
    assert said.endswith("or record a real forward with ModTracker.record_order()")
    if int(transformers.__version__.partition(".")[0]) > 4:
        why = ": its forward is decorated and takes *args or **kwargs, which torch.fx cannot call;"
        assert why in said
