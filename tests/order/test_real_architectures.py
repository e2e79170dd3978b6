"""The recorded order of real architectures, against what hooks and the autograd graph tell."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch._C._autograd import _get_sequence_nr
from torch.nn.modules import module as torch_module

from otel_modtrack import ModTracker
from tests.tracker import architectures

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_modtrack.order import ExecutionOrder

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

MADE: dict[str, Callable[[], Any]] = {
    "llama": lambda: architectures.llama(checkpointing=False),
    "llama, checkpointed": lambda: architectures.llama("non-reentrant"),
    "t5": architectures.t5,
    "bert": architectures.bert,
    "vit": architectures.vit,
    "mixtral": architectures.mixtral,
    "whisper": architectures.whisper,
    "clip": architectures.clip,
    "unet": architectures.unet,
}


class Witness:
    """What hooks see of one forward and backward, without us.

    Attributes:
        calls: the modules, as torch calls them, also in the backward.
        gradients: the parameters, as they get gradients.
        direct: of each module, the trained parameters that nodes hang on which it made itself.
    """

    def __init__(self, model: nn.Module, loss_of: Callable[[], torch.Tensor]) -> None:
        self.calls: list[nn.Module] = []
        self.gradients: list[nn.Parameter] = []
        self.direct: dict[nn.Module, set[nn.Parameter]] = {}
        self._numbers: list[int] = []
        self._owners: list[nn.Module | None] = []
        self._stack: list[nn.Module | None] = [None]
        handles = [
            torch_module.register_module_forward_pre_hook(self._before),
            torch_module.register_module_forward_hook(self._after, always_call=True),
            *(
                one.register_post_accumulate_grad_hook(self.gradients.append)
                for one in model.parameters()
                if one.requires_grad
            ),
        ]
        try:
            loss = loss_of()
            self._look_through(loss)
            self.forward = list(self.calls)
            loss.backward()
        finally:
            for handle in handles:
                handle.remove()
        model.zero_grad()

    def _before(self, module: nn.Module, args: Any) -> None:
        del args
        self.calls.append(module)
        self._stack.append(module)
        self._note()

    def _after(self, module: nn.Module, args: Any, outs: Any) -> None:
        del module, args, outs
        self._stack.pop()
        self._note()

    def _note(self) -> None:
        self._numbers.append(_get_sequence_nr())
        self._owners.append(self._stack[-1])

    def _look_through(self, loss: torch.Tensor) -> None:
        todo, seen = [loss.grad_fn], set()
        while todo:
            node = todo.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            at = sum(number <= node._sequence_nr() for number in self._numbers) - 1
            for below, _ in node.next_functions:
                if below is not None and below.name() == "torch::autograd::AccumulateGrad":
                    owner = self._owners[at] if at >= 0 else None
                    if owner is not None:
                        self.direct.setdefault(owner, set()).add(below.variable)
                else:
                    todo.append(below)


def run(model: nn.Module, loss_of: Callable[[], torch.Tensor]) -> ExecutionOrder:
    """The recorded order of one forward and backward."""
    with ModTracker(model) as tracker:
        with tracker.record_order():
            loss_of().backward()
        return tracker.execution_order


@pytest.mark.parametrize("name", MADE)
def test_every_call_and_parameter_is_told_as_hooks_see_it(name: str) -> None:
    """Forward, parameters used, gradients; twice, and the same both times."""
    torch.manual_seed(0)
    model, loss_of = MADE[name]()
    model.eval()  # without dropout, so that every run is alike
    if "checkpointed" in name:
        model.train()  # else nothing is recomputed; this one has no dropout
    witness = Witness(model, loss_of)
    order = run(model, loss_of)
    inside = set(model.modules())
    assert len(order.module_forward_order) == len(witness.forward)
    for ours, seen in zip(order.module_forward_order, witness.forward, strict=True):
        assert ours is seen if seen in inside else type(ours) is type(seen)  # made in the forward
    again = len(witness.calls) - len(witness.forward)
    assert len(order.recompute or ()) == again
    assert (again > 0) == ("checkpointed" in name)
    assert all(a is b for a, b in zip(order.param_backward_order, witness.gradients, strict=True))
    # Whoever got a gradient was used; of modules that ran once, each use is at the right module.
    assert set(witness.gradients) <= order.visited_params
    fqns = {call.fqn for call in order.forward or ()}
    assert {f"{fqn.rpartition('.')[0]}" for fqn in order.parameters or ()} & fqns
    if "checkpointed" not in name:  # what runs without gradients leaves no nodes
        check_direct(model, order, witness)
    assert run(model, loss_of).diff(order) is None


def check_direct(model: nn.Module, order: ExecutionOrder, witness: Witness) -> None:
    """Each module's own uses, against the graph's."""
    trained = {one for one in model.parameters() if one.requires_grad}
    counts = {one: witness.forward.count(one) for one in witness.forward}
    compared = 0
    for module, usages in order.module_to_param_usage_infos.items():
        if counts.get(module) == 1:
            ours = {p for one in usages if one.module is module for _, p in one.named_params}
            assert ours & trained & set(witness.gradients) == witness.direct.get(module, set())
            compared += bool(ours)
    assert compared > 5


def test_generation_of_text_runs_without_gradients() -> None:
    """`generate` of transformers: the prompt, then each token; which is one order."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    model, _ = architectures.llama(checkpointing=False)
    model.eval()
    with ModTracker(model) as tracker:
        with tracker.record_order():
            found = model.generate(
                architectures.TEXT[:1],
                max_new_tokens=3,
                do_sample=False,
                pad_token_id=0,
                eos_token_id=None,
            )
        order = tracker.execution_order
    assert found.shape == (1, 9)
    roots = [call for call in order.forward or () if call.parent is None]
    assert [call.fqn for call in roots] == ["LlamaForCausalLM"] * 3
    assert order.visited_params == set(model.parameters())
    assert order.gradients == []
    del transformers


def test_a_mixture_of_experts_differs_where_it_routes_differently() -> None:
    """The same model, other data, other experts: the first module that only one of them runs."""

    class MoE(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.router = nn.Linear(2, 2)
            self.experts = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
            self.head = nn.Linear(2, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            best = int(self.router(x).sum(0).argmax())
            return self.head(self.experts[best](x)).sum()

    model = MoE()
    with torch.no_grad():
        model.router.weight.copy_(torch.eye(2))
        model.router.bias.zero_()
    orders = [
        run(model, lambda x=x: model(x))
        for x in (torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]]))
    ]
    copied = copy.copy(orders[1])
    copied.name = "the other"
    found = orders[0].diff(copied)
    assert found is not None
    assert (found.sequence, found.position, found.before) == ("forward", 2, ("MoE", "MoE.router"))
    assert [side.fqn for side in found.sides] == ["MoE.experts.0", "MoE.experts.1"]
    assert found.inside == ("MoE",)
    assert str(found).splitlines() == [
        (
            "the forward differs at position 2, in MoE, after MoE.router: "
            "recorded: MoE.experts.0; the other: MoE.experts.1"
        ),
        "",
        "     recorded       the other",
        "  0  MoE            =",
        "  1  MoE.router     =",
        "> 2  MoE.experts.0  MoE.experts.1",
        "  3  MoE.head       MoE.head",
    ]
