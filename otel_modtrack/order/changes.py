"""Where the order of a step first differs from that of the step before."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_modtrack import semconv

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from opentelemetry.util.types import AttributeValue

    from otel_modtrack.regions import Subject

__all__ = ["change_of"]


def change_of(
    before: Mapping[str, Sequence[Subject]], now: Mapping[str, Sequence[Subject]]
) -> dict[str, AttributeValue]:
    """The attributes of the event that tells of the first difference; none if there is none.

    Args:
        before: the modules that were called, by phase and in order.
        now: likewise, in the step that is over.
    """
    for phase, ran in now.items():
        old = before[phase]
        if ran == old:  # the usual case: the same objects
            continue
        both = zip(old, ran, strict=False)
        shorter = min(len(old), len(ran))
        at = next((at for at, (a, b) in enumerate(both) if a.fqn != b.fqn), shorter)
        if at == len(old) == len(ran):  # other modules by the same names
            continue
        found: dict[str, AttributeValue] = {
            semconv.ORDER_SEQUENCE: phase,
            semconv.ORDER_POSITION: at,
        }
        if at < len(old):
            found[semconv.ORDER_PREVIOUS_FQN] = old[at].fqn
        if at < len(ran):
            found[semconv.ORDER_FQN] = ran[at].fqn
        return found
    return {}
