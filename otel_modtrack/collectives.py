"""`tracker.collectives`: how many, how large, on which modules. Needs no provider."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from otel_modtrack import where
from otel_modtrack.comm.ledger import GLOBAL
from otel_modtrack.core import CORE
from otel_modtrack.sizes import render_size

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Sequence

    from otel_modtrack.comm.ledger import Called, Ledger
    from otel_modtrack.comm.records import Tally
    from otel_modtrack.regions import Subject

__all__ = ["PHASES", "Collectives"]

_BOLD, _DIM, _PLAIN = "\033[1m", "\033[2m", "\033[0m"
PHASES = ("forward", "backward", "recompute", "optimizer", "outside")


class _Module(NamedTuple):
    """One line of the hierarchy: a module, a named region, an optimizer, or ``Global``."""

    fqn: str
    depth: int
    subject: Subject | None


class Collectives:
    """What was launched in this process since the tracker was entered last.

    A collective counts once, when it is launched, on the module that launched it and all that
    module is in. Its size is this rank's payload in bytes: the larger of what the rank puts in and
    what it gets out.

    Source: what it answers is what `torch.distributed.tensor.debug.CommDebugMode` answers, and
    bytes, groups, phases, point-to-point operations and barriers besides.
    """

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger

    # -- counts ----------------------------------------------------------------------------------

    @property
    def total(self) -> int:
        """How many collectives were launched."""
        return sum(tally.count for tally in self.by_operation().values())

    @property
    def size(self) -> int:
        """Their payload together, in bytes."""
        return sum(tally.size for tally in self.by_operation().values())

    def by_operation(self) -> dict[str, Tally]:
        """Count and bytes by operation: ``all_reduce``, ``all_gather``, ``send``."""
        return self.ledger.sums(lambda key: key[2][0].operation)

    def by_operator(self) -> dict[str, Tally]:
        """By torch's operator: ``c10d.allreduce_``, ``c10d_functional.all_reduce``."""
        return self.ledger.sums(lambda key: key[2][0].name)

    def by_group(self) -> dict[str, Tally]:
        """By the process group's name."""
        return self.ledger.sums(lambda key: key[2][1])

    def by_phase(self) -> dict[str, Tally]:
        """By phase: ``forward``, ``backward``, ``recompute``, ``optimizer``.

        ``outside`` is what was launched in no module, backward or optimizer step.
        """
        return self.ledger.sums(lambda key: key[1])

    def by_module(self) -> dict[str, dict[str, dict[str, Tally]]]:
        """By fqn, phase and operation; what runs inside a module counts for it, too.

        ``Global`` has everything. Modules in which nothing was launched are left out.
        """
        return self.ledger.modules()

    # -- modules ---------------------------------------------------------------------------------

    def parameters(self) -> dict[str, dict[str, torch.Tensor]]:
        """The parameters of each module that was called, by its fqn and their names.

        A module's own ones, in the order of `named_parameters`. Modules without any, and modules
        that are gone, are left out.
        """
        found: dict[str, dict[str, torch.Tensor]] = {}
        for fqn, called in self._called().items():
            own = _own_parameters(called.subject)
            if own:
                found[fqn] = own
        return found

    def placements(self) -> dict[str, tuple[Any, ...]]:
        """Placements of the parameters that are DTensors, by the parameters' fqns."""
        return {
            f"{fqn}.{name}": placements
            for fqn, own in self.parameters().items()
            for name, parameter in own.items()
            if (placements := _placements(parameter)) is not None
        }

    # -- to look at ------------------------------------------------------------------------------

    def table(
        self,
        *,
        depth: int | None = None,
        phases: Sequence[str] | None = None,
        groups: bool = False,
        parameters: bool = False,
        color: bool | None = None,
    ) -> str:
        """A table of modules, as text.

        Args:
            depth: how many levels of modules to show: 0 is the whole alone, 1 the models; all if
                None.
            phases: which phases to show; all if None.
            groups: whether to end with the sums by process group.
            parameters: whether to show every module's parameters: shape, dtype, placements.
            color: whether to colour it; on a terminal, if None.

        Raises:
            RuntimeError: if nothing ran yet.
            ValueError: if a phase is none of those that there are.
        """
        self._check_ran("table")
        if phases is not None and (unknown := set(phases) - set(PHASES)):
            msg = f"table(phases=...): {', '.join(PHASES)} are known, not {min(unknown)!r}"
            raise ValueError(msg)
        if color is None:
            color = sys.stdout.isatty()
        modules = self.by_module()
        rows = []
        for module in self._hierarchy():
            if depth is not None and module.depth > depth:
                continue
            counts = modules.get(module.fqn, {})
            shown = [
                (phase, operation, tally)
                for phase in phases or PHASES
                for operation, tally in counts.get(phase, {}).items()
            ]
            own = _parameter_lines(module.subject) if parameters else []
            if shown or own or module.fqn == GLOBAL or parameters:
                rows.append(("  " * module.depth + module.fqn, shown, own))
        lines = [self._title(), "", *_module_lines(rows, color=color)]
        if groups:
            lines += ["", *_group_lines(self.by_group(), color=color)]
        return "\n".join(lines)

    def write_table(
        self,
        path: str | os.PathLike[str],
        *,
        depth: int | None = None,
        phases: Sequence[str] | None = None,
        groups: bool = False,
        parameters: bool = False,
    ) -> None:
        """Write `table` to a file, without colour.

        Raises:
            RuntimeError: if nothing ran yet.
            OSError: if the file cannot be written.
        """
        text = self.table(
            depth=depth, phases=phases, groups=groups, parameters=parameters, color=False
        )
        Path(path).write_text(text + "\n", encoding="utf-8")

    def to_json(self) -> dict[str, Any]:
        """Everything that is known, made of dicts, lists, strings and numbers; sizes in bytes.

        Raises:
            RuntimeError: if nothing ran yet.
        """
        self._check_ran("to_json")
        rank, world_size = where.process()
        modules = self.by_module()
        root: dict[str, Any] = {}
        above: list[dict[str, Any]] = []
        for module in self._hierarchy():
            entry = {
                "fqn": module.fqn,
                "type": module.subject.type if module.subject is not None else "",
                "parameters": _parameter_entries(module.subject),
                "collectives": {
                    phase: _as_dicts(counts)
                    for phase, counts in modules.get(module.fqn, {}).items()
                },
                "children": [],
            }
            del above[module.depth :]
            if above:
                above[-1]["children"].append(entry)
            else:
                root = entry
            above.append(entry)
        return {
            "rank": rank,
            "world_size": world_size,
            "total": {"count": self.total, "size": self.size},
            "operations": _as_dicts(self.by_operation()),
            "operators": _as_dicts(self.by_operator()),
            "groups": _as_dicts(self.by_group()),
            "phases": _as_dicts(self.by_phase()),
            "modules": root,
        }

    def write_json(self, path: str | os.PathLike[str]) -> None:
        """Write `to_json` to a file.

        Raises:
            RuntimeError: if nothing ran yet.
            OSError: if the file cannot be written.
        """
        Path(path).write_text(json.dumps(self.to_json(), indent=2) + "\n", encoding="utf-8")

    def __repr__(self) -> str:
        return f"<Collectives: {self.total}, {render_size(self.size)}>"

    # -- inside ----------------------------------------------------------------------------------

    def _called(self) -> dict[str, Called]:
        """What ran, that of the steps which are still open included."""
        if any(ledger is self.ledger for ledger in CORE.ledgers):
            for state in list(CORE.states):
                if state.unit is not None:
                    self.ledger.take_modules(list(state.unit.regions))
        return self.ledger.called

    def _check_ran(self, what: str) -> None:
        if not self._called() and not self.by_operation():
            msg = (
                f"tracker.collectives.{what}(): nothing ran yet; call a model or launch a"
                " collective inside `with ModTracker(...) as tracker:` first"
            )
            raise RuntimeError(msg)

    def _hierarchy(self) -> Iterator[_Module]:
        """All modules, each below the one it first ran in, in the order of first calls."""
        below: dict[str, list[Subject]] = {}
        for called in self._called().values():
            below.setdefault(called.above, []).append(called.subject)
        yield _Module(GLOBAL, 0, None)
        seen = {GLOBAL}
        todo = [(1, subject) for subject in reversed(below.get(GLOBAL, ()))]
        while todo:
            depth, subject = todo.pop()
            if subject.fqn in seen:
                continue
            seen.add(subject.fqn)
            yield _Module(subject.fqn, depth, subject)
            todo += [(depth + 1, one) for one in reversed(below.get(subject.fqn, ()))]
        for fqn in self.by_module():  # optimizers, and modules of requests not recorded
            if fqn not in seen:
                yield _Module(fqn, 1, None)

    def _title(self) -> str:
        rank, world_size = where.process()
        which = f" on rank {rank} of {world_size}" if world_size else ""
        return f"Collectives{which}: {self.total}, {render_size(self.size)}"


