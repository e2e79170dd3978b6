"""Exceptions in forward and backward, and the iteration after: trees, and the oracle."""

from __future__ import annotations

from inspect import cleandoc
from typing import Any

import pytest
import torch
from torch import nn

from otel_modtrack.testing import assert_tree_equals
from tests.tracker.oracle import Watched, watched

TWO = cleandoc(
    """
    forward Sequential
      forward Sequential.0
      forward Sequential.1
    backward
      backward Sequential
        backward Sequential.1
        backward Sequential.0
    """
)

# torch warns in which forward call an error arose, since the oracle has anomaly mode on.
in_anomaly_mode = pytest.mark.filterwarnings("ignore:Error detected in:UserWarning")


class Fails(nn.Module):
    """Raises `error`, if there is one, after its child has run."""

    def __init__(self, error: BaseException | None) -> None:
        super().__init__()
        self.lin = nn.Linear(3, 3)
        self.error = error

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.lin(x)
        if self.error is not None:
            raise self.error
        return x


def mlp() -> nn.Sequential:
    """Two linear layers."""
    return nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))


def iterate(net: nn.Module) -> None:
    """One forward and backward."""
    net(torch.ones(1, 3)).sum().backward()


def errors(run: Watched) -> dict[str, str]:
    """error.type of each span that has one, by name."""
    return {
        span.name: span.attributes["error.type"]
        for span in run.spans
        if "error.type" in span.attributes
    }


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, SystemExit])
def test_exception_in_forward(kind: type[BaseException]) -> None:
    """An exception marks the regions that it escapes, passes unchanged, and leaves nothing."""
    error = kind("told")
    net = nn.Sequential(nn.Linear(3, 3), Fails(error))
    with watched(net) as run:
        with pytest.raises(kind) as caught:
            iterate(net)
        net[1].error = None
        iterate(net)
    assert caught.value is error
    assert_tree_equals(
        run.tree,
        """
        forward Sequential!
          forward Sequential.0
          forward Sequential.1!
            forward Sequential.1.lin
        forward Sequential
          forward Sequential.0
          forward Sequential.1
            forward Sequential.1.lin
        backward
          backward Sequential
            backward Sequential.1
              backward Sequential.1.lin
            backward Sequential.0
        """,
    )
    assert set(errors(run).values()) == {kind.__name__}


def test_exception_that_a_module_handles() -> None:
    """An exception that does not leave the parent marks the child alone."""

    class Tries(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.other = Fails(ValueError("told")), nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.other(x)
            try:
                return self.first(x)
            except ValueError:
                return x.tanh()

    net = Tries()
    with watched(net) as run:
        iterate(net)
    assert_tree_equals(
        run.tree,
        """
        forward Tries
          forward Tries.other
          forward Tries.first!
            forward Tries.first.lin
        backward
          backward Tries
            backward Tries.other
        """,
    )


def test_exception_in_a_hook_of_the_user() -> None:
    """An exception in a forward hook leaves the call that the hook runs in."""
    net = mlp()

    def hook(*_: Any) -> None:
        raise LookupError

    with watched(net) as run:
        handle = net[0].register_forward_pre_hook(hook)
        with pytest.raises(LookupError):
            iterate(net)
        handle.remove()
        iterate(net)
    assert_tree_equals(run.tree, f"forward Sequential!\n  forward Sequential.0!\n{TWO}")


class Raises(torch.autograd.Function):
    """Doubles, and raises what it was given in backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, error: BaseException) -> torch.Tensor:
        ctx.error = error
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        raise ctx.error


@in_anomaly_mode
@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt])
def test_exception_in_a_backward(kind: type[BaseException]) -> None:
    """An exception in backward marks the regions that are open, and the next iteration is clean."""
    net, error = Inner(), kind("told")
    with watched(net) as run:
        net.error = error
        with pytest.raises(kind) as caught:
            iterate(net)
        net.error = None
        iterate(net)
    assert caught.value is error
    forward = "forward Inner\n  forward Inner.first\n  forward Inner.last\n"
    assert_tree_equals(
        run.tree,
        forward
        + "backward!\n  backward Inner!\n    backward Inner.last\n"
        + (
            forward
            + "backward\n  backward Inner\n    backward Inner.last\n    backward Inner.first"
        ),
    )
    assert set(errors(run).values()) == {kind.__name__}


class Inner(nn.Module):
    """Its own backward, between its children's, raises `error` if there is one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 3), nn.Linear(3, 3)
        self.error: BaseException | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        return self.last(Raises.apply(x, self.error) if self.error is not None else x)


@in_anomaly_mode
@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt])
def test_exception_in_a_tensor_hook(kind: type[BaseException]) -> None:
    """A hook on a module's output raises before any of the module's nodes has run.

    Nothing tells whether it is the last region's or the next one's: the whole backward is marked.
    """
    net = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))

    def hook(_: torch.Tensor) -> None:
        raise kind

    with watched(net) as run:
        hidden = net[1](net[0](torch.ones(1, 3)))
        hidden.register_hook(hook)
        with pytest.raises(kind):
            net[2](hidden).sum().backward()
        iterate(net)
    failed = [line.rstrip("!") for line in run.tree.splitlines()[4:5]]
    assert run.tree.splitlines()[3] == "backward!"
    assert failed == ["  backward Sequential.2"]
    assert run.tree.endswith(
        cleandoc(
            """
            forward Sequential
              forward Sequential.0
              forward Sequential.1
              forward Sequential.2
            backward
              backward Sequential
                backward Sequential.2
                backward Sequential.1
                backward Sequential.0
            """
        )
    )


@in_anomaly_mode
def test_second_backward_over_a_freed_graph() -> None:
    """torch's own error is seen unchanged."""
    net = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    with watched(net) as run:
        loss = net(torch.ones(1, 3)).sum()
        loss.backward()
        with pytest.raises(RuntimeError, match="second time"):
            loss.backward()
        iterate(net)
    assert "backward!" in run.tree.splitlines()
    assert run.tree.splitlines().count("backward") == 2


def test_exception_in_a_step() -> None:
    """The step that an exception leaves is marked, the next one is clean."""
    net = nn.Sequential(Fails(ValueError("told")))
    with watched(net) as run:
        with pytest.raises(ValueError, match="told"), run.tracker.step(0):
            iterate(net)
        net[0].error = None
        with run.tracker.step(1):
            iterate(net)
    assert_tree_equals(
        run.tree,
        """
        train_step!
          forward Sequential!
            forward Sequential.0!
              forward Sequential.0.lin
        train_step
          forward Sequential
            forward Sequential.0
              forward Sequential.0.lin
          backward
            backward Sequential
              backward Sequential.0
                backward Sequential.0.lin
        """,
    )
