"""Names of a package that are loaded when they are asked for."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["lazily"]


def lazily(package: str, places: Mapping[str, str]) -> Callable[[str], Any]:
    """A package's ``__getattr__``, for what torch or the SDK would have to be loaded for.

    Args:
        package: its name.
        places: the module in it that has each name.
    """

    def get(name: str) -> Any:
        place = places.get(name)
        if place is None:
            msg = f"module {package!r} has no attribute {name!r}"
            raise AttributeError(msg)
        return getattr(importlib.import_module(f"{package}.{place}"), name)

    return get
