"""Reads traces and shows them. Needs neither torch nor OpenTelemetry.

``reader`` turns a file, or what the SDK holds, into spans, ``model`` spans into trees, ``terminal``
trees into text.
"""
