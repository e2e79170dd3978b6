"""Trace files of one or several ranks, by hand; and the command, run as it is typed."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest

from otel_modtrack.cli import main
from otel_modtrack.view.model import Event, Process, Span
from tests.view.making import BASE_NS, MS, as_json, as_line

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["Shown", "StepSpans", "changed", "folded", "order", "refusal", "write", "write_run"]

INDEX = "modtrack.order.index"
Shown = pytest.CaptureFixture[str]


@dataclass
class StepSpans:
    """The spans of one step, added one by one; each takes a millisecond longer than the last.

    Args:
        number: Of the step; None for spans of a trace without a step.
        rank: Of the process, and how many there are; None for one alone.
        indexed: Whether spans tell their place in the order.
    """

    number: int | None = 0
    rank: tuple[int, int] | None = None
    indexed: bool = True
    spans: list[Span] = field(default_factory=list)
    _counts: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rank, world_size = self.rank or (None, None)
        self.process = Process("trainer", rank, world_size)
        self.trace = f"{'x' if rank is None else rank}t{self.number}"
        self.root = ""
        if self.number is not None:
            self.root = self.add("train_step", "", **{"modtrack.step.number": self.number})

    def add(self, name: str, parent: str | None = None, /, **attributes: Any) -> str:
        """A span of any kind. Returns its id.

        Args:
            name: Of it.
            parent: Its id; the step, if None.
            attributes: By their whole names.
        """
        span_id = f"s{len(self.spans)}"
        start_ns = BASE_NS + (self.number or 0) * 10_000 * MS + len(self.spans) * MS
        span = Span(
            trace_id=self.trace,
            span_id=span_id,
            parent_id=self.root if parent is None else parent,
            name=name,
            start_ns=start_ns,
            end_ns=start_ns + 9_000 * MS,
            attributes=attributes,
            scope="otel_modtrack",
            process=self.process,
        )
        self.spans.append(span)
        return span_id

    def call(self, fqn: str, parent: str | None = None, phase: str = "forward", **more: Any) -> str:
        """The span of a module's call. Returns its id.

        Args:
            fqn: Of the module.
            parent: As of `add`.
            phase: Of the call.
            more: ``index``, in place of the next one; other attributes.
        """
        index = more.pop("index", self._counts.get(phase, 0))
        self._counts[phase] = index + 1
        names = {"modtrack.phase": phase, "modtrack.module.fqn": fqn, "modtrack.module.type": "Any"}
        told = {INDEX: index} if self.indexed else {}
        return self.add(f"{phase} {fqn}", parent, **{**names, **told, **more})

    def nest(self, *fqns: str, phase: str = "forward") -> StepSpans:
        """Calls that are nested as their names are."""
        ids: dict[str, str] = {}
        for fqn in fqns:
            above = [one for one in ids if fqn.startswith(f"{one}.")]
            ids[fqn] = self.call(fqn, ids[above[-1]] if above else None, phase)
        return self

    def tell(self, event: Event, on: str | None = None) -> StepSpans:
        """Put an event on a span; on the step, if None."""
        at = next(at for at, one in enumerate(self.spans) if one.span_id == (on or self.root))
        self.spans[at] = replace(self.spans[at], events=(*self.spans[at].events, event))
        return self


def changed(sequence: str, position: int, now: str | None, before: str | None) -> Event:
    """The event of a step whose order is another than that of the step before."""
    told: dict[str, Any] = {
        "modtrack.order.sequence": sequence,
        "modtrack.order.position": position,
    }
    if now is not None:
        told["modtrack.order.fqn"] = now
    if before is not None:
        told["modtrack.order.previous_fqn"] = before
    return Event("modtrack.order_changed", attributes=told)


def folded(count: int, phase: str | None = "forward", **more: Any) -> Event:
    """The event of a span that stands for calls without spans of their own."""
    told: dict[str, Any] = {"modtrack.folded.count": count}
    if phase is not None:
        told |= {"modtrack.folded.name": f"{phase} N", "modtrack.phase": phase}
    return Event("modtrack.folded", attributes={**told, **more})


def write(path: Path, *steps: StepSpans) -> str:
    """Write a file. Returns its name."""
    lines = [as_line(as_json(span), process=span.process) for one in steps for span in one.spans]
    path.write_text("".join(reversed(lines)))  # children before parents, as exporters see them
    return str(path)


def write_run(path: Path, fqns: Sequence[Sequence[str]], rank: tuple[int, int] | None) -> str:
    """Write a rank's file: each step's forward calls. Returns its name."""
    steps = [StepSpans(number, rank).nest(*names) for number, names in enumerate(fqns)]
    return write(path, *steps)


def order(capsys: Shown, *arguments: str, code: int = 0, says: str = "") -> str:
    """Run the command, and return what it prints.

    Args:
        capsys: Of the test.
        arguments: Of the command.
        code: That it leaves with.
        says: What it says on stderr, at the beginning of its line.
    """
    assert main(["order", *arguments]) == code
    shown = capsys.readouterr()
    assert shown.err.startswith(f"otel-modtrack order: {says}" if says else "")
    assert shown.err.count("\n") == bool(says)
    return shown.out


def refusal(capsys: Shown, *arguments: str) -> str:
    """Run the command, which refuses in one line, and return that line."""
    assert main(["order", *arguments]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("otel-modtrack order: ")
    assert shown.err.count("\n") == 1
    return shown.err.removeprefix("otel-modtrack order: ").rstrip()
