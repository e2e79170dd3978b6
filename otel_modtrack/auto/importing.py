"""Calls back when the program has imported a module, and leaves nothing behind."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from otel_modtrack.auto.faults import complain

if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.machinery import ModuleSpec

__all__ = ["ImportWatch"]


class ImportWatch:
    """A finder on ``sys.meta_path`` that finds nothing itself, while something is waited for.

    A module that is there is told at once; one whose import fails, when a later import succeeds.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, Callable[[], None]] = {}
        self._looking = False

    def on(self, name: str, call: Callable[[], None]) -> None:
        """Call `call` once the module is imported. What it raises is said, and goes no further."""
        if sys.modules.get(name) is not None:
            _call(call)
            return
        self._waiting[name] = call
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def remove(self) -> None:
        """Wait for nothing."""
        self._waiting.clear()
        self._rest()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """What the other finders find, to be told when it is loaded. See `importlib.abc`."""
        if name not in self._waiting or self._looking:
            return None
        self._looking = True
        try:
            for finder in list(sys.meta_path):
                find = getattr(finder, "find_spec", None)
                spec: ModuleSpec | None = (
                    find(name, path, target) if find is not None and finder is not self else None
                )
                if spec is not None:
                    self._watch(name, spec.loader)
                    return spec
        finally:
            self._looking = False
        return None

    def _watch(self, name: str, loader: Any) -> None:
        """Have a module's own loader tell. It stays the loader: tools read ``__spec__``."""
        run = getattr(loader, "exec_module", None)
        if run is None or isinstance(loader, type) or not hasattr(loader, "__dict__"):
            return

        def exec_module(module: Any) -> None:
            vars(loader).pop("exec_module", None)
            run(module)
            call = self._waiting.pop(name, None)
            if not self._waiting:
                self._rest()
            if call is not None:
                _call(call)

        loader.exec_module = exec_module

    def _rest(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)


def _call(call: Callable[[], None]) -> None:
    try:
        call()
    except Exception as error:  # noqa: BLE001 - nothing of ours may reach the user
        complain(error)
