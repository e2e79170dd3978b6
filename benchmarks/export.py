"""What exporting every span costs, from the module call to the answer of a real Collector.

Processor time of this whole process, all threads, per span and over the untracked loop: spans made
by hand in hooks, ours as the SDK's spans through its own exporter, and ours straight to OTLP. All
in turns in one run. See README.md beside this file.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import gc
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from typing import TYPE_CHECKING, Any

import torch
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult
from overhead import Loop, Settings, parse, prepare, publish, say, spread, turns
from variants import UNTRACKED, Variant, naive, tracked, untracked
from workloads import GPT, WORKLOADS, Workload

from otel_modtrack import ModTracker
from otel_modtrack.otlp import OtlpSpanProcessor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from opentelemetry.sdk.trace import ReadableSpan

    from tests.backends.programs import Collector

__all__ = ["main"]

ROOT = pathlib.Path(__file__).parents[1]

NAIVE, SDK, DIRECT = "naive spans in hooks", "ours, as spans of the SDK", "ours, straight to OTLP"
TRAINING = "training"
_MOST_OF_NAIVE = 0.10
_MOST_OF_STEP = 1.05
_QUEUE = 200_000  # spans: nothing may be dropped, or the export would look cheaper than it is
_MANY = 1_000_000
_MANY_S = 60.0
_CANNOT_BE_HAD = (3, 4)  # exit codes of build.sh: Go is missing, a download failed
_MIB = 1024

# What is taken is thrown away; the Collector's own metrics count it.
_CONFIG = """
extensions:
  health_check:
    endpoint: ${env:COLLECTOR_HEALTH}
receivers:
  otlp:
    protocols:
      http:
        endpoint: ${env:COLLECTOR_OTLP_HTTP}
exporters:
  file:
    path: /dev/null
    format: proto
service:
  extensions: [health_check]
  pipelines:
    traces:
      receivers: [otlp]
      exporters: [file]
  telemetry:
    metrics:
      readers:
        - pull:
            exporter:
              prometheus:
                host: 127.0.0.1
                port: ${env:COLLECTOR_TELEMETRY_PORT}
"""


class Counting(OTLPSpanExporter):
    """OTLP/HTTP, and how many spans were taken, and how many were not."""

    delivered = 0
    lost = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Export, and count."""
        result = super().export(spans)
        if result is SpanExportResult.SUCCESS:
            self.delivered += len(spans)
        else:
            self.lost += len(spans)
        return result


class Roads:
    """The providers, each with its way to the Collector. To be closed."""

    def __init__(self, collector: Collector) -> None:
        address = f"{collector.http_endpoint}/v1/traces"
        self.exporter = Counting(endpoint=address, headers={})
        self.stock = TracerProvider(shutdown_on_exit=False)
        self.stock.add_span_processor(
            BatchSpanProcessor(self.exporter, max_queue_size=_QUEUE, max_export_batch_size=512)
        )
        self.processor = OtlpSpanProcessor(address)
        self.direct = TracerProvider(shutdown_on_exit=False)
        self.direct.add_span_processor(self.processor)

    @property
    def delivered(self) -> int:
        """Spans that the Collector has said to have taken, by whichever road."""
        return self.exporter.delivered + self.processor.counts.delivered

    def drain(self) -> None:
        """Wait until all spans are there.

        Raises:
            RuntimeError: if they are not, or any is lost.
        """
        done = self.stock.force_flush() and self.direct.force_flush()
        lost = self.exporter.lost + self.processor.counts.lost
        if not done or lost:
            raise RuntimeError(f"the Collector did not take all spans: {lost} are lost")

    def close(self) -> None:
        """Stop the threads."""
        self.stock.shutdown()
        self.direct.shutdown()

    def variants(self) -> list[Variant]:
        """All, the untracked loop first."""
        return [
            Variant(UNTRACKED, untracked),
            Variant(NAIVE, naive(self.stock, self.drain, backward=True)),
            Variant(SDK, tracked(self.stock, self.drain)),
            Variant(DIRECT, tracked(self.direct, self.drain)),
        ]


