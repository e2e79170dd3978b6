"""Judges what the oracle saw: were the exported spans right, for every node, to the nanosecond?"""

from __future__ import annotations

import bisect
import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from opentelemetry.sdk.trace import ReadableSpan

    from tests.tracker.oracle import Call, Oracle, Running

__all__ = ["Verdict", "judge"]

_FQN = "modtrack.module.fqn"
_PHASE = "modtrack.phase"


class Verdict:
    """What the oracle found.

    Attributes:
        checked: nodes whose time was compared with the spans.
        labelled: those of them that a module call or named region had made.
        wrong: one line for each thing that is not as it must be.
    """

    def __init__(self) -> None:
        self.checked = 0
        self.labelled = 0
        self.wrong: list[str] = []


class _Moment(NamedTuple):
    """One time at which a node is in a region: just before it runs, or just after."""

    at_ns: int
    when: str
    node: Running


def judge(oracle: Oracle, spans: Sequence[ReadableSpan], *, threads: bool = False) -> Verdict:
    """Compare what was seen with the spans that came out.

    A node is in a region from before it runs until after: both times are compared. The span of the
    call that made it must be open then, and of all others only its ancestors'. Where the nodes
    of two calls truly take turns (two threads' forwards under one backward, the steps of
    a generator), a span may also be open whose own nodes ran before and will run after.

    Args:
        oracle: what was seen.
        spans: all that the tracker exported.
        threads: backwards ran at the same time, each in a trace of its own.
    """
    verdict = Verdict()
    passes = [s for s in spans if _FQN in s.attributes and _phase(s) != "backward"]
    backwards = [s for s in spans if _FQN in s.attributes and _phase(s) == "backward"]
    by_call = _match(oracle, passes, verdict.wrong)
    by_span = {span.context.span_id: call for call, span in by_call.items()}
    _check_nesting(passes, backwards, by_call, by_span, verdict.wrong)
    _check_nodes(oracle, spans, by_call, verdict, threads=threads)
    return verdict


def _check_nodes(
    oracle: Oracle,
    spans: Sequence[ReadableSpan],
    by_call: dict[Call, ReadableSpan],
    verdict: Verdict,
    *,
    threads: bool,
) -> None:
    """Every node ran in the region of the call that made it, and every region has a node."""
    by_id = {span.context.span_id: span for span in spans}
    regions = [s for s in spans if _FQN in s.attributes and _phase(s) == "backward"]
    seen: list[tuple[_Moment, list[ReadableSpan], list[ReadableSpan], Call | None]] = []
    lives: dict[int, list[int]] = {}  # when the first and last node of a span ran
    for moment, still_open in _moments(oracle, regions, by_call, threads=threads):
        node = moment.node
        call = _made_by(oracle, node)
        if call is not None and not call.session == node.session != 0:
            call = None  # made or run while no tracker was on, or another stay of one
        want = by_call[call].context.span_id if call in by_call else None
        mine = [s for s in still_open if s.links[0].context.span_id == want]
        if node.session is None:  # the tracker came or went in this very run
            mine = still_open
        chain = []
        span = mine[-1] if mine else None
        while span is not None:
            chain.append(span)
            lives.setdefault(span.context.span_id, [moment.at_ns] * 2)[1] = moment.at_ns
            span = by_id.get(span.parent.span_id) if span.parent is not None else None
        if node.session is not None:
            seen.append((moment, still_open, chain, call))
    for moment, still_open, chain, call in seen:
        inside = {s.context.span_id for s in chain}
        others = [
            lives.get(s.context.span_id) for s in still_open if s.context.span_id not in inside
        ]
        taking_turns = all(life and life[0] < moment.at_ns < life[1] for life in others)
        verdict.checked += moment.when == "after"
        verdict.labelled += moment.when == "after" and call is not None
        if not taking_turns or (call is not None and not chain):
            shown = still_open[-1].attributes[_FQN] if still_open else "no region"
            verdict.wrong.append(f"{moment.when} {moment.node.name}: in {shown}, made by {call}")
        elif moment.node.label is None:
            verdict.wrong.append(f"{moment.node.name} was made before the oracle was there")
    empty = [span for span in regions if span.context.span_id not in lives]
    verdict.wrong += [f"no node ran in backward {span.attributes[_FQN]}" for span in empty]


def _made_by(oracle: Oracle, node: Running) -> Call | None:
    """The call that made a node; what none made belongs to where its run was begun."""
    label = node.inherited if node.label in (None, "0") else node.label
    return oracle.calls[int(label) - 1] if label != "0" else None


