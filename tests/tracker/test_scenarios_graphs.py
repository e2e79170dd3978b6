"""What goes in and out of modules, and what of it has a backward: whole trees, and the oracle."""

from __future__ import annotations

import dataclasses
from inspect import cleandoc
from typing import Any

import pytest
import torch
from torch import nn

from otel_modtrack.testing import assert_tree_equals
from tests.tracker.oracle import watched


class Net(nn.Module):
    """Runs `body(net, *inputs)`; its children are the keyword arguments."""

    def __init__(self, body: Any, **children: nn.Module) -> None:
        super().__init__()
        self.body = body
        for name, child in children.items():
            self.add_module(name, child)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.body(self, *args, **kwargs)


class Gives(nn.Module):
    """A Linear whose output is wrapped by `wrap`."""

    def __init__(self, wrap: Any) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.wrap = wrap

    def forward(self, x: torch.Tensor) -> Any:
        return self.wrap(self.lin(x))


@dataclasses.dataclass
class Record:
    """A dataclass that torch knows nothing of."""

    hidden: torch.Tensor
    name: str = "x"


class Opaque:
    """An object with slots, into which no tree walk looks."""

    __slots__ = ("hidden",)

    def __init__(self, hidden: torch.Tensor) -> None:
        self.hidden = hidden


def _model_output(y: torch.Tensor) -> Any:
    outputs = pytest.importorskip("transformers.modeling_outputs")
    return outputs.BaseModelOutput(last_hidden_state=y)


def _jagged(y: torch.Tensor) -> torch.Tensor:
    return torch.nested.nested_tensor_from_jagged(y, torch.tensor([0, 1, 3]))


def _packed(y: torch.Tensor) -> Any:
    return nn.utils.rnn.pack_padded_sequence(y.unsqueeze(0), torch.tensor([3]), batch_first=True)


OUTPUTS = {
    "tensor": (lambda y: y, lambda out: out),
    "tuple": (lambda y: (1, y), lambda out: out[1]),
    "list": (lambda y: [[y]], lambda out: out[0][0]),
    "dict": (lambda y: {"a": {"b": y}}, lambda out: out["a"]["b"]),
    "dataclass": (Record, lambda out: out.hidden),
    "ModelOutput": (_model_output, lambda out: out.last_hidden_state),
    "PackedSequence": (_packed, lambda out: out.data),
    "jagged": (_jagged, lambda out: out.values()),
    "sparse": (lambda y: y.to_sparse(), lambda out: out.to_dense()),
    "object": (Opaque, lambda out: out.hidden),
    "closure": (lambda y: lambda: y, lambda out: out()),
    "complex": (lambda y: torch.complex(y, y), lambda out: out.abs()),
}


@pytest.mark.parametrize("kind", OUTPUTS)
def test_output_of_any_kind_has_a_backward_region(kind: str) -> None:
    """Whatever a module returns its output in, its backward is a region."""
    wrap, unwrap = OUTPUTS[kind]
    net = Net(lambda m, x: unwrap(m.second(unwrap(m.first(x)))))
    net.first, net.second = Gives(wrap), Gives(wrap)
    with watched(net) as run:
        net(torch.ones(3, 4)).sum().backward()
    assert_tree_equals(
        run.tree,
        """
        forward Net
          forward Net.first
            forward Net.first.lin
          forward Net.second
            forward Net.second.lin
        backward
          backward Net
            backward Net.second
              backward Net.second.lin
            backward Net.first
              backward Net.first.lin
        """,
    )


def test_tensors_by_keyword() -> None:
    """Tensors that are passed only by keyword give the same tree as positional ones."""
    trees = []
    for call in (
        lambda m, x: m.b(m.a(x), torch.ones(2, 3)),
        lambda m, x: m.b(bias=torch.ones(2, 3), x=m.a(x=x)),
    ):
        takes = Net(lambda m, x, bias=0: m.lin(x) + bias, lin=nn.Linear(3, 3))
        a = Net(lambda m, x: m.lin(x), lin=nn.Linear(3, 3))
        net = Net(call, a=a, b=takes)
        with watched(net) as run:
            net(x=torch.ones(2, 3)).sum().backward()
        trees.append(run.tree)
    assert (
        trees[0]
        == trees[1]
        == cleandoc(
            """
        forward Net
          forward Net.a
            forward Net.a.lin
          forward Net.b
            forward Net.b.lin
        backward
          backward Net
            backward Net.b
              backward Net.b.lin
            backward Net.a
              backward Net.a.lin
        """
        )
    )


