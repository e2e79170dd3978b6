"""Trace files for other viewers: Perfetto, chrome://tracing and speedscope."""

from __future__ import annotations

from otel_modtrack.view.exports.chrome import write_chrome
from otel_modtrack.view.exports.perfetto import write_perfetto
from otel_modtrack.view.exports.speedscope import write_speedscope

__all__ = ["write_chrome", "write_perfetto", "write_speedscope"]
