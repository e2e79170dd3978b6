"""What the user of ``otel-modtrack view`` chose, and what contradicts what."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from otel_modtrack.usage import UsageError
from otel_modtrack.view.choose import Selection
from otel_modtrack.view.narrow import Narrowing

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


__all__ = ["COLLECTIVES", "DIFF", "TOP", "TREE", "Options"]

# What is shown.
TREE: Final = "tree"
TOP: Final = "top"
COLLECTIVES: Final = "collectives"
DIFF: Final = "diff"


@dataclass(frozen=True, slots=True)
class Options:
    """What the user chose. What is None or empty was not chosen.

    Attributes:
        selection: Which spans are meant.
        narrowing: Which of them are shown.
        depth: Levels of the tree.
        top: Rows of the table of modules, or of differences.
        slowest: Rows of the small table below a tree.
        by: What a row is: ``template`` or ``fqn``.
        sort: What rows are sorted by: ``self`` or ``total``.
        collectives: Whether collectives are shown.
        diff: Files of the later run.
        as_json: Whether it is for scripts.
        exports: Files that are written, by format: ``html``.
        colour: Whether to use a terminal's colours.
    """

    selection: Selection = field(default_factory=Selection)
    narrowing: Narrowing = field(default_factory=Narrowing)
    depth: int | None = None
    top: int | None = None
    slowest: int = 10
    by: str | None = None
    sort: str | None = None
    collectives: bool = False
    diff: Sequence[str] = ()
    as_json: bool = False
    exports: Mapping[str, str] = field(default_factory=dict)
    colour: bool = False

    @property
    def shows(self) -> str | None:
        """`TREE`, `TOP`, `COLLECTIVES` or `DIFF`; None if files are written and nothing else."""
        if self.diff:
            return DIFF
        if self.collectives:
            return COLLECTIVES
        if self.top is not None:
            return TOP
        return None if self.exports and not self.as_json else TREE

    def check(self) -> None:
        """Refuse an option that would do nothing beside the others.

        Raises:
            UsageError: If there is one. The message names both.
        """
        shows = self.shows
        exports = [f"--{name}" for name in self.exports]
        options = {TREE: "the tree", TOP: "--top", COLLECTIVES: "--collectives", DIFF: "--diff"}
        beside = options[shows] if shows else exports[0]
        without = {
            "--depth": self.depth is not None and shows != TREE,
            "--by": self.by is not None and shows not in {TOP, COLLECTIVES, DIFF},
            "--sort": self.sort is not None and shows not in {TOP, DIFF},
            "--top": self.top is not None and shows == COLLECTIVES,
            "--collectives": self.collectives and shows == DIFF,
            "--trace": self.selection.trace is not None and shows == DIFF,
        }
        for option, is_useless in without.items():
            if is_useless:
                raise UsageError(f"{option} does nothing with {beside}; leave one of them out")
        if exports and self.narrowing.text:
            raise UsageError(
                f"{self.narrowing.text} does nothing with {exports[0]}: a file that is written has "
                "all spans of what --step, --trace and --rank choose; leave one of them out"
            )
        if exports and shows == DIFF:
            raise UsageError(f"{exports[0]} does nothing with --diff; leave one of them out")
