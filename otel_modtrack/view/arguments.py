"""The options of ``otel-modtrack view`` on the command line."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Final

from otel_modtrack.numerals import whole_number
from otel_modtrack.view.choose import Selection
from otel_modtrack.view.narrow import PHASES, Narrowing
from otel_modtrack.view.options import Options

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["add_arguments", "add_selection", "read_options"]

_TOP_ROWS: Final = 20
_EXPORTS: Final = {
    "html": "write one page for a browser, which needs no network",
    "perfetto": "write a trace for ui.perfetto.dev",
    "chrome": "write a trace for chrome://tracing",
    "speedscope": "write a profile for speedscope.app",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the files and the options."""
    parser.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help="file of OTLP JSON lines, compressed by gzip or not; - for stdin; files come first",
    )
    chosen = parser.add_argument_group("which spans")
    add_selection(chosen, PHASES, default="default for a tree: the last")
    chosen.add_argument(
        "--module",
        action="append",
        default=[],
        metavar="PATTERN",
        help="modules whose fqn or template, or its last parts, fit a shell's pattern, and what is "
        "in them; may be repeated",
    )
    shown = parser.add_argument_group("what is shown of them (without these, a tree)")
    shown.add_argument(
        "--depth", type=whole_number(at_least=1), metavar="N", help="levels of the tree"
    )
    shown.add_argument(
        "--top",
        nargs="?",
        type=_rows,
        const=_TOP_ROWS,
        metavar="N",
        help=f"the N modules with the most time over all steps (without N: {_TOP_ROWS}); with "
        "--diff, the N largest differences",
    )
    shown.add_argument(
        "--collectives",
        action="store_true",
        help="collectives by operation, group and module over all steps",
    )
    shown.add_argument(
        "--diff",
        nargs="+",
        action="extend",
        default=[],
        metavar="OTHER",
        help="what is slower or faster in OTHER than in FILE, per step",
    )
    shown.add_argument(
        "--by",
        choices=("template", "fqn"),
        help="what a row of a table is (default: template)",
    )
    shown.add_argument(
        "--sort",
        choices=("self", "total"),
        help="the time that a table is sorted by (default: self)",
    )
    shown.add_argument("--json", action="store_true", help="the same for scripts, as one document")
    written = parser.add_argument_group("files for other viewers")
    for name, text in _EXPORTS.items():
        written.add_argument(f"--{name}", metavar="OUT", help=text)


def add_selection(group: argparse._ArgumentGroup, phases: Sequence[str], *, default: str) -> None:
    """Add the options that say which spans are meant.

    Args:
        group: that they are added to.
        phases: that can be chosen.
        default: what it is without a step, in words.
    """
    group.add_argument(
        "--step",
        type=whole_number(at_least=0),
        metavar="N",
        help=f"number of the training step ({default})",
    )
    group.add_argument("--trace", metavar="ID", help="id of a trace, or how it begins")
    group.add_argument(
        "--rank", type=whole_number(at_least=0), metavar="R", help="of one rank alone"
    )
    group.add_argument(
        "--phase",
        action="append",
        choices=phases,
        default=[],
        help=f"{', '.join(phases)}; may be repeated",
        metavar="P",
    )


def read_options(chosen: argparse.Namespace, *, colour: bool) -> Options:
    """Return what stands on the command line."""
    return Options(
        selection=Selection(chosen.step, chosen.trace, chosen.rank),
        narrowing=Narrowing(chosen.phase, chosen.module),
        depth=chosen.depth,
        top=chosen.top,
        by=chosen.by,
        sort=chosen.sort,
        collectives=chosen.collectives,
        diff=chosen.diff,
        as_json=chosen.json,
        exports={name: out for name in _EXPORTS if (out := getattr(chosen, name)) is not None},
        colour=colour,
    )


def _rows(text: str) -> int:
    try:
        return whole_number(at_least=1)(text)
    except argparse.ArgumentTypeError as error:
        # Most likely it is a file.
        raise argparse.ArgumentTypeError(f"{error}; files come before the options") from None
