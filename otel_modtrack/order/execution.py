"""An order with the modules and parameters themselves, as FSDP's tracer gives it.

Source of the meaning: torch/distributed/fsdp/_trace_utils.py, ``_ExecutionInfo``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from otel_modtrack.order.model import Call, Order

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import nn

__all__ = ["Builder", "ExecutionOrder", "ParamUsage"]

NamedParams = list[tuple[str, "nn.Parameter"]]


class ParamUsage(NamedTuple):
    """Parameters that were used together.

    Either a module and what it used directly in one operation, with names as of the root; or a
    module that it called and all parameters of that one, with names as of that one.

    Attributes:
        module: the module itself, or one that it called.
        named_params: names and parameters.
        fqn: of `module`: ``GPT.layers.0``.
        param_fqns: of the parameters: ``GPT.layers.0.weight``.
    """

    module: nn.Module
    named_params: NamedParams
    fqn: str
    param_fqns: list[str]


@dataclass(eq=False)
class ExecutionOrder(Order):
    """What FSDP's tracer returns, beside the names of `Order`.

    Attributes:
        curr_module: the root.
        module_forward_order: the modules of `forward`, call by call; None in place of one that no
            longer lives.
        module_to_param_usage_infos: what each module used in its last call, in order.
        param_forward_order: the parameters of `parameters`.
        visited_params: the set of them.
        module_backward_order: the modules of `backward`; as in `module_forward_order`.
        param_backward_order: the parameters of `gradients`; as in `module_forward_order`.
    """

    curr_module: nn.Module | None = None
    module_forward_order: list[nn.Module | None] = field(default_factory=list)
    module_to_param_usage_infos: dict[nn.Module, list[ParamUsage]] = field(default_factory=dict)
    param_forward_order: list[nn.Parameter] = field(default_factory=list)
    visited_params: set[nn.Parameter] = field(default_factory=set)
    module_backward_order: list[nn.Module | None] = field(default_factory=list)
    param_backward_order: list[nn.Parameter | None] = field(default_factory=list)

    def __repr__(self) -> str:
        counts = [f"{len(self.forward or ())} forward calls"]
        if self.backward is not None:
            counts.append(f"{len(self.backward)} backward")
        counts.append(f"{len(self.parameters or ())} parameters")
        return f"<ExecutionOrder {self.name}: {', '.join(counts)}>"


class Builder:
    """Makes an `ExecutionOrder` of calls and uses, told in order.

    Args:
        name: of the order.
        fqn_of: the fqn of a parameter, beginning with the root's class.
    """

    def __init__(self, name: str, fqn_of: Callable[[nn.Parameter], str]) -> None:
        self._fqn_of = fqn_of
        self._calls: list[Call] = []
        self._parameters: list[str] = []
        self.order = ExecutionOrder(name, forward=self._calls, parameters=self._parameters)

    def call(
        self, module: nn.Module | None, fqn: str, parent: int | None = None, *, leaf: bool = False
    ) -> int:
        """A module is called.

        Args:
            module: it; None if it no longer lives.
            fqn: of it.
            parent: the call that it is called in; None for an outermost one.
            leaf: whether what it calls itself is not looked at.

        Returns:
            What `use` and further calls refer to it by.
        """
        order = self.order
        self._calls.append(Call(fqn, parent, leaf))
        order.module_forward_order.append(module)
        if order.curr_module is None:
            order.curr_module = module
        if module is not None:
            above = order.module_forward_order[parent] if parent is not None else None
            named = list(module.named_parameters())
            if above is not None and named:
                self._usage(above, module, named, fqn)
            order.module_to_param_usage_infos[module] = []
        return len(self._calls) - 1

    def use(self, call: int, named: Sequence[tuple[str, nn.Parameter]]) -> None:
        """A call uses parameters directly, together.

        Args:
            call: the call.
            named: the parameters, with names as of the root; of a leaf, as of the leaf.
        """
        order = self.order
        if not named:
            return
        module = order.module_forward_order[call]
        if module is not None:
            self._usage(module, module, list(named), self._calls[call].fqn)
        for _, parameter in named:
            if parameter not in order.visited_params:
                order.visited_params.add(parameter)
                order.param_forward_order.append(parameter)
                self._parameters.append(self._fqn_of(parameter))

    def _usage(self, user: nn.Module, module: nn.Module, named: NamedParams, fqn: str) -> None:
        fqns = [self._fqn_of(parameter) for _, parameter in named]
        infos = self.order.module_to_param_usage_infos
        infos.setdefault(user, []).append(ParamUsage(module, named, fqn, fqns))
