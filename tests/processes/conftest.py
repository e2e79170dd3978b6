"""Fixtures of the tests of processes."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from tests.processes.running import Program, Receiver

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture(scope="session")
def receiver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Receiver]:
    """A receiver for the whole run; programs are told apart by their service's name."""
    with contextlib.closing(Receiver(tmp_path_factory.mktemp("received"))) as receiver:
        yield receiver


@pytest.fixture
def make_receiver(tmp_path: Path) -> Iterator[Callable[[], Receiver]]:
    """One of the test's own, to be released."""
    with contextlib.ExitStack() as running:
        yield lambda: running.enter_context(contextlib.closing(Receiver(tmp_path)))


@pytest.fixture
def start(receiver: Receiver) -> Iterator[Callable[..., Program]]:
    """Start a program: `start(source, {"OTEL_...": ...})`; see `Program`."""
    with contextlib.ExitStack() as running:

        def start(*args: Any, receiver: Receiver = receiver, **kwargs: Any) -> Program:
            return running.enter_context(Program(receiver, *args, **kwargs))

        yield start
