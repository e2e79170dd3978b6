"""The list of orders: what each is, and its calls."""

from __future__ import annotations

import re
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Final

from otel_modtrack import semconv
from otel_modtrack.numerals import plural
from otel_modtrack.order.sequences import CALLS, SEQUENCES
from otel_modtrack.order.show.outline import Kept, Outline
from otel_modtrack.order.show.telling import name_parts, tell_order
from otel_modtrack.usage import UsageError
from otel_modtrack.view.model import Node, Span
from otel_modtrack.view.narrow import Narrowing
from otel_modtrack.view.paint import BOLD, DIM, colour_phase, paint, printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from otel_modtrack.order.model import Order
    from otel_modtrack.order.show.arguments import Options
    from otel_modtrack.order.show.files import Files
    from otel_modtrack.order.show.from_spans import Part

__all__ = ["list_orders"]

_LIST_INDEX: Final = re.compile(r"\.\d+(?=\.|$)")


def list_orders(side: Files, options: Options) -> str | dict[str, Any]:
    """The order of each part: as a text, or a document for scripts.

    Args:
        side: The files.
        options: What the user chose.

    Raises:
        UsageError: If nothing is what was chosen.
    """
    parts = side.parts(options.selection, options.phases)
    if not any(_is_known(part.order) for part in parts):
        raise UsageError(_why_nothing(side, parts, options))
    if options.as_json:
        return {"orders": list(map(_as_document, parts, _names(parts)))}
    kept = _keep(parts, options.modules) if options.modules else [{}] * len(parts)
    blocks = []
    for part, of_part in zip(parts, kept, strict=True):
        blocks.append(_headline(part))
        if of_part:
            matching = sum(len(one.matching) for one in of_part.values())
            fit = "fits" if matching == 1 else "fit"
            patterns = Narrowing(modules=options.modules).text
            blocks[-1] += (
                f"\n{plural(matching, 'call')} {fit} {patterns}, and what they are in is shown"
            )
        blocks += _list_part(part, of_part, options)
    return "\n\n".join(blocks)


def _is_known(order: Order) -> bool:
    return any(getattr(order, sequence) for sequence in SEQUENCES)


def _why_nothing(side: Files, parts: Sequence[Part], options: Options) -> str:
    where = f"{parts[0].unit or parts[0].what} in {side.name}"
    found = side.parts(options.selection) if options.phases else []
    there = [one for one in CALLS if any(getattr(part.order, one) for part in found)]
    if there:
        phases = " or ".join(options.phases)
        return f"there is no {phases} in {where}: the phases there are {', '.join(there)}"
    return f"no span of {where} is a module's; give a file that a tracker wrote, or another --step"


def _names(parts: Sequence[Part]) -> list[str]:
    """What tells the orders of trace files apart; of those that were saved, their own names."""
    traced = [part for part in parts if part.unit]
    names = iter(name_parts(traced, "rank") if len(traced) > 1 else ())
    return [next(names, part.order.name) if part.unit else part.order.name for part in parts]


def _as_document(part: Part, name: str) -> dict[str, Any]:
    """What `Order.as_dict` says, and where it is from."""
    document = {**replace(part.order, name=name).as_dict(), "file": part.source}
    if part.unit:
        document |= {
            "service": part.service,
            "world_size": part.world_size,
            "trace_id": part.trace_id,
            "changed": None if part.changed is None else asdict(part.changed),
            "diverged": part.diverged or None,
        }
    return document


def _headline(part: Part) -> str:
    """Tell what it is, how many calls there are, and what is odd about it."""
    lines = [f"{part.what}: {tell_order(part.order)}"]
    changed = part.changed
    if changed is not None:
        sequence, position = changed.sequence, changed.position
        lines[0] += printable(f", order changed at {sequence} {position}")
        lines.append(
            printable(
                f"Its {sequence} call {position} is {changed.fqn or 'none any more'}; in the step "
                f"recorded before, it was {changed.previous_fqn or 'none'}"
            )
        )
    if part.diverged:
        told = [printable(line) for line in part.diverged.splitlines()]
        lines += [f"{told[0][:1].upper()}{told[0][1:]}", *told[1:]]
    return "\n".join(lines)


def _keep(parts: Sequence[Part], patterns: Sequence[str]) -> list[dict[str, Kept]]:
    """Which calls of each part are shown, by sequence; of what is no call, none.

    Raises:
        UsageError: If no module fits.
    """
    nodes: list[dict[str, list[Node]]] = []
    roots: list[Node] = []
    for part in parts:
        nodes.append({sequence: [] for sequence in SEQUENCES})
        for phase in CALLS:
            found = nodes[-1][phase]
            for call in getattr(part.order, phase) or ():
                names = {semconv.PHASE: phase}
                if call.fqn:
                    names[semconv.MODULE_FQN] = call.fqn
                    names[semconv.MODULE_TEMPLATE] = _LIST_INDEX.sub(".*", call.fqn)
                node = Node(Span("", "", "", "", 0, 0, names))
                (roots if call.parent is None else found[call.parent].children).append(node)
                found.append(node)
    kept = Narrowing(modules=patterns).keep(roots)
    assert kept is not None  # noqa: S101 - there are patterns
    return [
        {
            sequence: Kept(
                {at for at, node in enumerate(found) if node in kept.matching},
                {at for at, node in enumerate(found) if node in kept.shown},
            )
            for sequence, found in of_part.items()
        }
        for of_part in nodes
    ]


def _list_part(part: Part, kept: Mapping[str, Kept], options: Options) -> Iterator[str]:
    """Each sequence that there is, with its name above.

    Args:
        part: With the order.
        kept: What is shown of each sequence; all if empty.
        options: What the user chose.
    """
    rows: Iterable[tuple[int, str]]
    for sequence in SEQUENCES:
        found, of_sequence = getattr(part.order, sequence), kept.get(sequence)
        if not found or (of_sequence is not None and not of_sequence.shown):
            continue
        marked = None
        if sequence in CALLS:
            rows = Outline(found, of_sequence, colour=options.colour).lay_out(options.depth)
            if part.changed is not None and part.changed.sequence == sequence:
                marked = part.changed.position
        else:
            rows = enumerate(map(printable, found))
        width = len(str(len(found) - 1))
        lines = [
            colour_phase(sequence, colour=options.colour)
            or paint(sequence, BOLD, colour=options.colour)
        ]
        for at, text in rows:
            number = paint(f"{at:>{width}}", DIM, colour=options.colour)
            lines.append(f"{'>' if at == marked else ' '} {number}  {text}")
        yield "\n".join(lines)
