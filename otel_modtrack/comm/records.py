"""Plain records of collectives. Nothing here knows torch or OpenTelemetry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from otel_modtrack.regions import Region

__all__ = [
    "Collective",
    "Detailed",
    "Details",
    "Group",
    "Launch",
    "Operator",
    "Phases",
    "Tally",
    "Unrecorded",
    "Why",
]


class Phases:
    """In which phase a collective was launched: that of its region, or one of these."""

    OPTIMIZER = "optimizer"
    OUTSIDE = "outside"  # in no region


class Tally(NamedTuple):
    """How many collectives, and their payload together in bytes."""

    count: int  # type: ignore[assignment]  # shadows tuple.count
    size: int


class Operator:
    """What was launched.

    Attributes:
        name: of torch's operator: ``c10d.allreduce_``, ``c10d_functional.all_reduce``.
        operation: of its kind: ``all_reduce``.
        paid: whether its tensors are payload; a barrier's only say on which device it runs.
        told_by_inputs: whether what goes in is the payload; what comes out is as large or less.
        paired: whether it goes between two ranks.
    """

    __slots__ = ("name", "operation", "paid", "paired", "told_by_inputs")

    def __init__(self, name: str, operation: str) -> None:
        self.name = name
        self.operation = operation
        self.paid = operation not in ("barrier", "monitored_barrier")
        self.paired = operation in ("send", "recv")
        self.told_by_inputs = operation in ("all_reduce", "broadcast", "reduce", "reduce_scatter")


class Group:
    """What is said of a process group. It does not hold the group.

    Attributes:
        name: that torch knows it by.
        size: number of ranks in it.
        description: what it is for (``mesh_tp``), or "".
        backends: the backend's name by type of device, as they were asked for.
        launches: the kinds of launches there were; a few hundred at most.
    """

    __slots__ = ("backends", "description", "launches", "name", "size")

    def __init__(self, name: str, size: int, description: str) -> None:
        self.name = name
        self.size = size
        self.description = description
        self.backends: dict[str, str] = {}
        self.launches: dict[Any, Launch] = {}


class Launch:
    """What equal collectives have in common: a training step launches the same ones each time.

    Attributes:
        size: payload of this rank in bytes: the larger of what it puts in and what it gets out.
        dtype: of the payload, ``float32``; several joined by a comma; "" where there is none.
        backend: that runs it.
        asynchronous: whether the caller waits for it separately.
        kind: what it is summed with: operator and group's name.
    """

    __slots__ = (
        "asynchronous",
        "backend",
        "dtype",
        "group",
        "kind",
        "operator",
        "size",
    )

    def __init__(  # noqa: PLR0913 - a record, filled by keyword
        self,
        *,
        operator: Operator,
        group: Group,
        size: int,
        dtype: str,
        backend: str,
        asynchronous: bool,
    ) -> None:
        self.operator = operator
        self.group = group
        self.size = size
        self.dtype = dtype
        self.backend = backend
        self.asynchronous = asynchronous
        self.kind = (operator, group.name)


class Why(NamedTuple):
    """Why a collective was launched, as far as torch tells.

    Attributes:
        parameters: fqns of the parameters of a DDP bucket or FSDP group.
        source, target: placements of a DTensor redistribution, or "".
    """

    parameters: tuple[str, ...] = ()
    source: str = ""
    target: str = ""


class Details:
    """What is told of one collective alone, in mode "each".

    Attributes:
        shapes: of what goes in, or of what comes out where nothing does.
        why: where torch tells.
        ends: when it was done (`time.perf_counter_ns`), where the backend tells; else empty.
    """

    __slots__ = ("ends", "shapes", "why")

    def __init__(self, shapes: tuple[str, ...]) -> None:
        self.shapes = shapes
        self.why: Why | None = None
        self.ends: list[int] = []

    @property
    def end_ns(self) -> int:
        """When it was done, or 0."""
        return self.ends[0] if self.ends else 0


class Collective:
    """One launch.

    Attributes:
        launch: what it has in common with others.
        region: that it was launched in, or None.
        at_ns: when (`time.perf_counter_ns`).
        elsewhere: fqns of modules and phase, where there is no region.
        details: in mode "each", if it is told.
    """

    __slots__ = ("at_ns", "launch", "region")

    elsewhere: tuple[tuple[str, ...], str] = ((), Phases.OUTSIDE)
    details: Details | None = None

    def __init__(self, launch: Launch, region: Region | None, at_ns: int) -> None:
        self.launch = launch
        self.region = region
        self.at_ns = at_ns


class Detailed(Collective):
    """One that is told by itself."""

    __slots__ = ("details",)


class Unrecorded(Collective):
    """One launched where no regions are recorded, though it is known where that was."""

    __slots__ = ("elsewhere",)
