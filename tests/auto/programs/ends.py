"""Trains two steps, and ends as it is told."""

# ruff: noqa: T201 - they print

import os
import signal
import sys

path = sys.path[1:]

import torch  # noqa: E402 - some versions add to sys.path
from torch import nn  # noqa: E402

torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(2):
    loss = model(torch.ones(2, 4)).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(loss.item(), sys.argv, __name__, path, os.environ.get("PYTHONPATH"), flush=True)


def fail() -> None:
    """Raise with a cause."""
    try:
        model(torch.ones(3))
    except RuntimeError as error:
        msg = "bad input"
        raise ValueError(msg) from error


end = sys.argv[1]
if end == "exit":
    model(torch.ones(2, 4)).sum().backward()  # a step that is never finished
    sys.exit(3)
elif end == "raise":
    fail()
elif end == "_exit":
    os._exit(7)
elif end == "chain":  # as frameworks do that end gracefully
    before = signal.getsignal(signal.SIGTERM)
    signal.signal(
        signal.SIGTERM, lambda number, frame: before(number, frame) if callable(before) else None
    )
    os.kill(os.getpid(), signal.SIGTERM)
    print("goes on")
elif end.startswith("SIG"):
    os.kill(os.getpid(), signal.Signals[end])
