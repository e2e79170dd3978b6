"""Tests of what `otel-modtrack view` shows in a terminal."""
