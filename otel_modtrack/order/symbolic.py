"""The order that torch.fx finds, without running the model.

Source of the meaning: torch/distributed/fsdp/_trace_utils.py, ``_ExecOrderTracer``.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import inspect
import linecache
import os
import random
import sys
import sysconfig
import threading
import traceback
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn
from torch.fx.node import Node, map_aggregate, map_arg

from otel_modtrack.core import CORE, THREADS
from otel_modtrack.names import Names, unwrapped
from otel_modtrack.order.asking import ASKED
from otel_modtrack.order.execution import Builder, ExecutionOrder
from otel_modtrack.usage import UsageError

if TYPE_CHECKING:
    import types
    from collections.abc import Callable, Iterable, Iterator

__all__ = ["OrderError", "TracingConfig", "trace_execution_order"]

_METHODS: Final = ("trace", "call_module", "create_proxy")
_PATCHED: Final = ("call_module", "create_proxy", "getattr")
_MENDS: Final = (
    "give concrete_args for what this depends on, or another tracer, or record a real forward with"
    " ModTracker.record_order()"
)
_MESSAGE_LENGTH: Final = 200  # of another's message in ours, at most
_NOT_CALLABLE: Final = "varnames is too small"  # fx has put the inner function's count on the outer

_ASKING: Final = (torch.numel, torch.is_floating_point, torch.is_complex, torch.is_signed)

# Whose hooks on modules gather parameters and exchange tensors with other ranks.
_DISTRIBUTED: Final = ("torch.distributed.", "deepspeed.")
_FLAT: Final = ("torch.distributed.fsdp.fully_sharded_data_parallel", "FullyShardedDataParallel")

_CONTAINERS: Final = (
    dict,
    list,
    set,
    collections.OrderedDict,
    collections.defaultdict,
    collections.deque,
)
_STDLIB: Final = sysconfig.get_path("stdlib")
_TORCH: Final = str(Path(torch.__file__).parent)
_FX: Final = str(Path(_TORCH, "fx"))
_DYNAMO: Final = str(Path(_TORCH, "_dynamo"))
_OURS: Final = str(Path(__file__).parents[1])


class OrderError(UsageError):
    """A model cannot be traced.

    The message is one sentence that names the module, the line at which tracing stopped, and the
    mend.
    """


@dataclass
class TracingConfig:
    """How a model is traced; torch's own (``torch.distributed.fsdp._trace_utils``) will do as well.

    Attributes:
        tracer: an instance of `torch.fx.Tracer` or of a subclass, as HFTracer of transformers 4.
        concrete_args: values of forward's arguments, by name, that are to be as they are, so that
            control flow can depend on them.
    """

    tracer: torch.fx.Tracer = field(default_factory=torch.fx.Tracer)
    concrete_args: dict[str, Any] | None = None


def trace_execution_order(
    model: nn.Module, config: Any = None, *, name: str = "symbolic"
) -> ExecutionOrder:
    """In which order a model's modules are called and its parameters used, found without running.

    The forward is traced with torch.fx. What it returns is what FSDP's tracer returns, with fqns
    beside; of what that one misses or mistakes, this one tells as well: parameters that are handed
    over by keyword or in lists, and under their second name. Modules that the tracer does not look
    into (those of torch.nn) are called as a whole and use all parameters that they have.

    Wrappers (DistributedDataParallel, `torch.compile`, activation checkpointing) are looked
    through, and nothing is launched for sharded parameters. Neither the model nor the state of
    random numbers is changed. No span is made of what runs meanwhile, and the calls of other
    threads are left alone.

    Args:
        model: the model.
        config: a `TracingConfig`, or what has its attributes; or a dict, which is its
            `concrete_args`. The tracer has the graph afterwards, as after its ``trace``.
        name: of the order in reports.

    Returns:
        Forward and parameters; it knows nothing of a backward.

    Raises:
        OrderError: if the model cannot be traced. The tracer is then as it was.
        TypeError: if an argument is no such thing.
    """
    tracer, concrete_args = _checked(model, config)
    root = unwrapped(model)
    fqns = _Fqns(model, root)
    _check_model(model, fqns)
    _check_arguments(root, fqns, tracer, concrete_args or {})
    log = _Log(root)
    given = {} if concrete_args is None else {"concrete_args": dict(concrete_args)}
    try:
        with _unrecorded(), _unchanged(root), _patched(tracer, log), _uncompiled():
            _set_distributed_hooks_aside(root)
            with warnings.catch_warnings():  # of the graph, which nobody runs
                warnings.filterwarnings("ignore", "Was not able to add assertion")
                tracer.trace(root, **given)
    except Exception as error:
        raise OrderError(_sentence(error, log, fqns, tracer)) from error
    return log.order(name, fqns)


# -- what is given --------------------------------------------------------------------------------


def _checked(model: Any, config: Any) -> tuple[Any, dict[str, Any] | None]:
    """The tracer, and the concrete arguments."""
    what = "trace_execution_order"
    if not isinstance(model, nn.Module):
        found = f"the class {model.__name__}" if isinstance(model, type) else type(model).__name__
        msg = f"{what}(model): a torch.nn.Module is wanted, not {found}"
        raise TypeError(msg)
    if config is None or isinstance(config, dict):
        config = TracingConfig(concrete_args=config)
    if not (hasattr(config, "tracer") and hasattr(config, "concrete_args")):
        msg = (
            f"{what}(model, config): a TracingConfig or a dict of concrete arguments is wanted, not"
            f" {type(config).__name__}"
        )
        raise TypeError(msg)
    tracer, concrete_args = config.tracer, config.concrete_args
    missing = [one for one in _METHODS if not callable(getattr(tracer, one, None))]
    if isinstance(tracer, type) or missing:
        found = (
            f"the class {tracer.__name__}"
            if isinstance(tracer, type)
            else f"{type(tracer).__name__}, which has no {missing[0]}()"
        )
        msg = f"TracingConfig(tracer=...): an instance of torch.fx.Tracer is wanted, not {found}"
        raise TypeError(msg)
    if concrete_args is not None and not isinstance(concrete_args, dict):
        msg = (
            "TracingConfig(concrete_args=...): a dict of forward's arguments by name is wanted, not"
            f" {type(concrete_args).__name__}"
        )
        raise TypeError(msg)
    return tracer, concrete_args


def _check_model(model: nn.Module, fqns: _Fqns) -> None:
    """A tracer would find no parameters, in silence.

    Raises:
        OrderError: if they are where they cannot be seen.
    """
    for module in model.modules():
        classes = [(base.__module__, base.__qualname__) for base in type(module).__mro__]
        if _FLAT in classes and not vars(module).get("_use_orig_params", True):
            inner = unwrapped(module)
            msg = (
                f"{fqns.of(inner)} ({type(inner).__name__}) cannot be traced:"
                " FullyShardedDataParallel holds its parameters flat; wrap it with"
                " use_orig_params=True, trace the model before it is wrapped, or record a real"
                " forward with ModTracker.record_order()"
            )
            raise OrderError(msg)


def _check_arguments(
    root: nn.Module, fqns: _Fqns, tracer: Any, concrete_args: dict[str, Any]
) -> None:
    """A tracer would pass over what it does not know, in silence.

    Raises:
        OrderError: if forward has no such argument.
    """
    forward = getattr(type(root), getattr(tracer, "traced_func_name", "forward"), None)
    if not concrete_args or not callable(forward):
        return
    arguments = list(inspect.signature(inspect.unwrap(forward)).parameters)[1:]  # not self
    known = {star + one for one in arguments for star in ("", "*", "**")}
    unknown = [one for one in concrete_args if one not in known]
    if unknown:
        msg = (
            f"{fqns.of(root)} ({type(root).__name__}) cannot be traced: concrete_args names"
            f" {unknown[0]!r}, which is no argument of its forward; name one of"
            f" {', '.join(arguments)}"
        )
        raise OrderError(msg)


class _Fqns:
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


# -- what the tracer meets ------------------------------------------------------------------------


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


class _Log:
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

    def order(self, name: str, fqns: _Fqns) -> ExecutionOrder:
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
            name: one of `_PATCHED`.
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


# -- what is as before ----------------------------------------------------------------------------


@contextlib.contextmanager
def _unrecorded() -> Iterator[None]:
    """No call on this thread is a region, as if its request were not sampled."""
    state = THREADS.state
    unsampled = state.skip and CORE.on
    try:
        state.skip = True
        yield
    finally:
        state.skip = unsampled or not CORE.on


@contextlib.contextmanager
def _patched(tracer: Any, log: _Log) -> Iterator[None]:
    """The tracer tells the log what it meets. If tracing fails, all of it is then as it was."""
    space = vars(tracer)
    before = {one: space[one] for one in _PATCHED if one in space}
    put_back = _kept([tracer])
    repair = _kept_callables([torch, sys.modules.get(type(log.root).__module__)])
    done = False
    try:
        for one in _PATCHED:
            if hasattr(tracer, one):
                space[one] = log.around(one, getattr(tracer, one))
        yield
        done = True
    finally:
        if done:
            for one in _PATCHED:
                space.pop(one, None)
            space.update(before)
        else:
            put_back()
            repair()


@contextlib.contextmanager
def _unchanged(root: nn.Module) -> Iterator[None]:
    """What tracing does to a model, and to the state of random numbers, is undone.

    fx puts constants on the root, HFTracer modules; code that is traced may put proxies anywhere,
    and count in buffers.
    """
    put_back = _kept(root.modules())
    buffers = [(one, _version(one), one.detach().clone()) for one in root.buffers()]
    generators = [torch.default_generator]
    for backend in ("cuda", "xpu"):
        generators += getattr(getattr(torch, backend, None), "default_generators", ())
    states = [one.get_state() for one in generators]
    python = random.getstate()
    try:
        yield
    finally:
        random.setstate(python)
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)
        put_back()
        for buffer, version, value in buffers:
            if version is None:
                with torch.inference_mode():
                    buffer.copy_(value)
            elif buffer._version != version:  # noqa: SLF001
                buffer.data.copy_(value)


def _version(tensor: torch.Tensor) -> int | None:
    """Changes as the tensor does; None where torch does not count."""
    return None if tensor.is_inference() else tensor._version  # noqa: SLF001


def _kept(owners: Iterable[object]) -> Callable[[], None]:
    """What puts objects' attributes back, and what is in those that are plain containers."""
    spaces = [vars(owner) for owner in owners]
    held = (value for space in spaces for value in space.values() if type(value) in _CONTAINERS)
    saved: list[tuple[Any, Any]] = [(one, one.copy()) for one in (*spaces, *held)]

    def put_back() -> None:
        for one, before in saved:
            if not _same(one, before):
                one.clear()
                (one.update if isinstance(one, (dict, set)) else one.extend)(before)

    return put_back


