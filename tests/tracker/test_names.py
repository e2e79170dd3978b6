"""Names: what a module is called, and that wrappers are one region with what they wrap."""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import distributed, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

import otel_modtrack
from otel_modtrack import ModTracker
from otel_modtrack.core import CORE
from otel_modtrack.names import Names, template
from otel_modtrack.testing import Tree
from tests.conftest import spans_of
from tests.intervals import check_intervals

if TYPE_CHECKING:
    import types
    from collections.abc import Iterator

    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


class Net(nn.Module):
    """Two layers in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x).exp()
        return x


@pytest.mark.parametrize(
    ("fqn", "wanted"),
    [
        ("GPT", "GPT"),
        ("GPT.layers.17.mlp", "GPT.layers.*.mlp"),
        ("GPT#2.layers.0", "GPT.layers.*"),
        ("Net.0.1.2", "Net.*.*.*"),
        ("Net.conv1.block2d", "Net.conv1.block2d"),
        ("Net.experts.e12", "Net.experts.e12"),
        ("loss", "loss"),
    ],
)
def test_template(fqn: str, wanted: str) -> None:
    """List indices become a star, names keep their digits, the root loses its number."""
    assert template(fqn) == wanted


def test_no_python_runs_when_a_module_goes(provider: TracerProvider) -> None:
    """A signal's exception in the callback of a weak reference would be swallowed."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ran: list[types.CodeType] = []
    before = sys.getprofile()
    with ModTracker(tracer_provider=provider, steps="auto"):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        assert {id(module) for module in model.modules()} <= CORE.known.keys()
        keys = set(CORE.known)
        sys.setprofile(
            lambda frame, event, _: ran.append(frame.f_code) if event == "call" else None
        )
        try:
            del model
        finally:
            sys.setprofile(before)
        assert not keys & CORE.known.keys()
    # Dynamo, once it is imported, keeps every module of the process in a dictionary whose weak
    # references call its own Python: only ours are looked for.
    ours = str(Path(otel_modtrack.__file__).parent)
    assert [code for code in ran if code.co_filename.startswith(ours)] == []


def test_models_of_one_class_are_told_apart() -> None:
    """Two living roots of a class differ by a number, which a dead one gives back."""
    names = Names()
    first, second = Net(), Net()
    assert names.name(first).fqn == "Net"
    assert names.name(second).fqn == "Net#2"
    assert names.fqn(second.layers[1]) == "Net#2.layers.1"
    assert names.name(second).template == "Net"
    del second
    gc.collect()
    third = Net()
    assert names.name(third).fqn == "Net#2"
    assert names.fqn(Net()) is None
    assert len(names.known) == 8


def test_a_name_stays() -> None:
    """A module that was met by itself keeps its name when its parent is met."""
    names = Names()
    net = Net()
    assert names.name(net.layers[0]).fqn == "Linear"
    assert names.name(net).fqn == "Net"
    assert names.fqn(net.layers[0]) == "Linear"
    assert names.fqn(net.layers[1]) == "Net.layers.1"