@dataclasses.dataclass(frozen=True)
class Training(Workload):
    """A model whose weights change."""

    optimizer: torch.optim.Optimizer

    def train(self) -> None:
        """One step of a training."""
        super().train()
        self.optimizer.step()
        self.optimizer.zero_grad()


def training() -> Workload:
    """A GPT-2-like model of 4 blocks, d=128, with AdamW; tokens [batch, seq] = [8, 32]."""
    model, tokens = GPT(seq=32, dim=128, depth=4), torch.randint(64, (8, 32))

    def loss(logits: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())

    return Training(model, (tokens,), loss, torch.optim.AdamW(model.parameters(), lr=1e-3))


_WORKLOADS: dict[str, Callable[[], Workload]] = {**WORKLOADS, TRAINING: training}


def measure(name: str, roads: Roads, settings: Settings) -> dict[str, Any]:
    """Visit all variants in turns with one workload."""
    torch.manual_seed(0)
    workload = _WORKLOADS[name]()
    loop = Loop(workload, workload.train, settings)
    all_of_them = roads.variants()
    steps = loop.steps_per_visit(all_of_them[0])
    say(f"{name}: {workload.calls()} calls a step, {steps} steps a visit")
    times: dict[str, list[float]] = {variant.name: [] for variant in all_of_them}
    spans: dict[str, float] = {}
    for turn in range(settings.rounds):
        seen: dict[str, list[float]] = {}
        for variant in turns(all_of_them, turn):
            before = roads.delivered
            seen.setdefault(variant.name, []).append(loop.visit(variant, steps))
            roads.drain()  # a step that is recognised ends with the tracker
            spans[variant.name] = (roads.delivered - before) / (steps + settings.warmup)
        for key, values in seen.items():
            times[key].append(statistics.median(values))
    rows: list[dict[str, Any]] = []
    for key, values in times.items():
        pairs = list(zip(values, times[UNTRACKED], strict=True))
        each = max(spans[key], 1.0)
        rows.append(
            {
                "variant": key,
                "spans_per_step": spans[key],
                "us_per_span": spread([(one - base) / each * 1e6 for one, base in pairs]),
                "step": spread([one / base for one, base in pairs]),
            }
        )
    naive_us = rows[1]["us_per_span"]["median"]
    for row in rows:
        row["of_naive"] = row["us_per_span"]["median"] / naive_us
    untracked_ms = statistics.median(times[UNTRACKED]) * 1e3
    return {"workload": name, "untracked_ms": untracked_ms, "variants": rows}


def table(result: dict[str, Any]) -> str:
    """One workload, as text."""
    lines = [
        f"{result['workload']}: untracked {result['untracked_ms']:.2f} ms a step",
        f"  {'variant':26} {'spans':>6} {'us/span [quartiles]':>24} {'of naive':>9} {'step':>7}",
    ]
    for row in result["variants"][1:]:
        us = row["us_per_span"]
        spread_text = f"{us['median']:.1f} [{us['q1']:.1f}, {us['q3']:.1f}]"
        lines.append(
            f"  {row['variant']:26} {row['spans_per_step']:>6.0f} {spread_text:>24}"
            f" {row['of_naive']:>9.3f} {row['step']['median']:>6.3f}x"
        )
    return "\n".join(lines)


def verdicts(results: Sequence[dict[str, Any]]) -> list[str]:
    """Each target, and whether it was met."""
    found = []
    for result in results:
        direct = result["variants"][-1]
        if result["workload"] == TRAINING:
            what, measured, limit = "of the untracked step", direct["step"]["median"], _MOST_OF_STEP
        else:
            what, measured, limit = "of naive", direct["of_naive"], _MOST_OF_NAIVE
        outcome = "met" if measured <= limit else f"missed by {measured - limit:.3f}"
        found.append(
            f"{result['workload']}: {DIRECT} at most {limit:.2f} {what}: {measured:.3f}: {outcome}"
        )
    return found


