"""Process groups: what is said of them, and how new ones are seen."""

from __future__ import annotations

import contextlib
import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed import distributed_c10d as c10d

from otel_modtrack.comm.records import Group

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
    name, description = "", ""
    with contextlib.suppress(Exception):  # a group that has no name, or a class of the user's
        name = str(group.group_name)
    with contextlib.suppress(Exception):
        description = str(group.group_desc)
    return Group(name, int(group.size()), "" if description == _NO_DESCRIPTION else description)


def _backend(group: Any, device: str) -> str:
    name = ""
    with contextlib.suppress(Exception):  # a backend that has no name, or a class of the user's
        devices = group._device_types  # noqa: SLF001
        if not device and devices:
            device = devices[0].type
        name = str(group._get_backend(torch.device(device)).name())  # noqa: SLF001
    if name in _NAMELESS:  # then the name that it was asked for by
        with contextlib.suppress(Exception):
            name = str(c10d._world.pg_map[group][0])  # noqa: SLF001
    return name.lower()


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
