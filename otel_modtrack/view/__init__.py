"""Reads trace files and shows them. Needs neither torch nor OpenTelemetry.

``reader`` turns a file into spans, ``model`` spans into trees, ``terminal`` trees into text.
"""
