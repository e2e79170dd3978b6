"""How a model's structure is tested: `pytest examples/test_model.py`."""

import pytest
import torch
from torch import nn

from otel_modtrack.testing import Capture


class Model(nn.Module):
    """An encoder of three layers, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(*(nn.Linear(8, 8) for _ in range(3)))
        self.head = nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(x))


@pytest.fixture
def trained(modtrack: Capture) -> Capture:
    """One training step, tracked."""
    model = Model()
    with modtrack.track(model) as tracker, tracker.step(0):
        model(torch.ones(4, 8)).sum().backward()
    return modtrack


def test_what_runs_in_which_order(trained: Capture) -> None:
    """Write down what you rely on; a failure shows the lines that differ."""
    wanted = """
        train_step
          forward Model
            forward Model.encoder
            forward Model.head
          backward Model
            backward Model.head
            backward Model.encoder
    """
    trained.tree.assert_equals(wanted, depth=3)


def test_each_layer_runs_once(trained: Capture) -> None:
    """Choose spans by fqn, phase or template."""
    trained.select("Model.encoder.*", phase="forward").assert_count(3)


def test_budget(trained: Capture) -> None:
    """What nobody notices otherwise: more calls than before, a collective in the forward."""
    trained.assert_budget(spans=14)
    trained.assert_budget("Model.encoder", phase="forward", collectives=0)
    assert trained.collectives.total == 0


def test_golden(trained: Capture) -> None:
    """The whole tree is in golden/model.txt; `pytest --modtrack-update` writes it anew."""
    trained.tree.assert_golden("model", collectives=True)
