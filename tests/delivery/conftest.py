"""An environment in which nothing is set but what a test sets."""

from __future__ import annotations

import os

import pytest

_OTHERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "SLURM_JOB_ID", "TORCHELASTIC_RUN_ID", "TRACEPARENT")


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Whatever the machine has set for OpenTelemetry, proxies or a launcher is gone."""
    for name in list(os.environ):
        if name.startswith("OTEL_") or name.lower().endswith("_proxy") or name in _OTHERS:
            monkeypatch.delenv(name)
    return monkeypatch
