"""Plain records of what ran: the common language between torch's side and OpenTelemetry's.

Nothing here knows torch or OpenTelemetry. `forward` and `backward` make these records, `spans`
turns them into spans.
"""

from __future__ import annotations

import enum
import time
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_modtrack.comm.records import Collective
    from otel_modtrack.control import Control
    from otel_modtrack.fold import Folded
    from otel_modtrack.metrics import Meter

__all__ = ["CALLS", "Failure", "Kind", "Phase", "Region", "Sink", "Subject", "Unit", "close_all"]

clock = time.perf_counter_ns
_APART_NS = 20_000  # how far apart two clocks may be read to count as read at once
_ATTEMPTS = 5


class Phase:
    """In which pass a region ran. Plain strings: an enum's hash is a call into Python."""

    FORWARD: Final = "forward"
    BACKWARD: Final = "backward"
    RECOMPUTE: Final = "recompute"


class Kind(enum.Enum):
    """What a region is about."""

    MODULE = "module"
    SCOPE = "region"  # a named region: otel_modtrack.region("loss")
    OPTIMIZER = "optimizer"
    LOAD = "data_load"  # one batch from a DataLoader
    BACKWARD = "backward"  # one run of the autograd engine: the root of its backward regions
    ENGINE = "engine"  # what runs on a thread inside an engine run hangs under it; never exported


CALLS: Final = (Kind.MODULE, Kind.SCOPE)  # what is called, has a name, and may have a backward


class Subject:
    """What regions are about: one module, one named region, one optimizer class.

    Made once, shared by all its regions, and it holds its module weakly.

    Attributes:
        fqn: name shown to users, beginning with the root's class: ``GPT.layers.17.mlp``.
        template: the fqn with list indices replaced: ``GPT.layers.*.mlp``.
        type: the module's class name.
        wrapper: class name of the wrapper this module is (``DistributedDataParallel``), or "".
        target: identity shared by a module and all its wrappers, so that they are one region.
        hidden: its calls are no regions: a graph that dynamo made and a compiled region runs.
        special: calls directly below may need more than the usual treatment (wrapper, engine run).
        plain: runs no user code of its own in forward (a class of torch.nn).
        compiled: its calls are one compiled callable.
        cache: what `spans` keeps per phase. Emptied when the subject changes.
        misses: how many searches below its module have found nothing; owned by `names`.
    """

    __slots__ = (
        "cache",
        "compiled",
        "fqn",
        "hidden",
        "kind",
        "misses",
        "plain",
        "ref",
        "special",
        "target",
        "template",
        "type",
        "wrapper",
    )

    def __init__(  # noqa: PLR0913 - a record, filled by keyword
        self,
        kind: Kind,
        fqn: str,
        template: str,
        type_name: str,
        *,
        wrapper: str = "",
        target: object = None,
        plain: bool = False,
        compiled: bool = False,
        hidden: bool = False,
        ref: Callable[[], object] = lambda: None,
    ) -> None:
        self.kind = kind
        self.fqn = fqn
        self.template = template
        self.type = type_name
        self.wrapper = wrapper
        self.target = self if target is None else target
        self.special = bool(wrapper) or kind is Kind.ENGINE
        self.plain = plain
        self.compiled = compiled
        self.hidden = hidden
        self.ref = ref
        self.cache: dict[Any, Any] = {}
        self.misses = 0


class Failure:
    """An exception that left a region, told once for all the regions that it escapes.

    Attributes:
        type: qualified class name, as the semantic conventions want it for ``error.type``.
        message: ``str(exception)``.
        format: renders the traceback; called when the span is written, not while the user waits.
        at_ns: when it was seen (`time.perf_counter_ns`).
    """

    __slots__ = ("at_ns", "format", "message", "type")

    def __init__(self, type_name: str, message: str, render: Callable[[], str], at_ns: int) -> None:
        self.type = type_name
        self.message = message
        self.format = render
        self.at_ns = at_ns


class Region:
    """One call of one module in one pass. Times are `time.perf_counter_ns`; 0 means still open.

    Attributes:
        parent: the region it ran in, or None where it begins a tree.
        forward: for a backward region, the forward (or recompute) region it belongs to.
        context: opaque tracing context of the user's that was active at entry, where it is not the
            parent region's; owned by `current`.
        token: what undoes the context set for this region; owned by `current`.
        span: the span or span context it was given; owned by `spans`.
        own_id: its span id, 8 bytes, if it was given no more; its trace is its unit's; owned by
            `sdk`.
        index: which call of its subject this is in the step and phase, from 0; None until known, or
            if it is the only one.
        place: which of the module calls of its phase this is in the unit, from 0; None until known.
        unit: the unit it is exported with.
    """

    __slots__ = (
        "context",
        "end_ns",
        "failure",
        "forward",
        "index",
        "own_id",
        "parent",
        "phase",
        "place",
        "span",
        "start_ns",
        "subject",
        "token",
        "unit",
    )

    def __init__(
        self, subject: Subject, parent: Region | None, phase: str, start_ns: int, unit: Unit
    ) -> None:
        self.subject = subject
        self.parent = parent
        self.phase = phase
        self.start_ns = start_ns
        self.unit = unit
        self.end_ns = 0
        self.token: Any = None
        self.context: Any = None
        self.span: Any = None
        self.own_id: bytes | None = None
        self.forward: Region | None = None
        self.failure: Failure | None = None
        self.index: int | None = None
        self.place: int | None = None

    def chain(self) -> list[Region]:
        """This region and the ones it runs in, innermost first, engine runs left out."""
        found = []
        region: Region | None = self
        while region is not None:
            if region.subject.kind is not Kind.ENGINE:
                found.append(region)
            region = region.parent
        return found

    def __repr__(self) -> str:
        return f"<Region {self.phase} {self.subject.fqn or self.subject.kind.value}>"


