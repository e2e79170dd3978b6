"""Spans made up for the page's tests: every number is known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_modtrack.view.model import Event, Link, Process, Span

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["EPOCH_NS", "MS", "collective", "module", "span", "training"]

EPOCH_NS = 1_800_000_000_000_000_000
MS = 1_000_000
_ALONE = Process(source="made.jsonl")


def span(  # noqa: PLR0913 - what tells a span from others
    span_id: str,
    name: str,
    start_ms: float,
    end_ms: float,
    *,
    parent: str = "",
    attributes: Mapping[str, Any] | None = None,
    trace: str = "a",
    **more: Any,
) -> Span:
    """A span of one process, whose ids are the given ones, filled up with dashes."""
    more.setdefault("process", _ALONE)
    return Span(
        trace_id=trace.ljust(32, "-"),
        span_id=span_id.ljust(16, "-"),
        parent_id=parent and parent.ljust(16, "-"),
        name=name,
        start_ns=EPOCH_NS + round(start_ms * MS),
        end_ns=EPOCH_NS + round(end_ms * MS),
        attributes=attributes or {},
        **more,
    )


def module(span_id: str, phase: str, fqn: str, start_ms: float, end_ms: float, **more: Any) -> Span:
    """A span of a module, named and described as the tracker does."""
    template = ".".join("*" if part.isdigit() else part for part in fqn.split("."))
    attributes = {
        "modtrack.phase": phase,
        "modtrack.module.fqn": fqn,
        "modtrack.module.template": template,
        "modtrack.module.type": "Linear",
    }
    more.setdefault("scope", "otel_modtrack")
    name = f"{phase} {template}"
    return span(span_id, name, start_ms, end_ms, attributes=attributes, **more)


def collective(at_ms: float, operation: str, size_bytes: int, **more: Any) -> Event:
    """What was launched, at a time."""
    return Event(
        "modtrack.collective",
        EPOCH_NS + round(at_ms * MS),
        {
            "modtrack.collective.operation": operation,
            "modtrack.collective.count": 1,
            "modtrack.collective.size": size_bytes,
            "modtrack.collective.group.name": "0",
            **more,
        },
    )


def training(ranks: int = 2, steps: int = 3) -> list[Span]:
    """Steps of 100 ms each, one every 120 ms: forward, backward with recomputation, optimizer.

    Ids are ``r0s1`` for the step 1 of rank 0, and with ``f`` (forward), ``b`` (backward), ``c``
    (recompute), ``o`` (optimizer): ``r0s1b2`` is the third module of the backward. Rank 1 is 5 ms
    behind. Step 1 takes 10 ms longer, in the optimizer.
    """
    return [
        one
        for rank in range(ranks)
        for process in [Process("trainer", rank, ranks, f"rank{rank}.jsonl", {"host.name": "box"})]
        for step in range(steps)
        for one in _step(rank, step, process)
    ]


def _step(rank: int, step: int, process: Process) -> list[Span]:
    at = 120 * step + 5 * rank
    key = f"r{rank}s{step}"
    more: dict[str, Any] = {"process": process, "trace": key}
    ours: dict[str, Any] = {**more, "scope": "otel_modtrack"}
    slow = 10 if step == 1 else 0

    def linked(to: str) -> dict[str, Any]:
        return {**more, "links": (Link(key.ljust(32, "-"), f"{key}{to}".ljust(16, "-")),)}

    reduced = collective(at + 60, "all_reduce", 262_144)
    return [
        span(
            key,
            "train_step",
            at,
            at + 100 + slow,
            attributes={"modtrack.step.number": step},
            **ours,
        ),
        module(f"{key}f0", "forward", "Net", at + 1, at + 41, parent=key, **more),
        module(f"{key}f1", "forward", "Net.layers.0", at + 2, at + 20, parent=f"{key}f0", **more),
        module(f"{key}f2", "forward", "Net.layers.1", at + 20, at + 40, parent=f"{key}f0", **more),
        span(f"{key}b", "backward", at + 42, at + 92, parent=key, **ours),
        module(f"{key}b0", "backward", "Net", at + 43, at + 91, parent=f"{key}b", **linked("f0")),
        module(
            f"{key}b1",
            "backward",
            "Net.layers.1",
            at + 44,
            at + 64,
            parent=f"{key}b0",
            events=(reduced,),
            **linked("f2"),
        ),
        module(
            f"{key}c1", "recompute", "Net.layers.1", at + 45, at + 55, parent=f"{key}b1", **more
        ),
        module(
            f"{key}b2",
            "backward",
            "Net.layers.0",
            at + 64,
            at + 90,
            parent=f"{key}b0",
            **linked("f1"),
        ),
        span(f"{key}o", "optimizer_step AdamW", at + 93, at + 98 + slow, parent=key, **ours),
    ]
