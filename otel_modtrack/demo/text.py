"""English text that ships with Python, so that nothing is downloaded."""

from __future__ import annotations

from pydoc_data.topics import topics

__all__ = ["english_text"]

_ASCII_QUOTES = str.maketrans({"\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"'})


def english_text() -> str:
    """Return the prose of the language reference, as ``help()`` holds it.

    Headings, grammar and code are left out. The same Python version gives the same text: some
    230,000 characters, all ASCII, of paragraphs with an empty line between them.
    """
    paragraphs = (
        " ".join(paragraph.split())
        for name in sorted(topics)
        for paragraph in topics[name].split("\n\n")
        if _is_prose(paragraph)
    )
    text = "\n\n".join(paragraphs).translate(_ASCII_QUOTES)
    return text.encode("ascii", "ignore").decode("ascii")


def _is_prose(paragraph: str) -> bool:
    is_indented = paragraph.startswith(" " * 3)  # code and grammar
    is_heading = any(paragraph.rstrip().endswith(line) for line in ("***", "===", "---"))
    return not is_indented and not is_heading and paragraph.rstrip().endswith((".", ":"))
