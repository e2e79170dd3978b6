"""Spans to write: small ones made by hand, and many.

Times are in ns after `BASE_NS`, which no float holds exactly.
"""

from __future__ import annotations

from typing import Any

from otel_modtrack.view.model import Event, Link, Process, Span

__all__ = [
    "BASE_NS",
    "RANKS",
    "SERVICE",
    "concurrent",
    "foreign",
    "instantaneous",
    "launched",
    "made",
    "many",
    "odd",
    "outlasting",
    "two_ranks",
]

BASE_NS = 1_795_866_775_075_142_797
RANKS = [Process("trainer", rank, 2, "run.jsonl", {"service.name": "trainer"}) for rank in range(2)]
SERVICE = Process("shop", None, None, "shop.jsonl", {"service.name": "shop"})
STACK = 'Traceback:\n  File "a.py"\n\tValueError: "no"\n'


def made(  # noqa: PLR0913, PLR0917 - a span has as many
    span_id: str,
    parent_id: str,
    name: str,
    start_ns: int,
    end_ns: int,
    process: Process = SERVICE,
    **more: Any,
) -> Span:
    """Make a span of trace "t". `phase` and `fqn` become attributes, the rest are its fields."""
    attributes = dict(more.pop("attributes", {}))
    if "fqn" in more:
        fqn = more.pop("fqn")
        attributes |= {
            "modtrack.phase": more.pop("phase"),
            "modtrack.module.fqn": fqn,
            "modtrack.module.template": fqn.replace(".0", ".*").replace(".1", ".*"),
        }
    return Span(
        trace_id=more.pop("trace_id", "t"),
        span_id=span_id,
        parent_id=parent_id,
        name=name,
        start_ns=BASE_NS + start_ns,
        end_ns=BASE_NS + end_ns,
        attributes=attributes,
        process=process,
        scope=more.pop("scope", "otel_modtrack"),
        **more,
    )


def launched(operation: str, size_bytes: int, time_ns: int) -> Event:
    """Make the event of a collective of group mesh_tp."""
    return Event(
        "modtrack.collective",
        BASE_NS + time_ns,
        {
            "modtrack.collective.operation": operation,
            "modtrack.collective.count": 1,
            "modtrack.collective.size": size_bytes,
            "modtrack.collective.group.description": "mesh_tp",
            "modtrack.collective.async": True,
        },
    )


def two_ranks() -> list[Span]:
    """A step on each of two ranks; the second begins 7 ns later and fails."""
    spans = []
    for rank, process in enumerate(RANKS):
        at, r = 7 * rank, f"r{rank}"
        spans += [
            made(f"{r}c", f"{r}b", "forward Net.l.*", at + 20, at + 60, process,
                 phase="forward", fqn="Net.l.0"),
            made(f"{r}d", f"{r}b", "forward Net.l.*", at + 60, at + 90, process,
                 phase="forward", fqn="Net.l.1",
                 events=(launched("all_reduce", 4096, at + 75),)),
            made(f"{r}b", f"{r}a", "forward Net", at + 10, at + 100, process,
                 phase="forward", fqn="Net",
                 events=(launched("broadcast", 64, at + 15),)),
            made(f"{r}f", f"{r}e", "backward Net.l.*", at + 1210, at + 3000, process,
                 phase="backward", fqn="Net.l.1", links=(Link("t", f"{r}d"),)),
            made(f"{r}e", f"{r}a", "backward", at + 1200, at + 4001, process),
            made(f"{r}g", f"{r}a", "optimizer_step SGD", at + 4001, at + 5000, process,
                 failed=rank == 1, status_message="out of memory" if rank else "",
                 attributes={"error.type": "OutOfMemoryError"} if rank else {},
                 events=(Event("exception", BASE_NS + at + 4999,
                               {"exception.stacktrace": STACK}),) if rank else ()),
            made(f"{r}a", "", "train_step", at, at + 1_000_000_123, process,
                 attributes={"modtrack.step.number": 7}),
        ]  # fmt: skip
    return spans


def instantaneous() -> list[Span]:
    """Spans without duration: alone, at either end of others, in each other."""
    return [
        # One event at its start, and one when children end and begin.
        made("a", "", "request", 0, 1000,
             events=(Event("half", BASE_NS + 500, {}), Event("begun", BASE_NS, {}))),
        made("first", "a", "zero first", 0, 0),
        made("b", "a", "left", 0, 500),
        made("last", "b", "zero at the end of left", 500, 500),
        made("zero", "a", "zero between", 500, 500),
        made("inner", "zero", "zero in zero", 500, 500),
        made("c", "a", "right", 500, 1000),
        made("end", "a", "zero at the end", 1000, 1000),
        made("after", "", "zero after", 1000, 1000),
        made("next", "", "next request", 1000, 1500),
    ]  # fmt: skip


