"""Process groups: what is said of them, and how new ones are seen."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed import distributed_c10d as c10d

from otel_modtrack.comm.records import Group
from otel_modtrack.interrupts import from_signal_handler

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["GroupWatch", "Groups", "existing_groups"]

_NO_DESCRIPTION = "undefined"
_NAMELESS = ("", "custom")
# Where torch's own code looks up what every new group is registered by.
_REGISTER = "_register_process_group"


class Groups:
    """What is said of each living group, by ``id``: an entry goes when its group does."""

    def __init__(self) -> None:
        self._known: dict[int, Group] = {}
        self._refs: dict[int, weakref.ref[Any]] = {}

    def of(self, group: Any) -> Group:
        """The description of a `ProcessGroup`, made when it is first asked for."""
        key = id(group)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = _describe(group)
            known, refs = self._known, self._refs

            def forget(_: object) -> None:
                known.pop(key, None)
                refs.pop(key, None)

            refs[key] = weakref.ref(group, forget)
        return found

    def backend(self, described: Group, device: str) -> str:
        """Name of the backend that serves a type of device; of the first one, where that is "".

        Asked for when it is needed: a group is registered before its backends are.
        """
        found = described.backends.get(device)
        if found is None:
            group = next(
                (ref() for key, ref in self._refs.items() if self._known.get(key) is described),
                None,
            )
            found = described.backends[device] = _backend(group, device)
        return found


def _describe(group: Any) -> Group:
    name = _asked(lambda: group.group_name)
    description = _asked(lambda: group.group_desc)
    return Group(name, int(group.size()), "" if description == _NO_DESCRIPTION else description)


def _backend(group: Any, device: str) -> str:
    def served() -> str:
        kind = device
        if not kind and group._device_types:  # noqa: SLF001
            kind = group._device_types[0].type  # noqa: SLF001
        return group._get_backend(torch.device(kind)).name()  # type: ignore[no-any-return]  # noqa: SLF001

    name = _asked(served)
    if name in _NAMELESS:  # then the name that it was asked for by
        name = _asked(lambda: c10d._world.pg_map[group][0]) or name  # noqa: SLF001
    return name.lower()


def _asked(ask: Callable[[], Any]) -> str:
    """What a group answers; "" if it does not: it has none, or is of a class of the user's."""
    try:
        return str(ask())
    except Exception as error:
        if from_signal_handler(error):
            raise
        return ""


def existing_groups() -> list[Any]:
    """The groups that this process is in now."""
    return list(c10d._world.pg_map)  # noqa: SLF001


class GroupWatch:
    """Sees every new group, by a wrapper around what torch registers groups with.

    Args:
        made: called with each new group. It must not raise.
    """

    def __init__(self, made: Callable[[Any], None]) -> None:
        self._made = made
        self._original: Any = None
        self._ours: Any = None

    def install(self) -> None:
        """From now on, new groups are seen.

        Raises:
            AttributeError: if torch registers its groups by other means.
        """
        original, made = getattr(c10d, _REGISTER), self._made

        def _register_process_group(name: Any, group: Any) -> Any:
            registered = original(name, group)
            made(group)
            return registered

        self._original, self._ours = original, _register_process_group
        setattr(c10d, _REGISTER, _register_process_group)

    def remove(self) -> None:
        """Everything is as it was. Where someone has wrapped ours, it stays, and does nothing."""
        if self._ours is not None and getattr(c10d, _REGISTER) is self._ours:
            setattr(c10d, _REGISTER, self._original)
        self._ours = None
