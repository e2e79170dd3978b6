"""Tracer providers: one for a test, and the user's own, listened to for a while."""

from __future__ import annotations

from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_ON

from otel_modtrack.usage import UsageError

__all__ = ["check_provider", "make_provider", "remove_processor"]


def make_provider() -> TracerProvider:
    """A provider that records everything, whatever the environment says of sampling."""
    return TracerProvider(sampler=ALWAYS_ON, resource=Resource.get_empty(), shutdown_on_exit=False)


def check_provider(provider: object) -> None:
    """Refuse what cannot be listened to.

    Raises:
        UsageError: if it is not the SDK's, or is switched off.
    """
    __tracebackhide__ = True
    if not isinstance(provider, TracerProvider):
        is_unset = isinstance(provider, trace.ProxyTracerProvider)
        raise UsageError(
            "modtrack wants an opentelemetry.sdk.trace.TracerProvider,"
            f" not {type(provider).__module__}.{type(provider).__qualname__}"
            + ("; set the global one first" if is_unset else "")
        )
    if isinstance(provider.get_tracer(__name__), trace.NoOpTracer):
        raise UsageError("OTEL_SDK_DISABLED is set, and nothing is recorded: unset it in tests")


def remove_processor(provider: TracerProvider, processor: SpanProcessor) -> None:
    """Take a processor away from a provider, for which the SDK has no method."""
    holder: Any = provider._active_span_processor  # noqa: SLF001 - see above
    known = getattr(holder, "_span_processors", ())
    if processor in known:
        holder._span_processors = tuple(  # noqa: SLF001
            one for one in known if one is not processor
        )
