"""Imported by Python itself at the start of a program that `otel-modtrack run` starts."""

import os
import sys

_folder = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - quickly imported
sys.path[:] = [_one for _one in sys.path if _one != _folder]
try:
    from otel_modtrack.auto.starting import start
except ImportError:
    sys.stderr.write(f"otel_modtrack is not installed for {sys.executable}: no spans\n")
else:
    start(_folder)

# The one that this one has been found in place of. Without any, the import fails as it would have.
del sys.modules["sitecustomize"]
import sitecustomize  # type: ignore[import-not-found]  # noqa: E402, F401
