"""Whole numbers on the command line."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["whole_number"]


def whole_number(*, at_least: int) -> Callable[[str], int]:
    """Return what argparse reads an argument with: a whole number that is not too small."""

    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = at_least - 1
        if number < at_least:
            raise argparse.ArgumentTypeError(
                f"'{text}' is not a whole number of {at_least} or more"
            )
        return number

    return parse
