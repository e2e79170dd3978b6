"""What ``otel-modtrack replay`` does: send each line once, and say what became of all."""

from __future__ import annotations

import shlex
import signal
import sys
from collections import Counter
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Final

from otel_modtrack.linefile import LineFile, MalformedError
from otel_modtrack.numerals import plural
from otel_modtrack.progress import Progress
from otel_modtrack.replay.lines import parse
from otel_modtrack.replay.sending import Backend, Result, StoppedError
from otel_modtrack.usage import ConfigurationError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from otel_modtrack.replay.lines import Request

__all__ = ["replay_files"]

_ITEMS: Final = {"traces": "span", "metrics": "metric", "logs": "log record"}


def replay_files(paths: Sequence[str], *, start: int = 1, wait_s: float = 60.0) -> None:
    """Send the lines of files to the OTLP endpoints that the environment names, in order.

    Args:
        paths: Of files of OTLP JSON lines, compressed by gzip or not.
        start: The number, from 1, of the first line of the first file that is sent.
        wait_s: How long a backend that does not answer, or asks to wait, is waited for.

    Raises:
        UsageError: If a file or a variable cannot be used, or anything was not sent.
        KeyboardInterrupt: After it has said where to go on.
    """
    with ExitStack() as opened:
        files = [opened.enter_context(LineFile(path)) for path in paths]
        progress = Progress("replay", sum(file.size_bytes for file in files))
        opened.callback(progress.close)
        backend = Backend(wait_s, progress.say)
        opened.callback(backend.close)
        opened.enter_context(_sigterm_interrupts())
        _Replay(files, backend, progress).run(start)


class _Replay:
    """One run over all files.

    Args:
        files: In the order in which they are sent.
        backend: Where they go.
        progress: Shows how far it is.
    """

    def __init__(self, files: list[LineFile], backend: Backend, progress: Progress) -> None:
        self._files = files
        self._backend = backend
        self._progress = progress
        self._lines: Counter[str] = Counter()  # that the backend has as a whole, by signal
        self._items: Counter[str] = Counter()  # that the backend has, by signal
        # What it has not: lines, and items by signal; by file and reason.
        self._lost: dict[tuple[str, str], tuple[list[int], Counter[str]]] = {}
        # Where to go on, and what is to be known of that line.
        self._place = 0, 1
        self._remark = ""

    def run(self, start: int) -> None:
        """Send all from line ``start`` of the first file on, and report."""
        try:
            self._send_all(start)
        except (StoppedError, ConfigurationError) as error:
            self._report()
            raise UsageError(f"{self._stopped_at()}: {error}. {self._how_to_go_on()}") from None
        except KeyboardInterrupt:
            self._report()
            self._progress.say(f"{self._stopped_at()}. {self._how_to_go_on()}")
            raise
        self._report()
        if self._lost:
            raise UsageError("not everything was sent: see above")

    def _send_all(self, start: int) -> None:
        read_bytes = 0
        for at, file in enumerate(self._files):
            first = start if at == 0 else 1
            self._place = at, first
            number = 0
            try:
                for number, text in file:
                    if number < first:
                        continue
                    self._place = at, number
                    self._send(file, number, text)
                    self._place = at, number + 1
                    self._progress.show(
                        read_bytes + file.position_bytes, f"{_told(self._items)} sent"
                    )
            except MalformedError as error:
                self._lose(file, number + 1, str(error))
            if number < first - 1:
                raise UsageError(f"{file.path} has no line {first}; its last is line {number}")
            read_bytes += file.size_bytes

    def _send(self, file: LineFile, number: int, text: bytes) -> None:
        try:
            request = parse(text)
        except MalformedError as error:
            self._lose(file, number, str(error))
            return
        result = Result()
        try:
            self._backend.send(request, result)
        except MalformedError as error:
            result.lose(str(error), request.count)
        except (KeyboardInterrupt, StoppedError) as error:
            if result.sent:
                arrived = _told(Counter({request.signal: result.sent}))
                self._remark = f" (of which {arrived} arrived)"
            elif isinstance(error, KeyboardInterrupt):
                self._remark = " (which may have arrived)"
            raise
        finally:
            self._note(file, number, request, result)

    def _note(self, file: LineFile, number: int, request: Request, result: Result) -> None:
        self._items[request.signal] += result.sent
        self._lines[request.signal] += result.sent == request.count
        for reason, count in result.lost.items():
            self._lose(file, number, reason, Counter({request.signal: count}))

    def _lose(
        self, file: LineFile, number: int, reason: str, items: Counter[str] | None = None
    ) -> None:
        lines, counts = self._lost.setdefault((file.path, reason), ([], Counter()))
        lines.append(number)
        counts.update(items or {})

    def _report(self) -> None:
        """Say what the backend has, on stdout, and what it has not, on stderr."""
        self._progress.close()
        for name in [*(+self._items | +self._lines)] or ["traces"]:
            endpoint = self._backend.endpoint(name)
            print(
                f"Sent to {endpoint.shown} ({endpoint.protocol}): "
                f"{plural(self._items[name], _ITEMS[name])} in "
                f"{plural(self._lines[name], 'line')}"
            )
        sys.stdout.flush()
        for (path, reason), (lines, items) in self._lost.items():
            which = f"line{'s' if len(lines) > 1 else ''} {_ranges(lines)}"
            what = f" {_told(items)}:" if items else ""
            self._progress.say(f"not sent: {path}, {which}:{what} {reason}")

    def _stopped_at(self) -> str:
        at, number = self._place
        return f"stopped at {self._files[at].path}, line {number}{self._remark}"

    def _how_to_go_on(self) -> str:
        at, number = self._place
        paths = [file.path for file in self._files[at:]]
        command = shlex.join(["otel-modtrack", "replay", "--from", str(number), *paths])
        return f"Go on with: {command}"


@contextmanager
def _sigterm_interrupts() -> Iterator[None]:
    """What a batch system ends says where to go on, as what Ctrl-C ends."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _told(items: Counter[str]) -> str:
    return ", ".join(plural(count, _ITEMS[name]) for name, count in items.items()) or "nothing"


def _ranges(numbers: list[int]) -> str:
    """Ascending numbers, those in a row together: ``3, 7-9``."""
    rows: list[list[int]] = []
    for number in numbers:
        if rows and number <= rows[-1][1] + 1:
            rows[-1][1] = number
        else:
            rows.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in rows)
