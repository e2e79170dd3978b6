"""What torch does with modules: scripting, export, precision, recurrence, unusual tensors."""

from __future__ import annotations

import re
from inspect import cleandoc
from typing import Any

import pytest
import torch
from torch import fx, nn

from otel_modtrack.testing import assert_tree_equals
from tests.tracker.oracle import watched


class Block(nn.Module):
    """A linear layer and an activation."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.lin(x))


BLOCK = """forward Sequential
  forward Sequential.0
    forward Sequential.0.lin
backward
  backward Sequential
    backward Sequential.0
      backward Sequential.0.lin"""

# Said by newer versions of torch.
jit = pytest.mark.filterwarnings("ignore:.*torch.jit:FutureWarning")


# -- scripting, tracing, exporting ----------------------------------------------------------------


@jit
def test_scripted_module() -> None:
    """A scripted module is one region: what runs in it is no Python."""
    net = nn.Sequential(torch.jit.script(Block()))
    with watched() as run:
        for _ in range(3):
            net(torch.ones(1, 3)).sum().backward()
    one = cleandoc(
        """
        forward Sequential
          forward Sequential.0
        backward
          backward Sequential
            backward Sequential.0
        """
    )
    assert_tree_equals(run.tree, f"{one}\n{one}\n{one}")


@jit
def test_scripting_while_tracking() -> None:
    """Scripting a model that is tracked gives what it gives untracked, which then is one region."""
    plain = str(torch.jit.script(Block()).graph)
    with watched() as run:
        scripted = torch.jit.script(Block())
        scripted(torch.ones(1, 3)).sum().backward()
    assert _without_numbers(str(scripted.graph)) == _without_numbers(plain)
    assert [line.split()[0] for line in run.tree.splitlines()] == [
        "forward",
        "backward",
        "backward",
    ]


@jit
@pytest.mark.filterwarnings("ignore:Converting a tensor:torch.jit.TracerWarning")
def test_tracing_while_tracking() -> None:
    """torch.jit.trace calls the model, and gives what it gives untracked."""
    block = Block()
    plain = str(torch.jit.trace(block, torch.ones(1, 3)).graph)
    with watched(block) as run:
        traced = torch.jit.trace(block, torch.ones(1, 3), check_trace=False)
        calls = len(run.spans)
        traced(torch.ones(1, 3)).sum().backward()
    assert _without_numbers(str(traced.graph)) == _without_numbers(plain)
    assert calls
    assert run.tree.endswith("forward Block#2\nbackward\n  backward Block#2")


def _without_numbers(graph: str) -> str:
    """A graph without the numbers that torch gives to types it has seen before."""
    return re.sub(r"___torch_mangle_\d+\.", "", graph)


def test_fx_while_tracking() -> None:
    """fx traces what it traces untracked, and its GraphModule is a module with named children."""
    block = Block()
    plain = fx.symbolic_trace(block).code
    with watched() as run:
        traced = fx.symbolic_trace(block)
        before = run.tree
        run.oracle.learn(traced)
        traced(torch.ones(1, 3)).sum().backward()
    assert traced.code == plain
    after = run.tree[len(before) :].strip()
    assert after.splitlines()[0].startswith("forward ")
    assert "backward" in after


def test_export_while_tracking() -> None:
    """torch.export gives what it gives untracked."""
    block = Block()
    plain = torch.export.export(block, (torch.ones(1, 3),))
    with watched(block, nodes=False):
        exported = torch.export.export(block, (torch.ones(1, 3),))
    assert exported.graph_module.code == plain.graph_module.code
    with watched() as run:
        exported.module()(torch.ones(1, 3)).sum().backward()
    assert "backward" in run.tree


# -- precision ------------------------------------------------------------------------------------


def test_autocast_with_a_grad_scaler() -> None:
    """Casts are made by the modules whose inputs are cast; the scaler's step is one step."""
    net = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3), nn.Linear(3, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    with watched(net) as run, run.tracker.step(0):
        with torch.autocast("cpu", torch.bfloat16):
            loss = net(torch.ones(2, 3)).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    assert_tree_equals(
        run.tree,
        """
        train_step
          forward Sequential
            forward Sequential.0
            forward Sequential.1
            forward Sequential.2
          backward
            backward Sequential
              backward Sequential.2
              backward Sequential.1
              backward Sequential.0
          optimizer_step SGD
        """,
    )


def test_autocast_weight_cache() -> None:
    """A weight that is cast once for two calls was cast in the first: its node is there."""
    net = nn.Linear(3, 3)
    with watched(net) as run:
        with torch.autocast("cpu", torch.bfloat16):
            loss = net(net(torch.ones(2, 3))).sum()
        loss.backward()
    assert_tree_equals(
        run.tree,
        """
        forward Linear
        forward Linear
        backward
          backward Linear
          backward Linear
        """,
    )


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_dynamically_quantised_model() -> None:
    """Quantised layers have no gradient, and are regions of the forward."""
    quantisation = pytest.importorskip("torch.ao.quantization")
    if torch.backends.quantized.engine == "none":
        pytest.skip("this torch has no engine for quantised operators")
    net = quantisation.quantize_dynamic(nn.Sequential(nn.Linear(3, 3), nn.ReLU()), {nn.Linear})
    with watched(net, nodes=False) as run:
        net(torch.ones(1, 3))
    assert_tree_equals(
        run.tree, "forward Sequential\n  forward Sequential.0\n  forward Sequential.1"
    )


# -- models ---------------------------------------------------------------------------------------


class Experts(nn.Module):
    """Routes each row to one of its experts."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(3, 3)
        self.experts = nn.ModuleList([nn.Linear(3, 3) for _ in range(3)])

    def forward(self, x: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        weights = self.router(x).softmax(-1)
        out = torch.zeros_like(x)
        for index, expert in enumerate(self.experts):
            rows = torch.where(chosen == index)[0]
            if len(rows):
                out = out.index_add(0, rows, expert(x[rows]) * weights[rows, index, None])
        return out


def test_mixture_of_experts() -> None:
    """Only the experts that were chosen have regions."""
    net = Experts()
    with watched(net) as run:
        net(torch.randn(4, 3), torch.tensor([0, 2, 2, 0])).sum().backward()
    assert_tree_equals(
        run.tree,
        """
        forward Experts
          forward Experts.router
          forward Experts.experts.0
          forward Experts.experts.2
        backward
          backward Experts
            backward Experts.experts.2
            backward Experts.experts.0
            backward Experts.router
        """,
    )


def test_lstm_over_a_packed_sequence() -> None:
    """An LSTM is one region, over packed sequences too."""

    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(5, 3)
            self.lstm = nn.LSTM(3, 4, num_layers=2, batch_first=True)
            self.head = nn.Linear(4, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            lengths = torch.tensor([3, 2])
            packed = nn.utils.rnn.pack_padded_sequence(self.embed(x), lengths, batch_first=True)
            out, (hidden, _) = self.lstm(packed)
            out, _ = nn.utils.rnn.pad_packed_sequence(out, batch_first=True)
            return self.head(hidden[-1]) + out.sum()

    net = Reader()
    with watched(net) as run:
        net(torch.tensor([[1, 2, 3], [1, 2, 0]])).sum().backward()
    assert_tree_equals(
        run.tree,
        """
        forward Reader
          forward Reader.embed
          forward Reader.lstm
          forward Reader.head
        backward
          backward Reader
            backward Reader.head
            backward Reader.lstm
            backward Reader.embed
        """,
    )


def test_cell_unrolled_over_time() -> None:
    """A cell that is called once a time step has a backward region for each, last first."""

    class Unrolled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.GRUCell(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            hidden = torch.zeros(1, 3)
            for step in x:
                hidden = self.cell(step, hidden)
            return hidden

    net = Unrolled()
    with watched(net) as run:
        net(torch.ones(3, 1, 3)).sum().backward()
    assert_tree_equals(
        run.tree,
        """
        forward Unrolled
          forward Unrolled.cell
          forward Unrolled.cell
          forward Unrolled.cell
        backward
          backward Unrolled
            backward Unrolled.cell
            backward Unrolled.cell
            backward Unrolled.cell
        """,
    )
    calls = [span.attributes["modtrack.module.call_index"] for span in run.of("Unrolled.cell")]
    assert calls == [0, 1, 2, 2, 1, 0]


def test_transformer_encoder() -> None:
    """torch's own encoder, in training; under no_grad in evaluation it takes its fast path."""
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
    net = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    with watched(net) as run:
        net(torch.ones(1, 2, 4)).sum().backward()
    layers = [
        line.split(" ", 1)[1]
        for line in map(str.strip, run.tree.splitlines())
        if line.startswith("backward TransformerEncoder.layers.") and line.count(".") == 2
    ]
    assert layers == ["TransformerEncoder.layers.1", "TransformerEncoder.layers.0"]
    assert "backward TransformerEncoder.layers.1.self_attn" in run.tree
    net.eval()
    with watched(net, nodes=False) as run, torch.no_grad():
        net(torch.ones(1, 2, 4))
    assert_tree_equals(
        run.tree,
        """
        forward TransformerEncoder
          forward TransformerEncoder.layers.0
          forward TransformerEncoder.layers.1
        """,
    )


class LoraLinear(nn.Module):
    """A frozen linear layer and a low-rank correction."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(3, 3).requires_grad_(False)
        self.down, self.up = nn.Linear(3, 1, bias=False), nn.Linear(1, 3, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.up(self.down(x)) * 0.5


def test_lora() -> None:
    """Of a wrapped layer whose input has no gradient, only the adapter has a backward."""
    net = nn.Sequential(LoraLinear(), LoraLinear())
    with watched(net) as run:
        net(torch.ones(1, 3)).sum().backward()
    assert_tree_equals(
        run.tree,
        """
        forward Sequential
          forward Sequential.0
            forward Sequential.0.base
            forward Sequential.0.down
            forward Sequential.0.up
          forward Sequential.1
            forward Sequential.1.base
            forward Sequential.1.down
            forward Sequential.1.up
        backward
          backward Sequential
            backward Sequential.1
              backward Sequential.1.up
              backward Sequential.1.down
              backward Sequential.1.base
            backward Sequential.0
              backward Sequential.0.up
              backward Sequential.0.down
        """,
    )


def test_parametrised_weight() -> None:
    """A parametrisation is a module that is called whenever the weight is read."""
    net = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(3, 3)))
    with watched(net) as run:
        net(torch.ones(1, 3)).sum().backward()
    assert_tree_equals(
        run.tree,
        """
        forward Sequential
          forward Sequential.0
            forward Sequential.0.parametrizations.weight
              forward Sequential.0.parametrizations.weight.0
        backward
          backward Sequential
            backward Sequential.0
              backward Sequential.0.parametrizations.weight
                backward Sequential.0.parametrizations.weight.0
        """,
    )


def test_averaged_model() -> None:
    """An averaged copy is one region with what it wraps, and a model of its own."""
    net = nn.Sequential(nn.Linear(3, 3))
    averaged = torch.optim.swa_utils.AveragedModel(net)
    with watched(net, averaged, nodes=False) as run, torch.no_grad():
        net(torch.ones(1, 3))
        averaged(torch.ones(1, 3))
    assert_tree_equals(
        run.tree,
        """
        forward Sequential
          forward Sequential.0
        forward Sequential#2
          forward Sequential#2.0
        """,
    )


def test_data_parallel_without_devices() -> None:
    """DataParallel, where there is no GPU, is one region with its module."""
    net = nn.DataParallel(nn.Sequential(nn.Linear(3, 3)), device_ids=[])
    if net.device_ids:
        pytest.skip("there are devices, and DataParallel wants the model on them")
    with watched(net) as run:
        net(torch.ones(1, 3)).sum().backward()
    assert_tree_equals(
        run.tree,
        """
        forward Sequential
          forward Sequential.0
        backward
          backward Sequential
            backward Sequential.0
        """,
    )


# -- tensors --------------------------------------------------------------------------------------


def test_complex_tensors() -> None:
    """Complex numbers, views as real ones and FFTs are nodes like others."""

    class Spectral(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mix = nn.Linear(3, 3, dtype=torch.complex64)
            self.out = nn.Linear(4, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            mixed = self.mix(torch.fft.rfft(x))
            return self.out(torch.fft.irfft(mixed, n=4)) + torch.view_as_real(mixed).sum()

    net = Spectral()
    with watched(net) as run:
        net(torch.ones(1, 4)).sum().backward()
    assert_tree_equals(
        run.tree,
        """
        forward Spectral
          forward Spectral.mix
          forward Spectral.out
        backward
          backward Spectral
            backward Spectral.out
            backward Spectral.mix
        """,
    )


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_nested_tensors(layout: torch.layout) -> None:
    """Nested tensors of both layouts go through modules."""
    net = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 1))
    with watched(net) as run:
        parts = [torch.ones(2, 3), torch.ones(1, 3)]
        out = net(torch.nested.nested_tensor(parts, layout=layout))
        torch.cat([part.sum()[None] for part in out.unbind()]).sum().backward()
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


def test_sparse_gradients() -> None:
    """An embedding with sparse gradients, and a sparse matrix as an operand."""

    class Sparse(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(5, 3, sparse=True)
            self.lin = nn.Linear(3, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            adjacency = torch.eye(2).to_sparse()
            return torch.sparse.mm(adjacency, self.lin(self.embed(x)))

    net = Sparse()
    with watched(net) as run:
        net(torch.tensor([1, 2])).sum().backward()
    assert_tree_equals(
        run.tree,
        """
        forward Sparse
          forward Sparse.embed
          forward Sparse.lin
        backward
          backward Sparse
            backward Sparse.lin
            backward Sparse.embed
        """,
    )


def test_tensor_subclass() -> None:
    """Subclasses of Tensor pass through, and see no operation of the tracker's."""
    seen: list[str] = []

    class Watching(torch.Tensor):
        @classmethod
        def __torch_function__(
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(getattr(func, "__name__", str(func)))
            return super().__torch_function__(func, types, args, kwargs or {})

    net = Block()
    net(torch.ones(1, 3).as_subclass(Watching)).sum().backward()
    plain, seen[:] = list(seen), []
    with watched(net) as run:
        net(torch.ones(1, 3).as_subclass(Watching)).sum().backward()
    assert seen == plain
    assert_tree_equals(
        run.tree,
        """
        forward Block
          forward Block.lin
        backward
          backward Block
            backward Block.lin
        """,
    )


def test_custom_function_with_many_outputs() -> None:
    """A Function with several outputs, some without gradient, is one node of its module."""

    class Split(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            index = torch.arange(3)
            ctx.mark_non_differentiable(index)
            return x * 2, index

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor, _: Any) -> torch.Tensor:
            del ctx
            return grad * 2

    class Splits(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return Split.apply(x)

    net = nn.Sequential(nn.Linear(3, 3), Splits())
    with watched(net) as run:
        net(torch.ones(1, 3))[0].sum().backward()
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
        """,
    )


def test_saved_tensor_hooks() -> None:
    """Saved tensors kept on the host, or packed by hooks of the user, change nothing."""
    net = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    with watched(net) as run:
        with torch.autograd.graph.saved_tensors_hooks(lambda t: (t,), lambda packed: packed[0]):
            loss = net(torch.ones(1, 3)).sum()
        loss.backward()
        with torch.autograd.graph.save_on_cpu():
            loss = net(torch.ones(1, 3)).sum()
        loss.backward()
    one = cleandoc(
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
    assert_tree_equals(run.tree, f"{one}\n{one}")


@jit
def test_forward_mode_gradients() -> None:
    """Forward-mode differentiation makes no backward."""
    net = nn.Linear(3, 3)
    with watched(net, nodes=False) as run, torch.autograd.forward_ad.dual_level():
        net(torch.autograd.forward_ad.make_dual(torch.ones(1, 3), torch.ones(1, 3)))
    assert_tree_equals(run.tree, "forward Linear")


def test_inference_mode() -> None:
    """Calls in inference mode are regions of the forward."""
    net = Block()
    with watched(net, nodes=False) as run, torch.inference_mode():
        net(torch.ones(1, 3))
    assert_tree_equals(run.tree, "forward Block\n  forward Block.lin")


def test_lazy_modules() -> None:
    """A lazy module materialises in its first call, and keeps its name though its class changes."""
    net = nn.Sequential(nn.LazyLinear(3))
    with watched(net) as run:
        for _ in range(2):
            net(torch.ones(1, 3)).sum().backward()
    one = "forward Sequential\n  forward Sequential.0\nbackward\n  backward Sequential"
    assert_tree_equals(run.tree, "\n".join([f"{one}\n    backward Sequential.0"] * 2))


def test_meta_device() -> None:
    """A model without data runs forward and backward."""
    with torch.device("meta"):
        net = nn.Sequential(Block())
    with watched(net) as run:
        net(torch.ones(1, 3, device="meta")).sum().backward()
    assert_tree_equals(run.tree, BLOCK)
