"""What a region's span says: its name, its attributes, its error, which call it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opentelemetry import trace

from otel_modtrack import semconv
from otel_modtrack.regions import CALLS, Failure, Kind, Phase, Region, Subject, Unit

if TYPE_CHECKING:
    from opentelemetry.util.types import AttributeValue

__all__ = ["attributes_of", "exception_attributes", "number", "put_in_order", "span_name", "tell"]


def span_name(subject: Subject, phase: str) -> str:
    """The low-cardinality name of a region's span, from attributes alone."""
    if subject.kind is Kind.BACKWARD:
        return semconv.BACKWARD_SPAN
    if subject.kind is Kind.OPTIMIZER:
        return f"{semconv.OPTIMIZER_STEP_SPAN} {subject.template}"
    if subject.kind is Kind.LOAD:
        return semconv.DATA_LOAD_SPAN
    return f"{phase} {subject.template}"


def attributes_of(subject: Subject, phase: str) -> dict[str, AttributeValue]:
    """The attributes that all regions of a subject and phase have in common."""
    if subject.kind not in CALLS:
        return {}
    found: dict[str, AttributeValue] = {
        semconv.PHASE: phase,
        semconv.MODULE_FQN: subject.fqn,
        semconv.MODULE_TEMPLATE: subject.template,
        semconv.MODULE_TYPE: subject.type,
    }
    if subject.wrapper:
        found[semconv.MODULE_WRAPPER] = subject.wrapper
    if subject.compiled:
        found[semconv.COMPILED] = True
    return found


def tell(span: trace.Span, failure: Failure, unit: Unit) -> None:
    """Note on a span that an exception left what it stands for."""
    span.set_attribute(semconv.ERROR_TYPE, failure.type)
    span.add_event(
        semconv.EXCEPTION_EVENT, exception_attributes(failure), unit.wall_ns(failure.at_ns)
    )
    span.set_status(trace.Status(trace.StatusCode.ERROR, failure.message))


def exception_attributes(failure: Failure) -> dict[str, AttributeValue]:
    """Attributes of the exception event. Source: semantic conventions, *Exceptions on spans*."""
    return {
        semconv.EXCEPTION_TYPE: failure.type,
        semconv.EXCEPTION_MESSAGE: failure.message,
        semconv.EXCEPTION_STACKTRACE: failure.format(),
    }


def put_in_order(regions: list[Region]) -> dict[str, list[Subject]]:
    """Give each call of a module its place among those of its phase.

    Args:
        regions: of a unit that is over, as they began.

    Returns:
        The modules that were called, by phase and in order.
    """
    order: dict[str, list[Subject]] = {
        Phase.FORWARD: [],
        Phase.RECOMPUTE: [],
        Phase.BACKWARD: [],
    }
    module = Kind.MODULE  # an enum's member is looked up by calls
    for region in regions:
        subject = region.subject
        if subject.kind is module:
            ran = order[region.phase]
            region.place = len(ran)
            ran.append(subject)
    return order


def number(regions: list[Region]) -> None:
    """Give each call its index where its subject was called more than once in the unit and phase.

    A backward region has its forward's index.
    """
    forwards: dict[Subject, int] = {}
    recomputes: dict[Subject, int] = {}
    repeated, first, module = False, Phase.FORWARD, Kind.MODULE
    for region in regions:
        if region.forward is None:
            counts = forwards if region.phase == first else recomputes
            subject = region.subject
            if subject not in counts:
                counts[subject] = 1
            elif subject.kind is module:
                counts[subject] += 1
                repeated = True
    if repeated:
        seen: dict[tuple[Subject, str], int] = {}
        for region in regions:
            counts = forwards if region.phase == first else recomputes
            if region.forward is None and counts[region.subject] > 1:
                key = (region.subject, region.phase)
                region.index = seen.get(key, 0)
                seen[key] = region.index + 1
    for region in regions:
        if region.forward is not None:
            region.index = region.forward.index
