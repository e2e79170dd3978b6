"""Tests of `otel_modtrack.testing` and the pytest plugin."""
