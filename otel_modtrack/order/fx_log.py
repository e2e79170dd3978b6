"""What a tracer of torch.fx meets: calls of modules, and operations on parameters.

Source of the meaning: torch/distributed/fsdp/_trace_utils.py, ``_ExecOrderTracer``.
"""

from __future__ import annotations

import functools
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn
from torch.fx.node import Node, map_aggregate, map_arg

from otel_modtrack.core import CORE
from otel_modtrack.names import Names, unwrapped
from otel_modtrack.order.asking import ASKED
from otel_modtrack.order.execution import Builder, ExecutionOrder

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["PATCHED", "Fqns", "Log"]

PATCHED: Final = ("call_module", "create_proxy", "getattr")
_ASKING: Final = (torch.numel, torch.is_floating_point, torch.is_complex, torch.is_signed)


class Fqns:
    """The names that spans have: those that are known already, else those that they would get.

    Args:
        model: as it was given.
        root: what is in its wrappers.
    """

    def __init__(self, model: nn.Module, root: nn.Module) -> None:
        self._own = Names()
        base = self._own.name(model).fqn
        above = CORE.names.fqn(root) or base
        self._modules: dict[nn.Module, str] = {}
        self._parameters: dict[nn.Parameter, str] = {}
        for module in root.modules():
            fqn = CORE.names.fqn(module)
            if fqn is None:
                fqn = above + (self._own.fqn(module) or base)[len(base) :]
            self._modules[module] = fqn
            for name, parameter in module._parameters.items():  # noqa: SLF001
                if parameter is not None:
                    self._parameters.setdefault(parameter, f"{fqn}.{name}")

    def of(self, module: nn.Module) -> str:
        """``GPT.layers.0``."""
        return self._modules.get(module) or self._own.name(module).fqn

    def of_parameter(self, parameter: nn.Parameter) -> str:
        """``GPT.layers.0.weight``: the first, where it has several."""
        return self._parameters.get(parameter, "?")


@dataclass(slots=True)
class _Called:
    """One call.

    Attributes:
        module: what was called.
        parent: position of the call that it was called in.
        leaf: whether the tracer did not look into it.
    """

    module: nn.Module
    parent: int | None = None
    leaf: bool = False


class Log:
    """What the tracer meets on the thread that it is made on.

    Args:
        root: the model.
    """

    def __init__(self, root: nn.Module) -> None:
        self.root = root
        self._thread = threading.get_ident()
        self._names: dict[nn.Parameter, str] = {one: n for n, one in root.named_parameters()}
        self._parameters = dict(root.named_parameters(remove_duplicate=False))
        self._modules = dict(root.named_modules(remove_duplicate=False))
        self._tree = set(map(id, root.modules()))
        self._made: set[Node] = set()  # by operations
        self._making = 0  # how many operations are being made
        self._running = 0
        self._calls = [_Called(root)]
        # A call begins, or uses these.
        self._events: list[tuple[int, list[tuple[str, nn.Parameter]] | None]] = [(0, None)]
        self._failed: tuple[BaseException, nn.Module] | None = None

    def order(self, name: str, fqns: Fqns) -> ExecutionOrder:
        """What was met.

        Args:
            name: of the order.
            fqns: of modules and parameters.
        """
        builder = Builder(name, fqns.of_parameter)
        for at, used in self._events:
            call = self._calls[at]
            if used is None:
                builder.call(call.module, fqns.of(call.module), call.parent, leaf=call.leaf)
            else:
                builder.use(at, used)
        return builder.order

    def module_of(self, error: BaseException) -> nn.Module:
        """The innermost module that an exception has left."""
        if self._failed is not None and self._failed[0] is error:
            return self._failed[1]
        return self.root

    def around(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        """What is called in place of a method of the tracer.

        Args:
            name: one of `PATCHED`.
            original: the method.
        """
        if name == "call_module":
            return self._around_call_module(original)
        if name == "create_proxy":
            return self._around_create_proxy(original)
        return self._around_getattr(original)

    def _around_getattr(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def getattr_(attr: str, attr_val: Any, *args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != self._thread:  # fx patches nn.Module for all threads
                return attr_val
            return original(attr, attr_val, *args, **kwargs)

        return getattr_

    def _around_call_module(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call_module(
            m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: dict[str, Any]
        ) -> Any:
            if threading.get_ident() != self._thread:
                return forward(*args, **kwargs)
            if self._making:  # the tracer tries what it has made: no call of the model's
                return original(m, forward, args, kwargs)
            inner = unwrapped(m)
            if inner is not m:
                return inner(*args, **kwargs)
            map_aggregate((args, kwargs), _settle)
            above = self._running
            self._running = at = len(self._calls)
            self._calls.append(_Called(m, above))
            self._events.append((at, None))
            try:
                out = original(m, forward, args, kwargs)
                call = self._calls[at]
                if isinstance(m, torch.jit.ScriptModule) and not call.leaf:
                    self._use_all(call)
            except BaseException as error:
                if self._failed is None or self._failed[0] is not error:
                    known = id(m) in self._tree  # else its caller has made it just now
                    self._failed = (error, m if known else self._calls[above].module)
                raise
            finally:
                self._running = above
            return out

        return call_module

    def _around_create_proxy(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def create_proxy(*args: Any, **kwargs: Any) -> Any:
            self._making += 1
            try:
                proxy = original(*args, **kwargs)
            finally:
                self._making -= 1
            node = getattr(proxy, "node", None)
            if isinstance(node, Node) and node not in self._made:
                self._made.add(node)
                self._meet(node)
            return proxy

        return create_proxy

    def _meet(self, node: Node) -> None:
        """An operation was made."""
        if node.op == "call_module":
            self._use_all(self._calls[self._running])
        elif node.op in ("call_function", "call_method") and not _asks(node):
            used = self._inputs(node)
            self._use([(self._names[one], one) for one in used])

    def _use_all(self, call: _Called) -> None:
        """The call that is running is not looked into."""
        call.leaf = True
        self._use(list(call.module.named_parameters()))

    def _use(self, named: list[tuple[str, nn.Parameter]]) -> None:
        if named:
            self._events.append((self._running, named))

    def _inputs(self, node: Node) -> list[nn.Parameter]:
        """The parameters that an operation takes, as often as it takes them."""
        found: list[nn.Parameter] = []

        def visit(one: Node) -> Node:
            if one.op == "get_attr":
                parameter = self._parameters.get(str(one.target))
                if parameter is not None:
                    found.append(parameter)
                elif one.target in self._modules:
                    found.extend(self._modules[one.target].parameters())
            elif one not in self._made:  # no operation: fx makes it of a named tuple
                self._made.add(one)
                found.extend(self._inputs(one))
            return one

        map_arg((node.args, node.kwargs), visit)
        return found


def _asks(node: Node) -> bool:
    """Whether an operation only asks something of a tensor."""
    if node.op == "call_method":
        return node.target in ASKED
    if node.target is getattr:
        return len(node.args) > 1 and node.args[1] in ASKED
    return node.target in _ASKING


def _settle(value: Any) -> Any:
    """An attribute of a proxy (``self.w.T``) is an operation: of the one who has asked for it."""
    if isinstance(value, torch.fx.Proxy):
        _ = value.node
    return value
