"""Tests against the real programs: Jaeger and the OpenTelemetry Collector."""