def many(collector: Collector, count: int) -> dict[str, Any]:
    """A training makes so many spans as fast as it can, and waits until they are there."""
    torch.manual_seed(0)
    workload = WORKLOADS["chain"]()
    before = _taken(collector)
    provider = TracerProvider(shutdown_on_exit=False)
    processor = OtlpSpanProcessor(f"{collector.http_endpoint}/v1/traces")
    provider.add_span_processor(processor)
    counts, most = processor.counts, 0
    before_mib = _memory_mib("VmRSS")
    begun_s, cpu_s = time.monotonic(), time.process_time()
    with ModTracker(workload.model, tracer_provider=provider) as tracker:
        step = 0
        while counts.delivered + counts.lost + counts.waiting < count:
            with tracker.step(step):
                workload.train()
            step += 1
            most = max(most, counts.waiting)
    made_s = time.monotonic() - begun_s
    provider.force_flush(120_000)
    found = {
        "steps": step,
        "made_s": made_s,
        "delivered_s": time.monotonic() - begun_s,
        "cpu_s": time.process_time() - cpu_s,
        "delivered": counts.delivered,
        "lost": counts.lost,
        "most_waiting": most,
        "growth_mib": _memory_mib("VmHWM") - before_mib,
    }
    provider.shutdown()
    found["taken"] = _taken(collector) - before
    return found


def tell_many(found: dict[str, Any]) -> str:
    """It as text, with the verdict."""
    whole = found["lost"] == 0 and found["taken"] == found["delivered"]
    in_time = found["delivered_s"] <= _MANY_S * found["delivered"] / _MANY
    return (
        f"{found['delivered']:,} spans in {found['delivered_s']:.1f} s ({found['cpu_s']:.1f} s of"
        f" processor time): {found['lost']} lost, the Collector counts {found['taken']:,}; at most"
        f" {found['most_waiting']:,} waited; memory grew by {found['growth_mib']:.0f} MiB:"
        f" {'met' if whole and in_time else 'missed'}"
    )


def _taken(collector: Collector) -> int:
    """How many spans the Collector says it has accepted."""
    with urllib.request.urlopen(f"http://{collector.telemetry_address}/metrics") as answer:
        text = answer.read().decode()
    found = re.findall(r"^otelcol_receiver_accepted_spans\S* (\S+)$", text, re.MULTILINE)
    return sum(int(float(one)) for one in found)


def _memory_mib(field: str) -> float:
    """What this process has, or had at most, resident; 0 where that cannot be read."""
    status = pathlib.Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return sum(int(line.split()[1]) / _MIB for line in lines if line.startswith(field))


@contextlib.contextmanager
def _running() -> Iterator[Collector]:
    sys.path.insert(0, str(ROOT))
    from tests.backends.programs import Collector  # noqa: PLC0415 - found from here on

    done = subprocess.run(  # noqa: S603 - our own script
        [ROOT / "scripts" / "backends" / "build.sh"], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(done.returncode if done.returncode not in _CANNOT_BE_HAD else done.stderr)
    binary = pathlib.Path(done.stdout.split("\n")[1])
    with (
        tempfile.TemporaryDirectory() as folder,
        Collector(binary, pathlib.Path(folder) / "collector", _CONFIG) as collector,
    ):
        yield collector


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, write. A missed target is told, and is not an error."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--workload",
        action="append",
        choices=list(_WORKLOADS),
        help="only this one; may be repeated",
    )
    parser.add_argument(
        "--spans",
        type=int,
        default=_MANY,
        help="of the long run, 0 for none (default: %(default)s)",
    )
    default = Settings(rounds=12, visit_s=0.1, clock="cpu")
    options, settings = parse(parser, argv, default, "export.json")
    settings = dataclasses.replace(settings, clock="cpu")
    prepare()
    with _running() as collector:
        roads = Roads(collector)
        try:
            gc.collect()
            gc.freeze()  # what was imported is not walked in anyone's time
            results = [measure(name, roads, settings) for name in options.workload or _WORKLOADS]
        finally:
            gc.unfreeze()
            roads.close()
        long_run = many(collector, options.spans) if options.spans > 0 else None
    found = verdicts(results)
    told = [tell_many(long_run)] if long_run is not None else []
    return publish(
        options, settings, results, table, [*found, *told], long_run=long_run, verdicts=found
    )


if __name__ == "__main__":
    sys.exit(main())
