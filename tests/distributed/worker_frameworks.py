"""Worker of `test_frameworks`: runs each program tracked, and beside it the oracle of `witness`."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from frameworks import PROGRAMS, Marks, Net, ddp
from harness import case, main
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from witness import Launch, Witness

from otel_modtrack import ModTracker
from otel_modtrack.comm import intercept

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from opentelemetry.sdk.trace import ReadableSpan

STEPS = 3
# Compiling takes seconds, and 4 processes two cores.
ONCE = ("compiled_ddp",)
ON_FOUR = ("ddp", "fsdp2", "tensor_parallel", "transformer", "sequence_parallel")
ON_TWO = tuple(PROGRAMS)


class Event:
    """One span event of a collective, with where it stands."""

    def __init__(self, span: ReadableSpan, event: Any) -> None:
        self.attributes = {
            key.removeprefix("modtrack.collective."): value
            for key, value in event.attributes.items()
        }
        self.at = event.timestamp
        self.phase, self.module = _place(span)
        self.launch = Launch(
            self.phase,
            self.module,
            self.attributes["operation"],
            self.attributes["group.name"],
            self.attributes["size"],
        )


def _place(span: ReadableSpan) -> tuple[str, str]:
    attributes = span.attributes or {}
    if "modtrack.module.fqn" in attributes:
        return str(attributes["modtrack.phase"]), str(attributes["modtrack.module.fqn"])
    if span.name.startswith("optimizer_step"):
        return "optimizer", ""
    return {"backward": "backward", "train_step": "outside"}[span.name], ""


def _events(spans: Iterable[ReadableSpan]) -> list[Event]:
    """In order of time."""
    found = [
        Event(span, event)
        for span in spans
        for event in span.events
        if event.name == "modtrack.collective"
    ]
    return sorted(found, key=lambda event: event.at)


class Run:
    """Some steps of a program, tracked and witnessed."""

    def __init__(self, name: str, world: int, mode: str) -> None:
        program = PROGRAMS[name](world)
        exporter = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        self.mode = mode
        self.world = world
        self.tracker = ModTracker(program.model, tracer_provider=provider, collectives=mode)
        self.witness = Witness(program.model, compiled=program.compiled)
        self.ends: list[int] = []
        with self.tracker, self.witness:
            for number in range(STEPS):
                with self.tracker.step(number):
                    program.step(self.witness)
                self.ends.append(len(self.witness.launches))
        self.spans = list(exporter.get_finished_spans())
        self.events = _events(self.spans)
        self.steps = sorted(
            (span for span in self.spans if span.name == "train_step"),
            key=lambda span: span.start_time,
        )

    # -- the oracle's verdict ----------------------------------------------------------------------

    def wrong(self) -> list[str]:
        """Everything that is not as the oracle says."""
        checks: tuple[Callable[[], Iterable[str]], ...] = (
            self._wrong_events,
            self._wrong_intervals,
            self._wrong_sums,
            self._wrong_steps,
            self._wrong_answers,
            self._wrong_modules,
        )
        return [f"{self.mode}: {line:.400}" for check in checks for line in check()]

    def _wrong_events(self) -> Iterable[str]:
        saw = self.witness.launches
        told = [event.launch for event in self.events]
        if self.mode == "each":
            if told != saw:
                same = [one == other for one, other in zip(told, saw)]  # noqa: B905
                at = same.index(False) if False in same else len(same)
                end = at + 4
                yield f"launch {at} of {len(saw)}: events {told[at:end]}, but {saw[at:end]}"
            return
        # One event for each span, operation and group: without repetition within a span.
        keys = [
            (span.context.span_id, event.launch[2:4])
            for span in self.spans
            for event in _events([span])
        ]
        yield from (f"two events for {key}" for key, count in Counter(keys).items() if count > 1)
        by_key: dict[tuple[str, ...], list[int]] = {}
        for launch in saw:
            tally = by_key.setdefault(launch[:4], [0, 0])
            tally[0] += 1
            tally[1] += launch.size
        found: dict[tuple[str, ...], list[int]] = {}
        for event in self.events:
            tally = found.setdefault(event.launch[:4], [0, 0])
            tally[0] += event.attributes["count"]
            tally[1] += event.attributes["size"]
        if found != by_key:
            yield f"events tell {found}, but {by_key}"

    def _wrong_intervals(self) -> Iterable[str]:
        for span in self.spans:
            for event in span.events:
                if not span.start_time <= event.timestamp <= span.end_time:
                    yield f"an event outside of its span {span.name}"
        for event in self.events:
            found = event.attributes
            if (found["group.size"], found["backend"]) != (self.world, "gloo"):
                yield f"{event.launch} in a group {found}"

    def _wrong_sums(self) -> Iterable[str]:
        """A span has the sums of its own events and of those below."""
        by_id = {span.context.span_id: span for span in self.spans}
        sums = {span_id: [0, 0] for span_id in by_id}
        for span in self.spans:
            for event in _events([span]):
                around: ReadableSpan | None = span
                while around is not None:
                    tally = sums[around.context.span_id]
                    tally[0] += event.attributes["count"]
                    tally[1] += event.attributes["size"]
                    above = around.parent.span_id if around.parent is not None else 0
                    around = by_id.get(above)
        for span_id, (count, size) in sums.items():
            found = by_id[span_id].attributes or {}
            told = [found.get(f"modtrack.collective.{key}") for key in ("count", "size")]
            if told != ([count, size] if count else [None, None]):
                yield f"{by_id[span_id].name} has {told}, but {[count, size]} are in it"

    def _wrong_steps(self) -> Iterable[str]:
        begin = 0
        for span, end in zip(self.steps, self.ends):  # noqa: B905
            saw = self.witness.launches[begin:end]
            found = span.attributes or {}
            told = [found.get(f"modtrack.collective.{key}", 0) for key in ("count", "size")]
            if told != [len(saw), sum(launch.size for launch in saw)]:
                yield f"a step has {told}, but {len(saw)} were launched"
            wanted = {
                "modtrack.rank": dist.get_rank(),
                "modtrack.world_size": self.world,
                "modtrack.local_rank": int(os.environ["LOCAL_RANK"]),
            }
            if {key: found.get(key) for key in wanted} != wanted:
                yield f"a step says {dict(found)}"
            begin = end

    def _wrong_answers(self) -> Iterable[str]:
        """What `tracker.collectives` answers is what was launched."""
        saw, answers = self.witness.launches, self.tracker.collectives
        if (answers.total, answers.size) != (len(saw), sum(launch.size for launch in saw)):
            yield f"total {answers.total}, {answers.size} bytes, of {len(saw)}"
        for told, place in (
            (answers.by_phase(), 0),
            (answers.by_operation(), 2),
            (answers.by_group(), 3),
        ):
            wanted: dict[Any, list[int]] = {}
            for launch in saw:
                tally = wanted.setdefault(launch[place], [0, 0])
                tally[0] += 1
                tally[1] += launch.size
            if {key: list(tally) for key, tally in told.items()} != wanted:
                yield f"told {told}, but {wanted}"
        if sum(tally.count for tally in answers.by_operator().values()) != len(saw):
            yield f"told {answers.by_operator()}"

    def _wrong_modules(self) -> Iterable[str]:
        """`by_module` has each launch at its module, and at all that it was called in."""
        wanted: dict[str, Any] = {}
        for launch in self.witness.launches:
            parts = launch.module.split(".")
            around = {".".join(parts[:length]) for length in range(1, len(parts) + 1)}
            for fqn in {"Global"} | (around & self.witness.called):
                counts = wanted.setdefault(fqn, {}).setdefault(launch.phase, {})
                tally = counts.setdefault(launch.operation, [0, 0])
                tally[0] += 1
                tally[1] += launch.size
        told = {
            fqn: {
                phase: {operation: list(tally) for operation, tally in counts.items()}
                for phase, counts in phases.items()
            }
            for fqn, phases in self.tracker.collectives.by_module().items()
            if fqn == "Global" or fqn in self.witness.called
        }
        for fqn in sorted({*told, *wanted}):
            if told.get(fqn) != wanted.get(fqn):
                yield f"by_module()[{fqn!r}] is {told.get(fqn)}, but {wanted.get(fqn)}"

    # -- for the test ------------------------------------------------------------------------------

    def _by_step(self, tell: Callable[[Event], Any]) -> list[list[Any]]:
        return [
            [tell(event) for event in self.events if step.start_time <= event.at <= step.end_time]
            for step in self.steps
        ]

    def launches(self) -> list[list[Any]]:
        """By step: phase, module, operation, bytes."""
        return self._by_step(
            lambda event: [
                event.phase,
                event.module,
                event.attributes["operation"],
                event.attributes["size"],
            ]
        )

    def reasons(self) -> list[list[Any]]:
        """By step: parameters (sorted), placements before, after."""
        return self._by_step(
            lambda event: [
                sorted(event.attributes.get("parameters", ())),
                event.attributes.get("placements.source", ""),
                event.attributes.get("placements.target", ""),
            ]
        )

    def dtypes(self) -> list[str]:
        """By launch of the last step."""
        return self._by_step(lambda event: event.attributes["dtype"])[-1]


def _examine(name: str, world: int) -> dict[str, Any]:
    run = Run(name, world, "each")
    wrong = run.wrong()
    if name not in ONCE:
        wrong += Run(name, world, "summed").wrong()
    return {
        "wrong": wrong,
        "launches": run.launches(),
        "reasons": run.reasons(),
        "dtypes": run.dtypes(),
    }


def _ways(world: int) -> Iterator[str]:
    """Each way of seeing collectives, in turn: one start of the processes serves both."""
    ways = ["kernels"]
    if hasattr(dist.ProcessGroup, "register_pre_hook"):
        ways = ["hooks"] if world == 4 else ["hooks", "kernels"]
    for way in ways:
        intercept.forced_way = way
        yield way
    intercept.forced_way = None


@case
def programs(world: int) -> dict[str, Any]:
    """Each program, by way and name."""
    names = ON_TWO if world == 2 else ON_FOUR
    return {way: {name: _examine(name, world) for name in names} for way in _ways(world)}


@case
def others(world: int) -> dict[str, Any]:
    """What is more to be known of DDP, by way."""
    asked = (constructed_inside, without_provider, entered_again, untracked_forward)
    return {way: {ask.__name__: ask(world) for ask in asked} for way in _ways(world)}


def constructed_inside(world: int) -> dict[str, Any]:
    """A model is distributed while tracking is on: that is in no region."""
    with ModTracker() as tracker:
        program = ddp(world)
        told = tracker.collectives.by_module()
        program.step(Marks())
    return {"Global": told.get("Global"), "modules": sorted(told)}


def without_provider(world: int) -> dict[str, Any]:
    """Where nobody takes spans, collectives are attributed all the same."""
    program = ddp(world)
    with ModTracker() as tracker:
        for _ in range(2):
            program.step(Marks())
    return tracker.collectives.by_module()


def entered_again(world: int) -> list[Any]:
    """Each stay begins at nothing; between them nothing is counted."""
    program = ddp(world)
    tracker = ModTracker(program.model)
    found = []
    for _ in range(3):
        with tracker:
            program.step(Marks())
        found.append([tracker.collectives.total, tracker.collectives.size])
        program.step(Marks())
    return found


def untracked_forward(world: int) -> dict[str, Any]:
    """Entered between forward and backward: what it launches is no module's that we have seen."""
    program = ddp(world)
    program.step(Marks())
    program.step(Marks())
    out = program.model(Net().inp.weight.new_ones(5, 2)).sum()
    with ModTracker(program.model) as tracker:
        out.backward()
    return {"total": tracker.collectives.total, "phases": tracker.collectives.by_phase()}


if __name__ == "__main__":
    main()
