"""A recording that is interrupted anywhere leaves nothing behind, and takes nothing away."""

from __future__ import annotations

import linecache
import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from otel_modtrack import ModTracker
from otel_modtrack.core import CORE

if TYPE_CHECKING:
    import types

pytestmark = pytest.mark.skipif(
    sys.gettrace() is not None, reason="a tracer is on (coverage), and the tests need it"
)

OURS = ("order/recorder.py", "order/using.py", "order/recording.py", "activation.py")


class Users(TorchFunctionMode):
    """A mode of the program's."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class Net(nn.Module):
    """Enters a mode of its own in the middle."""

    def __init__(self) -> None:
        super().__init__()
        self.lin, self.w = nn.Linear(2, 2), nn.Parameter(torch.ones(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x * self.w
        with Users():
            x = self.lin(x) * self.w
        return self.lin(x)


class Interrupts:
    """Raises KeyboardInterrupt at the n-th line of ours, or of what ours has called in torch.

    Attributes:
        lines: how many there were.
    """

    def __init__(self, at: int) -> None:
        self.lines = 0
        self._at = at

    def __call__(self, frame: types.FrameType, event: str, argument: object) -> Any:
        del event, argument
        return self._line if self._is_of_interest(frame) else None

    def _is_of_interest(self, frame: types.FrameType | None) -> bool:
        if frame is None:
            return False
        file = frame.f_code.co_filename
        return file.endswith(OURS) or (
            file.endswith("torch/overrides.py") and self._is_of_interest(frame.f_back)
        )

    def _line(self, frame: types.FrameType, event: str, argument: object) -> Any:
        del argument
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
        # Where a `with` ends a tracer can raise before its lock is given back; signals cannot.
        if event == "line" and not line.lstrip().startswith("with "):
            self.lines += 1
            if self.lines == self._at:
                raise KeyboardInterrupt
        return self._line


def run(model: nn.Module, interrupts: Interrupts) -> None:
    """One recording, in a mode of the program's."""
    try:
        with ModTracker(model) as tracker, Users():
            sys.settrace(interrupts)
            try:
                with tracker.record_order():
                    model(torch.ones(2)).sum().backward()
            finally:
                sys.settrace(None)
    except KeyboardInterrupt:
        pass


def test_at_each_line() -> None:
    """The program's modes are where they were, and no hook, mode or recorder is ours."""
    model = Net()
    counting = Interrupts(-1)
    run(model, counting)
    assert counting.lines > 500
    for at in range(1, counting.lines + 1, 2):
        run(model, Interrupts(at))
        assert torch.overrides._len_torch_function_stack() == 0, at
        assert [p._post_accumulate_grad_hooks for p in model.parameters()] == [None] * 3, at
        assert CORE.recorders == (), at
        assert not CORE.on, at
        assert not CORE.lock._is_owned(), at
