"""A program that a test starts, asks, stops and kills; `programs.py` has the real ones."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.polling import TIMEOUT_S, poll

if TYPE_CHECKING:
    from collections.abc import Mapping

    from typing_extensions import Self

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Binaries:
    """Where `scripts/backends/build.sh` put the programs."""

    jaeger: Path
    collector: Path


def free_port() -> int:
    """A port on 127.0.0.1 that nobody listens on.

    Below the range from which the kernel takes ports for outgoing connections, so that a program
    which was killed finds its port free when it is started again.
    """
    while True:
        port = random.SystemRandom().randrange(10_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def get(url: str, timeout_s: float = 10) -> str | None:
    """The body of a GET, or None where nobody answers with success."""
    try:
        with urllib.request.urlopen(url, timeout=timeout_s) as answer:  # noqa: S310 - ours
            return answer.read().decode()
    except OSError:  # includes urllib's own errors
        return None


class Program:
    """A program that runs until it is stopped, with ports and a folder of its own.

    Args:
        binary: What to run.
        folder: Where its log and files go; made if it is not there.
        config: The configuration: a file, or its text. Addresses come from `environment`.
        env: Further environment variables; the test's own are not passed on, since the programs
            heed OTEL_* themselves.
    """

    health_path = "/"

    def __init__(
        self,
        binary: Path,
        folder: Path,
        config: Path | str,
        env: Mapping[str, str] | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.binary = binary
        self.folder = folder
        self.log_file = folder / f"{binary.name}.log"
        if isinstance(config, str):
            path = folder / f"{binary.name}.yaml"
            path.write_text(config)
            config = path
        self.config = config
        self.health_address = f"127.0.0.1:{free_port()}"
        self._env = dict(env or {})
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def environment(self) -> dict[str, str]:
        """The variables that the configuration takes its addresses from."""
        raise NotImplementedError

    @property
    def arguments(self) -> list[str]:
        """What the program is started with."""
        return [f"--config={self.config}"]

    @property
    def pid(self) -> int:
        """The process id of the running program."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> Self:
        """Start it, on the same ports as before, and return when it is ready."""
        assert self._process is None, f"{self.binary.name} is running"
        known = {name: os.environ[name] for name in ("HOME", "PATH") if name in os.environ}
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own build
                [self.binary, *self.arguments],
                env={**known, **self.environment, **self._env},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
            )
        try:
            poll(self._ready, f"{self.binary.name} is ready")
        except AssertionError:
            self.kill()
            raise
        return self

    def stop(self) -> None:
        """End it by SIGTERM, as an operator would: what it has received it delivers first."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it by SIGKILL: what it holds in memory is gone."""
        self._end(signal.SIGKILL)

    def log(self) -> str:
        """All that it has printed so far, over all its starts."""
        return self.log_file.read_text()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def _ready(self) -> bool:
        assert self._process is not None
        code = self._process.poll()
        assert code is None, f"{self.binary.name} ended with code {code}:\n{self.log()[-2000:]}"
        return get(f"http://{self.health_address}{self.health_path}", timeout_s=1) is not None

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(number)
        try:
            process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
