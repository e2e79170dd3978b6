"""Puts in place what sees collectives, finds out whether it does, and takes it away."""

from __future__ import annotations

import atexit
import logging
import threading
import time
from typing import TYPE_CHECKING, Any

import torch
from torch._C import _distributed_c10d as _c10d

from otel_modtrack.comm.faults import FIRING
from otel_modtrack.comm.groups import GroupWatch, existing_groups
from otel_modtrack.comm.hooks import NOT_HOOKED, HookWay
from otel_modtrack.comm.kernels import FunctionalKernels, KernelWay
from otel_modtrack.comm.operators import C10D
from otel_modtrack.comm.recorder import Recorder
from otel_modtrack.core import CORE
from otel_modtrack.swap import undo_all

if TYPE_CHECKING:
    from collections.abc import Callable


__all__ = ["Interception"]

logger = logging.getLogger("otel_modtrack")

# "hooks" or "kernels", for tests of one of the two; None: the cheaper one that torch has.
forced_way: str | None = None

_GRACES, _GRACE_S = 3, 0.0003  # how often and how long others get to run, on leaving

_CPU = torch.device("cpu")


class Interception:
    """Sees every collective of the process while it is installed."""

    def __init__(self) -> None:
        self._recorder = Recorder()
        self._hooks: HookWay | None = None
        self._undo: list[Callable[[], None]] = []
        self._kernels: dict[str, tuple[KernelWay, FunctionalKernels]] = {}
        self._probed: dict[str, str] = {}
        # A group that outlives the interpreter must not have hooks written in Python.
        atexit.register(self.remove)

    def install(self, *, each: bool) -> None:
        """See collectives from now on; again: changes whether each is told by itself.

        Raises:
            TypeError, AttributeError, RuntimeError: if this torch does not let us; with why.
        """
        recorder = self._recorder
        if self._undo:
            if each and not recorder.each:
                recorder.each = True
                self._add_existing()
            recorder.each = each
            return
        recorder.each = each
        way = forced_way or ("hooks" if HookWay.there() else "kernels")
        self._probe(way)
        watch = GroupWatch(self._made)
        self._undo.append(watch.remove)
        watch.install()
        self._put(way, recorder)
        self._add_existing()

    def remove(self) -> None:
        """Everything is as it was; later, if it is called by a hook or kernel of ours."""
        if FIRING.here:
            return
        if self._undo and CORE.groups_seen:
            # A thread on its way into a hook or kernel of ours must have left it before that goes.
            for _ in range(_GRACES):
                time.sleep(_GRACE_S)
        undo_all(self._undo)
        self._hooks = None
        CORE.groups_seen = False

    def _put(self, way: str, recorder: Recorder) -> None:
        if way not in self._kernels:
            names = NOT_HOOKED if way == "hooks" else tuple(C10D)
            self._kernels[way] = (KernelWay(recorder, names), FunctionalKernels())
        if way == "hooks":
            self._hooks = HookWay(recorder)
            self._undo.append(self._hooks.remove)
        for kernels in self._kernels[way]:
            self._undo.append(kernels.remove)
            kernels.install()

    def _add_existing(self) -> None:
        for group in existing_groups():
            self._made(group)

    def _made(self, group: Any) -> None:
        """There is a group. Never raises."""
        try:
            CORE.groups_seen = True
            if self._hooks is not None:
                self._hooks.add(group)
        except Exception as error:  # noqa: BLE001 - nothing of ours may reach the user
            CORE.fault("a new process group", error)

    def _probe(self, way: str) -> None:
        """Launch a collective in a group of our own that sends nothing, and see if it is seen.

        Once a process and way, on a thread of its own: no mode of the user's is on there.

        Raises:
            RuntimeError: if it is not seen.
        """
        if way not in self._probed:
            thread = threading.Thread(target=self._launch, args=(way,), name="modtrack-probe")
            thread.start()
            thread.join()
        if self._probed[way]:
            raise RuntimeError(self._probed[way])

    def _launch(self, way: str) -> None:
        told = (
            f"a collective launched to try it out was not seen by {way} (torch {torch.__version__})"
        )
        FIRING.probing = True  # this thread has nothing else to do
        probe = _Probe()
        hooks, kernels = HookWay(probe), KernelWay(probe, ("allreduce_",))
        failure: Exception | None = None
        try:
            group = _lone_group()
            if way == "hooks":
                hooks.add(group)
            else:
                kernels.install()
            group.allreduce([torch.zeros((), device="cpu")])
        except Exception as error:  # noqa: BLE001 - whatever it is, it is told
            failure = error
        finally:
            hooks.remove()
            kernels.remove()
        failure = failure or FIRING.met
        if failure is not None:
            told += f": {type(failure).__name__}: {failure}"
        self._probed[way] = told if failure is not None or probe.count != 1 else ""


class _Probe(Recorder):
    """Counts what it is told of, and takes nothing down."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.thread = threading.get_ident()

    def seen(self, *args: Any) -> None:
        """Count it, if this thread has launched it."""
        del args
        if threading.get_ident() == self.thread:
            self.count += 1


def _lone_group() -> Any:
    """A group of one rank that sends nothing and that nobody else knows."""
    fake: Any = _c10d.FakeProcessGroup
    backend = fake._create_internal(0, 1) if hasattr(fake, "_create_internal") else fake(0, 1)  # noqa: SLF001
    group: Any = _c10d.ProcessGroup(0, 1)
    kind = _c10d.ProcessGroup.BackendType.CUSTOM
    group._register_backend(_CPU, kind, backend)  # noqa: SLF001
    group._set_default_backend(kind)  # noqa: SLF001
    return group
