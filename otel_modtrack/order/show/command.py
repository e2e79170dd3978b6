"""What ``otel-modtrack order`` does: list the order of a step, or tell where orders differ."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_modtrack import semconv
from otel_modtrack.order.show.arguments import LIST, RANKS, STEPS, Options
from otel_modtrack.order.show.comparing import compare_files, compare_ranks, compare_steps
from otel_modtrack.order.show.files import Files
from otel_modtrack.order.show.listing import list_orders
from otel_modtrack.usage import UsageError
from otel_modtrack.view.paint import printable
from otel_modtrack.view.printing import as_document, named_stdout, say, say_skipped

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_modtrack.order.show.compared import Outcome

__all__ = ["order_files"]

_VERSION: Final = 1  # of documents: raised when a key is taken away or means something else


def order_files(paths: Sequence[str], options: Options | None = None) -> int:
    """Print the order in which modules ran, or where orders first differ.

    Args:
        paths: Files of OTLP JSON lines, compressed by gzip or not, ``-`` for stdin; or orders that
            `Order.save` wrote.
        options: What is listed or compared; the last step is listed, if None.

    Returns:
        The exit code: 1 if orders differ, or else 0.

    Raises:
        UsageError: If a file cannot be read, or has nothing of what was chosen; or if options
            contradict each other.
    """
    options = options or Options()
    options.check()
    given = [each for each in (paths, options.diff) if each]
    if [path for each in given for path in each].count("-") > 1:
        raise UsageError("stdin can be read once only; give - once")
    sides = [Files.read(each) for each in given]
    faults = [fault for side in sides for fault in side.faults]
    say_skipped("order", faults)
    _check_files(sides, options)
    content, differs = _find(sides, options)
    for path in dict.fromkeys(path for side in sides for path in side.by_time):
        say(
            "order",
            f"the module calls in {path} have no {semconv.ORDER_INDEX}, as in older files: they "
            "are in order of their start, and what was folded is left out",
        )
    if isinstance(content, dict):
        head = {"order": options.does, "version": _VERSION}
        content = as_document(head, given, faults, content)
    with named_stdout():
        print(content, flush=True)
    return int(differs)


def _find(sides: Sequence[Files], options: Options) -> Outcome:
    """What is printed, and whether anything differs."""
    if options.does == LIST:
        return list_orders(sides[0], options), False
    if options.does == RANKS:
        return compare_ranks(sides[0], options)
    if options.does == STEPS:
        return compare_steps(sides[0], options)
    return compare_files(sides, options)


def _check_files(sides: Sequence[Files], options: Options) -> None:
    """Refuse what means nothing for such files.

    Raises:
        UsageError: If there is such an option.
    """
    chosen = options.selection
    if chosen.trace is not None and sum(bool(side.trees) for side in sides) > 1:
        raise UsageError(
            "--trace does nothing with --diff of trace files, for a trace is in one of them; leave "
            "one of them out"
        )
    saved = [part.source for side in sides for part in side.saved]
    if not saved:
        return
    is_one = f"{printable(saved[0])} is one order"
    if not any(side.trees for side in sides):
        values = {"--step": chosen.step, "--trace": chosen.trace, "--rank": chosen.rank}
        for option, value in values.items():
            if value is not None:
                raise UsageError(f"{option} does nothing here, for {is_one}; leave it out")
    if options.does == STEPS:
        raise UsageError(f"--diff-step compares steps, and {is_one}; leave one of them out")
    if options.does == RANKS and (sides[0].trees or len(saved) == 1):
        raise UsageError(
            f"--diff without OTHER compares ranks, and {is_one}; name after --diff what it is "
            "compared with"
        )
