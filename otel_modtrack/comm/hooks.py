"""The cheap way to see collectives: hooks of the process groups. torch 2.14 and newer.

Hooks belong to one group each; they run where the operator is launched, on the launching thread,
inside the autograd node that launches it. What has no hook is left to `kernels`.
"""

from __future__ import annotations

import functools
import weakref
from typing import TYPE_CHECKING, Any

from torch._C import _distributed_c10d

from otel_modtrack.comm.faults import fault
from otel_modtrack.comm.operators import C10D, HOOKED
from otel_modtrack.comm.why import is_called_from
from otel_modtrack.core import CORE
from otel_modtrack.interrupts import from_signal_handler
from otel_modtrack.swap import skip_by_dynamo

if TYPE_CHECKING:
    from otel_modtrack.comm.recorder import Recorder
    from otel_modtrack.comm.records import Group, Operator

__all__ = ["NOT_HOOKED", "HookWay"]

# Hooks are told apart by a number, and a second one with the same number replaces the first.
_ID = int.from_bytes(b"modtrack", "big")

# An enum's member is found by its number in a third of the time that its name takes.
_NAMES: Any = getattr(_distributed_c10d, "HookOpName", None)
_BY_NUMBER = {
    getattr(_NAMES, name).value: operator
    for name, operator in HOOKED.items()
    if hasattr(_NAMES, name)
}

_AMBIGUOUS = (C10D["recv_"], C10D["gather_"])

# c10d's operators that fire no hook.
NOT_HOOKED = ("monitored_barrier_",)


class HookWay:
    """Registers hooks with groups, and unregisters them."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._groups: dict[int, weakref.ref[Any]] = {}
        self._after: set[int] = set()
        skip_by_dynamo(_before, _after)

    @staticmethod
    def there() -> bool:
        """Whether this torch has such hooks."""
        return hasattr(_distributed_c10d.ProcessGroup, "register_pre_hook")

    def add(self, group: Any) -> None:
        """See what is launched in this group from now on; again: does nothing."""
        key, recorder = id(group), self._recorder
        known = self._groups.get(key)
        if known is None or known() is not group:
            groups, after = self._groups, self._after

            def forget(_: object) -> None:
                groups.pop(key, None)
                after.discard(key)

            # Noted first: what an interruption leaves registered is taken away all the same.
            groups[key] = weakref.ref(group, forget)
            try:
                described = recorder.groups.of(group)
                group.register_pre_hook(_ID, functools.partial(_before, recorder, described))
            except (AttributeError, TypeError, RuntimeError) as error:
                if from_signal_handler(error):
                    raise
                groups.pop(key, None)
                return  # a class of the user's that does not come by torch's dispatcher
        if recorder.each and key not in self._after:
            self._after.add(key)
            group.register_post_hook(_ID, functools.partial(_after, recorder))

    def remove(self) -> None:
        """Take the hooks away from all groups that live."""
        for key, ref in list(self._groups.items()):
            group = ref()
            if group is not None:
                group.unregister_pre_hook(_ID)  # of what is not there: does nothing
                group.unregister_post_hook(_ID)
            del group
            self._groups.pop(key, None)
            self._after.discard(key)


def _before(recorder: Recorder, group: Group, args: Any) -> None:
    """A collective is about to be launched. Never raises."""
    if not (CORE.on or CORE.resting):
        return
    try:
        operator = _BY_NUMBER.get(args.name.value)
        if operator in _AMBIGUOUS:
            operator = _told_apart(operator, args)
        if operator is not None:
            outputs = () if operator.told_by_inputs else args.output_tensors
            recorder.seen(operator, group, args.input_tensors, outputs, args.async_op)
    except Exception as error:  # noqa: BLE001 - nothing of ours may reach the user
        fault("a process group's hook", error)


def _told_apart(operator: Operator | None, args: Any) -> Operator | None:
    """Which of two operators of one name it is."""
    if operator is C10D["recv_"] and args.root < 0:
        return C10D["recv_any_source_"]
    if operator is C10D["gather_"] and is_called_from("gather_single"):
        return C10D["gather_into_tensor_"]
    return operator


def _after(recorder: Recorder, args: Any) -> None:
    """It was launched: see when it ends. Never raises."""
    try:
        recorder.launched(args.work)
    except Exception as error:  # noqa: BLE001 - nothing of ours may reach the user
        fault("a process group's hook", error)
