"""Several forwards, several backwards, backwards of backwards: whole trees, and the oracle."""

from __future__ import annotations

from inspect import cleandoc
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import get_gradient_edge

from otel_modtrack.testing import assert_tree_equals
from tests.tracker.oracle import watched

FORWARD = "forward Sequential\n  forward Sequential.0\n  forward Sequential.1"
BACKWARD = """backward
  backward Sequential
    backward Sequential.1
    backward Sequential.0"""


def mlp() -> nn.Sequential:
    """Two linear layers."""
    return nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))


def test_two_forwards_then_two_backwards() -> None:
    """Each backward is that of its own forward, whatever the order."""
    net = mlp()
    with watched(net) as run:
        first = net(torch.ones(1, 3)).sum()
        second = net(torch.ones(1, 3)).sum()
        first.backward()
        second.backward()
    assert_tree_equals(run.tree, f"{FORWARD}\n{FORWARD}\n{BACKWARD}\n{BACKWARD}")
    assert len({span.context.trace_id for span in run.spans}) == 2


def test_two_forwards_in_one_backward() -> None:
    """One backward through two calls has a region for each, newest first."""
    net = mlp()
    with watched(net) as run:
        (net(torch.ones(1, 3)) + net(torch.ones(2, 3)).sum()).sum().backward()
    assert_tree_equals(
        run.tree, "\n".join([FORWARD, FORWARD, BACKWARD, *BACKWARD.splitlines()[1:]])
    )


def test_one_forward_one_backward_interleaved() -> None:
    """A pipeline's schedule: forwards of later microbatches between backwards of earlier ones."""
    stages = [mlp(), mlp()]
    with watched(*stages) as run:

        def forward() -> tuple[Any, Any, Any]:
            hidden = stages[0][0](torch.ones(1, 3))
            received = hidden.detach().requires_grad_()
            return hidden, received, stages[1](received).sum()

        def backward(hidden: Any, received: Any, loss: Any) -> None:
            loss.backward()
            hidden.backward(received.grad)

        in_flight = [forward(), forward()]
        backward(*in_flight.pop(0))
        in_flight.append(forward())
        backward(*in_flight.pop(0))
        backward(*in_flight.pop(0))
    forwards = cleandoc(
        """
        forward Sequential.0
        forward Sequential#2
          forward Sequential#2.0
          forward Sequential#2.1
        """
    )
    backwards = cleandoc(
        """
        backward
          backward Sequential#2
            backward Sequential#2.1
            backward Sequential#2.0
        backward
          backward Sequential.0
        """
    )
    assert_tree_equals(
        run.tree, f"{forwards}\n{forwards}\n{backwards}\n{forwards}\n{backwards}\n{backwards}"
    )


def test_retained_graph_twice() -> None:
    """A graph that is run twice has its regions twice."""
    net = mlp()
    with watched(net) as run:
        loss = net(torch.ones(1, 3)).sum()
        loss.backward(retain_graph=True)
        loss.backward(retain_graph=True)
        loss.backward()
    assert_tree_equals(run.tree, f"{FORWARD}\n{BACKWARD}\n{BACKWARD}\n{BACKWARD}")


def test_retained_graph_whose_root_is_in_a_module() -> None:
    """The first node of each run is in its region, in a graph that was run before, too."""
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    with watched(net) as run:
        loss = net(torch.ones(3))
        loss.backward(retain_graph=True)
        loss.backward(retain_graph=True)
        torch.autograd.grad(loss, net[1].weight)
    alone = BACKWARD.rsplit("\n", 1)[0]
    assert_tree_equals(run.tree, "\n".join([FORWARD, BACKWARD, BACKWARD, alone]))  # noqa: FLY002


def test_several_losses_over_one_trunk() -> None:
    """Two backwards over a shared trunk, each through its own head."""
    trunk, left, right = nn.Linear(3, 3), nn.Linear(3, 1), nn.Linear(3, 1)
    net = nn.ModuleDict({"trunk": trunk, "left": left, "right": right})
    with watched(net) as run:
        hidden = trunk(torch.ones(1, 3))
        one, two = left(hidden).sum(), right(hidden).sum()
        one.backward(retain_graph=True)
        two.backward()
    assert_tree_equals(
        run.tree,
        """
        forward ModuleDict.trunk
        forward ModuleDict.left
        forward ModuleDict.right
        backward
          backward ModuleDict.left
          backward ModuleDict.trunk
        backward
          backward ModuleDict.right
          backward ModuleDict.trunk
        """,
    )


