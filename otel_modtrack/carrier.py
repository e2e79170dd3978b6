"""Which trace a context is in, and which this process continues, by whoever started it.

Source: OpenTelemetry specification, *Environment variables as context propagation carriers*.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
from typing import TYPE_CHECKING, Any, ClassVar

from opentelemetry import context as context_api, propagate, trace
from opentelemetry.context.context import Context

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["SUPPRESS_KEY", "around", "environment", "mark", "parent_in", "read"]

logger = logging.getLogger("otel_modtrack")

# Under which a context says that nothing is to be traced.
SUPPRESS_KEY = getattr(context_api, "_SUPPRESS_INSTRUMENTATION_KEY", "suppress_instrumentation")
_MARK = "_modtrack_carrier"  # on a multiprocessing.Process, which takes it into its process


class _Outer:
    """`context`: of the trace that this process continues, as it was read last."""

    carrier: ClassVar[dict[str, str]] = {}
    context: Context | None = None


def parent_in(context: Context | None = None) -> trace.SpanContext | None:
    """The valid span context in a context, the current one if None; None if there is none."""
    found = trace.get_current_span(context).get_span_context()
    return found if found.is_valid else None


def read() -> Context | None:
    """The context of the trace that this process continues, or None.

    A worker of multiprocessing's continues that of the region which started it.
    """
    carrier = getattr(multiprocessing.current_process(), _MARK, None)
    if not carrier:
        carrier = {}
        for field in propagate.get_global_textmap().fields:
            value = os.environ.get(_variable(field), "")
            if value:
                carrier[field] = value
    if carrier != _Outer.carrier:  # else it was read, and complained about
        _Outer.carrier = carrier
        _Outer.context = _extract(carrier) if carrier else None
    return _Outer.context


def _extract(carrier: Mapping[str, str]) -> Context | None:
    found = propagate.extract(carrier, Context())
    if parent_in(found) is not None:
        return found
    if "traceparent" in carrier:
        logger.warning("TRACEPARENT is no W3C trace context, and is ignored; correct or unset it")
    return None


def around(context: Context) -> Context:
    """The context, in the trace that this process continues where it is in no other."""
    found = _Outer.context
    if found is None or parent_in(context) is not None:
        return context
    return trace.set_span_in_context(trace.get_current_span(found), context)


def environment() -> dict[str, str]:
    """Variables that have a child process continue the trace where it is now; empty if none is."""
    carrier = _inject()
    return {_variable(field): value for field, value in carrier.items()}


def mark(process: Any) -> None:
    """Have a multiprocessing.Process, not started yet, continue the trace where it is now."""
    carrier = _inject()
    if carrier:
        setattr(process, _MARK, carrier)


def _inject() -> dict[str, str]:
    carrier: dict[str, str] = {}
    if parent_in() is not None:
        propagate.inject(carrier)
    return carrier


def _variable(field: str) -> str:
    return field.upper().replace("-", "_")
