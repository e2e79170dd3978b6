"""A file of OTLP JSON lines, as numbered lines.

Source: OpenTelemetry Protocol, *File Exporter*.
"""

from __future__ import annotations

import gzip
import os
import sys
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Final

from otel_modtrack.usage import UsageError

if TYPE_CHECKING:
    import io
    from collections.abc import Iterator

    from typing_extensions import Self

__all__ = ["LineFile", "MalformedError"]

_GZIP_MAGIC: Final = b"\x1f\x8b"


class MalformedError(Exception):
    """The line, or the rest of the file, cannot be read. The message says why, in a few words."""


class LineFile:
    """A file, compressed by gzip or not, as numbered lines.

    Args:
        path: Of the file; ``-`` for stdin.

    Attributes:
        path: As it was given.
        size_bytes: As it lies on the disk; 0 of a pipe.
        ends_open: Whether the line that was read last has no end: it is still being written, or
            whoever wrote it was killed.

    Raises:
        UsageError: If it cannot be opened.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.ends_open = False
        try:
            self._stored = _open(path)
            is_gzip = self._stored.peek(2)[:2] == _GZIP_MAGIC
        except OSError as error:
            raise UsageError(
                f"cannot read {path}: {error.strerror}; give files of OTLP JSON lines"
            ) from None
        self.size_bytes = os.fstat(self._stored.fileno()).st_size
        self._lines: io.BufferedReader | gzip.GzipFile = self._stored
        if is_gzip:
            self._lines = gzip.GzipFile(fileobj=self._stored)

    @property
    def position_bytes(self) -> int:
        """How much of it was read, as it lies on the disk; 0 of a pipe."""
        return self._stored.tell() if self._stored.seekable() else 0

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        """Each line that is not blank, with its number, from 1.

        Raises:
            MalformedError: If the file ends before its compressed content does, or is damaged.
        """
        try:
            for number, line in enumerate(self._lines, start=1):
                self.ends_open = not line.endswith(b"\n")
                if text := line.strip():
                    yield number, text
        except EOFError:
            raise MalformedError("the file is cut off here") from None
        except (OSError, zlib.error):
            raise MalformedError("the file cannot be read from here on") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._lines.close()
        self._stored.close()


def _open(path: str) -> io.BufferedReader:
    if path != "-":
        return Path(path).open("rb")
    if sys.stdin is None:
        raise UsageError("there is no stdin to read; give files of OTLP JSON lines")
    # A duplicate, so that stdin stays open when the file is closed.
    return os.fdopen(os.dup(sys.stdin.fileno()), "rb")
