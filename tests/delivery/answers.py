"""What a receiver of the tests answers; HTTP and gRPC each take from it what is theirs."""

from __future__ import annotations

import email.utils
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import grpc
from google.protobuf import any_pb2
from google.rpc import code_pb2, error_details_pb2, status_pb2

if TYPE_CHECKING:
    from collections.abc import Mapping

NEVER_S = float("inf")


@dataclass(frozen=True)
class Answer:
    """What a request gets.

    Attributes:
        status: HTTP's. Any but 200 means that nothing of the request was taken.
        code: gRPC's; likewise.
        headers: HTTP's.
        details: gRPC's status with details, serialised; None for none.
        text: said in HTTP's reason and body, and as gRPC's message.
        body: in place of the right one.
        rejected: so many spans are refused, and the others taken.
        after_s: how long it takes.
        most_bytes: what is larger is refused for its size.
        cut: HTTP's connection is closed ``before`` the request is read, once it ``is read``, or
            in the ``middle`` of the answer.
    """

    status: int = 200
    code: grpc.StatusCode = grpc.StatusCode.OK
    headers: Mapping[str, str] = field(default_factory=dict)
    details: bytes | None = None
    text: str = ""
    body: bytes | None = None
    rejected: int = 0
    after_s: float = 0.0
    most_bytes: int | None = None
    cut: str = ""

    @property
    def takes(self) -> bool:
        """Whether the spans of the request are the receiver's from here on."""
        succeeds = self.status == 200 and self.code is grpc.StatusCode.OK
        return succeeds and self.cut != "before" and self.after_s != NEVER_S


TAKE = Answer()
NEVER = Answer(after_s=NEVER_S)
INVALID = Answer(400, grpc.StatusCode.INVALID_ARGUMENT, text="cannot be read")
TOO_LARGE = Answer(413, grpc.StatusCode.RESOURCE_EXHAUSTED, text="too large")


def busy(wait_s: float | None = None, *, status: int = 503, as_date: bool = False) -> Answer:
    """Come again later: Retry-After in seconds or as a date, and RetryInfo."""
    if wait_s is None:
        return Answer(status, grpc.StatusCode.UNAVAILABLE, text="busy")
    code = grpc.StatusCode.UNAVAILABLE if status == 503 else grpc.StatusCode.RESOURCE_EXHAUSTED
    after = email.utils.formatdate(time.time() + wait_s, usegmt=True) if as_date else f"{wait_s:g}"
    info = error_details_pb2.RetryInfo()
    info.retry_delay.FromNanoseconds(int(wait_s * 1e9))
    detail = any_pb2.Any()
    detail.Pack(info)
    details = status_pb2.Status(code=code_pb2.UNAVAILABLE, details=[detail]).SerializeToString()
    return Answer(status, code, {"Retry-After": after}, details, "busy")
