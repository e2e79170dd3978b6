"""What is allocated, as tests of memory count it."""

from __future__ import annotations

import linecache
import sys
import tracemalloc
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

# Python 3.10 gives each function a cache of about 1 kB when it is called for the 1,024th time. It
# counts as allocated on the line where the function begins, long after all else has settled.
# (Function objects are allocated there, too: whoever counts objects sees those.)
_CACHED_AT_CALL_1024 = sys.version_info < (3, 11)
_BEGINS = ("def ", "async def ", "@")


def _is_cache(trace: tracemalloc.Trace) -> bool:
    frame = trace.traceback[-1]
    return linecache.getline(frame.filename, frame.lineno).lstrip().startswith(_BEGINS)


def traced_bytes(filters: Sequence[tracemalloc.Filter] = ()) -> int:
    """Bytes that tracemalloc knows of, without the interpreter's own caches for functions."""
    traces = tracemalloc.take_snapshot().filter_traces(filters).traces
    if not _CACHED_AT_CALL_1024:
        return sum(trace.size for trace in traces)
    try:
        return sum(trace.size for trace in traces if not _is_cache(trace))
    finally:
        linecache.clearcache()  # or the next snapshot is of the lines
