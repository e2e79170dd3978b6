"""Never imports torch."""

# ruff: noqa: T201 - they print

import json
import os
import signal
import sys

heavy = (
    "torch",
    "opentelemetry.sdk",
    "opentelemetry.trace",
    "multiprocessing",
    "logging",
    "asyncio",
)
print(
    json.dumps(
        {
            "argv": sys.argv,
            "path": sys.path[1:],
            "environment": os.environ.get("PYTHONPATH"),
            "budget": os.environ.get("OTEL_PYTHON_MODTRACK_BUDGET"),
            "sitecustomize": getattr(sys.modules.get("sitecustomize"), "__file__", None),
            "heavy": [name for name in heavy if name in sys.modules],
            "flags": [sys.flags.optimize, sys.flags.utf8_mode],
            "SIGINT": str(signal.getsignal(signal.SIGINT)),
        }
    )
)
if "fail" in sys.argv:
    raise KeyError("missing")
