"""Runs a script under a tracker of its own: what the others are compared with."""

import runpy
import sys

from otel_modtrack import ModTracker, configure

configure()
del sys.argv[0]
with ModTracker():
    runpy.run_path(sys.argv[0], run_name="__main__")
