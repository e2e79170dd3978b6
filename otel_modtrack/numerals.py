"""Whole numbers: as the command line has them, and as a sentence tells them."""

from __future__ import annotations

import argparse
import itertools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["plural", "runs_in", "whole_number"]


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


def runs_in(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The first and the last of those that follow each other without a gap; in order."""
    for _, together in itertools.groupby(enumerate(numbers), lambda one: one[1] - one[0]):
        members = [number for _, number in together]
        yield members[0], members[-1]
