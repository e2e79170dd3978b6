"""The order that torch.fx finds, without running the model.

Source of the meaning: torch/distributed/fsdp/_trace_utils.py, ``_ExecOrderTracer``.
"""

from __future__ import annotations

import inspect
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn

from otel_modtrack.names import unwrapped
from otel_modtrack.order.fx_error import OrderError, sentence
from otel_modtrack.order.fx_log import Fqns, Log
from otel_modtrack.order.unchanged import (
    patched,
    set_distributed_hooks_aside,
    unchanged,
    uncompiled,
    unrecorded,
)

if TYPE_CHECKING:
    from otel_modtrack.order.execution import ExecutionOrder

__all__ = ["OrderError", "TracingConfig", "trace_execution_order"]

_METHODS: Final = ("trace", "call_module", "create_proxy")
_FLAT: Final = ("torch.distributed.fsdp.fully_sharded_data_parallel", "FullyShardedDataParallel")


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
    fqns = Fqns(model, root)
    _check_model(model, fqns)
    _check_arguments(root, fqns, tracer, concrete_args or {})
    log = Log(root)
    given = {} if concrete_args is None else {"concrete_args": dict(concrete_args)}
    try:
        with unrecorded(), unchanged(root), patched(tracer, log), uncompiled():
            set_distributed_hooks_aside(root)
            with warnings.catch_warnings():  # of the graph, which nobody runs
                warnings.filterwarnings("ignore", "Was not able to add assertion")
                tracer.trace(root, **given)
    except Exception as error:
        raise OrderError(sentence(error, log, fqns, tracer)) from error
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


def _check_model(model: nn.Module, fqns: Fqns) -> None:
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
    root: nn.Module, fqns: Fqns, tracer: Any, concrete_args: dict[str, Any]
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
