"""The pytest plugin: the fixture `modtrack` and the option ``--modtrack-update``.

pytest loads it in every run of everybody who has the package installed, so that nothing is
imported here before the fixture is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opentelemetry.sdk.trace import TracerProvider

    from otel_modtrack.testing import Capture

__all__ = ["modtrack", "modtrack_provider", "pytest_addoption", "pytest_terminal_summary"]

_GOLDEN = "modtrack_golden"  # of a test's report: path, digest, whether it was written


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--modtrack-update``."""
    parser.getgroup("modtrack", "otel_modtrack").addoption(
        "--modtrack-update",
        action="store_true",
        help="write the golden files that assert_golden() compares with",
    )


@pytest.fixture
def modtrack_provider() -> TracerProvider | None:
    """The provider that `modtrack` begins with; override it to give yours."""
    return None


@pytest.fixture
def modtrack(
    request: pytest.FixtureRequest, modtrack_provider: TracerProvider | None
) -> Iterator[Capture]:
    """Tracks models in a test and asserts what their spans and collectives are."""
    __tracebackhide__ = True
    from otel_modtrack.testing import capture  # noqa: PLC0415 - imports torch

    with capture(
        modtrack_provider,
        golden=request.path.parent / "golden",
        update=request.config.getoption("--modtrack-update"),
    ) as found:
        yield found
        request.node.user_properties.extend((_GOLDEN, list(one)) for one in found.updates)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Tell which golden files were written; of xdist's workers, too."""
    reports = [one for found in terminalreporter.stats.values() for one in found]
    digests: dict[str, set[str]] = {}
    written = set()
    for report in reports:
        for name, value in getattr(report, "user_properties", ()):
            if name == _GOLDEN:
                path, digest, is_written = value
                digests.setdefault(path, set()).add(digest)
                if is_written:
                    written.add(path)
    for path in sorted(written):
        terminalreporter.write_line(f"modtrack: wrote {path}")
        if len(digests[path]) > 1:
            terminalreporter.write_line(
                "modtrack: tests that differ wrote it, and all but one will fail: give each a name"
                " of its own",
                red=True,
            )
