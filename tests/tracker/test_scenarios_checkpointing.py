"""Activation checkpointing: recomputation inside the block's backward, and the oracle."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointImpl,
    checkpoint_wrapper,
)
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
    set_checkpoint_early_stop,
)

from otel_modtrack.testing import assert_tree_equals
from tests.tracker.oracle import watched


class Block(nn.Module):
    """Two linear layers with a nonlinearity of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(3, 3)
        self.down = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.up(x).tanh())


class Net(nn.Module):
    """Two blocks, both checkpointed."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])
        self.options = options

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, **self.options)
        return x.sum()


FORWARD = """
forward Net
  forward Net.blocks.0
    forward Net.blocks.0.up
    forward Net.blocks.0.down
  forward Net.blocks.1
    forward Net.blocks.1.up
    forward Net.blocks.1.down
""".strip()

# The first node that wants a saved tensor has the block recomputed: the last one's, in `down`.
NON_REENTRANT = f"""
{FORWARD}
backward
  backward Net
    backward Net.blocks.1
      backward Net.blocks.1.down
        recompute Net.blocks.1
          recompute Net.blocks.1.up
          recompute Net.blocks.1.down
      backward Net.blocks.1.up
    backward Net.blocks.0
      backward Net.blocks.0.down
        recompute Net.blocks.0
          recompute Net.blocks.0.up
          recompute Net.blocks.0.down
      backward Net.blocks.0.up
""".strip()

# Reentrant checkpointing has one node for the block, which recomputes it all before its backward.
REENTRANT = f"""
{FORWARD}
backward
  backward Net
    backward Net.blocks.1
      recompute Net.blocks.1
        recompute Net.blocks.1.up
        recompute Net.blocks.1.down
      backward Net.blocks.1.down
      backward Net.blocks.1.up
    backward Net.blocks.0
      recompute Net.blocks.0
        recompute Net.blocks.0.up
        recompute Net.blocks.0.down
      backward Net.blocks.0.down
      backward Net.blocks.0.up
""".strip()


@pytest.mark.parametrize("early_stop", [True, False])
def test_non_reentrant(early_stop: bool) -> None:
    """The recomputation of a block lies in the block's backward, and its early stop is no error."""
    net = Net(use_reentrant=False)
    with set_checkpoint_early_stop(early_stop), watched(net) as run:
        net(torch.ones(2, 3)).backward()
    assert_tree_equals(run.tree, NON_REENTRANT)


def test_reentrant() -> None:
    """The block's backward begins with its recomputation."""
    net = Net(use_reentrant=True)
    with watched(net) as run:
        net(torch.ones(2, 3, requires_grad=True)).backward()
    assert_tree_equals(run.tree, REENTRANT)


def test_reentrant_twice() -> None:
    """A second iteration has the same tree, and nothing is left of the first."""
    net = Net(use_reentrant=True)
    with watched(net) as run:
        for _ in range(2):
            net(torch.ones(2, 3, requires_grad=True)).backward()
    assert_tree_equals(run.tree, f"{REENTRANT}\n{REENTRANT}")


def test_checkpoint_wrapper() -> None:
    """A wrapped block is one region with its wrapper, whose name does not show."""
    net = nn.Sequential(*(checkpoint_wrapper(Block()) for _ in range(2)))
    with watched(net) as run:
        net(torch.ones(2, 3, requires_grad=True)).sum().backward()
    assert_tree_equals(
        run.tree, NON_REENTRANT.replace("Net.blocks", "Sequential").replace("Net", "Sequential")
    )
    wrapped = run.of("Sequential.0")
    assert {s.attributes["modtrack.module.type"] for s in wrapped} == {"Block"}
    assert {
        s.attributes.get("modtrack.module.wrapper")
        for s in wrapped
        if s.attributes["modtrack.phase"] == "forward"
    } == {"CheckpointWrapper"}