def _same(one: Any, other: Any) -> bool:
    """Whether containers hold the same objects."""
    if len(one) != len(other):
        return False
    if isinstance(one, set):
        return bool(one == other)
    if isinstance(one, dict):
        one = [part for item in one.items() for part in item]
        other = [part for item in other.items() for part in item]
    return all(a is b for a, b in zip(one, other, strict=True))


def _kept_callables(modules: Iterable[types.ModuleType | None]) -> Callable[[], None]:
    """What puts functions and classes of modules back: a tracer that fails may leave its own."""
    spaces = [vars(module) for module in modules if module is not None]
    saved = [{k: v for k, v in dict(space).items() if callable(v)} for space in spaces]

    def put_back() -> None:
        for space, before in zip(spaces, saved, strict=True):
            space.update({k: v for k, v in before.items() if space.get(k) is not v})

    return put_back


@contextlib.contextmanager
def _uncompiled() -> Iterator[None]:
    """What is compiled is traced as if it were not."""
    config: Any = getattr(sys.modules.get("torch._dynamo"), "config", None)
    with contextlib.ExitStack() as patches:
        if config is not None:
            patches.enter_context(config.patch(error_on_nested_fx_trace=False))
        yield


def _set_distributed_hooks_aside(root: nn.Module) -> None:
    """Nothing is gathered for modules whose parameters are sharded. `_unchanged` undoes it."""
    for module in root.modules():
        for hooks in (module._forward_pre_hooks, module._forward_hooks):  # noqa: SLF001
            for key, hook in list(hooks.items()):
                while isinstance(hook, functools.partial):
                    hook = hook.func  # noqa: PLW2901
                if str(getattr(hook, "__module__", "")).startswith(_DISTRIBUTED):
                    del hooks[key]


