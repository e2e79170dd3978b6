"""The options of ``otel-modtrack order``: on the command line, and what contradicts what."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from otel_modtrack.numerals import whole_number
from otel_modtrack.order.sequences import CALLS
from otel_modtrack.usage import UsageError
from otel_modtrack.view.arguments import add_selection
from otel_modtrack.view.choose import Selection

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

__all__ = ["FILES", "LIST", "RANKS", "STEPS", "Options", "add_arguments", "read_options"]

# What is done: a list is printed, or these are compared.
LIST: Final = "list"
RANKS: Final = "ranks"
FILES: Final = "files"
STEPS: Final = "steps"


@dataclass(frozen=True, slots=True)
class Options:
    """What the user chose. What is None or empty was not chosen.

    Attributes:
        selection: Which step, trace and rank are meant.
        phases: Of calls.
        modules: Patterns, as a shell's.
        depth: Levels of the list.
        diff: Files that are compared with; empty for the ranks of the files.
        diff_step: Number of a step that is compared with.
        as_json: Whether it is for scripts.
        colour: Whether to use a terminal's colours.
    """

    selection: Selection = field(default_factory=Selection)
    phases: Sequence[str] = ()
    modules: Sequence[str] = ()
    depth: int | None = None
    diff: Sequence[str] | None = None
    diff_step: int | None = None
    as_json: bool = False
    colour: bool = False

    @property
    def does(self) -> str:
        """`LIST`, `RANKS`, `FILES` or `STEPS`."""
        if self.diff_step is not None:
            return STEPS
        if self.diff is None:
            return LIST
        return FILES if self.diff else RANKS

    def check(self) -> None:
        """Refuse options that contradict each other.

        Raises:
            UsageError: If some do. The message names both.
        """
        does, chosen = self.does, self.selection
        if self.diff is not None and self.diff_step is not None:
            raise UsageError(
                "--diff-step compares two steps, and --diff ranks or files; leave one of them out"
            )
        if does == RANKS and chosen.rank is not None:
            raise UsageError(
                "--rank leaves one rank alone, and --diff without OTHER compares ranks; leave one "
                "of them out"
            )
        if does == STEPS and chosen.step == self.diff_step:
            raise UsageError(
                f"--step {chosen.step} and --diff-step {self.diff_step} are the same step; give "
                "another"
            )
        compares = {RANKS: "--diff", FILES: "--diff", STEPS: "--diff-step"}.get(does)
        beside = compares or ("--json" if self.as_json else None)
        useless = {
            "--trace": chosen.trace is not None and does in {RANKS, STEPS},
            "--module": self.modules and beside,
            "--depth": self.depth is not None and beside,
        }
        for option, other in useless.items():
            if other:
                raise UsageError(f"{option} does nothing with {beside}; leave one of them out")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the files and the options."""
    parser.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help="file of OTLP JSON lines, compressed by gzip or not, - for stdin; or an order that "
        "Order.save wrote; files come first",
    )
    chosen = parser.add_argument_group("which calls")
    add_selection(chosen, CALLS, default="default: the last that all ranks have")
    listed = parser.add_argument_group("what is listed of them")
    listed.add_argument(
        "--module",
        action="append",
        default=[],
        metavar="PATTERN",
        help="modules whose fqn, or its last parts, fit a shell's pattern, and what is in them; "
        "may be repeated",
    )
    listed.add_argument("--depth", type=whole_number(at_least=1), metavar="N", help="levels")
    compared = parser.add_argument_group("what they are compared with (without these, a list)")
    compared.add_argument(
        "--diff",
        nargs="*",
        action="extend",
        metavar="OTHER",
        help="where the order of OTHER first differs; without OTHER, where those of the ranks do, "
        "in the first step that differs. The exit code is 1 if there is such a place",
    )
    compared.add_argument(
        "--diff-step",
        type=whole_number(at_least=0),
        metavar="N",
        help="likewise, the order of step N of the same files",
    )
    parser.add_argument("--json", action="store_true", help="the same for scripts, as one document")


def read_options(chosen: argparse.Namespace, *, colour: bool) -> Options:
    """Return what stands on the command line."""
    return Options(
        selection=Selection(chosen.step, chosen.trace, chosen.rank),
        phases=chosen.phase,
        modules=chosen.module,
        depth=chosen.depth,
        diff=chosen.diff,
        diff_step=chosen.diff_step,
        as_json=chosen.json,
        colour=colour,
    )