def _own_parameters(subject: Subject | None) -> dict[str, torch.Tensor]:
    module = subject.ref() if subject is not None else None
    if not isinstance(module, torch.nn.Module):
        return {}
    own = module.__dict__.get("_parameters") or {}
    return {name: parameter for name, parameter in own.items() if parameter is not None}


def _placements(parameter: torch.Tensor) -> tuple[Any, ...] | None:
    package = sys.modules.get("torch.distributed.tensor")  # not imported: there are none
    if package is None or not isinstance(parameter, package.DTensor):
        return None
    return tuple(parameter.placements)


def _parameter_entries(subject: Subject | None) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = []
    for name, parameter in _own_parameters(subject).items():
        placements = _placements(parameter)
        entries.append(
            {
                "name": name,
                "shape": list(parameter.shape),
                "dtype": str(parameter.dtype).rpartition(".")[2],
                "placements": [str(one) for one in placements] if placements is not None else None,
            }
        )
    return entries


def _parameter_lines(subject: Subject | None) -> list[str]:
    lines = []
    for entry in _parameter_entries(subject):
        placed = f" placed {', '.join(entry['placements'])}" if entry["placements"] else ""
        lines.append(f"{entry['name']} {entry['shape']} {entry['dtype']}{placed}")
    return lines