# -- what went wrong ------------------------------------------------------------------------------


def _sentence(error: Exception, log: _Log, fqns: _Fqns, tracer: Any) -> str:
    module = log.module_of(error)
    what = f"{fqns.of(module)} ({type(module).__name__}) cannot be traced"
    if type(tracer) is not torch.fx.Tracer:
        what += f" by {type(tracer).__name__}"
    reason = type(error).__name__
    said = (str(error).strip().splitlines() or [""])[0].rstrip(". ")
    if _NOT_CALLABLE in said:
        reason = "its forward is decorated and takes *args or **kwargs, which torch.fx cannot call"
    elif said:
        reason += f": {said[:_MESSAGE_LENGTH]}"
    return f"{what}{_place(error, log.root, tracer)}: {reason}; {_MENDS}"


def _place(error: Exception, root: nn.Module, tracer: Any) -> str:
    """The innermost line of the program's own, and what is there.

    Of the forward if none was reached, or "".
    """
    homes = {type(module).__module__ for module in root.modules()}
    tracers = {base.__module__ for base in type(tracer).__mro__} - homes
    packages = {home.partition(".")[0] for home in homes} - {"torch"}
    found = torchs = None
    for frame, number in traceback.walk_tb(error.__traceback__):
        file = frame.f_code.co_filename
        home = str(frame.f_globals.get("__name__"))
        if home in tracers or frame.f_locals.get("self") is tracer:
            continue
        if _is_in(file, _OURS) and home not in homes:
            continue
        if _is_in(file, _TORCH):
            if not _is_in(file, _FX) and not _is_in(file, _DYNAMO):
                torchs = (file, number)
        elif home.partition(".")[0] in packages or not _is_installed(file):
            found = (file, number)
    found = found or torchs  # a module of torch.nn is the root, or is looked into
    if found is None:
        forward = getattr(type(root), "forward", None)
        code = getattr(inspect.unwrap(forward), "__code__", None) if callable(forward) else None
        if code is None:
            return ""
        found = (code.co_filename, code.co_firstlineno)
    text = linecache.getline(*found).strip()
    return f" at {found[0]}:{found[1]}" + (f" (`{text}`)" if text else "")


def _is_installed(file: str) -> bool:
    """Whether a file is of Python's or of an installed package."""
    parts = Path(file).parts
    return "site-packages" in parts or "dist-packages" in parts or _is_in(file, _STDLIB)


def _is_in(file: str, folder: str) -> bool:
    return file.startswith(folder + os.sep)
