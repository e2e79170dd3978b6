"""Runs programs as their users do, and hands out what the receiver got of them."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from typing_extensions import Self

__all__ = ["Program", "Receiver", "Span"]

HERE = Path(__file__).parent
# Nothing takes this long unless it hangs, also where others use the machine.
TIMEOUT_S = 240
_numbers = itertools.count(1)

Span = dict[str, Any]


class Receiver:
    """The receiver of `receiving.py`, in a process of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._file = folder / "received.jsonl"
        self._file.touch()
        self._process = subprocess.Popen(  # noqa: S603 - our own command
            [sys.executable, HERE / "receiving.py", self._file],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self._ports = self._process.stdout.readline().split()

    def environment(self, protocol: str = "http/protobuf") -> dict[str, str]:
        """What has a program send its spans here."""
        port = self._ports[protocol == "grpc"]
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
            "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
        }

    def release(self) -> None:
        """Have the requests that wait answered, from now on."""
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def lines(self) -> list[dict[str, Any]]:
        """All that was received so far."""
        return [
            json.loads(line)
            for line in self._file.read_bytes().splitlines(keepends=True)
            if line.endswith(b"\n")
        ]

    def close(self) -> None:
        """End it."""
        with self._process:
            assert self._process.stdin is not None
            self._process.stdin.close()


class Program:
    """A program that was started, and is gone with all its children when the `with` block is left.

    Args:
        receiver: that it sends to, unless `environment` says otherwise.
        source: the program; or the path of one.
        environment: variables that it gets beside those of this process.
        arguments: of the program.
        python: options of the interpreter.
        launcher: what starts it instead of the interpreter.
        waits: whether its requests wait for `Receiver.release`.

    Attributes:
        service: what it is called: no two have one name.
    """

    def __init__(  # noqa: PLR0913 - what tests vary
        self,
        receiver: Receiver,
        source: str | Path,
        environment: Mapping[str, str] | None = None,
        *,
        arguments: tuple[str, ...] = (),
        python: tuple[str, ...] = (),
        launcher: tuple[str, ...] | None = None,
        waits: bool = False,
    ) -> None:
        self.service = f"program-{next(_numbers)}"
        self._receiver = receiver
        path = source
        if isinstance(source, str):
            path = receiver.folder / f"{self.service}.py"
            path.write_text(textwrap.dedent(source))
        mine = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("OTEL_", "TRACE", "SLURM_", "PYTEST_"))
        }
        self.process = subprocess.Popen(  # noqa: S603 - our own command
            [*(launcher or (sys.executable, "-X", "faulthandler", *python)), path, *arguments],
            env={
                **mine,
                **receiver.environment(),
                "OTEL_METRICS_EXPORTER": "none",
                "OTEL_SERVICE_NAME": self.service,
                "OTEL_PYTHON_MODTRACK_EXIT_TIMEOUT": "60",  # on a busy machine, too, all arrives
                **({"OTEL_EXPORTER_OTLP_HEADERS": f"x-wait={self.service}"} if waits else {}),
                "OMP_NUM_THREADS": "1",
                "PYTHONPATH": os.pathsep.join(
                    [str(HERE), *filter(None, [os.getenv("PYTHONPATH")])]
                ),
                **(environment or {}),
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,  # `line` reads no further than its line
            start_new_session=True,
        )
        self.output = ""
        self.errors = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()

    def line(self) -> str:
        """The next line that it prints; waits for it."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline().decode()
        self.output += line
        assert line, self._ended()
        return line.rstrip("\n")

    def waits_for_answer(self) -> bool:
        """Whether a request of it (one that waits) has come in."""
        return any(line.get("waits") == self.service for line in self._receiver.lines())

    def go_on(self) -> None:
        """Let it go on where it waits for a line."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")

    def wait(self) -> int:
        """Its exit status, once it and all its children are gone; fails if they hang."""
        hangs = False
        try:
            output, errors = self.process.communicate(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            hangs = True
            os.killpg(self.process.pid, signal.SIGABRT)  # faulthandler tells where
            output, errors = self.process.communicate()
        self.output += output.decode()
        self.errors += errors.decode()
        assert not hangs, f"hangs:\n{self.output}\n{self.errors}"
        return self.process.returncode

    def finish(self) -> Self:
        """Have it end well."""
        assert self.wait() == 0, f"{self.output}\n{self.errors}"
        return self

    @property
    def spans(self) -> list[Span]:
        """What was received of it so far."""
        return [line for line in self._lines() if "span_id" in line]

    @property
    def told(self) -> list[dict[str, Any]]:
        """The lines of JSON that it printed."""
        return [json.loads(line) for line in self.output.splitlines() if line.startswith("{")]

    @property
    def names(self) -> list[str]:
        """The names of its spans, sorted."""
        return sorted(span["name"] for span in self.spans)

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The metrics that were received of it so far."""
        return [line for line in self._lines() if "metric" in line]

    def _lines(self) -> list[dict[str, Any]]:
        return [
            line
            for line in self._receiver.lines()
            if line.get("resource", {}).get("service.name") == self.service
        ]

    def _ended(self) -> str:
        self.wait()
        return f"ended with {self.process.returncode}:\n{self.output}\n{self.errors}"
