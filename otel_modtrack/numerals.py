"""Whole numbers: as the command line has them, and as a sentence tells them."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["plural", "whole_number"]


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


def plural(count: int, what: str) -> str:
    """``1 span``, ``1,620 spans``, ``3 launches``."""
    ending = "es" if what.endswith(("ch", "s")) else "s"
    return f"{count:,} {what}{'' if count == 1 else ending}"