def test_several_roots() -> None:
    """One backward from several roots, one of which lies below another."""
    net = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
    with watched(net) as run:
        hidden = net[0](torch.ones(1, 3))
        out = net[2](net[1](hidden))
        torch.autograd.backward([out.sum(), hidden.sum(), out.mean()])
    assert_tree_equals(
        run.tree,
        """
        forward Sequential.0
        forward Sequential.1
        forward Sequential.2
        backward
          backward Sequential.2
          backward Sequential.1
          backward Sequential.0
        """,
    )


def test_root_below_another_root() -> None:
    """A root that is itself in the graph of another root."""
    net = mlp()
    with watched(net) as run:
        hidden = net[0](torch.ones(1, 3))
        out = net[1](hidden)
        torch.autograd.backward([out, hidden], [torch.ones(1, 1), torch.ones(1, 3)])
    assert_tree_equals(
        run.tree,
        """
        forward Sequential.0
        forward Sequential.1
        backward
          backward Sequential.1
          backward Sequential.0
        """,
    )


def test_double_backward() -> None:
    """Nodes that the first backward makes belong to no module; the second passes through both."""
    net = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    with watched(net) as run:
        x = torch.ones(1, 3, requires_grad=True)
        loss = net(x).pow(2).sum()
        (grad,) = torch.autograd.grad(loss, x, create_graph=True)
        (loss + grad.pow(2).sum()).backward()
    assert_tree_equals(
        run.tree,
        """
        forward Sequential
          forward Sequential.0
          forward Sequential.1
        backward
          backward Sequential
            backward Sequential.1
            backward Sequential.0
        backward
          backward Sequential
            backward Sequential.1
            backward Sequential.0
        """,
    )


def test_gradient_penalty_inside_a_module() -> None:
    """A backward that a module's forward runs is in that module, and its nodes are the module's."""

    class Penalised(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(3, 3), nn.Tanh())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out = self.net(x).sum()
            (grad,) = torch.autograd.grad(out, x, create_graph=True)
            return out + grad.pow(2).sum()

    net = Penalised()
    with watched(net) as run:
        net(torch.ones(1, 3, requires_grad=True)).backward()
    assert_tree_equals(
        run.tree,
        """
        forward Penalised
          forward Penalised.net
            forward Penalised.net.0
            forward Penalised.net.1
          backward
            backward Penalised
              backward Penalised.net
                backward Penalised.net.1
                backward Penalised.net.0
        backward
          backward Penalised
            backward Penalised.net
              backward Penalised.net.1
              backward Penalised.net.0
        """,
    )


def test_partial_gradient() -> None:
    """Only what leads to the inputs asked for runs, and only that has regions."""
    net = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3), nn.Tanh())
    with watched(net) as run:
        hidden = net[1](net[0](torch.ones(1, 3)))
        out = net[3](net[2](hidden)).sum()
        torch.autograd.grad(out, hidden, retain_graph=True)
        torch.autograd.grad(out, net[2].weight, retain_graph=True)
        out.backward(inputs=[net[0].weight])
    forward = "\n".join(f"forward Sequential.{index}" for index in range(4))
    assert_tree_equals(
        run.tree,
        forward
        + "\n"
        + cleandoc(
            """
        backward
          backward Sequential.3
          backward Sequential.2
        backward
          backward Sequential.3
          backward Sequential.2
        backward
          backward Sequential.3
          backward Sequential.2
          backward Sequential.1
          backward Sequential.0
        """
        ),
    )


def test_backward_from_a_gradient_edge() -> None:
    """A backward that begins at an edge of the graph, as pipeline schedules do."""
    net = mlp()
    with watched(net) as run:
        edge = get_gradient_edge(net(torch.ones(1, 3)).sum())
        torch.autograd.backward([edge])
    assert_tree_equals(run.tree, f"{FORWARD}\n{BACKWARD}")


def test_split_weight_and_input_gradients() -> None:
    """Zero-bubble schedules: the input's gradient first, the weights' later, over one graph."""
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    with watched(net) as run:
        x = torch.ones(2, 3, requires_grad=True)
        loss = net(x).sum()
        torch.autograd.grad(loss, x, retain_graph=True)
        torch.autograd.grad(loss, list(net.parameters()))
    assert_tree_equals(run.tree, f"{FORWARD}\n{BACKWARD}\n{BACKWARD}")


