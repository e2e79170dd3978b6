"""Hangs a log on the graph that it describes, through the output tensors of a call."""

from __future__ import annotations

import logging
import types
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from otel_modtrack.core import METADATA_KEY
from otel_modtrack.interrupts import from_signal_handler

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_modtrack.core import Stretch

__all__ = ["hang"]

logger = logging.getLogger("otel_modtrack")

# How much of a call's output is looked through. What lies beyond is still among the recent.
_MAX_OUTPUTS = 1000
_NOT_LOOKED_INTO = (type, nn.Module, str, bytes, int, float, complex, type(None))


def hang(stretch: Stretch, outs: Any) -> None:
    """Let the graph of `outs` keep `stretch` alive: the log dies with the last node it is on.

    A view's own node is made anew when it is asked for after an in-place operation, which would
    change the order of the graph: its base's node serves as well, and lives as long.
    """
    try:
        with torch._C.DisableTorchFunction():  # noqa: SLF001 - not the user's to notice
            for tensor in _tensors(outs):
                holder = tensor._base if tensor._is_view() else tensor  # noqa: SLF001
                node = holder.grad_fn if holder is not None else None
                if node is not None:
                    node.metadata[METADATA_KEY] = stretch  # type: ignore[index]
                    stretch.hung.add(node._sequence_nr())  # noqa: SLF001
    except Exception as error:
        if from_signal_handler(error):
            raise
        logger.debug("the outputs could not be looked through", exc_info=True)


def _tensors(outs: Any) -> Iterator[torch.Tensor]:
    """Tensors in the usual containers, and one level deep in objects of the user's classes.

    Runs no code of the user's: methods of the built-in classes, on their instances.
    """
    todo = [outs]
    for _ in range(_MAX_OUTPUTS):
        if not todo:
            return
        value = todo.pop()
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list):
            todo.extend(list.__iter__(value))
        elif isinstance(value, tuple):
            todo.extend(tuple.__iter__(value))
        elif isinstance(value, dict):
            todo.extend(dict.values(value))
        elif value is outs or not isinstance(value, _NOT_LOOKED_INTO):
            todo.extend(
                part
                for part in _attributes(value).values()
                if isinstance(part, (torch.Tensor, list, tuple, dict))
            )


def _attributes(value: object) -> dict[str, Any]:
    """What an object holds, without asking its class."""
    for base in type(value).__mro__:
        found = base.__dict__.get("__dict__")
        if isinstance(found, types.GetSetDescriptorType):
            held: dict[str, Any] = found.__get__(value)
            return held
        if found is not None:  # a property of the user's
            break
    return {}
