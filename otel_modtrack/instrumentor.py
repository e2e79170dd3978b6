"""`ModTrackInstrumentor`: what `opentelemetry-instrument` switches on. Needs the extra ``auto``."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any

from opentelemetry.instrumentation.instrumentor import (  # type: ignore[attr-defined]
    BaseInstrumentor,
)

from otel_modtrack import options
from otel_modtrack.auto import kinds
from otel_modtrack.auto.arming import AUTO, Settings
from otel_modtrack.policy import Policy
from otel_modtrack.usage import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = ["ModTrackInstrumentor"]

logger = logging.getLogger("otel_modtrack")

_PROVIDERS = ("tracer_provider", "meter_provider")
_LOADER = "opentelemetry.instrumentation.auto_instrumentation"


class ModTrackInstrumentor(BaseInstrumentor):  # type: ignore[misc]
    """Tracks every ``nn.Module`` call of the process, from the import of torch on.

    `instrument` takes, all by keyword, ``tracer_provider``, ``meter_provider``, ``policy``, and
    every option of docs/configuration.md by its name. What is left out is as the environment says;
    where no provider is given, the global one is looked up at the first call of a module.

    Example:
        >>> ModTrackInstrumentor().instrument(every=100, depth=2)
        >>> ModTrackInstrumentor().uninstrument()

    Raises:
        TypeError: by `instrument`, if an argument is unknown, or of the wrong type.
        ValueError: likewise, if an argument is none that can be used.
        ConfigurationError: likewise, if a variable cannot be used. Under `opentelemetry-instrument`
            that is an error in the log, and nothing is tracked.
    """

    def instrumentation_dependencies(self) -> Collection[str]:
        """What is instrumented: the extra ``instruments``."""
        return ("torch >= 2.8",)

    def _instrument(self, **kwargs: Any) -> None:
        by_loader = _LOADER in sys.modules
        if by_loader and not kwargs and (kinds.is_launcher() or kinds.is_helper()):
            return  # processes that it starts are instrumented by themselves
        try:
            settings = _settings(kwargs, by_loader)
        except ConfigurationError as error:
            if not by_loader:
                raise
            logger.error("otel_modtrack: no spans: %s", error)  # noqa: TRY400 - one sentence
            return
        AUTO.arm(settings)

    def _uninstrument(self, **kwargs: Any) -> None:
        del kwargs
        AUTO.disarm()


def _settings(arguments: dict[str, Any], carried: bool) -> Settings:
    known = {option.name for option in options.OPTIONS} | {*_PROVIDERS, "policy"}
    unknown = sorted(arguments.keys() - known)
    if unknown:
        msg = f"instrument({unknown[0]}=...): there is no such option"
        raise TypeError(msg)
    given = {name: value for name, value in arguments.items() if value is not None}
    found: dict[str, Any] = {name: given.pop(name) for name in _PROVIDERS if name in given}
    forked = given.pop(options.FORKED.name, None)
    for option in options.TRACKING:
        found[option.name] = options.resolve(option.name, given.pop(option.name, None))
    policy = given.pop("policy", None)
    if policy is not None and given:
        msg = f"instrument(policy=..., {next(iter(given))}=...): one of them says it all"
        raise TypeError(msg)
    if policy is not None and not isinstance(policy, Policy):
        msg = f"instrument(policy=...): a Policy is wanted, not {type(policy).__name__}"
        raise TypeError(msg)
    found["policy"] = policy if policy is not None else options.read_policy(given)
    if forked is None:
        forked = options.read(options.FORKED) or False
    return Settings(configures=False, carried=carried, arguments=found, forked=bool(forked))
