"""Tests of the page that `otel-modtrack view --html` writes, in a real browser."""