@pytest.mark.parametrize("kind", ["Identity", "Dropout", "returns input", "detaches"])
def test_no_node_no_backward_region(kind: str) -> None:
    """A module that makes no autograd node has no backward region."""
    inner = {
        "Identity": nn.Identity(),
        "Dropout": nn.Dropout(0.0).eval(),
        "returns input": Net(lambda _, x: x),
        "detaches": Net(lambda _, x: (x.detach() + 1, x)[1]),
    }[kind]
    net = Net(lambda m, x: m.b(m.inner(m.a(x))), a=nn.Linear(3, 3), inner=inner, b=nn.Linear(3, 3))
    with watched(net) as run:
        net(torch.ones(1, 3)).sum().backward()
    assert_tree_equals(
        run.tree,
        """
        forward Net
          forward Net.a
          forward Net.inner
          forward Net.b
        backward
          backward Net
            backward Net.b
            backward Net.a
        """,
    )


def test_dropout_that_keeps_all_makes_a_node() -> None:
    """Dropout with p=0 in training has a backward region if torch makes a node for it."""
    net = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.0))
    with watched(net) as run:
        out = net(torch.ones(1, 3))
        made = out.grad_fn.name() != "AddmmBackward0"
        out.sum().backward()
    assert ("backward Sequential.1" in run.tree) == made


def test_residual() -> None:
    """A block whose input goes around it, too, ends at its own last node."""
    block = Net(lambda m, x: x + m.lin(x), lin=nn.Linear(3, 3))
    net = nn.Sequential(nn.Linear(3, 3), block, nn.Linear(3, 3))
    with watched(net) as run:
        net(torch.ones(1, 3)).sum().backward()
    assert_tree_equals(
        run.tree,
        """
        forward Sequential
          forward Sequential.0
          forward Sequential.1
            forward Sequential.1.lin
          forward Sequential.2
        backward
          backward Sequential
            backward Sequential.2
            backward Sequential.1
              backward Sequential.1.lin
            backward Sequential.0
        """,
    )


def test_skip_connections() -> None:
    """A U-Net's skips reach around what lies between, which is closed before they run."""

    def body(m: Any, x: torch.Tensor) -> torch.Tensor:
        a = m.down(x)
        b = m.middle(a)
        return m.up(torch.cat([a, b], -1))

    net = Net(body, down=nn.Linear(3, 3), middle=nn.Linear(3, 3), up=nn.Linear(6, 3))
    with watched(net) as run:
        net(torch.ones(1, 3)).sum().backward()
    assert_tree_equals(
        run.tree,
        """
        forward Net
          forward Net.down
          forward Net.middle
          forward Net.up
        backward
          backward Net
            backward Net.up
            backward Net.middle
            backward Net.down
        """,
    )


def test_encoder_memory() -> None:
    """An encoder whose memory all decoder layers read runs backward after the last of them."""

    def body(m: Any, x: torch.Tensor) -> torch.Tensor:
        memory = m.encoder(x)
        y = x
        for layer in m.layers:
            y = layer(y + memory)
        return y

    layers = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])
    net = Net(body, encoder=nn.Linear(3, 3), layers=layers)
    with watched(net) as run:
        net(torch.ones(1, 3)).sum().backward()
    assert_tree_equals(
        run.tree,
        """
        forward Net
          forward Net.encoder
          forward Net.layers.0
          forward Net.layers.1
        backward
          backward Net
            backward Net.layers.1
            backward Net.layers.0
            backward Net.encoder
        """,
    )


