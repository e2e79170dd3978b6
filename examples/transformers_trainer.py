"""A `transformers.Trainer`: each update step and each evaluation as a trace of its own.

Needs the `otlp` extra's SDK, transformers and accelerate.
"""

import tempfile

import torch
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from transformers import LlamaConfig, LlamaForCausalLM, PrinterCallback, Trainer, TrainingArguments

from otel_modtrack.integrations.transformers import ModTrackCallback

exporter = InMemorySpanExporter()  # in your program: otel_modtrack.configure(service_name="...")
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))

sizes = {"hidden_size": 32, "intermediate_size": 64, "vocab_size": 64}
heads = {"num_attention_heads": 2, "num_hidden_layers": 2}
model = LlamaForCausalLM(LlamaConfig(**sizes, **heads))
tokens = torch.randint(0, 64, (32, 16))
data = [{"input_ids": one, "labels": one} for one in tokens]

with tempfile.TemporaryDirectory() as folder:
    trainer = Trainer(
        model,
        TrainingArguments(
            folder,
            num_train_epochs=2,
            gradient_accumulation_steps=2,
            logging_steps=1,
            eval_strategy="epoch",
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            dataloader_pin_memory=False,
        ),
        train_dataset=data,
        eval_dataset=data[:8],
        callbacks=[ModTrackCallback(tracer_provider=provider, loss=True, learning_rate=True)],
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()

spans = sorted(exporter.get_finished_spans(), key=lambda span: span.start_time)
for top in spans:
    if top.name in {"train_step", "evaluation"}:
        inside = [one for one in spans if one.context.trace_id == top.context.trace_id]
        calls = sum(one.name == "forward LlamaForCausalLM" for one in inside)
        told = {
            key: round(value, 6) if isinstance(value, float) else value
            for key, value in top.attributes.items()
        }
        print(f"{top.name:10} {calls} forward {len(inside):3} spans", told)
