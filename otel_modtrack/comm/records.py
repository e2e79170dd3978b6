"""Plain records of collectives. Nothing here knows torch or OpenTelemetry."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from otel_modtrack.regions import Region, Unit

__all__ = ["Collective", "Group", "Operator", "Phases", "Tally", "Why"]


class Phases:
    """In which phase a collective was launched: that of its region, or one of these."""

    OPTIMIZER = "optimizer"
    OUTSIDE = "outside"  # in no region


class Tally(NamedTuple):
    """How many collectives, and their payload together in bytes."""

    count: int  # type: ignore[assignment]  # shadows tuple.count
    size: int


class Operator(NamedTuple):
    """What was launched.

    Attributes:
        name: of torch's operator: ``c10d.allreduce_``, ``c10d_functional.all_reduce``.
        operation: of its kind: ``all_reduce``.
    """

    name: str
    operation: str


class Group:
    """What is said of a process group. It does not hold the group.

    Attributes:
        name: that torch knows it by.
        size: number of ranks in it.
        description: what it is for (``mesh_tp``), or "".
        backends: the backend's name by type of device, as they were asked for.
    """

    __slots__ = ("backends", "description", "name", "size")

    def __init__(self, name: str, size: int, description: str) -> None:
        self.name = name
        self.size = size
        self.description = description
        self.backends: dict[str, str] = {}


class Why(NamedTuple):
    """Why a collective was launched, as far as torch tells.

    Attributes:
        parameters: fqns of the parameters of a DDP bucket or FSDP group.
        source, target: placements of a DTensor redistribution, or "".
    """

    parameters: tuple[str, ...] = ()
    source: str = ""
    target: str = ""


class Collective:
    """One launch. Times are `time.perf_counter_ns`.

    Attributes:
        size: payload of this rank in bytes: the larger of what it puts in and what it gets out.
        dtype: of the payload, ``float32``; several joined by a comma; "" where there is none.
        backend: that runs it.
        asynchronous: whether the caller waits for it separately.
        region: that it was launched in, or None.
        unit: that tells of it, or None.
        phase: of the region, or one of `Phases`.
        fqns: the modules it was launched in, where there are no regions to tell.
        shapes: of what goes in, or of what comes out where nothing does; in mode "each".
        why: in mode "each", where torch tells.
        end_ns: when it was done, in mode "each", where the backend tells; else 0.
    """

    __slots__ = (
        "asynchronous",
        "at_ns",
        "backend",
        "dtype",
        "end_ns",
        "fqns",
        "group",
        "operator",
        "phase",
        "region",
        "shapes",
        "size",
        "unit",
        "why",
    )

    def __init__(  # noqa: PLR0913, PLR0917 - a record; by position, for this is the hot path
        self,
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
        self.at_ns = 0
        self.region: Region | None = None
        self.unit: Unit | None = None
        self.phase = Phases.OUTSIDE
        self.fqns: tuple[str, ...] = ()
        self.shapes: tuple[str, ...] = ()
        self.why: Why | None = None
        self.end_ns = 0
