"""In which order modules ran and parameters were used.

Names only, so that an order can be written to a file, read by a machine without torch, and sent
to other processes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from otel_modtrack.order.difference import Difference, first_difference
from otel_modtrack.order.sequences import CALLS, NAMES
from otel_modtrack.usage import UsageError

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Sequence

__all__ = ["Call", "Order", "read_order"]

_VERSION: Final = 1
_KEY: Final = "modtrack_order"  # its value is the version


@dataclass(frozen=True, slots=True)
class Call:
    """One call of one module.

    Attributes:
        fqn: of the module: ``GPT.layers.0.mlp``; "" where it is not known, because its span was
            folded into another's. An unknown call differs from none.
        parent: position of the call that it ran in, in the same sequence; None where it is an
            outermost one.
        leaf: whether what it called itself was not looked at, as a symbolic trace does not.
    """

    fqn: str
    parent: int | None = None
    leaf: bool = False


@dataclass
class Order:
    """The order of one step, or of one forward and backward.

    What is not known is None, and is not compared: parameters in a trace file, for one.

    Attributes:
        name: what a report calls it: ``rank 1``, ``step 7``, ``symbolic``.
        forward: the forward calls of the modules, as they began.
        recompute: likewise, of the forwards that ran again in the backward.
        backward: the modules, as their backward began.
        parameters: the fqns of the parameters, by their first use in the forward.
        gradients: the fqns of the parameters, as they received gradients.
        step: number of the training step, if it is one.
        rank: of the process, where there are several.
    """

    name: str = "order"
    forward: Sequence[Call] | None = None
    recompute: Sequence[Call] | None = None
    backward: Sequence[Call] | None = None
    parameters: Sequence[str] | None = None
    gradients: Sequence[str] | None = None
    step: int | None = None
    rank: int | None = None

    @property
    def module_forward_fqns(self) -> list[str]:
        """The fqns of `forward`; none where it is not known."""
        return [call.fqn for call in self.forward or ()]

    @property
    def module_backward_fqns(self) -> list[str]:
        """The fqns of `backward`; none where it is not known."""
        return [call.fqn for call in self.backward or ()]

    def diff(self, other: Order, *more: Order) -> Difference | None:
        """Where this and the others first differ; None if they agree in all that they know.

        Compared are, in this order: forward, recompute, backward, parameters, gradients.

        Args:
            other: the order to compare with.
            more: further ones, as of other ranks.
        """
        return first_difference([self, other, *more])

    def as_dict(self) -> dict[str, Any]:
        """What `read_order` and `from_dict` take: plain lists, numbers and strings."""
        found: dict[str, Any] = {_KEY: _VERSION, "name": self.name}
        for key in ("step", "rank", *NAMES):
            value = getattr(self, key)
            if value is not None:
                found[key] = list(value) if key in NAMES else value
        for key in CALLS:
            calls = getattr(self, key)
            if calls is not None:
                found[key] = [
                    [call.fqn, call.parent, *([True] if call.leaf else [])] for call in calls
                ]
        return found

    @staticmethod
    def from_dict(found: dict[str, Any]) -> Order:
        """The order that `as_dict` has made a dict of.

        Raises:
            ValueError: if it is none.
        """
        if not isinstance(found, dict) or found.get(_KEY) != _VERSION:
            msg = f"it has no {_KEY!r} of {_VERSION}"
            raise ValueError(msg)
        order = Order(str(found.get("name", "order")))
        for key in ("step", "rank"):
            setattr(order, key, _number(found.get(key), key))
        for key in NAMES:
            if key in found:
                setattr(order, key, [_text(name, key) for name in _list(found[key], key)])
        for key in CALLS:
            if key in found:
                setattr(order, key, _calls(_list(found[key], key), key))
        return order

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the order to a file, as one JSON document; `read_order` reads it.

        Raises:
            OSError: if the file cannot be written.
        """
        Path(path).write_text(json.dumps(self.as_dict()) + "\n", encoding="utf-8")


def read_order(path: str | os.PathLike[str]) -> Order:
    """Read an order that `Order.save` wrote.

    Raises:
        UsageError: if the file cannot be read, or holds something else.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        msg = f"cannot read {path}: {error.strerror}; give a file that Order.save wrote"
        raise UsageError(msg) from None
    except UnicodeDecodeError:
        msg = f"{path} is no order: it is no text; give a file that Order.save wrote"
        raise UsageError(msg) from None
    try:
        return Order.from_dict(json.loads(text))
    except (ValueError, RecursionError) as error:  # json's errors are ValueErrors
        msg = f"{path} is no order: {error}; give a file that Order.save wrote"
        raise UsageError(msg) from None


def _list(value: Any, key: str) -> list[Any]:
    if not isinstance(value, list):
        msg = f"{key!r} is no list"
        raise ValueError(msg)  # noqa: TRY004 - what is wrong is a value in a file
    return value


def _text(value: Any, key: str) -> str:
    if not isinstance(value, str):
        msg = f"{key!r} has something that is no name"
        raise ValueError(msg)  # noqa: TRY004
    return value


def _number(value: Any, key: str) -> int | None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    msg = f"{key!r} is no number"
    raise ValueError(msg)


def _calls(rows: Iterable[Any], key: str) -> list[Call]:
    found: list[Call] = []
    for row in rows:
        if not isinstance(row, list) or not 1 <= len(row) <= 3:  # noqa: PLR2004 - fqn, parent, leaf
            msg = f"{key!r} has something that is no call"
            raise ValueError(msg)
        parent = _number(row[1] if len(row) > 1 else None, key)
        if parent is not None and not 0 <= parent < len(found):
            msg = f"{key!r} has a call in one that comes later"
            raise ValueError(msg)
        found.append(Call(_text(row[0], key), parent, len(row) > 2 and bool(row[2])))  # noqa: PLR2004
    return found
