"""``python -m otel_modtrack`` is ``otel-modtrack``."""

from __future__ import annotations

import sys

from otel_modtrack.cli import main

if __name__ == "__main__":
    sys.exit(main())
