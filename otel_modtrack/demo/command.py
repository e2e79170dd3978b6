"""What ``otel-modtrack demo`` does: train, write the spans, show where the time went."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from otel_modtrack.invocation import as_argument, command_line
from otel_modtrack.numerals import plural
from otel_modtrack.usage import UsageError
from otel_modtrack.view.command import view_files
from otel_modtrack.view.options import Options as ViewOptions

if TYPE_CHECKING:
    from otel_modtrack.demo.export import Pipeline
    from otel_modtrack.otlp.counts import Counts
    from otel_modtrack.otlp.settings import Endpoint


__all__ = ["Options", "run_demo"]

_NEEDED: Final = (
    "opentelemetry.sdk.trace",
    "opentelemetry.exporter.otlp.json.common",
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
    "opentelemetry.exporter.otlp.proto.grpc.trace_exporter",
    "tqdm",
)


@dataclass(frozen=True, slots=True)
class Options:
    """What the user chose.

    Attributes:
        steps: Training steps, at least one.
        out: File for the spans; replaced if it is there.
        checkpointing: Whether activations are recomputed in the backward.
        seed: Of the weights and the batches.
    """

    steps: int = 20
    out: str = "modtrack-demo.jsonl"
    checkpointing: bool = False
    seed: int = 0


def run_demo(options: Options, *, colour: bool = False) -> None:
    """Train, and print what came of it.

    Raises:
        UsageError: If an extra is missing, the file cannot be written, or the environment names a
            backend that cannot be one.
    """
    _check_extras()
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        raise UsageError("OTEL_SDK_DISABLED=true switches every span off; unset it for the demo")

    from otel_modtrack.demo.export import find_backend

    backend = find_backend()
    out = Path(options.out)
    _truncate(out)
    pipeline = _train(options, out, backend)
    _check_written(pipeline, out)
    print()
    view_files([str(out)], ViewOptions(colour=colour))
    print()
    print(f"{pipeline.file.delivered:,} of {pipeline.produced:,} spans are in {out}")
    if backend is not None:
        sys.stdout.flush()
        _report_backend(pipeline, backend)
    shown = as_argument(str(out))
    page = str(Path(shown).with_suffix(".html"))
    print(f"Show it again: {command_line('view', shown)}")
    print(f"In a browser: {command_line('view', shown, '--html', page)}")


def _train(options: Options, out: Path, backend: Endpoint | None) -> Pipeline:
    import torch

    from otel_modtrack.demo.export import open_pipeline
    from otel_modtrack.demo.model import GPT
    from otel_modtrack.demo.progress import Progress
    from otel_modtrack.demo.text import english_text
    from otel_modtrack.demo.train import encode, train

    torch.manual_seed(options.seed)
    tokens, vocabulary = encode(english_text())
    model = GPT(vocabulary, checkpointing=options.checkpointing)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    print(
        f"Training a GPT of {len(model.layers)} layers and {parameters:,} parameters on "
        f"{len(tokens):,} characters of English, {plural(options.steps, 'step')} on the CPU"
        + (", with activation checkpointing" if options.checkpointing else "")
    )

    losses: list[float] = []
    progress = Progress(options.steps)

    def on_step(step: int, loss: float) -> None:
        losses.append(loss)
        progress.advance(step, loss)

    # Forward, backward and recompute of every module, and a handful for the step.
    spans_a_step = 4 * (sum(1 for _ in model.modules()) + 4)
    started_s = time.monotonic()
    with open_pipeline(out, backend, queue_size=options.steps * spans_a_step) as pipeline:
        try:
            train(
                model,
                tokens,
                steps=options.steps,
                seed=options.seed,
                tracer_provider=pipeline.provider,
                on_step=on_step,
            )
        finally:
            progress.close()
        took_s = time.monotonic() - started_s
    steps = plural(options.steps, "step")
    print(f"Loss {losses[0]:.3f} -> {losses[-1]:.3f} in {steps}, {took_s:.1f} s")
    return pipeline


def _check_extras() -> None:
    """Find what is missing without importing it: that takes seconds."""
    missing = [name for name in _NEEDED if not _is_installed(name)]
    if missing:
        raise UsageError(
            f"{missing[0]} is not installed; install it with pip install 'otel_modtrack[demo]'"
        )


def _is_installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # the package around it is missing
        return False


def _truncate(out: Path) -> None:
    """Empty the file, which also proves that it can be written."""
    if out.exists() and not out.is_file():
        raise UsageError(f"--out {out} is not a file; name one that may be replaced")
    try:
        out.write_bytes(b"")
    except OSError as error:
        raise UsageError(
            f"cannot write --out {out}: {error.strerror}; name a file in a folder that is there "
            "and writable"
        ) from None


def _check_written(pipeline: Pipeline, out: Path) -> None:
    if not pipeline.produced:
        raise UsageError("the training made no span at all; this is a fault of otel_modtrack")
    if pipeline.file.delivered < pipeline.produced:
        raise UsageError(
            f"only {pipeline.file.delivered:,} of {pipeline.produced:,} spans are in {out}; make "
            "room on its disk and run the demo again"
        )


def _report_backend(pipeline: Pipeline, backend: Endpoint) -> None:
    counts = pipeline.backend
    if counts is None:
        return
    sent = (
        f"{counts.delivered:,} of {pipeline.produced:,} spans were sent to {backend.shown} "
        f"({backend.protocol})"
    )
    if counts.delivered == pipeline.produced:
        print(sent)
        return
    mend = (
        "its queue was full: raise OTEL_BSP_MAX_QUEUE_SIZE"
        if "queue full" in counts.lost_by_reason
        else f"{_reasons(counts)}: check that an OTLP backend listens there"
    )
    print(f"otel-modtrack demo: only {sent}; {mend}. The file has them all.", file=sys.stderr)


def _reasons(counts: Counts) -> str:
    return ", ".join(counts.lost_by_reason)
