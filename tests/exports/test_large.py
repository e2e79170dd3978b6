"""Many spans are written soon, in pieces, with little memory, and all of them arrive."""

from __future__ import annotations

import io
import json
import time
import tracemalloc
from dataclasses import replace
from typing import TYPE_CHECKING, BinaryIO, cast

import pytest

from otel_modtrack.view.exports import write_perfetto
from otel_modtrack.view.model import build_trees
from tests.exports import sample
from tests.exports.conftest import WRITERS

if TYPE_CHECKING:
    from pathlib import Path

    from otel_modtrack.view.model import Node
    from tests.exports.processor import Processor

COUNT = 20_000
# Far more than it takes, and far less than if it took the square of what it does.
LIMIT_S = 10
# Of each span; the formats differ in what they repeat.
SIZES_BYTES = {"perfetto": 130, "chrome": 450, "speedscope": 90}


class Counted(io.RawIOBase):
    """A file that keeps no bytes, only how many came at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[int] = []

    def write(self, data: object) -> int:
        self.writes.append(len(cast("bytes", data)))
        return self.writes[-1]


@pytest.fixture(scope="module")
def roots() -> list[Node]:
    """The trees of many spans."""
    return build_trees(sample.many(COUNT))


@pytest.mark.parametrize("kind", WRITERS)
def test_large(kind: str, roots: list[Node]) -> None:
    """It takes no time to speak of, writes pieces of a megabyte, and tells how far it is."""
    out, told = Counted(), list[int]()
    start_s = time.process_time()
    WRITERS[kind](cast("BinaryIO", out), roots, told.append)
    assert time.process_time() - start_s < LIMIT_S
    assert sum(out.writes) < COUNT * SIZES_BYTES[kind]
    assert max(out.writes) < 2_000_000
    assert told == [5_000, 10_000, 15_000, 20_000, COUNT]


@pytest.mark.parametrize("kind", WRITERS)
def test_memory(kind: str) -> None:
    """Writing takes as much memory as the lanes and links, and not as much as the file."""
    count = 5_000
    roots = build_trees(sample.many(count))
    tracemalloc.start()
    WRITERS[kind](cast("BinaryIO", Counted()), roots, lambda count: None)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # Beside the piece that waits to be written, which may be copied once.
    assert (peak_bytes - 2_500_000) / count < 1_000


def test_unshared_attributes() -> None:
    """Many spans that have equal attributes, and do not share them, are written alike."""
    spans = sample.many(12_000)
    written = []
    for made in spans, [replace(span, attributes=dict(span.attributes)) for span in spans]:
        out = io.BytesIO()
        write_perfetto(out, build_trees(made), lambda count: None)
        written.append(out.getvalue())
    assert written[0] == written[1]


def test_speedscope_arrives(roots: list[Node]) -> None:
    """All calls of both ranks are in the file."""
    out = io.BytesIO()
    WRITERS["speedscope"](out, roots, lambda count: None)
    content = json.loads(out.getvalue())
    assert [len(one["events"]) for one in content["profiles"]] == [COUNT, COUNT]


@pytest.mark.parametrize("kind", ["perfetto", "chrome"])
def test_perfetto_arrives(
    kind: str, roots: list[Node], processor: Processor, tmp_path: Path
) -> None:
    """Perfetto finds all spans, as long as they were, and all links."""
    file = tmp_path / kind
    with file.open("wb") as out:
        WRITERS[kind](out, roots, lambda count: None)
    processor.load(file)
    spans = [node.span for root in roots for _, node in root.walk()]
    assert processor.query(
        "select count(*) as count, sum(dur) as total_ns, max(depth) as depth from slice"
    ) == [{"count": COUNT, "total_ns": sum(span.duration_ns for span in spans), "depth": 2}]
    assert processor.query("select count(*) as count from flow") == [{"count": COUNT // 100 * 49}]
