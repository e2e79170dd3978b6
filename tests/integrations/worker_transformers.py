"""Worker of `test_transformers`: a Trainer on several ranks."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from otel_modtrack import semconv
from tests.distributed.harness import case, main
from tests.integrations.test_transformers import ModTrackCallback, losses, make_trainer
from tests.integrations.told import Told


def train(*callbacks: Any) -> Any:
    """Two epochs of two steps, with an evaluation after each."""
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(
            Path(folder), *callbacks, per_device_train_batch_size=3, eval_strategy="epoch"
        )
        trainer.train()
    return trainer


@case
def trained_by_trainer(world: int) -> dict[str, Any]:
    """What the spans of a training tell, and whether it is the same without them."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracked = train(ModTrackCallback(tracer_provider=provider, loss=True))
    plain = train()
    told = Told(exporter)
    wrappers = {span.attributes.get(semconv.MODULE_WRAPPER) for span in told.spans} - {None}
    weights = [
        {name: one.tolist() for name, one in trainer.model.state_dict().items()}
        for trainer in (tracked, plain)
    ]
    return {
        "numbers": told.numbers,
        "epochs": told.epochs,
        "order": told.order,
        "losses": told.of_steps(semconv.LOSS),
        "logged": [loss for _, loss, _ in losses(tracked)],
        "ranks": told.of_steps(semconv.RANK),
        "wrappers": sorted(wrappers),
        "fqns": sorted(told.fqns),
        "outside": told.outside(),
        "collectives": told.of_steps(semconv.COLLECTIVE_COUNT),
        "same": weights[0] == weights[1] and losses(tracked) == losses(plain),
    }


if __name__ == "__main__":
    main()