def test_given_model_names_its_modules(
    provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    """With `ModTracker(model)`, a submodule that is called by itself has its full name."""
    net = Net()
    with ModTracker(net, tracer_provider=provider) as tracker:
        assert tracker.get_known_fqn(net.layers[1]) == "Net.layers.1"
        net.layers[1](torch.ones(1, 2))
    (span,) = exporter.get_finished_spans()
    assert span.attributes["modtrack.module.fqn"] == "Net.layers.1"


@pytest.fixture
def process_group() -> Iterator[None]:
    """A gloo group of this process alone."""
    distributed.init_process_group("gloo", rank=0, world_size=1, store=distributed.HashStore())
    yield
    distributed.destroy_process_group()


def run(model: nn.Module, provider: TracerProvider, **given: Any) -> None:
    """One step of `model`."""
    with ModTracker(model, tracer_provider=provider, **given) as tracker, tracker.step(0):
        model(torch.ones(1, 2)).sum().backward()


PLAIN = """
    train_step
      forward Net
        forward Net.layers.0
        forward Net.layers.1
      backward
        backward Net
          backward Net.layers.1
          backward Net.layers.0
    """


def wrapper_of(exporter: InMemorySpanExporter, fqn: str) -> set[object]:
    """The wrapper that the spans of `fqn` name."""
    return {
        span.attributes.get("modtrack.module.wrapper")
        for span in exporter.get_finished_spans()
        if span.attributes.get("modtrack.module.fqn") == fqn
    }


@pytest.mark.usefixtures("process_group")
@pytest.mark.filterwarnings("ignore:::torch")  # torch's own deprecations in DDP
def test_ddp_is_one_region_with_its_module(
    provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    """DDP: the tree of the plain model, the wrapper as an attribute, no ``module.`` in a name."""
    run(DistributedDataParallel(Net()), provider)
    Tree(exporter.get_finished_spans()).assert_equals(PLAIN)
    check_intervals(spans_of(exporter))
    assert wrapper_of(exporter, "Net") == {"DistributedDataParallel"}
    assert wrapper_of(exporter, "Net.layers.0") == {None}
    assert {
        span.attributes["modtrack.module.type"]
        for span in exporter.get_finished_spans()
        if span.attributes.get("modtrack.module.fqn") == "Net"
    } == {"Net"}


@pytest.mark.usefixtures("process_group")
def test_fsdp2_renames_nothing(provider: TracerProvider, exporter: InMemorySpanExporter) -> None:
    """FSDP2 puts its class before the user's: fqn and type are the user's."""
    fsdp = pytest.importorskip("torch.distributed.fsdp")
    mesh = distributed.init_device_mesh("cpu", (1,))
    net = Net()
    for layer in net.layers:
        fsdp.fully_shard(layer, mesh=mesh)
    fsdp.fully_shard(net, mesh=mesh)
    assert type(net).__name__ == "FSDPNet"
    run(net, provider)
    Tree(exporter.get_finished_spans()).assert_equals(PLAIN)
    check_intervals(spans_of(exporter))
    assert wrapper_of(exporter, "Net") == wrapper_of(exporter, "Net.layers.1") == {"FSDPModule"}


def test_averaged_model(provider: TracerProvider, exporter: InMemorySpanExporter) -> None:
    """AveragedModel is transparent as well, also around what was named before."""
    net = Net()
    averaged = AveragedModel(net)
    run(averaged, provider)
    Tree(exporter.get_finished_spans()).assert_equals(PLAIN)
    assert wrapper_of(exporter, "Net") == {"AveragedModel"}


def test_checkpoint_wrapper_inside(
    provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    """CheckpointWrapper: one region with its module; the recomputation lies in its backward."""
    net = Net()
    net.layers[1] = checkpoint_wrapper(net.layers[1])
    run(net, provider)
    Tree(exporter.get_finished_spans()).assert_equals(
        """
        train_step
          forward Net
            forward Net.layers.0
            forward Net.layers.1
          backward
            backward Net
              backward Net.layers.1
                recompute Net.layers.1
              backward Net.layers.0
        """
    )
    check_intervals(spans_of(exporter))
    assert "CheckpointWrapper" in wrapper_of(exporter, "Net.layers.1")


def test_wrapped_after_it_was_named(
    provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    """A model that is wrapped later keeps its name, and is one region with the wrapper."""
    net = Net()
    with ModTracker(net, tracer_provider=provider):
        net(torch.ones(1, 2))
        exporter.clear()
        wrapper = AveragedModel(net)
        wrapper.module = net  # it had made a copy
        wrapper(torch.ones(1, 2))
    Tree(exporter.get_finished_spans()).assert_equals(
        """
        forward Net
          forward Net.layers.0
          forward Net.layers.1
        """
    )
