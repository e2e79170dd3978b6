"""What the programs of these tests say of themselves: lines of JSON on stdout."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import tempfile
import threading
import traceback
from typing import TYPE_CHECKING, Any

from opentelemetry import trace

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["leave_quickly", "say", "told_errors"]


def say(**line: Any) -> None:
    """Say something, which process this is, which threads it has, where it is in which trace."""
    here = trace.get_current_span().get_span_context()
    line |= {
        "pid": os.getpid(),
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "trace_id": f"{here.trace_id:032x}",
        "span_id": f"{here.span_id:016x}",
    }
    os.write(1, f"{json.dumps(line)}\n".encode())


@contextlib.contextmanager
def told_errors(**line: Any) -> Iterator[None]:
    """Say what went wrong meanwhile, and what anybody wrote to stderr, also a child."""
    here = os.getpid()
    errors = ""
    with tempfile.TemporaryFile() as file:
        stderr = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            yield
        except Exception:  # noqa: BLE001 - told by the test
            errors = traceback.format_exc()
            if os.getpid() != here:
                os.write(2, errors.encode())
                os._exit(1)
        os.dup2(stderr, 2)
        os.close(stderr)
        file.seek(0)
        errors += file.read().decode()
    say(**line, errors=errors)


def leave_quickly() -> None:
    """Leave out Python's own teardown, which takes a second with torch.

    What is registered with atexit later, by `configure`, is called before.
    """
    atexit.register(os._exit, 0)
