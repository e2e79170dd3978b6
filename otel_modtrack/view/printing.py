"""How commands that read trace files print: sentences to stderr, what they found to stdout."""

from __future__ import annotations

import json
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from otel_modtrack.usage import UsageError
from otel_modtrack.view.faults import name_file
from otel_modtrack.view.paint import join_some, printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from otel_modtrack.view.faults import Fault

__all__ = ["as_document", "name_files", "named_stdout", "say", "say_skipped"]


@contextmanager
def named_stdout() -> Iterator[None]:
    """Turn the system's refusal to take more, as of a full disk, into ours.

    What is printed must be flushed within.
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise UsageError(
            f"cannot write to stdout: {error.strerror}; let it go to a file or a pipe with room"
        ) from None


def say(command: str, sentence: str) -> None:
    """Print a line on stderr.

    Args:
        command: That says it: ``view``.
        sentence: Which may quote a file.
    """
    print(f"otel-modtrack {command}: {printable(sentence)}", file=sys.stderr)


def say_skipped(command: str, faults: Iterable[Fault]) -> None:
    """Tell what could not be read."""
    for fault in faults:
        say(
            command,
            f"skipped what could not be read in {fault.path}, {fault.where}: {fault.reason}",
        )


def name_files(paths: Sequence[str]) -> str:
    """What files are called in a message."""
    return join_some([name_file(path) for path in paths], shown=3)


def as_document(
    head: Mapping[str, Any],
    files: Sequence[Sequence[str]],
    faults: Iterable[Fault],
    content: Mapping[str, Any],
) -> str:
    """One JSON document for scripts.

    Args:
        head: What it is, and its version.
        files: That were read; and, if they were compared with others, those.
        faults: What was skipped in all of them.
        content: What was found.
    """
    document = {
        **head,
        **{
            key: [name_file(path) for path in paths]
            for key, paths in zip(("files", "other_files"), files, strict=False)
        },
        "skipped": [
            {"file": fault.path, "reason": fault.reason, "lines": fault.lines} for fault in faults
        ],
        **content,
    }
    return json.dumps(document, indent=1)
