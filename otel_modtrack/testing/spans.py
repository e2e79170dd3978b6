"""Some of the spans that were captured, and what can be said of them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, overload

from otel_modtrack import semconv
from otel_modtrack.testing.asked import check_number, check_text, fits, name_some
from otel_modtrack.testing.tree import Tree
from otel_modtrack.usage import UsageError
from otel_modtrack.view.model import build_trees
from otel_modtrack.view.narrow import PHASES
from otel_modtrack.view.reader import from_sdk

if TYPE_CHECKING:
    from collections.abc import Iterable

    from opentelemetry.sdk.trace import ReadableSpan

    from otel_modtrack.testing.golden import Golden
    from otel_modtrack.view.model import Node, Span

__all__ = ["Spans"]

_NAMED = 6  # spans that a message names
_OFFERED = 20  # steps or modules that a message names


class Spans(Sequence["ReadableSpan"]):
    """Finished spans of the SDK's, oldest first.

    Args:
        spans: in any order.
        among: all that were captured, if these are some of them.
        golden: where golden files are.
        is_fixed: whether clock and ids are, as golden files of spans need it.
    """

    def __init__(
        self,
        spans: Sequence[ReadableSpan],
        among: Sequence[ReadableSpan],
        golden: Golden,
        *,
        is_fixed: bool,
    ) -> None:
        pairs = sorted(
            zip(spans, from_sdk(spans), strict=True),
            key=lambda pair: (pair[1].start_ns, -pair[1].end_ns),
        )
        self._spans = tuple(span for span, _ in pairs)
        self._read = [read for _, read in pairs]
        self._among = among
        self._golden = golden
        self._is_fixed = is_fixed

    # -- a sequence ------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._spans)

    @overload
    def __getitem__(self, at: int) -> ReadableSpan: ...

    @overload
    def __getitem__(self, at: slice) -> Spans: ...

    def __getitem__(self, at: int | slice) -> ReadableSpan | Spans:
        found = self._spans[at]
        return self._some(found) if isinstance(found, tuple) else found

    def __repr__(self) -> str:
        counts = Counter(read.label for read in self._read)
        named = [label if n == 1 else f"{label} x{n}" for label, n in counts.items()]
        what = f"{len(self)} span{'s' if len(self) != 1 else ''}"
        return f"<{what}: {name_some(named, _NAMED)}>" if named else f"<{what}>"

    # -- to choose from --------------------------------------------------------------------------

    def select(  # noqa: PLR0913 - each may be left out
        self,
        fqn: str | None = None,
        *,
        phase: str | None = None,
        template: str | None = None,
        type: str | None = None,  # noqa: A002 - as the attribute modtrack.module.type
        name: str | None = None,
        within: str | None = None,
        step: int | None = None,
    ) -> Spans:
        """Those of the spans that fit all that is given.

        Args:
            fqn: of a module or named region, ``GPT.head``, or a pattern as a shell's:
                ``GPT.layers.*`` is all that is in the layers.
            phase: ``forward``, ``backward`` (runs of the engine as well), ``recompute``,
                ``optimizer``, ``step``, or ``other`` for what is not the tracker's.
            template: of modules: ``GPT.layers.*`` is the layers alone.
            type: class of the module, or ``region``.
            name: of the span: ``optimizer_step AdamW``.
            within: as `fqn`, and all that is in the spans of these modules is meant as well.
            step: number of the step that they are in.

        Raises:
            UsageError: if there is no such phase, no module for `within`, or no such step.
        """
        __tracebackhide__ = True
        for key, pattern in (("fqn", fqn), ("within", within)):
            if pattern is not None:
                check_text(key, pattern)
        if phase is not None and phase not in PHASES:
            raise UsageError(f"phase={phase!r}: the phases are {', '.join(PHASES)}")
        inside = self._ids_inside(within, step)
        kept = [
            span
            for span, read in zip(self._spans, self._read, strict=True)
            if (fqn is None or fits(read.fqn, fqn))
            and (phase is None or read.category == phase)
            and (template is None or read.template == template)
            and (type is None or read.module_type == type)
            and (name is None or read.name == name)
            and (inside is None or read.key in inside)
        ]
        return self._some(kept)

    def one(self) -> ReadableSpan:
        """The only span.

        Raises:
            AssertionError: if there are several, or none.
        """
        __tracebackhide__ = True
        self.assert_count(1)
        return self._spans[0]

    @property
    def durations_ns(self) -> list[int]:
        """How long each took."""
        return [read.duration_ns for read in self._read]

    @property
    def tree(self) -> Tree:
        """As a tree: one whose parent is not among them hangs under the next that is."""
        return Tree(self._spans, among=self._among, golden=self._golden)

    # -- to assert -------------------------------------------------------------------------------

    def assert_count(self, count: int) -> None:
        """Assert how many there are.

        Raises:
            AssertionError: if there are more or fewer. The message names them.
        """
        __tracebackhide__ = True
        check_number("assert_count() wants a whole number", count)
        if len(self) != count:
            raise AssertionError(f"expected {count}, found {self!r}")

    def assert_at_most(self, count: int) -> None:
        """Assert how many there are at most.

        Raises:
            AssertionError: if there are more. The message names them.
        """
        __tracebackhide__ = True
        check_number("assert_at_most() wants a whole number", count)
        if len(self) > count:
            raise AssertionError(f"expected {count} at most, found {self!r}")

    def assert_golden(self, name: str) -> None:
        """Assert that names, ids, times, attributes, events and links are as in a file.

        The file is ``golden/NAME.json`` beside the test; ``pytest --modtrack-update`` writes it.
        Stack traces, and what the resource says, are left out.

        Args:
            name: of the file, without the suffix.

        Raises:
            AssertionError: if it differs, or there is no such file.
            UsageError: if clock and ids are not fixed, or there can be no such file.
        """
        __tracebackhide__ = True
        if not self._is_fixed:
            raise UsageError(
                "spans.assert_golden(): ids and times are others in each run; call"
                " modtrack.fix_clock_and_ids() before the first track()"
            )
        content = [_as_dict(read) for read in self._read]
        self._golden.check("export", name, ".json", json.dumps(content, indent=2))

    # -- inside ----------------------------------------------------------------------------------

    def _some(self, spans: Sequence[ReadableSpan]) -> Spans:
        return Spans(spans, self._among, self._golden, is_fixed=self._is_fixed)

    def _ids_inside(self, within: str | None, step: int | None) -> set[tuple[str, str]] | None:
        """What is in the modules and in the step; None for everything."""
        __tracebackhide__ = True
        if within is None and step is None:
            return None
        nodes = [node for root in build_trees(from_sdk(self._among)) for _, node in root.walk()]
        found = {node.span.key for node in nodes}
        if step is not None:
            steps = [node for node in nodes if node.span.step is not None]
            around = [node for node in steps if node.span.step == step]
            if not around:
                there = name_some([str(node.span.step) for node in steps], _OFFERED)
                raise UsageError(f"step={step}: the steps there are {there or 'none'}")
            found &= _ids_below(around)
        if within is not None:
            around = [node for node in nodes if fits(node.span.fqn, within)]
            if not around:
                there = name_some(
                    list(dict.fromkeys(n.span.template for n in nodes if n.span.template)), _OFFERED
                )
                raise UsageError(f"no module that ran fits {within!r}: there are {there or 'none'}")
            found &= _ids_below(around)
        return found


def _ids_below(around: Iterable[Node]) -> set[tuple[str, str]]:
    return {node.span.key for outer in around for _, node in outer.walk()}


def _as_dict(span: Span) -> dict[str, Any]:
    return {
        "name": span.name,
        "trace_id": span.trace_id,
        "span_id": span.span_id,
        "parent_id": span.parent_id,
        "kind": span.kind,
        "scope": span.scope,
        "start_ns": span.start_ns,
        "end_ns": span.end_ns,
        "attributes": dict(span.attributes),
        "failed": span.failed,
        "status_message": span.status_message,
        "events": [
            {
                "name": event.name,
                "time_ns": event.time_ns,
                "attributes": {
                    key: value
                    for key, value in event.attributes.items()
                    if key != semconv.EXCEPTION_STACKTRACE
                },
            }
            for event in span.events
        ],
        "links": [
            {
                "trace_id": link.trace_id,
                "span_id": link.span_id,
                "attributes": dict(link.attributes),
            }
            for link in span.links
        ],
    }