@pytest.mark.filterwarnings("ignore:Please specify CheckpointImpl:FutureWarning")
def test_reentrant_checkpoint_wrapper() -> None:
    """The checkpoint's own node is the wrapper's; in its backward lies the recomputed call's."""
    net = checkpoint_wrapper(Block(), checkpoint_impl=CheckpointImpl.REENTRANT)
    with watched(net) as run:
        net(torch.ones(2, 3, requires_grad=True)).sum().backward()
    assert_tree_equals(
        run.tree,
        """
        forward Block
          forward Block.up
          forward Block.down
        backward
          backward Block
            backward Block
              recompute Block
                recompute Block.up
                recompute Block.down
              backward Block.down
              backward Block.up
        """,
    )


def test_nested() -> None:
    """A checkpoint within a checkpoint recomputes within the recomputation's backward."""

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = Block()
            self.b = Block()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = checkpoint(self.a, x, use_reentrant=False)
            return self.b(x)

    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.outer = Outer()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return checkpoint(self.outer, x, use_reentrant=False).sum()

    net = Whole()
    with watched(net) as run:
        net(torch.ones(2, 3)).backward()
    assert_tree_equals(
        run.tree,
        """
        forward Whole
          forward Whole.outer
            forward Whole.outer.a
              forward Whole.outer.a.up
              forward Whole.outer.a.down
            forward Whole.outer.b
              forward Whole.outer.b.up
              forward Whole.outer.b.down
        backward
          backward Whole
            backward Whole.outer
              backward Whole.outer.b
                backward Whole.outer.b.down
                  recompute Whole.outer
                    recompute Whole.outer.a
                      recompute Whole.outer.a.up
                      recompute Whole.outer.a.down
                    recompute Whole.outer.b
                      recompute Whole.outer.b.up
                      recompute Whole.outer.b.down
                backward Whole.outer.b.up
              backward Whole.outer.a
                backward Whole.outer.a.down
                  recompute Whole.outer.a
                    recompute Whole.outer.a.up
                    recompute Whole.outer.a.down
                backward Whole.outer.a.up
        """,
    )