def concurrent() -> list[Span]:
    """Three requests at once, and two threads of one of them at once."""
    return [
        made("a", "", "GET /a", 0, 1000),
        made("a1", "a", "thread one", 100, 600),
        made("a2", "a", "thread two", 200, 900),
        made("a3", "a2", "query", 300, 400),
        made("b", "", "GET /b", 50, 700),
        made("b1", "b", "query", 60, 700),
        made("c", "", "GET /c", 650, 2000),
        made("d", "", "GET /d", 2000, 2100),
    ]


def outlasting() -> list[Span]:
    """Children that stick out of their parents, begin before or after them, or run elsewhere."""
    return [
        made("a", "", "request", 100, 1000),
        made("late", "a", "outlasts", 900, 1100),
        made("early", "a", "begins before", 50, 150),
        made("after", "a", "begins after", 1500, 1600),
        made("call", "a", "call", 200, 800),
        made("remote", "call", "POST /remote", 300, 700, RANKS[0], kind=2),
        made("back", "remote", "callback", 400, 500),
        made("orphan", "gone", "orphan", 3000, 3100),
    ]


def odd() -> list[Span]:
    """Names and values that break careless writers."""
    texts = [
        '"quoted" \\ back',
        "Größe \N{SNOWMAN} \U0001f525",
        "a\nb\tc\x01\x7f",
        "\ud800",
        "</script>",
    ]
    spans = [
        made(f"s{index}", "", text, 100 * index, 100 * index + 50, attributes={"value": text})
        for index, text in enumerate(texts)
    ]
    values = {
        "bool": True,
        "int": -5,
        "largest": 2**63 - 1,
        "smallest": -(2**63),
        "huge": 2**70,
        "double": 0.1,
        "nan": float("nan"),
        "infinite": float("-inf"),
        "list": ("a", "b"),
        "empty": (),
        "none": None,
        "dict": {"values": [{"key": "k", "value": {"intValue": "3"}}]},
        "": "no name",
    }
    return [*spans, made("values", "", "", 1000, 1001, attributes=values)]


def foreign() -> list[Span]:
    """Another program's spans: no attributes of ours, links into nowhere, events without time."""
    return [
        made("a", "", "GET /", 0, 500, trace_id="x", scope="fastapi", kind=2,
             events=(Event("", 0, {}), Event("late", BASE_NS + 9000, {"n": 1}))),
        made("b", "a", "SELECT", 100, 200, trace_id="x", scope="", kind=3,
             links=(Link("x", "nowhere"), Link("y", "c", {"why": "cause"}), Link("x", "b"))),
        made("c", "", "consume", 50, 90, trace_id="y", scope="kafka", kind=5),
        made("d", "", "consume", 600, 700, trace_id="y", scope="kafka", kind=5,
             links=(Link("y", "c"), Link("x", "a"))),
    ]  # fmt: skip


def many(count: int) -> list[Span]:
    """Make steps of a model of 12 layers, 100 spans each, on two ranks."""
    spans = []
    attributes = [
        {
            "modtrack.phase": phase,
            "modtrack.module.fqn": f"GPT.layers.{index // 4}.l.{index % 4}",
            "modtrack.module.template": "GPT.layers.*.l.*",
            "modtrack.module.type": "Linear",
        }
        for phase in ("forward", "backward")
        for index in range(49)
    ]
    for number in range(count // 100):
        process = RANKS[number % 2]
        trace_id = f"{number:032x}"
        at = BASE_NS + (number // 2) * 1_000_000
        spans.append(
            Span(
                trace_id,
                f"{0:016x}",
                "",
                "train_step",
                at,
                at + 990_000,
                {"modtrack.step.number": number // 2},
                process=process,
            )
        )
        spans.append(
            Span(
                trace_id,
                f"{1:016x}",
                f"{0:016x}",
                "backward",
                at + 500_000,
                at + 989_999,
                process=process,
            )
        )
        for index, shared in enumerate(attributes, start=2):
            is_backward = index >= 51
            start_ns = at + 2_000 + index * 9_700 + (5_000 if is_backward else 0)
            spans.append(
                Span(
                    trace_id,
                    f"{index:016x}",
                    f"{int(is_backward):016x}",
                    f"{shared['modtrack.phase']} GPT.layers.*.l.*",
                    start_ns,
                    start_ns + 9_000,
                    shared,
                    scope="otel_modtrack",
                    process=process,
                    links=(Link(trace_id, f"{index - 49:016x}"),) if is_backward else (),
                )
            )
    return spans
