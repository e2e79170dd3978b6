"""Every option of tracking, as an argument, a variable and a flag of `otel-modtrack run`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from otel_modtrack.comm.telling import EACH, OFF, SUMMED
from otel_modtrack.otlp import variables
from otel_modtrack.policy import DEFAULT_BUDGET, Policy
from otel_modtrack.usage import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = [
    "FORKED",
    "OPTIONS",
    "PREFIX",
    "TRACKING",
    "Option",
    "check",
    "is_usable",
    "read",
    "read_policy",
    "resolve",
]

PREFIX: Final = "OTEL_PYTHON_MODTRACK_"


class Option(NamedTuple):
    """One option.

    Attributes:
        name: of the argument: of `Policy`, or of `ModTracker` and the instrumentor.
        metavar: what its value is called.
        parse: reads it from a text; raises ValueError where that cannot be used.
        wanted: what `parse` can read.
        default: what holds where it is not set, as a text.
        help: what it does.
    """

    name: str
    metavar: str
    parse: Callable[[str], Any]
    wanted: str
    default: str
    help: str

    @property
    def variable(self) -> str:
        """Of the environment."""
        return PREFIX + self.name.upper()

    @property
    def flag(self) -> str:
        """Of the command line."""
        return "--" + self.name.replace("_", "-")

    @property
    def is_flag(self) -> bool:
        """Whether it is true or false, so that its flag has no value."""
        return self.metavar == "BOOL"


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _ranks(text: str) -> str | tuple[int, ...]:
    return tuple(int(word) for word in _words(text)) if text[:1].isdecimal() else text


def _one_of(*choices: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError
        return text

    return parse


# Of `Policy`.
_POLICY: Final = (
    Option(
        "every",
        "N",
        int,
        "a whole number of 0 or more",
        "",
        "record every N-th step only, those whose number can be divided by it",
    ),
    Option(
        "first",
        "M",
        int,
        "a whole number of 0 or more",
        "",
        "record the first M steps only, or besides those of EVERY",
    ),
    Option(
        "ranks",
        "RANKS",
        _ranks,
        "all, first, every N, or ranks such as 0,8",
        "all",
        "ranks that record: all, first, every N, or a list such as 0,8",
    ),
    Option(
        "modules",
        "PATTERNS",
        _words,
        "patterns of fqns, with commas between them",
        "",
        "modules that get spans: patterns of fqns or templates, such as GPT.layers.*.attn",
    ),
    Option(
        "exclude",
        "PATTERNS",
        _words,
        "patterns of fqns, with commas between them",
        "",
        "modules that get none",
    ),
    Option(
        "types",
        "CLASSES",
        _words,
        "names of classes, with commas between them",
        "",
        "classes of modules that get spans, such as Attention,MLP",
    ),
    Option(
        "depth",
        "N",
        int,
        "a whole number of 1 or more",
        "",
        "levels of modules that get spans; 1: models alone",
    ),
    Option(
        "methods",
        "NAMES",
        _words,
        "names of methods, with commas between them",
        "",
        "methods that are regions too, such as generate,training_step",
    ),
    Option(
        "min_duration",
        "SECONDS",
        float,
        "a number of seconds",
        "0",
        "what is shorter is folded into what it ran in",
    ),
    Option(
        "outliers",
        "K",
        float,
        "a number of 1 or more",
        "",
        "keep a step's spans only if it took longer than K times the median, or raised",
    ),
    Option(
        "budget",
        "N",
        int,
        "a whole number of 0 or more",
        str(DEFAULT_BUDGET),
        "spans that a trace may have; what is over is folded. 0: any number",
    ),
    Option(
        "signal",
        "NAME",
        str,
        "the name of a signal, such as SIGUSR2",
        "",
        "a signal at which the next steps are recorded, such as SIGUSR2",
    ),
    Option(
        "signal_steps",
        "N",
        int,
        "a whole number of 1 or more",
        "1",
        "how many steps a signal asks for",
    ),
)
# Of `ModTracker` beside its policy.
TRACKING: Final = (
    Option(
        "steps",
        "HOW",
        _one_of("auto", "explicit"),
        "auto or explicit",
        "auto",
        "auto: training steps are recognised; explicit: only step() makes any",
    ),
    Option(
        "collectives",
        "HOW",
        _one_of(SUMMED, EACH, OFF),
        "summed, each or off",
        SUMMED,
        "what is told of collectives: summed, each, or off",
    ),
    Option(
        "metrics",
        "BOOL",
        variables.truth,
        "true or false",
        "false",
        "whether durations and collectives are metrics, too",
    ),
)
# Of the instrumentor and `otel-modtrack run` alone.
FORKED: Final = Option(
    "forked",
    "BOOL",
    variables.truth,
    "true or false",
    "false",
    "whether forked children are tracked, too",
)
OPTIONS: Final = (*TRACKING, *_POLICY, FORKED)


def read(option: Option) -> Any:
    """What the environment says; None where it says nothing.

    Raises:
        ConfigurationError: if it cannot be used.
    """
    value, name = variables.text(option.variable)
    if not value:
        return None
    if not is_usable(option, value):
        raise ConfigurationError(
            f"{name}={variables.shown(value)} cannot be used; set it to {option.wanted},"
            " or unset it"
        )
    return option.parse(value)


def is_usable(option: Option, text: str) -> bool:
    """Whether a text is a value of an option."""
    try:
        value = option.parse(text)
        if option in _POLICY:  # by itself, so that it is known which one is wrong
            Policy(**{option.name: value})
    except (TypeError, ValueError):
        return False
    return True


def check() -> None:
    """See that every variable can be used.

    Raises:
        ConfigurationError: if one cannot; it is named.
    """
    for option in OPTIONS:
        read(option)


def read_policy(arguments: Mapping[str, Any] | None = None) -> Policy:
    """The policy that the environment asks for.

    Args:
        arguments: of `Policy`, that hold whatever the environment says.

    Raises:
        TypeError: if an argument is not of the right kind.
        ValueError: if an argument is none that can be used.
        ConfigurationError: if a variable cannot be used; it is named.
    """
    given = {option.name: found for option in _POLICY if (found := read(option)) is not None}
    return Policy(**{**given, **(arguments or {})})


def resolve(name: str, given: Any) -> Any:
    """An argument of `ModTracker`, or what the environment says, or the default.

    Raises:
        ValueError: if the argument is none that can be used.
        ConfigurationError: if the variable is none.
    """
    option = next(option for option in TRACKING if option.name == name)
    if given is None:
        found = read(option)
        return option.parse(option.default) if found is None else found
    try:
        return option.parse(str(given))
    except ValueError:
        msg = f"ModTracker({name}=...): {option.wanted} is wanted, not {given!r}"
        raise ValueError(msg) from None
