"""The file for speedscope: what its schema, its importer and the spans say of it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from scripts.browser import find_chromium, open_browser
from tests.exports import sample

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from playwright.sync_api import Page

    from otel_modtrack.view.model import Span

Call = tuple[str, int, int, int]  # name, start, end, depth


def replay(profile: Mapping[str, Any], frames: Sequence[Mapping[str, str]]) -> list[Call]:
    """Return (name, start, end, depth) of a profile's calls, and fail where its events do not nest.

    In ns after the profile's start, in order of their ends.
    """
    assert profile["type"] == "evented"
    assert profile["unit"] == "nanoseconds"
    calls = []
    stack: list[tuple[int, int]] = []
    last = first = profile["startValue"]
    for event in profile["events"]:
        at, frame = event["at"], event["frame"]
        assert at >= last, "events are in order of time"
        last = at
        if event["type"] == "O":
            stack.append((frame, at))
        else:
            opened, start = stack.pop()
            assert opened == frame, "the innermost frame is closed"
            calls.append((frames[frame]["name"], start - first, at - first, len(stack)))
    assert not stack
    assert last == profile["endValue"]
    return calls


def read_speedscope(data: bytes) -> dict[str, list[Call]]:
    """Return the calls of each profile by its name."""
    content = json.loads(data)
    frames = content["shared"]["frames"]
    profiles = {one["name"]: replay(one, frames) for one in content["profiles"]}
    assert len(profiles) == len(content["profiles"])
    return profiles


def test_profiles_of_two_ranks(files: Mapping[tuple[str, str], Path]) -> None:
    """Each rank has a profile, in which the calls nest as they ran; a failed one says so."""
    profiles = read_speedscope(files["speedscope", "two_ranks"].read_bytes())
    step = [
        ("forward Net.l.0", 20, 60, 2),
        ("forward Net.l.1", 60, 90, 2),
        ("forward Net", 10, 100, 1),
        ("backward Net.l.1", 1210, 3000, 2),
        ("backward", 1200, 4001, 1),
    ]
    whole = ("train_step", 0, 1_000_000_123, 0)
    assert profiles == {
        "rank 0, spans": [*step, ("optimizer_step SGD", 4001, 5000, 1), whole],
        "rank 1, spans": [*step, ("optimizer_step SGD (failed)", 4001, 5000, 1), whole],
    }


def test_head(files: Mapping[tuple[str, str], Path]) -> None:
    """The file names its exporter and its source, and opens with the first rank."""
    content = json.loads(files["speedscope", "two_ranks"].read_bytes())
    assert content["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    assert content["exporter"].startswith("otel_modtrack ")
    assert content["name"] == "run.jsonl"
    assert content["activeProfileIndex"] == 0
    # The second rank began 7 ns after the first.
    assert [one["startValue"] for one in content["profiles"]] == [0, 7]


def test_frames(files: Mapping[tuple[str, str], Path]) -> None:
    """A module has one frame for each phase, on all ranks, with its template for a file."""
    content = json.loads(files["speedscope", "two_ranks"].read_bytes())
    assert content["shared"]["frames"] == [
        {"name": "train_step"},
        {"name": "forward Net", "file": "Net"},
        {"name": "forward Net.l.0", "file": "Net.l.*"},
        {"name": "forward Net.l.1", "file": "Net.l.*"},
        {"name": "backward"},
        {"name": "backward Net.l.1", "file": "Net.l.*"},
        {"name": "optimizer_step SGD"},
        {"name": "optimizer_step SGD (failed)"},
    ]


def test_instantaneous(files: Mapping[tuple[str, str], Path]) -> None:
    """Spans without duration open and close where they belong."""
    assert read_speedscope(files["speedscope", "instantaneous"].read_bytes()) == {
        "shop, spans": [
            ("zero first", 0, 0, 1),
            ("zero at the end of left", 500, 500, 2),
            ("left", 0, 500, 1),
            ("zero in zero", 500, 500, 2),
            ("zero between", 500, 500, 1),
            ("right", 500, 1000, 1),
            ("zero at the end", 1000, 1000, 1),
            ("request", 0, 1000, 0),
            ("zero after", 1000, 1000, 0),
            ("next request", 1000, 1500, 0),
        ]
    }


def test_concurrent(files: Mapping[tuple[str, str], Path]) -> None:
    """What runs at the same time is in profiles of its own, each with its own start."""
    assert read_speedscope(files["speedscope", "concurrent"].read_bytes()) == {
        "shop, spans": [
            ("thread one", 100, 600, 1),
            ("GET /a", 0, 1000, 0),
            ("GET /d", 2000, 2100, 0),
        ],
        "shop, spans 2": [("query", 10, 650, 1), ("GET /b", 0, 650, 0)],
        "shop, spans 3": [("query", 100, 200, 1), ("thread two", 0, 700, 0)],
        "shop, spans 4": [("GET /c", 0, 1350, 0)],
    }


def test_every_sample(
    files: Mapping[tuple[str, str], Path], samples: Mapping[str, Sequence[Span]]
) -> None:
    """No span is lost, and none has another duration, whatever the spans are like."""
    for name, spans in samples.items():
        profiles = read_speedscope(files["speedscope", name].read_bytes())
        durations = [end - start for calls in profiles.values() for _, start, end, _ in calls]
        assert sorted(durations) == sorted(span.duration_ns for span in spans), name


def test_odd_names(files: Mapping[tuple[str, str], Path]) -> None:
    """Quotes, control characters and emoji are in the names as they were."""
    (calls,) = read_speedscope(files["speedscope", "odd"].read_bytes()).values()
    assert [name for name, *_ in calls] == [span.name for span in sample.odd()]


def test_schema(
    files: Mapping[tuple[str, str], Path], samples: Mapping[str, Sequence[Span]], speedscope: Path
) -> None:
    """Speedscope's own schema accepts every file."""
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((speedscope / "file-format-schema.json").read_bytes())
    for name in samples:
        content = json.loads(files["speedscope", name].read_bytes())
        jsonschema.Draft7Validator(schema).validate(content)
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.Draft7Validator(schema).validate(content | {"shared": {}})


@pytest.fixture
def page(speedscope: Path) -> Iterator[Page]:
    """Speedscope itself, open in a browser."""
    pytest.importorskip("playwright", reason="pip install 'otel_modtrack[test]'")
    if find_chromium() is None:
        pytest.skip("no chromium on the PATH: apt-get install chromium")
    with open_browser() as browser:
        page = browser.new_page()
        page.goto((speedscope / "index.html").as_uri())
        yield page


def test_speedscope_itself(files: Mapping[tuple[str, str], Path], page: Page) -> None:
    """Speedscope opens the files, and exports the same calls again; it drops those of no time."""
    for name in ("demo", "two_ranks", "instantaneous", "odd"):
        file = files["speedscope", name]
        page.reload()
        with page.expect_console_message(lambda message: message.text.startswith("import:")):
            page.set_input_files("input[type=file]", file)
        with page.expect_download() as download:
            page.get_by_text("Export").click()
        exported = read_speedscope(download.value.path().read_bytes())
        expected = {
            profile: [call for call in calls if call[1] < call[2]]
            for profile, calls in read_speedscope(file.read_bytes()).items()
        }
        assert exported == expected, name
