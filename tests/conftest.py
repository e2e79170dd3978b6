"""Fixtures shared by all tests; whatever a test leaves behind fails it."""

from __future__ import annotations

import gc
import multiprocessing.process
import signal
import subprocess
import threading
import time
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import HealthCheck, settings
from opentelemetry import context as context_api
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from torch import nn
from torch.autograd import graph
from torch.optim import optimizer

from otel_modtrack.core import CORE
from otel_modtrack.testing.fixed import CLOCKS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opentelemetry.sdk.trace import ReadableSpan

pytest_plugins = ["pytester"]

# They take a minute or more each. Where files are spread over processes these begin first, so that
# none of them is left at the end with one process.
LONGEST = (
    "test_harmless_distributed.py",
    "test_ops.py",
    "test_demo.py",
    "test_benchmarks.py",
    "test_faults.py",
    "test_frameworks.py",
    "test_trees_distributed.py",
    "test_memory.py",
    "test_forks.py",
    "test_examples.py",
    "test_processes.py",
    "test_ends.py",
)

torch.set_num_threads(1)

# The same examples in each run. How long one takes is the machine's affair, and no fixture of ours
# is changed by any.
settings.register_profile(
    "tests",
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("tests")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files first; what is in a file keeps its order."""
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.name, len(places)))


def patched_state() -> dict[str, object]:
    """Everything of torch's and OpenTelemetry's that a tracker touches while it is on."""
    module = nn.modules.module
    c10d = None
    if torch.distributed.is_available():
        from torch.distributed import distributed_c10d as c10d  # noqa: PLC0415 - not always there
    registered = torch._C._dispatch_get_registrations_for_dispatch_key("BackendSelect")
    spaces = ("c10d::", "_c10d_functional", "_dtensor::")
    return {
        "call code": nn.Module._wrapped_call_impl.__code__,
        "call": nn.Module.__call__,
        "engine": graph._engine_run_backward,
        "engine code": graph._engine_run_backward.__code__,
        "engine in autograd": torch.autograd._engine_run_backward,
        "forward hooks": len(module._global_forward_hooks),
        "forward pre-hooks": len(module._global_forward_pre_hooks),
        "backward hooks": len(module._global_backward_hooks),
        "optimizer pre-hooks": len(optimizer._global_optimizer_pre_hooks),
        "optimizer post-hooks": len(optimizer._global_optimizer_post_hooks),
        "context reader": "get_current" in vars(context_api._RUNTIME_CONTEXT),
        "context": dict(context_api.get_current()),
        "threaded backward": torch._C._is_multithreading_enabled(),
        "subprocesses": subprocess.Popen.__init__,
        "processes": multiprocessing.process.BaseProcess.start,
        "SIGTERM": signal.getsignal(signal.SIGTERM),
        "clocks": [getattr(holder, name) for holder, name in CLOCKS],
        "collector": gc.isenabled(),
        "threads": threading.active_count(),
        "function modes": torch.overrides._len_torch_function_stack(),
        "recorders": CORE.recorders,
        "group registration": getattr(c10d, "_register_process_group", None),
        "kernels": sorted(name for name in registered if name.startswith(spaces)),
    }


def keep_from_collections() -> None:
    """From now on no collection looks at what is there, nor a tracker that looks for optimizers."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="module")
def quick_collections() -> None:
    """One takes a quarter of a second where it looks at torch, pytest and the other tests, too.

    A file of many collections makes torch import here what it imports late.
    """
    keep_from_collections()


def pytest_unconfigure() -> None:
    """What ends the process may collect all of it."""
    gc.unfreeze()


_THREADS_END_S = 5.0


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """Fail any test after which something is still patched, hooked, attached or running."""
    before = patched_state()
    yield
    end_s = time.monotonic() + _THREADS_END_S
    while threading.active_count() > before["threads"] and time.monotonic() < end_s:
        time.sleep(0.02)  # those of a server, say, that has just answered the last request
    after = patched_state()
    # A thread of an earlier test may have ended meanwhile.
    after["threads"] = max(after["threads"], before["threads"])
    assert after == before


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    """An in-memory exporter; `provider` feeds it."""
    return InMemorySpanExporter()


@pytest.fixture
def provider(exporter: InMemorySpanExporter) -> TracerProvider:
    """A provider of the SDK's whose spans land in `exporter` at once."""
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider


def spans_of(exporter: InMemorySpanExporter) -> list[ReadableSpan]:
    """The finished spans, oldest first."""
    return sorted(exporter.get_finished_spans(), key=lambda span: (span.start_time, -span.end_time))