def test_functional_gradients() -> None:
    """torch.func.grad, vmap and functional_call: the calls are regions, and nothing breaks."""
    net = nn.Linear(3, 1)
    params = dict(net.named_parameters())

    def loss(params: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(net, params, (x,)).sum()

    with watched(net) as run:
        torch.func.grad(loss)(params, torch.ones(3))
    assert_tree_equals(run.tree, "forward Linear\nbackward\n  backward Linear")
    with watched(net, nodes=False) as run:
        torch.func.vmap(loss, in_dims=(None, 0))(params, torch.ones(4, 3))
    assert_tree_equals(run.tree, "forward Linear")
    with watched(net) as run:
        per_sample = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))
        per_sample(params, torch.ones(4, 3))
    assert_tree_equals(run.tree, "forward Linear\nbackward\n  backward Linear")


def test_functional_call_with_a_backward() -> None:
    """functional_call with other parameters is a call like any other."""
    net = mlp()
    params = {name: p.detach().clone().requires_grad_() for name, p in net.named_parameters()}
    with watched(net) as run:
        torch.func.functional_call(net, params, (torch.ones(1, 3),)).sum().backward()
    assert_tree_equals(run.tree, f"{FORWARD}\n{BACKWARD}")
    assert all(p.grad is not None for p in params.values())


def test_accumulated_gradients_in_one_step() -> None:
    """Several microbatches in one step are numbered by call, forward and backward."""
    net = mlp()
    with watched(net) as run, run.tracker.step(0):
        for _ in range(2):
            net(torch.ones(1, 3)).sum().backward()
    body = "\n".join(f"  {line}" for line in f"{FORWARD}\n{BACKWARD}".splitlines())
    assert_tree_equals(run.tree, f"train_step\n{body}\n{body}")
    calls = [span.attributes["modtrack.module.call_index"] for span in run.of("Sequential.0")]
    assert calls == [0, 0, 1, 1]


def test_multi_grad_hook_and_retain_grad() -> None:
    """Hooks of the user on tensors, and kept gradients, change nothing in the tree."""
    net = mlp()
    seen: list[Any] = []
    with watched(net) as run:
        hidden = net[0](torch.ones(1, 3))
        hidden.retain_grad()
        hidden.register_hook(seen.append)
        out = net[1](hidden)
        torch.autograd.graph.register_multi_grad_hook((hidden, out), seen.append)
        out.sum().backward()
    assert len(seen) == 2
    assert hidden.grad is not None
    assert_tree_equals(
        run.tree,
        """
        forward Sequential.0
        forward Sequential.1
        backward
          backward Sequential.1
          backward Sequential.0
        """,
    )


def test_backward_inside_a_tensor_hook() -> None:
    """A nested backward over another graph, run inside a hook, is in the region that runs."""
    net, other = mlp(), nn.Linear(3, 1)
    with watched(net, other) as run:
        hidden = net[0](torch.ones(1, 3))

        def hook(grad: torch.Tensor) -> None:
            with torch.enable_grad():
                other(grad.detach()).sum().backward()

        hidden.register_hook(hook)
        net[1](hidden).sum().backward()
    assert_tree_equals(
        run.tree,
        """
        forward Sequential.0
        forward Sequential.1
        backward
          backward Sequential.1
          backward Sequential.0
            recompute Linear
            backward Linear
        """,
    )


def test_backward_over_the_same_graph_inside_a_hook() -> None:
    """A hook that runs a backward over a part of the graph that is being run."""
    net = mlp()
    with watched(net) as run:
        hidden = net[0](torch.ones(1, 3))
        loss = net[1](hidden).sum()
        handle = hidden.register_hook(lambda _: again())

        def again() -> None:
            handle.remove()
            torch.autograd.grad(loss, net[1].weight, retain_graph=True)

        loss.backward(retain_graph=True)
    assert_tree_equals(
        run.tree,
        """
        forward Sequential.0
        forward Sequential.1
        backward
          backward Sequential.1
          backward Sequential.0
            backward
              backward Sequential.1
        """,
    )


