"""Golden files: what a test saw once and was found right, to compare with from then on."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from otel_modtrack.testing.asked import check_text
from otel_modtrack.testing.text import explain
from otel_modtrack.usage import UsageError

if TYPE_CHECKING:
    import os

__all__ = ["Golden", "Update"]

_NAME = re.compile(r"[\w.-]+")


class Update(NamedTuple):
    """What one assertion made of a golden file.

    Attributes:
        path: of the file.
        digest: of what it has to hold.
        is_written: whether it did not hold that before.
    """

    path: str
    digest: str
    is_written: bool


class Golden:
    """Where a test's golden files are, and whether they are written or compared.

    Args:
        folder: that they are in; None where nobody said so.
        update: whether to write them.

    Attributes:
        updates: what was written, or found there already; none where files are compared.
    """

    def __init__(self, folder: str | os.PathLike[str] | None, *, update: bool) -> None:
        self._folder = Path(folder) if folder is not None else None
        self._update = update
        self.updates: list[Update] = []

    def check(self, what: str, name: str, suffix: str, text: str) -> None:
        """Compare `text` with a file, or write it there.

        Args:
            what: the text is of, in a message: ``tree``.
            name: of the file.
            suffix: of the file, with the dot.
            text: what there is now.

        Raises:
            AssertionError: if they differ, or there is no such file, or the test has written
                something else to it just now.
            UsageError: if there can be no file of that name.
        """
        __tracebackhide__ = True
        check_text("the name that assert_golden() wants", name)
        if not _NAME.fullmatch(name):
            raise UsageError(
                f"assert_golden({name!r}): a name of letters, digits, '_', '-' and '.' is wanted"
            )
        if self._folder is None:
            raise UsageError(
                "assert_golden() does not know where its files are: say it with"
                " capture(golden='tests/golden')"
            )
        path = self._folder / (name + suffix)
        text += "\n"
        if self._update:
            self._write(what, path, text)
            return
        how = "pytest --modtrack-update, or capture(update=True), writes it"
        if not path.is_file():
            raise AssertionError(f"there is no golden file {path} yet: {how}")
        difference = explain(path.read_text(encoding="utf-8").splitlines(), text.splitlines())
        if difference:
            raise AssertionError(f"the {what} is not that of {path} ({how}): {difference}")

    def _write(self, what: str, path: Path, text: str) -> None:
        __tracebackhide__ = True
        is_written = not path.is_file() or path.read_text(encoding="utf-8") != text
        update = Update(str(path), hashlib.sha256(text.encode()).hexdigest(), is_written)
        if any(one.path == update.path and one.digest != update.digest for one in self.updates):
            raise AssertionError(
                f"this test has written another {what} to {path} just now: give each a name of its"
                " own"
            )
        self.updates.append(update)
        if is_written:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8", newline="\n")