class Unit:
    """What is exported together: a step, or an outermost call, or an engine run.

    The wall clock is read once, here. All times of the unit are monotonic offsets from it, so
    that no duration is negative and nesting holds when the clock is set meanwhile.

    Attributes:
        regions: in the order in which they opened.
        held: bodies (coroutines, generators) that will still add to it; exported at 0.
        bodies: the calls that returned one, which may outlive the call they were made in.
        collectives: what was launched in it, in order.
        flushed: its spans are written.
        opener: the outermost region that opened it and exports it; None where a step does.
        scope: opaque, owned by the sink: parent and sampling of its outermost regions.
        told: opaque, owned by the sink: what its spans say of collectives.
        step: number of the training step that it is; None if it is none.
        order: the modules that were called, by phase and in order; None until it is over.
        folded: the regions that have no spans of their own; None if all have.
        alone: whether only its step, or its opener, is to have a span.
        outlier: whether its opener took longer than the policy allows.
    """

    __slots__ = (
        "alone",
        "base_ns",
        "bodies",
        "collectives",
        "flushed",
        "folded",
        "held",
        "opener",
        "order",
        "outlier",
        "regions",
        "scope",
        "sink",
        "step",
        "told",
    )

    def __init__(self, sink: Sink, scope: object = None) -> None:
        self.base_ns = _clock_offset()
        self.sink = sink
        self.scope = scope
        self.opener: Region | None = None
        self.regions: list[Region] = []
        self.held = 0
        self.bodies: list[Region] = []
        self.collectives: list[Collective] = []
        self.told: Any = None
        self.step: int | None = None
        self.order: dict[str, list[Subject]] | None = None
        self.folded: Folded | None = None
        self.alone = False
        self.outlier = False
        self.flushed = False

    def wall_ns(self, perf_ns: int) -> int:
        """Nanoseconds since the epoch for a reading of `time.perf_counter_ns`."""
        return self.base_ns + perf_ns

    def now_wall_ns(self) -> int:
        """Nanoseconds since the epoch, now, on the unit's clock."""
        return self.base_ns + clock()


def close_all(regions: list[Region]) -> None:
    """End what has not ended: a body that has not run to its end."""
    if not all(region.end_ns for region in regions):
        now_ns = clock()
        for region in regions:
            region.end_ns = region.end_ns or now_ns


def _clock_offset() -> int:
    """What is to be added to `time.perf_counter_ns` to get nanoseconds since the epoch.

    The wall clock is read before the monotonic one: computed times then lie between the user's own
    readings. Again, where the machine did something else in between: units would seem to overlap.
    """
    for _ in range(_ATTEMPTS):
        begun_ns = time.perf_counter_ns()
        wall_ns = time.time_ns()
        perf_ns = time.perf_counter_ns()
        if perf_ns - begun_ns < _APART_NS:
            break
    return wall_ns - perf_ns


class Sink:
    """Where records go. `spans.SpanSink` is the one that makes spans; this one drops them.

    Attributes:
        var: the context variable that carries the user's tracing context (or a stand-in with its
            methods ``get``, ``set``, ``reset``); None where no region is ever made current.
        wants_backward: whether backward regions are of use to it.
        dropped: regions that were lost on the way so far.
        provider_key: tells providers apart.
        control: what is recorded; None for everything.
        meter: where durations and collectives go as metrics; None for nowhere.
    """

    var: Any = None
    wants_backward = False
    dropped = 0
    provider_key = 0
    control: Control | None = None
    meter: Meter | None = None

    def ready(self) -> Sink:
        """The sink that records go to; another one where that is found out at the first of them."""
        return self

    def begin(self, subject: Subject) -> Unit | None:
        """Open a unit for an outermost region of `subject`; None if it is not to be recorded."""
        del subject
        return Unit(self)

    def begin_backward(self, forward: Region) -> Unit | None:
        """Open a unit for an engine run over the graph that `forward` built."""
        del forward
        return Unit(self)

    def below_step(self, region: Region, current: Any) -> Any:
        """The `current` context if a region is outermost in a step and hangs under it, or None."""
        del region, current
        return None

    def open_context(self, region: Region, current: object) -> object:
        """The context to set while `region` runs, given the one that is `current`."""
        del region
        return current

    def flush(self, unit: Unit) -> None:
        """Take a finished unit."""
        unit.regions.clear()
        unit.collectives.clear()
        unit.flushed = True
