"""Files for other viewers: each is there as a whole, or as it was before."""

from __future__ import annotations

import os
import sys
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from otel_modtrack.bars import make_bar
from otel_modtrack.sizes import render_size
from otel_modtrack.usage import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from otel_modtrack.view.model import Node
    from otel_modtrack.view.reader import Fault


__all__ = ["Writer", "open_files"]

_HOW_TO_OPEN: Final = {
    "html": "open it in a browser",
    "perfetto": "open it on https://ui.perfetto.dev, which keeps it on this machine",
    "chrome": "open it in chrome://tracing or on https://ui.perfetto.dev",
    "speedscope": "open it on https://www.speedscope.app, which keeps it on this machine",
}
# Fewer spans are written before anybody wonders.
_WORTH_A_BAR: Final = 20_000


@contextmanager
def open_files(exports: Mapping[str, str], inputs: Sequence[str]) -> Iterator[Writer]:
    """Open files to be written; they come to be when the block ends without an exception.

    Args:
        exports: Their paths by format.
        inputs: Files that are read, and never written to.

    Raises:
        UsageError: If one cannot be written.
    """
    _check_apart(exports, inputs)
    with ExitStack() as opened:
        yield Writer(
            exports,
            {name: opened.enter_context(_replacing(name, out)) for name, out in exports.items()},
        )


class Writer:
    """Files that are being written.

    Args:
        exports: Their paths by format.
        files: Where they are written meanwhile.
    """

    def __init__(self, exports: Mapping[str, str], files: Mapping[str, IO[bytes]]) -> None:
        self._exports = exports
        self._files = files

    def write(self, roots: Sequence[Node], faults: Sequence[Fault]) -> list[str]:
        """Write the spans into every file.

        Args:
            roots: The trees.
            faults: What could not be read; a page says so.

        Returns:
            For each file a line that says what was written, and how to open it.
        """
        lines = []
        spans = sum(1 for root in roots for _ in root.walk())
        for name, file in self._files.items():
            out = self._exports[name]
            started_s = time.monotonic()
            with _progress(out, spans) as report, _named(name, out):
                _write(name, file, roots, faults, report)
                file.flush()
                size_bytes = os.fstat(file.fileno()).st_size
            lines.append(
                f"Wrote {spans:,} spans to {out}, {render_size(size_bytes)} in "
                f"{time.monotonic() - started_s:.1f} s: {_HOW_TO_OPEN[name]}"
            )
        return lines


def _write(
    name: str,
    file: IO[bytes],
    roots: Sequence[Node],
    faults: Sequence[Fault],
    report: Callable[[int], None],
) -> None:
    """Call what writes the format. It is imported here: nobody needs more than one or two."""
    if name == "html":
        from otel_modtrack.view.html import render_page  # noqa: PLC0415

        page = render_page(roots, faults=faults, report=lambda done, _: report(done))
        file.write(page.encode())
        return
    from otel_modtrack.view import exports  # noqa: PLC0415

    formats = {
        "perfetto": exports.write_perfetto,
        "chrome": exports.write_chrome,
        "speedscope": exports.write_speedscope,
    }
    formats[name](file, roots, report)  # type: ignore[arg-type]  # an IO[bytes] is a BinaryIO


def _check_apart(exports: Mapping[str, str], inputs: Sequence[str]) -> None:
    """Refuse what would overwrite another file of this command."""
    # Not Path.resolve, which cannot bear links that go round in a ring.
    taken = {os.path.realpath(path): "is read" for path in inputs if path != "-"}
    for name, out in exports.items():
        path = os.path.realpath(out)
        if path in taken:
            raise UsageError(f"--{name} {out} {taken[path]}; write to another file")
        taken[path] = "is written already"


@contextmanager
def _replacing(name: str, out: str) -> Iterator[IO[bytes]]:
    """Open a file beside `out` that takes its place at the end, or is removed on an exception."""
    path = Path(os.path.realpath(out))  # a link stays a link
    with _named(name, out):
        # A link that is left goes round in a ring.
        if path.is_symlink() or (path.exists() and not path.is_file()):
            raise UsageError(f"--{name} {out} is not a file; name one that may be replaced")
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.unfinished")
    with _named(name, out):
        file = unfinished.open("xb")
    try:
        with file:
            yield file
        with _named(name, out):
            unfinished.replace(path)
    except BaseException:
        with suppress(OSError):
            unfinished.unlink()
        raise


@contextmanager
def _named(name: str, out: str) -> Iterator[None]:
    """Turn the system's refusal into ours."""
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"cannot write --{name} {out}: {error.strerror}; name a file in a folder that is there "
            "and writable"
        ) from None


@contextmanager
def _progress(out: str, spans: int) -> Iterator[Callable[[int], None]]:
    """Show on a terminal how many spans are written."""
    bar = None
    if spans > _WORTH_A_BAR and sys.stderr.isatty():
        bar = make_bar(sys.stderr, total=spans, unit=" spans", unit_scale=True, desc=Path(out).name)
    if bar is None:
        yield lambda _: None
        return
    try:
        yield lambda done: bar.update(done - bar.n)
    finally:
        bar.close()