def test_tied_head() -> None:
    """A head that shares its weight with the embedding is a module of its own."""
    net = Net(
        lambda m, x: m.head(m.embed(x)), embed=nn.Embedding(5, 3), head=nn.Linear(3, 5, bias=False)
    )
    net.head.weight = net.embed.weight
    with watched(net) as run:
        net(torch.tensor([1, 2])).sum().backward()
    assert_tree_equals(
        run.tree,
        """
        forward Net
          forward Net.embed
          forward Net.head
        backward
          backward Net
            backward Net.head
            backward Net.embed
        """,
    )


def test_two_towers_without_gradient_at_their_inputs() -> None:
    """Each tower's region ends at its own last node, not with the backward."""
    tower = [Net(lambda m, x: m.lin(m.embed(x)), embed=nn.Embedding(5, 3), lin=nn.Linear(3, 3))]
    tower.append(Net(lambda m, x: m.lin(m.embed(x)), embed=nn.Embedding(5, 3), lin=nn.Linear(3, 3)))
    net = Net(lambda m, x, y: (m.left(x) * m.right(y)).sum(), left=tower[0], right=tower[1])
    with watched(net) as run:
        net(torch.tensor([1, 2]), torch.tensor([3, 4])).backward()
    assert_tree_equals(
        run.tree,
        """
        forward Net
          forward Net.left
            forward Net.left.embed
            forward Net.left.lin
          forward Net.right
            forward Net.right.embed
            forward Net.right.lin
        backward
          backward Net
            backward Net.right
              backward Net.right.lin
              backward Net.right.embed
            backward Net.left
              backward Net.left.lin
              backward Net.left.embed
        """,
    )


def test_frozen_lower_layers() -> None:
    """What lies below the lowest trained layer has no backward region."""
    net = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3), nn.ReLU())
    net[0].requires_grad_(False)
    with watched(net) as run:
        net(torch.ones(1, 3)).sum().backward()
    assert_tree_equals(
        run.tree,
        """
        forward Sequential
          forward Sequential.0
          forward Sequential.1
          forward Sequential.2
          forward Sequential.3
        backward
          backward Sequential
            backward Sequential.3
            backward Sequential.2
        """,
    )