def test_custom_function_with_a_nested_backward() -> None:
    """A Function whose backward runs a backward of its own, as reentrant checkpointing does."""
    inner = nn.Linear(3, 3)

    class Again(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            (x,) = ctx.saved_tensors
            with torch.enable_grad():
                x = x.detach().requires_grad_()
                inner(x).backward(grad)
            return x.grad

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(3, 3)
            self.inner = inner
            self.last = nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(Again.apply(self.first(x)))

    net = Net()
    with watched(net) as run:
        net(torch.ones(1, 3)).sum().backward()
    assert_tree_equals(
        run.tree,
        """
        forward Net
          forward Net.first
          forward Net.last
        backward
          backward Net
            backward Net.last
            backward Net.inner
              recompute Net.inner
            backward Net.first
        """,
    )


def test_backward_in_a_later_step() -> None:
    """A backward is part of the step in which it runs, linked to the forward of the step before."""
    net = mlp()
    with watched(net) as run:
        with run.tracker.step(0):
            loss = net(torch.ones(1, 3)).sum()
        with run.tracker.step(1):
            loss.backward()
    assert_tree_equals(
        run.tree,
        """
        train_step
          forward Sequential
            forward Sequential.0
            forward Sequential.1
        train_step
          backward
            backward Sequential
              backward Sequential.1
              backward Sequential.0
        """,
    )


def test_backward_after_its_step() -> None:
    """A backward that runs after the forward's step is in its trace, but not in the ended span."""
    net = mlp()
    with watched(net) as run:
        with run.tracker.step(0):
            loss = net(torch.ones(1, 3)).sum()
        loss.backward()
    step = "\n".join(["train_step", *[f"  {line}" for line in FORWARD.splitlines()]])
    assert_tree_equals(run.tree, f"{step}\n{BACKWARD}")
    assert len({span.context.trace_id for span in run.spans}) == 1


def test_hidden_state_carried_through_steps() -> None:
    """Backpropagation through time over several steps: each backward passes the calls of all."""
    net = nn.GRUCell(3, 3)
    with watched(net) as run:
        hidden = torch.zeros(1, 3)
        for number in range(3):
            with run.tracker.step(number):
                hidden = net(torch.ones(1, 3), hidden)
                hidden.sum().backward(retain_graph=True)
    lines = [
        line
        for number in range(1, 4)
        for line in ["train_step", "  forward GRUCell", "  backward"]
        + ["    backward GRUCell"] * number
    ]
    assert_tree_equals(run.tree, "\n".join(lines))


def test_optimizer_that_steps_in_the_backward() -> None:
    """Optimizers stepped by hooks on the parameters are inside the backward that runs."""
    net = nn.Sequential(nn.Linear(3, 3, bias=False))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def hook(_: torch.Tensor) -> None:
        optimizer.step()
        optimizer.zero_grad()

    net[0].weight.register_post_accumulate_grad_hook(hook)
    with watched(net) as run:
        net(torch.ones(1, 3)).sum().backward()
    assert_tree_equals(
        run.tree,
        """
        train_step
          forward Sequential
            forward Sequential.0
          backward
            backward Sequential
              backward Sequential.0
                optimizer_step SGD
        """,
    )


def test_closure_of_an_optimizer() -> None:
    """What an optimizer calls again and again is inside its step."""
    net = nn.Linear(3, 1)
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=2)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = net(torch.ones(2, 3)).pow(2).sum()
        loss.backward()
        return loss.detach()

    with watched(net) as run, run.tracker.step(0):
        optimizer.step(closure)
    lines = ["train_step", "  optimizer_step LBFGS"]
    once = ["    forward Linear", "    backward", "      backward Linear"]
    assert_tree_equals(run.tree, "\n".join([*lines, *once, *once]))


def test_adversarial_training() -> None:
    """A generator and a discriminator: what is detached has no backward, what is not has one."""
    generator, critic = nn.Sequential(nn.Linear(3, 3)), nn.Linear(3, 1)
    with watched(generator, critic) as run:
        fake = generator(torch.ones(2, 3))
        (critic(fake.detach()) - critic(torch.ones(2, 3))).sum().backward()
        critic(fake).sum().backward()
    assert_tree_equals(
        run.tree,
        """
        forward Sequential
          forward Sequential.0
        forward Linear
        forward Linear
        backward
          backward Linear
          backward Linear
        forward Linear
        backward
          backward Linear
          backward Sequential
            backward Sequential.0
        """,
    )


def test_inner_loop_of_meta_learning() -> None:
    """Gradients of gradients through functional calls with updated weights."""
    net = nn.Linear(3, 1, bias=False)
    with watched(net) as run:
        weight = net.weight
        for _ in range(2):
            loss = torch.func.functional_call(net, {"weight": weight}, (torch.ones(2, 3),))
            (grad,) = torch.autograd.grad(loss.pow(2).mean(), weight, create_graph=True)
            weight = weight - 0.1 * grad
        torch.func.functional_call(net, {"weight": weight}, (torch.ones(2, 3),)).sum().backward()
    forward, lines = "forward Linear", "backward\n  backward Linear"
    whole = f"{lines}\n  backward Linear\n  backward Linear"
    assert run.tree.startswith(f"{forward}\n{lines}\n{forward}\n{lines}\n")
    assert run.tree.endswith(f"{forward}\n{whole}")
