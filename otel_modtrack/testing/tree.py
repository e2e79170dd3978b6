"""Spans as a tree in text, to be compared with what a test expects."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from otel_modtrack import semconv
from otel_modtrack.testing.asked import check_number
from otel_modtrack.testing.text import explain, leave_out, parse, to_depth
from otel_modtrack.usage import UsageError
from otel_modtrack.view.model import build_trees, sum_collectives
from otel_modtrack.view.reader import from_sdk

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from opentelemetry.sdk.trace import ReadableSpan

    from otel_modtrack.testing.golden import Golden
    from otel_modtrack.view.model import Span

__all__ = ["Tree", "assert_tree_equals"]


def assert_tree_equals(found: str, text: str) -> None:
    """Assert that a tree which came as text, as from another process, is `text`.

    Runs of the autograd engine may be left out, as for `Tree.assert_equals`.

    Args:
        found: what `Tree.render` gave there.
        text: that is expected, indented as a whole as you like.

    Raises:
        AssertionError: if it differs. The message says which lines, in context.
        UsageError: if a text is not indented properly.
    """
    __tracebackhide__ = True
    lines = parse(found)
    runs = [at for at, line in enumerate(lines) if line.strip() == semconv.BACKWARD_SPAN]
    wanted = parse(text)
    _compare(wanted, lines if _has_runs(wanted) else leave_out(lines, runs))


def _has_runs(wanted: list[str]) -> bool:
    return any(line.strip() == semconv.BACKWARD_SPAN for line in wanted)


def _compare(wanted: list[str], found: list[str]) -> None:
    __tracebackhide__ = True
    difference = explain(wanted, found)
    if difference:
        raise AssertionError(f"the tree is not the expected one: {difference}")


class Tree:
    """Finished spans as text: one a line, two spaces a level, in order of start.

    A module's or named region's line is its phase and fqn, any other span's its name. "!" follows
    where an exception left it. A span whose parent is not among `spans` is on the outermost level.

    Args:
        spans: to be shown.
        among: all that there are, where `spans` are some of them: one whose parent is not shown
            hangs under the next that is.
        golden: where golden files are.

    Raises:
        AssertionError: if a span was exported twice.
    """

    def __init__(
        self,
        spans: Iterable[ReadableSpan],
        *,
        among: Iterable[ReadableSpan] | None = None,
        golden: Golden | None = None,
    ) -> None:
        __tracebackhide__ = True
        shown = from_sdk(spans)
        every = shown if among is None else from_sdk(among)
        self._shown = {span.key for span in shown}
        self._roots = build_trees(every)
        self._golden = golden
        if len(self._shown) < len(shown):
            raise AssertionError(f"a span was exported twice: {_twice(shown)}")

    def __str__(self) -> str:
        return self.render()

    def __repr__(self) -> str:
        return f"<Tree of {len(self._shown)} spans>"

    def render(
        self, *, depth: int | None = None, collectives: bool = False, call_index: bool = False
    ) -> str:
        """The tree as text.

        Args:
            depth: how many levels are shown; all if None.
            collectives: whether a line ends with what its span launched: ``all_reduce x2 64 B``.
            call_index: whether the calls of a module that is called several times are told apart:
                ``forward Net.layer #1``.

        Raises:
            UsageError: if `depth` is not a number of levels.
        """
        __tracebackhide__ = True
        _check_depth(depth)
        lines, _ = self._lines(collectives=collectives, call_index=call_index)
        return "\n".join(to_depth(lines, depth))

    def assert_equals(
        self,
        text: str,
        *,
        depth: int | None = None,
        collectives: bool = False,
        call_index: bool = False,
    ) -> None:
        """Assert that the tree is `text`, two spaces a level, indented as a whole as you like.

        A run of the autograd engine, the line ``backward`` around the modules' backwards, may be
        left out everywhere.

        Args:
            text: that is expected.
            depth: see `render`.
            collectives: likewise.
            call_index: likewise.

        Raises:
            AssertionError: if it differs. The message says which lines, in context.
            UsageError: if the text is not indented properly, or `depth` no number of levels.
        """
        __tracebackhide__ = True
        wanted = parse(text)
        _check_depth(depth)
        lines, runs = self._lines(collectives=collectives, call_index=call_index)
        if not _has_runs(wanted):
            lines = leave_out(lines, runs)
        _compare(wanted, to_depth(lines, depth))

    def assert_golden(
        self,
        name: str,
        *,
        depth: int | None = None,
        collectives: bool = False,
        call_index: bool = False,
    ) -> None:
        """Assert that the tree is that of the file ``golden/NAME.txt`` beside the test.

        ``pytest --modtrack-update`` writes the file.

        Args:
            name: of the file, without the suffix.
            depth: see `render`.
            collectives: likewise.
            call_index: likewise.

        Raises:
            AssertionError: if it differs, or there is no such file.
            UsageError: if there can be none, or `depth` is no number of levels.
        """
        __tracebackhide__ = True
        text = self.render(depth=depth, collectives=collectives, call_index=call_index)
        if self._golden is None:
            raise UsageError("assert_golden() is for trees of a capture: modtrack.tree")
        self._golden.check("tree", name, ".txt", text)

    def _lines(self, *, collectives: bool, call_index: bool) -> tuple[list[str], set[int]]:
        """All lines, and which of them are of runs of the engine that say nothing else."""
        lines: list[str] = []
        runs: set[int] = set()
        for root in self._roots:
            levels: list[int] = []  # of what is in each node of the path
            for at, node in root.walk():
                del levels[at:]
                level = levels[-1] if levels else 0
                is_shown = node.span.key in self._shown
                if is_shown:
                    label = _label(node.span, collectives=collectives, call_index=call_index)
                    if label == semconv.BACKWARD_SPAN and node.span.category == "backward":
                        runs.add(len(lines))
                    lines.append("  " * level + label)
                levels.append(level + is_shown)
        return lines, runs


def _check_depth(depth: int | None) -> None:
    __tracebackhide__ = True
    if depth is not None:
        check_number("depth is a number of levels", depth, least=1)


def _label(span: Span, *, collectives: bool, call_index: bool) -> str:
    text = span.call
    if call_index and (index := span.attributes.get(semconv.MODULE_CALL_INDEX)) is not None:
        text += f" #{index}"
    if span.failed:
        text += "!"
    if collectives and (launched := sum_collectives([span])):
        text += "  " + ", ".join(one.label for one in launched)
    # A name may have several lines, or none.
    return " ".join(line.strip() for line in text.splitlines()) or "(no name)"


def _twice(spans: Sequence[Span]) -> str:
    times = Counter(span.key for span in spans)
    return next(span.label for span in spans if times[span.key] > 1)