def test_selective() -> None:
    """With a policy that keeps matrix products, the block is recomputed all the same."""
    keep = [torch.ops.aten.mm.default, torch.ops.aten.addmm.default]

    def policy(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        del ctx, args, kwargs
        return CheckpointPolicy.MUST_SAVE if op in keep else CheckpointPolicy.PREFER_RECOMPUTE

    context = functools.partial(create_selective_checkpoint_contexts, policy)
    net = Net(use_reentrant=False, context_fn=context)
    with watched(net) as run:
        net(torch.ones(2, 3)).backward()
    assert_tree_equals(run.tree, NON_REENTRANT)


def test_part_of_a_forward() -> None:
    """Where a function is checkpointed, its modules are recomputed, each on its own."""

    class Part(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(3, 3)
            self.b = nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return checkpoint(lambda x: self.b(self.a(x).tanh()) * 2, x, use_reentrant=False).sum()

    net = Part()
    with watched(net) as run:
        net(torch.ones(2, 3)).backward()
    assert_tree_equals(
        run.tree,
        """
        forward Part
          forward Part.a
          forward Part.b
        backward
          backward Part
            backward Part.b
              recompute Part.a
              recompute Part.b
            backward Part.a
        """,
    )


def test_part_of_a_forward_reentrant() -> None:
    """A reentrant checkpoint of a function: what runs beside the module is the caller's."""

    class Part(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return checkpoint(lambda x: self.a(x).tanh() * 2, x, use_reentrant=True).sum()

    net = Part()
    with watched(net) as run:
        net(torch.ones(2, 3, requires_grad=True)).backward()
    assert_tree_equals(
        run.tree,
        """
        forward Part
          forward Part.a
        backward
          backward Part
            recompute Part.a
            backward Part.a
        """,
    )


def test_sequential_in_segments() -> None:
    """checkpoint_sequential calls the children, in segments."""
    net = nn.Sequential(*(nn.Linear(3, 3) for _ in range(4)))
    with watched(net) as run:
        out = checkpoint_sequential(net, 2, torch.ones(2, 3), use_reentrant=False)
        out.sum().backward()
    assert_tree_equals(
        run.tree,
        """
        forward Sequential.0
        forward Sequential.1
        forward Sequential.2
        forward Sequential.3
        backward
          backward Sequential.3
          backward Sequential.2
          backward Sequential.1
            recompute Sequential.0
            recompute Sequential.1
          backward Sequential.0
        """,
    )


def test_direct_forward_as_transformers_does() -> None:
    """Where the block's `forward` is checkpointed, the block itself is not called again."""

    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = CheckpointsItself()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.block(x).sum()

    class CheckpointsItself(Block):
        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            return checkpoint(super().__call__, x, use_reentrant=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x)

    class ChecksForward(Block):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return checkpoint(super().forward, x, use_reentrant=False)

    net = Whole()
    net.block = ChecksForward()
    with watched(net) as run:
        net(torch.ones(2, 3)).backward()
    assert_tree_equals(
        run.tree,
        """
        forward Whole
          forward Whole.block
            forward Whole.block.up
            forward Whole.block.down
        backward
          backward Whole
            backward Whole.block
              backward Whole.block.down
                recompute Whole.block.up
                recompute Whole.block.down
              backward Whole.block.up
        """,
    )
    net.block = CheckpointsItself()
    with watched(net) as run:
        net(torch.ones(2, 3)).backward()
    assert_tree_equals(
        run.tree,
        """
        forward Whole
          forward Whole.block
            forward Whole.block.up
            forward Whole.block.down
        backward
          backward Whole
            backward Whole.block
              backward Whole.block.down
                recompute Whole.block
                  recompute Whole.block.up
                  recompute Whole.block.down
              backward Whole.block.up
        """,
    )


def test_checkpoint_with_dropout_and_a_named_region() -> None:
    """A named region inside a checkpointed block is recomputed, and has a backward."""

    class Noisy(nn.Module):
        def __init__(self, run: Any) -> None:
            super().__init__()
            self.lin = nn.Linear(3, 3)
            self.drop = nn.Dropout(0.5)
            self.run = run

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with self.run.region("mix"):
                return self.drop(self.lin(x)) * 2

    with watched() as run:
        net = Noisy(run)
        checkpoint(net, torch.ones(2, 3), use_reentrant=False).sum().backward()
    assert_tree_equals(
        run.tree,
        """
        forward Noisy
          forward mix
            forward Noisy.lin
            forward Noisy.drop
        backward
          backward Noisy
            backward mix
              backward Noisy.drop
                recompute Noisy
                  recompute mix
                    recompute Noisy.lin
                    recompute Noisy.drop
              backward Noisy.lin
        """,
    )


def test_backward_inside_a_recomputation() -> None:
    """A backward that a block's forward runs is in the block, when it is recomputed, too."""

    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out = self.lin(x)
            if out.requires_grad:
                torch.autograd.grad(out.sum(), self.lin.weight, retain_graph=True)
            return out

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Inner()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return checkpoint(self.inner, x, use_reentrant=True).sum()

    net = Outer()
    with watched(net) as run:
        net(torch.ones(2, 3, requires_grad=True)).backward()
    assert_tree_equals(
        run.tree,
        """
        forward Outer
          forward Outer.inner
            forward Outer.inner.lin
        backward
          backward Outer
            backward Outer.inner
              recompute Outer.inner
                recompute Outer.inner.lin
                backward
                  backward Outer.inner
                    backward Outer.inner.lin
              backward Outer.inner.lin
        """,
    )


def test_reentrant_checkpoint_outside_of_any_module() -> None:
    """Where nothing in the graph was tracked, what a checkpoint recomputes has its own backward."""
    net = nn.Sequential(Block())
    with watched(net) as run:
        x = torch.ones(2, 3, requires_grad=True)
        checkpoint(net[0], x, use_reentrant=True).sum().backward()
    assert_tree_equals(
        run.tree,
        """
        forward Sequential.0
          forward Sequential.0.up
          forward Sequential.0.down
        recompute Sequential.0
          recompute Sequential.0.up
          recompute Sequential.0.down
        backward
          backward Sequential.0
            backward Sequential.0.down
            backward Sequential.0.up
        """,
    )
