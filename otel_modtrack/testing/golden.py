"""Golden files: what a test saw once and was found right, to compare with from then on."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from otel_modtrack.testing.text import explain
from otel_modtrack.usage import UsageError

if TYPE_CHECKING:
    import os

__all__ = ["Golden"]

_NAME = re.compile(r"[\w.-]+")


class Golden:
    """Where a test's golden files are, and whether they are written or compared.

    Args:
        folder: that they are in; None where nobody said so.
        update: whether to write them.

    Attributes:
        written: files that were written or changed.
    """

    def __init__(self, folder: str | os.PathLike[str] | None, *, update: bool) -> None:
        self._folder = Path(folder) if folder is not None else None
        self._update = update
        self.written: list[Path] = []

    def check(self, what: str, name: str, text: str) -> None:
        """Compare `text` with a file, or write it there.

        Args:
            what: the text is of, in a message: ``tree``.
            name: of the file, with its suffix.
            text: what there is now.

        Raises:
            AssertionError: if they differ, or there is no such file.
            UsageError: if there can be no file of that name.
        """
        __tracebackhide__ = True
        if not _NAME.fullmatch(name) or name.startswith("."):
            raise UsageError(
                f"assert_golden({Path(name).stem!r}): a name of letters, digits, '_', '-' and '.'"
                " is wanted"
            )
        if self._folder is None:
            raise UsageError(
                "assert_golden() does not know where its files are: say it with"
                " capture(golden='tests/golden')"
            )
        path = self._folder / name
        text += "\n"
        if self._update:
            self._write(path, text)
            return
        how = "pytest --modtrack-update, or capture(update=True), writes it"
        if not path.is_file():
            raise AssertionError(f"there is no golden file {path} yet: {how}")
        difference = explain(path.read_text(encoding="utf-8").splitlines(), text.splitlines())
        if difference:
            raise AssertionError(f"the {what} is not that of {path} ({how}): {difference}")

    def _write(self, path: Path, text: str) -> None:
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        self.written.append(path)
