"""Which spans of a tree are shown: those of a phase, and those of modules that fit a pattern."""

from __future__ import annotations

from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final

from otel_modtrack.usage import UsageError
from otel_modtrack.view.paint import join_some

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from otel_modtrack.view.model import Node, Span


__all__ = ["PHASES", "Kept", "Narrowing"]

PHASES: Final = ("forward", "backward", "recompute", "optimizer", "step", "other")
# What a span of the user's own inside one of these belongs to.
_INHERITED: Final = frozenset({"forward", "backward", "recompute", "optimizer"})


@dataclass(frozen=True, slots=True)
class Kept:
    """What is shown of some trees.

    Attributes:
        matching: The spans that fit.
        shown: These, and the spans that they are in.
    """

    matching: set[Node] = field(default_factory=set)
    shown: set[Node] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Narrowing:
    """What the user wants to see of a tree.

    A span fits if it is of one of the phases and if it, or a span around it, is of a module that
    fits one of the patterns. A span without a phase is of the phase that it is in.

    Attributes:
        phases: Some of `PHASES`; empty for all.
        modules: Patterns as a shell's, for an fqn, a template or the last parts of one: ``mlp``,
            ``*.attn.*``, ``GPT.layers.1``. Empty for all.
    """

    phases: Sequence[str] = ()
    modules: Sequence[str] = ()

    @property
    def text(self) -> str:
        """The options that say so; "" where all fits."""
        return " ".join(
            [
                *(f"--phase {phase}" for phase in self.phases),
                *(f"--module {pattern}" for pattern in self.modules),
            ]
        )

    def keep(self, roots: Iterable[Node]) -> Kept | None:
        """Return what is shown of the trees; None for all.

        Raises:
            UsageError: If nothing fits.
        """
        if not self.phases and not self.modules:
            return None
        kept = Kept()
        modules: dict[str, None] = {}
        phases: set[str] = set()  # of what is of a module that fits
        for path, phase, is_inside in self._walk(roots):
            node = path[-1]
            if template := node.span.template or node.span.fqn:
                modules[template] = None
            if not is_inside:
                continue
            phases.add(phase)
            if not self.phases or phase in self.phases:
                kept.matching.add(node)
                for around in reversed(path):
                    if around in kept.shown:
                        break
                    kept.shown.add(around)
        if not kept.matching:
            raise UsageError(self._why_nothing(list(modules), phases))
        return kept

    def _walk(self, roots: Iterable[Node]) -> Iterator[tuple[list[Node], str, bool]]:
        """Yield the way down to each span, its phase, and whether a module around it fits."""
        fits: dict[str, bool] = {}
        for root in roots:
            path: list[Node] = []
            states: list[tuple[str, bool]] = []  # of the path
            for depth, node in root.walk():
                del path[depth:], states[depth:]
                outer_phase, is_inside = states[-1] if states else ("other", not self.modules)
                phase = node.span.category
                if phase == "other" and outer_phase in _INHERITED:
                    phase = outer_phase
                is_inside = is_inside or self._fits(node.span, fits)
                path.append(node)
                states.append((phase, is_inside))
                yield path, phase, is_inside

    def _fits(self, span: Span, known: dict[str, bool]) -> bool:
        """Whether the span's module fits a pattern. What was found out is kept by fqn."""
        fqn = span.fqn
        if fqn is None:
            return False
        if fqn not in known:
            # A template's own stars are no wildcards' match: l.? is no layer of two digits.
            template = f".{span.template or fqn}"
            known[fqn] = any(
                fnmatchcase(f".{fqn}", f"*.{pattern}") or template.endswith(f".{pattern}")
                for pattern in self.modules
            )
        return known[fqn]

    def _why_nothing(self, modules: Sequence[str], phases: set[str]) -> str:
        if not phases:
            there = f"the modules there are {join_some(modules, shown=6)}"
            if not modules:
                there = "no span is of a module"
            return f"no module fits {' or '.join(self.modules)}: {there}"
        there = ", ".join(phase for phase in PHASES if phase in phases)
        return f"no span fits {self.text}: the phases there are {there}"
