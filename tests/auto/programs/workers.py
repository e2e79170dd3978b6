"""Starts workers of multiprocessing's: one trains, one loads data."""

# ruff: noqa: T201 - they print

import multiprocessing
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Embedded(Dataset):
    """Runs a module in the worker that loads."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, at: int) -> torch.Tensor:
        with torch.no_grad():
            return nn.Embedding(2, 4)(torch.tensor(at))


def train(kind: str) -> None:
    """One step."""
    torch.manual_seed(0)
    model = nn.Sequential(getattr(nn, kind)(), nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    print(kind, flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    method = sys.argv[1]
    train("ReLU")
    worker = multiprocessing.get_context(method).Process(target=train, args=("Tanh",))
    worker.start()
    worker.join()
    print(worker.exitcode)
    loader = DataLoader(Embedded(), num_workers=1, multiprocessing_context=method)
    print([tuple(batch.shape) for batch in loader])