def test_frozen_module_between_trained_ones() -> None:
    """Gradients pass through a frozen module: it has a region."""
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3))
    net[1].requires_grad_(False)
    with watched(net) as run:
        net(torch.ones(1, 3)).sum().backward()
    assert_tree_equals(
        run.tree,
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
        """,
    )


def test_unused_output() -> None:
    """A branch that the loss does not use has no backward region, and leaves nothing over."""
    net = Net(lambda m, x: (m.used(x), m.unused(x)), used=nn.Linear(3, 3), unused=nn.Linear(3, 3))
    one = cleandoc(
        """
        forward Net
          forward Net.used
          forward Net.unused
        backward
          backward Net
            backward Net.used
        """
    )
    with watched(net) as run:
        for _ in range(3):
            net(torch.ones(1, 3))[0].sum().backward()
    # A module's own nodes alone: Net has none, but its child's region lies in it.
    assert_tree_equals(run.tree, "\n".join([one] * 3))


def test_evaluation_between_training() -> None:
    """A forward under no_grad has no backward, and the next training step is as ever."""
    net = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5))
    with watched(net) as run:
        for training in (True, False, True):
            net.train(training)
            with torch.set_grad_enabled(training):
                out = net(torch.ones(1, 3)).sum()
            if training:
                out.backward()
    forward = cleandoc(
        """
        forward Sequential
          forward Sequential.0
          forward Sequential.1
        """
    )
    backward = cleandoc(
        """
        backward
          backward Sequential
            backward Sequential.1
            backward Sequential.0
        """
    )
    assert_tree_equals(run.tree, f"{forward}\n{backward}\n{forward}\n{forward}\n{backward}")


def test_leaf_input_with_gradient_used_many_times() -> None:
    """No hook is left on a leaf that is the input of many iterations."""
    net = nn.Linear(3, 3)
    leaf = torch.ones(2, 3, requires_grad=True)
    with watched(net) as run:
        for _ in range(20):
            net(leaf).sum().backward()
        for _ in range(20):
            torch.autograd.grad(net(leaf).sum(), leaf)
    assert not leaf._backward_hooks
    assert leaf._post_accumulate_grad_hooks is None
    assert_tree_equals(run.tree, "\n".join(["forward Linear\nbackward\n  backward Linear"] * 40))
    accumulate = torch.autograd.graph.get_gradient_edge(leaf).node
    assert not accumulate.metadata


def test_view_modified_in_place() -> None:
    """A view that the caller modifies in place: the copy is the caller's, the rest the modules'."""

    def body(m: Any, x: torch.Tensor) -> torch.Tensor:
        out = m.a(x)
        part = out[:, :2]
        part.mul_(2)
        return m.b(out)

    net = Net(body, a=nn.Linear(3, 3), b=nn.Linear(3, 3))
    with watched(net) as run:
        net(torch.ones(2, 3)).sum().backward()
    assert_tree_equals(
        run.tree,
        """
        forward Net
          forward Net.a
          forward Net.b
        backward
          backward Net
            backward Net.b
            backward Net.a
        """,
    )


def test_output_view_modified_in_place_by_the_caller() -> None:
    """A module that returns a view, which is then modified in place outside of it."""
    view = Net(lambda m, x: m.lin(x).view(-1), lin=nn.Linear(3, 3))
    net = Net(lambda m, x: m.b(m.a(x).add_(1).relu_().view(2, 3)), a=view, b=nn.Linear(3, 3))
    with watched(net) as run:
        out = net(torch.ones(2, 3))
        out.mul_(3)
        out.sum().backward()
    assert_tree_equals(
        run.tree,
        """
        forward Net
          forward Net.a
            forward Net.a.lin
          forward Net.b
        backward
          backward Net
            backward Net.b
            backward Net.a
              backward Net.a.lin
        """,
    )


def test_modules_in_place() -> None:
    """In-place modules and in-place operations on inputs are regions like others."""
    net = nn.Sequential(
        nn.Linear(3, 3), Net(lambda _, x: x.add_(2)), nn.ReLU(inplace=True), nn.Linear(3, 3)
    )
    with watched(net) as run:
        net(torch.ones(2, 3)).sum().backward()
    assert_tree_equals(
        run.tree,
        """
        forward Sequential
          forward Sequential.0
          forward Sequential.1
          forward Sequential.2
          forward Sequential.3
        backward
          backward Sequential
            backward Sequential.3
            backward Sequential.2
            backward Sequential.1
            backward Sequential.0
        """,
    )


def test_slice_of_a_buffer_filled_by_modules() -> None:
    """Slices of one tensor written by several modules: each node is its maker's."""

    def body(m: Any, x: torch.Tensor) -> torch.Tensor:
        out = torch.zeros(2, 3)
        for index, layer in enumerate(m.layers):
            out[index] = layer(x)
        return out

    net = Net(body, layers=nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)]))
    with watched(net) as run:
        net(torch.ones(3)).sum().backward()
    assert_tree_equals(
        run.tree,
        """
        forward Net
          forward Net.layers.0
          forward Net.layers.1
        backward
          backward Net
            backward Net.layers.1
            backward Net.layers.0
        """,
    )


def test_activation_leaked_out_of_a_module() -> None:
    """The backward of what a module kept aside, not returned, is in its region."""

    def leak(m: Any, x: torch.Tensor) -> torch.Tensor:
        m.kept = m.lin(x) * 2
        return x.sum()

    inner = Net(leak, lin=nn.Linear(3, 3))
    net = Net(lambda m, x: m.inner(x), inner=inner)
    with watched(net) as run:
        net(torch.ones(1, 3))
        inner.kept.sum().backward()
    assert_tree_equals(
        run.tree,
        """
        forward Net
          forward Net.inner
            forward Net.inner.lin
        backward
          backward Net
            backward Net.inner
              backward Net.inner.lin
        """,
    )
