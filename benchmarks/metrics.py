"""What metrics cost: microseconds per module call, when a unit of them is over.

The records of a unit are made by hand; what is timed is that their durations are recorded with the
SDK. All variants are timed in one run, in turns, as in `overhead.py`. See README.md beside this
file, and docs/metrics.md.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import gc
import random
import statistics
import sys
from typing import TYPE_CHECKING, Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation, View
from overhead import CLOCKS, Settings, forget_environment, parse, publish, say, spread

from otel_modtrack import metrics, sdk_metrics, semconv
from otel_modtrack.regions import Kind, Phase, Region, Sink, Subject, Unit

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["main"]

LIMIT_US = 1.0  # per module call, in a step
_PARTS = (
    *("", ".input_layernorm", ".self_attn", ".self_attn.q_proj", ".self_attn.k_proj"),
    *(".self_attn.v_proj", ".self_attn.o_proj", ".post_attention_layernorm", ".mlp"),
    *(".mlp.gate_proj", ".mlp.up_proj", ".mlp.down_proj", ".mlp.act_fn"),
)
_ENDS = ("", ".model", ".model.embed_tokens", ".model.rotary_emb", ".model.norm", ".lm_head")
_SPAN = trace.SpanContext(1, 2, is_remote=False, trace_flags=trace.TraceFlags(1))


# -- what is recorded ---------------------------------------------------------------------------


def unit_of(layers: int, phases: Sequence[str]) -> Unit:
    """What a Llama of so many layers leaves behind, durations from 10 us to 100 ms."""
    draw = random.Random(0)  # noqa: S311 - no secret
    unit = Unit(Sink())
    names = [(f"Llama{part}", f"Llama{part}") for part in _ENDS]
    for layer in range(layers):
        names += [
            (f"Llama.model.layers.{layer}{part}", f"Llama.model.layers.*{part}") for part in _PARTS
        ]
    subjects = [Subject(Kind.MODULE, fqn, template, "Module") for fqn, template in names]
    for phase in phases:
        for subject in subjects:
            region = Region(subject, None, phase, 0, unit)
            region.end_ns = int(10 ** draw.uniform(4, 8))
            region.span = _SPAN
            unit.regions.append(region)
    return unit


STEP = "a step of 32 layers"
UNITS = {
    STEP: (32, (Phase.FORWARD, Phase.BACKWARD)),
    "a forward of 6 layers": (6, (Phase.FORWARD,)),
    "a forward of 1 layer": (1, (Phase.FORWARD,)),
}


# -- how ----------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Variant:
    """A way to record a unit.

    Attributes:
        name: of it.
        make: given a provider, what records a unit.
        limit: whether the project's target holds for it.
        readers: that the provider has.
        views: likewise.
        slow: the SDK is taken for one that is not known.
    """

    name: str
    make: Callable[[MeterProvider], Callable[[Unit], None]]
    limit: bool = False
    readers: int = 1
    views: Sequence[View] = ()
    slow: bool = False


def naive(provider: MeterProvider, *, traced: bool) -> Callable[[Unit], None]:
    """One `record` per call."""
    histogram = provider.get_meter("naive").create_histogram(
        semconv.MODULE_DURATION, explicit_bucket_boundaries_advisory=metrics.MODULE_BOUNDS_S
    )
    nowhere = trace.set_span_in_context(trace.INVALID_SPAN, Context())

    def record(unit: Unit) -> None:
        for region in unit.regions:
            subject = region.subject
            context = nowhere
            if traced:
                span = trace.NonRecordingSpan(region.span)
                context = trace.set_span_in_context(span, Context())
            histogram.record(
                (region.end_ns - region.start_ns) / 1e9,
                {
                    semconv.PHASE: region.phase,
                    semconv.MODULE_TEMPLATE: subject.template,
                    semconv.MODULE_TYPE: subject.type,
                },
                context,
            )

    return record


def ours(provider: MeterProvider, *, traced: bool) -> Callable[[Unit], None]:
    """`Meter.take`."""
    meter = metrics.Meter(provider, "0")

    def span_of(region: Region) -> trace.SpanContext | None:
        return region.span  # type: ignore[no-any-return]

    return lambda unit: meter.take(unit, unit.regions, span_of if traced else None)


_EXPONENTIAL = View(instrument_name="*", aggregation=ExponentialBucketHistogramAggregation())
_FEWER = View(instrument_name="*", attribute_keys={semconv.PHASE, semconv.MODULE_TEMPLATE})
VARIANTS = (
    Variant("record per call", lambda one: naive(one, traced=False)),
    Variant("record per call, exemplars", lambda one: naive(one, traced=True)),
    Variant("ours: nothing traced", lambda one: ours(one, traced=False), limit=True),
    Variant("ours: exemplars", lambda one: ours(one, traced=True), limit=True),
    Variant("ours: exemplars, 2 readers", lambda one: ours(one, traced=True), readers=2),
    Variant(
        "ours: exemplars, a view without type", lambda one: ours(one, traced=True), views=(_FEWER,)
    ),
    Variant("ours: exponential buckets", lambda one: ours(one, traced=True), views=(_EXPONENTIAL,)),
    Variant("ours: an SDK that is not known", lambda one: ours(one, traced=True), slow=True),
)


# -- measuring ----------------------------------------------------------------------------------


@contextlib.contextmanager
def _unknown(slow: bool) -> Any:
    known = sdk_metrics._sdk  # noqa: SLF001 - the fallback cannot be asked for otherwise
    if slow:
        sdk_metrics._sdk = lambda: None  # type: ignore[assignment]  # noqa: SLF001
    try:
        yield
    finally:
        sdk_metrics._sdk = known  # noqa: SLF001


def measure(name: str, settings: Settings) -> dict[str, Any]:
    """Visit every variant in turns with one unit."""
    unit = unit_of(*UNITS[name])
    calls = len(unit.regions)
    clock = CLOCKS[settings.clock]
    providers = [
        MeterProvider(
            [InMemoryMetricReader() for _ in range(one.readers)],
            shutdown_on_exit=False,
            views=one.views,
        )
        for one in VARIANTS
    ]
    takes = [one.make(provider) for one, provider in zip(VARIANTS, providers, strict=True)]

    def visit(at: int, units: int) -> float:
        with _unknown(VARIANTS[at].slow):
            for _ in range(settings.warmup):
                takes[at](unit)
            gc.collect()
            begun = clock()
            for _ in range(units):
                takes[at](unit)
            return (clock() - begun) / units

    steps = max(2, round(settings.visit_s / min(visit(0, 2) for _ in range(3))))
    say(f"{name}: {calls} calls, {steps} units a visit")
    times: list[list[float]] = [[] for _ in VARIANTS]
    for turn in range(settings.rounds):
        order = list(range(len(VARIANTS)))
        random.Random(turn).shuffle(order)  # noqa: S311 - no secret
        for at in order:
            times[at].append(visit(at, steps) / calls * 1e6)
    return {
        "unit": name,
        "calls": calls,
        "variants": [
            {
                "variant": one.name,
                "us_per_call": spread(seen),
                "limit": LIMIT_US if one.limit and name == STEP else None,
                "of_naive": statistics.median(seen) / statistics.median(times[1]),
            }
            for one, seen in zip(VARIANTS, times, strict=True)
        ],
    }


def table(result: dict[str, Any]) -> str:
    """One unit, as text."""
    lines = [
        f"{result['unit']}: {result['calls']} module calls",
        f"  {'variant':38} {'us a call [quartiles]':>24} {'of record,':>11}",
        f"  {'':38} {'':>24} {'exemplars':>11}  target",
    ]
    for row in result["variants"]:
        us = row["us_per_call"]
        text = f"{us['median']:.2f} [{us['q1']:.2f}, {us['q3']:.2f}]"
        verdict = ""
        if row["limit"] is not None:
            by = us["median"] - row["limit"]
            verdict = f"  {row['limit']:.2f}: {'met' if by <= 0 else f'missed by {by:.2f}'}"
        lines.append(f"  {row['variant']:38} {text:>24} {row['of_naive']:>11.3f}{verdict}")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, write. A missed target is told, and is not an error."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options, settings = parse(parser, argv, Settings(rounds=20), "metrics.json")
    forget_environment()  # filters of the caller's are not what is measured
    gc.collect()
    gc.freeze()  # what was imported is not walked in anyone's time
    results = [measure(name, settings) for name in UNITS]
    gc.unfreeze()
    return publish(options, settings, results, table)


if __name__ == "__main__":
    sys.exit(main())
