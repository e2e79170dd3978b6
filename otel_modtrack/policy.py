"""`Policy`: which steps and modules get spans, and how many.

Knows neither torch nor OpenTelemetry.
"""

from __future__ import annotations

import fnmatch
import re
import signal as signals
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["DEFAULT_BUDGET", "Policy"]

DEFAULT_BUDGET = 5_000
_EVERY_RANK = re.compile(r"every (\d+)")
_RANKS = "ranks is 'all', 'first', 'every N' or a list of ranks"


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Which steps and modules get spans of their own, and how many spans a trace may have.

    What has no span of its own stays in the sums of what it ran in: durations, counts and bytes of
    collectives are exact under every policy.

    Args:
        every: record the steps whose number can be divided by it; 0: none of these. With it or
            `first`, what runs outside of steps is not recorded.
        first: record so many steps of this process, from its first on.
        ranks: which ranks record: ``"all"``, ``"first"``, ``"every N"`` or a list of them.
        modules: patterns; if there are any, only modules whose fqn or template one of them matches
            (as a shell matches names; ``*`` also matches dots), and models themselves.
        exclude: patterns of modules that get no spans.
        types: class names; if there are any, only modules of these, and models themselves.
        depth: how many levels of modules; 1: models alone.
        methods: of modules, that are regions too: ``"generate"``, or ``"GPT.generate"`` for one
            class alone.
        min_duration: in seconds; what is shorter is folded into what it ran in.
        outliers: keep a step's spans only if it took longer than so many times the median of the
            last steps, or raised; of other steps the step's span alone. Steps that `every`, `first`
            or `ModTracker.record_next` name are kept whatever they took.
        budget: spans that a trace may have; what is over is folded into what it ran in, the deepest
            and shortest first. 0: any number.
        signal: a signal, ``"SIGUSR2"``, at which the next steps are recorded.
        signal_steps: how many.

    Raises:
        TypeError: if a value is not of the right kind.
        ValueError: if it is none that can be used.

    Example:
        >>> Policy(every=100, outliers=2.0).budget
        5000
    """

    every: int | None = None
    first: int | None = None
    ranks: str | Sequence[int] = "all"
    modules: Sequence[str] = ()
    exclude: Sequence[str] = ()
    types: Sequence[str] = ()
    depth: int | None = None
    methods: Sequence[str] = ()
    min_duration: float = 0.0
    outliers: float | None = None
    budget: int = DEFAULT_BUDGET
    signal: str = ""
    signal_steps: int = 1

    def __post_init__(self) -> None:
        for name, least in (("every", 0), ("first", 0), ("depth", 1)):
            if getattr(self, name) is not None:
                _check_whole(name, getattr(self, name), least)
        _check_whole("budget", self.budget, 0)
        _check_whole("signal_steps", self.signal_steps, 1)
        _check_number("min_duration", self.min_duration, 0.0)
        if self.outliers is not None:
            _check_number("outliers", self.outliers, 1.0)
        for name in ("modules", "exclude", "types", "methods"):
            object.__setattr__(self, name, _words(name, getattr(self, name)))
        for method in self.methods:
            if not all(part.isidentifier() for part in method.split(".")) or method.count(".") > 1:
                msg = f"Policy(methods=...): {method!r} is no name of a method, such as 'generate'"
                raise ValueError(msg)
        object.__setattr__(self, "ranks", _ranks(self.ranks))
        if not isinstance(self.signal, str):
            msg = f"Policy(signal=...): a name such as 'SIGUSR2' is wanted, not {self.signal!r}"
            raise TypeError(msg)
        if self.signal and self.signal_number is None:
            msg = f"Policy(signal=...): {self.signal!r} is no signal here; name one, as 'SIGUSR2'"
            raise ValueError(msg)

    @property
    def signal_number(self) -> int | None:
        """The signal's number; None if there is no such signal."""
        found = getattr(signals, self.signal, None) if self.signal.startswith("SIG") else None
        return int(found) if isinstance(found, signals.Signals) else None

    @property
    def selects_steps(self) -> bool:
        """Whether some steps are recorded and others are not."""
        return self.every not in (None, 1) or (self.first is not None and self.every is None)

    @property
    def selects_modules(self) -> bool:
        """Whether some modules get no spans."""
        return bool(self.modules or self.exclude or self.types or self.depth is not None)

    def wants_step(self, number: int, count: int) -> bool:
        """Whether a step is one that `every` and `first` name.

        Args:
            number: of the step.
            count: of the steps before it in this process.
        """
        if self.first is not None and count < self.first:
            return True
        if self.every is None:
            return self.first is None
        return self.every > 0 and number % self.every == 0

    def wants_rank(self, rank: int) -> bool:
        """Whether a rank records."""
        if isinstance(self.ranks, str):
            if self.ranks == "all":
                return True
            if self.ranks == "first":
                return rank == 0
            return rank % int(self.ranks.split()[1]) == 0
        return rank in self.ranks

    def wants_module(self, fqn: str, template: str, kinds: Sequence[str]) -> bool:
        """Whether a module gets spans.

        Args:
            fqn: of the module.
            template: its fqn with indices replaced.
            kinds: its class's name, and its wrapper's.
        """
        level = fqn.count(".") + 1
        if level == 1:  # a model: what it contains needs something to hang under
            return True
        if self.depth is not None and level > self.depth:
            return False
        if self.types and not any(kind in self.types for kind in kinds):
            return False
        if self.modules and not _matches(self.modules, fqn, template):
            return False
        return not _matches(self.exclude, fqn, template)


def _matches(patterns: Sequence[str], fqn: str, template: str) -> bool:
    return any(
        fnmatch.fnmatchcase(fqn, one) or fnmatch.fnmatchcase(template, one) for one in patterns
    )


def _check_whole(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        msg = f"Policy({name}=...): a whole number is wanted, not {type(value).__name__}"
        raise TypeError(msg)
    if value < least:
        msg = f"Policy({name}={value}): a whole number of {least} or more is wanted"
        raise ValueError(msg)


def _check_number(name: str, value: object, least: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        msg = f"Policy({name}=...): a number is wanted, not {type(value).__name__}"
        raise TypeError(msg)
    if not least <= value < float("inf"):
        msg = f"Policy({name}={value}): a number of {least:g} or more is wanted"
        raise ValueError(msg)


def _words(name: str, value: Any) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        msg = f"Policy({name}=...): a list of strings is wanted, not {value!r}"
        raise TypeError(msg)
    if not all(isinstance(one, str) and one for one in value):
        msg = f"Policy({name}=...): a list of strings is wanted, none of them empty"
        raise TypeError(msg)
    return tuple(value)


def _ranks(value: Any) -> str | tuple[int, ...]:
    if isinstance(value, str):
        every = _EVERY_RANK.fullmatch(value)
        if value not in ("all", "first") and (every is None or int(every[1]) == 0):
            msg = f"Policy(ranks={value!r}): {_RANKS}"
            raise ValueError(msg)
        return value
    if not isinstance(value, Sequence):
        msg = f"Policy(ranks=...): {_RANKS}, not {type(value).__name__}"
        raise TypeError(msg)
    for one in value:
        if isinstance(one, bool) or not isinstance(one, int) or one < 0:
            msg = f"Policy(ranks=...): {_RANKS}; {one!r} is no rank"
            raise ValueError(msg)
    return tuple(value)