def _as_dicts(counts: dict[str, Tally]) -> dict[str, dict[str, int]]:
    return {key: {"count": tally.count, "size": tally.size} for key, tally in counts.items()}


def _module_lines(
    rows: list[tuple[str, list[tuple[str, str, Tally]], list[str]]], *, color: bool
) -> Iterator[str]:
    width = max(len("module"), *(len(name) for name, _, _ in rows))
    yield _styled(
        f"{'module':{width}}  {'phase':9}  {'operation':17}  {'count':>7}  {'bytes':>11}",
        _DIM,
        color=color,
    )
    for name, shown, own in rows:
        first = _styled(f"{name:{width}}", _BOLD, color=color)
        if not shown:
            yield first.rstrip()
        for phase, operation, tally in shown:
            numbers = f"{tally.count:7}  {render_size(tally.size):>11}"
            yield f"{first}  {phase:9}  {operation:17}  {numbers}"
            first = " " * width
        indent = " " * (len(name) - len(name.lstrip()) + 4)
        for line in own:
            yield _styled(indent + line, _DIM, color=color)


def _group_lines(groups: dict[str, Tally], *, color: bool) -> Iterator[str]:
    width = max(len("process group"), *(len(name) for name in groups), 0)
    yield _styled(f"{'process group':{width}}  {'count':>7}  {'bytes':>11}", _DIM, color=color)
    for name, tally in groups.items():
        yield f"{name:{width}}  {tally.count:7}  {render_size(tally.size):>11}"


def _styled(text: str, style: str, *, color: bool) -> str:
    return f"{style}{text}{_PLAIN}" if color else text