def _moments(
    oracle: Oracle,
    spans: Sequence[ReadableSpan],
    by_call: dict[Call, ReadableSpan],
    *,
    threads: bool,
) -> Iterator[tuple[_Moment, list[ReadableSpan]]]:
    """Each time at which a node is in a region, and the spans that were open then."""
    traces: dict[int, int] = {}  # of each engine run, by which several threads are told apart
    for node in oracle.nodes if threads else ():
        span = by_call.get(_made_by(oracle, node))
        if span is not None:
            traces.setdefault(node.run, span.context.trace_id)
    moments: dict[int | None, list[_Moment]] = {}
    for node in oracle.nodes:
        mine = moments.setdefault(traces.get(node.run), [])
        mine.append(_Moment(node.before_ns + oracle.offset, "before", node))
        if node.after_ns:  # else it raised
            mine.append(_Moment(node.after_ns + oracle.offset, "after", node))
    for trace, mine in moments.items():
        theirs = [s for s in spans if trace is None or s.context.trace_id == trace]
        yield from _open_at(sorted(mine, key=lambda moment: moment.at_ns), theirs)


def _open_at(
    moments: Sequence[_Moment], spans: Sequence[ReadableSpan]
) -> Iterator[tuple[_Moment, list[ReadableSpan]]]:
    """For each moment the spans that have begun and not ended, outer ones first."""
    depths = _depths(spans)
    waiting = sorted(spans, key=lambda s: (-s.start_time, -depths[s.context.span_id]))
    still_open: list[ReadableSpan] = []
    for moment in moments:
        while waiting and waiting[-1].start_time <= moment.at_ns:
            still_open.append(waiting.pop())
        still_open = [span for span in still_open if span.end_time >= moment.at_ns]
        yield moment, list(still_open)


def _depths(spans: Sequence[ReadableSpan]) -> dict[int, int]:
    """How deep each span lies: a region and its first child may begin at the same nanosecond."""
    above = {s.context.span_id: s.parent.span_id if s.parent is not None else None for s in spans}
    depths: dict[int, int] = {}
    for span_id in above:
        chain: list[int] = []
        at: int | None = span_id
        while at in above and at not in depths:
            chain.append(at)
            at = above[at]
        depth = depths.get(at, 0)
        for one in reversed(chain):
            depth += 1
            depths[one] = depth
    return depths


def _match(
    oracle: Oracle, spans: Sequence[ReadableSpan], wrong: list[str]
) -> dict[Call, ReadableSpan]:
    """Each call's forward or recompute span, by the times between which it must begin."""
    starts = [call.before_ns for call in oracle.calls]
    matched: dict[Call, ReadableSpan] = {}
    names: dict[object, str] = {}
    for span in spans:
        fqn = span.attributes[_FQN]
        begun, ended = span.start_time - oracle.offset, span.end_time - oracle.offset
        at = bisect.bisect_right(starts, begun) - 1
        call = oracle.calls[at] if at >= 0 else None
        if call is None or begun > call.inside_ns or call in matched:
            wrong.append(f"{_phase(span)} {fqn}: there was no such call")
            continue
        matched[call] = span
        if not (call.leaving_ns <= ended <= call.after_ns or call.body):
            wrong.append(f"{_phase(span)} {fqn} does not end when {call} ends")
        if call.fqns and re.sub(r"#\d+", "", fqn) not in call.fqns:
            wrong.append(f"{call} is named {fqn}")
        if names.setdefault(call.key, fqn) != fqn:
            wrong.append(f"{call} is named {fqn}, and was {names[call.key]}")
    wrong += [f"{c} has no span" for c in oracle.calls if c.session and c not in matched]
    wrong += [f"{c} was not to be tracked" for c in matched if not c.session]
    return matched


def _check_nesting(
    passes: Sequence[ReadableSpan],
    backwards: Sequence[ReadableSpan],
    by_call: dict[Call, ReadableSpan],
    by_span: dict[int, Call],
    wrong: list[str],
) -> None:
    """Spans are nested as calls are, forward and backward, and no region is there twice."""
    by_id = {span.context.span_id: span for span in [*passes, *backwards]}
    for span in passes:
        call = by_span.get(span.context.span_id)
        above = by_call.get(call.parent) if call is not None else None
        if above is not None and span.parent.span_id != above.context.span_id:
            wrong.append(f"{_phase(span)} {span.attributes[_FQN]} is not in {call.parent}")
    for span in backwards:
        fqn = span.attributes[_FQN]
        call = by_span.get(span.links[0].context.span_id) if len(span.links) == 1 else None
        if call is None or by_call[call].attributes[_FQN] != fqn:
            wrong.append(f"backward {fqn} is not linked to its forward")
            continue
        above = by_id.get(span.parent.span_id) if span.parent is not None else None
        linked = by_span.get(above.links[0].context.span_id) if above and above.links else None
        if call.parent in by_call and linked is not call.parent:
            wrong.append(f"backward {fqn} is not in {call.parent}, but in {linked}")
    pairs = [(s.parent and s.parent.span_id, s.links[0].context.span_id) for s in backwards]
    if len(set(pairs)) != len(pairs):
        wrong.append("a backward region was reported twice")


def _phase(span: ReadableSpan) -> str:
    return str(span.attributes[_PHASE])
