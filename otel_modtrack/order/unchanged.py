"""Leaves everything as it was before a model was traced."""

from __future__ import annotations

import collections
import contextlib
import functools
import random
import sys
from typing import TYPE_CHECKING, Any, Final

import torch

from otel_modtrack.core import CORE, THREADS
from otel_modtrack.order.fx_log import PATCHED

if TYPE_CHECKING:
    import types
    from collections.abc import Callable, Iterable, Iterator

    from torch import nn

    from otel_modtrack.order.fx_log import Log

__all__ = ["patched", "set_distributed_hooks_aside", "unchanged", "uncompiled", "unrecorded"]

# Whose hooks on modules gather parameters and exchange tensors with other ranks.
_DISTRIBUTED: Final = ("torch.distributed.", "deepspeed.")
_CONTAINERS: Final = (
    dict,
    list,
    set,
    collections.OrderedDict,
    collections.defaultdict,
    collections.deque,
)


@contextlib.contextmanager
def unrecorded() -> Iterator[None]:
    """No call on this thread is a region, as if its request were not sampled."""
    state = THREADS.state
    unsampled = state.skip and CORE.on
    try:
        state.skip = True
        yield
    finally:
        state.skip = unsampled or not CORE.on


@contextlib.contextmanager
def patched(tracer: Any, log: Log) -> Iterator[None]:
    """The tracer tells the log what it meets. If tracing fails, all of it is then as it was."""
    space = vars(tracer)
    before = {one: space[one] for one in PATCHED if one in space}
    put_back = _kept([tracer])
    repair = _kept_callables([torch, sys.modules.get(type(log.root).__module__)])
    done = False
    try:
        for one in PATCHED:
            if hasattr(tracer, one):
                space[one] = log.around(one, getattr(tracer, one))
        yield
        done = True
    finally:
        if done:
            for one in PATCHED:
                space.pop(one, None)
            space.update(before)
        else:
            put_back()
            repair()


@contextlib.contextmanager
def unchanged(root: nn.Module) -> Iterator[None]:
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
def uncompiled() -> Iterator[None]:
    """What is compiled is traced as if it were not."""
    config: Any = getattr(sys.modules.get("torch._dynamo"), "config", None)
    with contextlib.ExitStack() as patches:
        if config is not None:
            patches.enter_context(config.patch(error_on_nested_fx_trace=False))
        yield


def set_distributed_hooks_aside(root: nn.Module) -> None:
    """Nothing is gathered for modules whose parameters are sharded. `unchanged` undoes it."""
    for module in root.modules():
        for hooks in (module._forward_pre_hooks, module._forward_hooks):  # noqa: SLF001
            for key, hook in list(hooks.items()):
                while isinstance(hook, functools.partial):
                    hook = hook.func  # noqa: PLW2901
                if str(getattr(hook, "__module__", "")).startswith(_DISTRIBUTED):
                    del hooks[key]
