"""Text generation over HTTP: each request is one trace, from the client down to the layers.

uvicorn --app-dir examples/service app:app
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import torch
from fastapi import FastAPI
from fastapi.responses import PlainTextResponse, StreamingResponse
from model import Writer
from opentelemetry.instrumentation.fastapi import FastAPIInstrumentor
from pydantic import BaseModel, Field

from otel_modtrack import ModTracker, configure

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

torch.set_num_threads(1)  # requests run beside each other, on the server's own threads
writer = Writer()


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    """Track the model for as long as this process serves."""
    telemetry = configure(service_name="text-service")  # in each worker process, not before
    with ModTracker(writer.model):
        yield
    # uvicorn ends by the signal that stopped it, and no exit handler runs after that.
    telemetry.shutdown()


app = FastAPI(lifespan=lifespan)
# The stock instrumentation: a server span for each request, under the client's. Without spans for
# single ASGI messages, of which a stream has one for each character.
FastAPIInstrumentor.instrument_app(app, excluded_urls="health", exclude_spans=["receive", "send"])


class Request(BaseModel):
    """What is to be written."""

    prompt: str = Field(min_length=1, max_length=1000)
    length: int = Field(default=32, ge=1, le=1000)
    seed: int = 0


@app.get("/health")
def health() -> str:
    """Say that the service is there; not traced."""
    return "ok"


# Not `async`: the model computes, and runs on a thread so that others are served meanwhile.
@app.post("/generate")
def generate(request: Request) -> PlainTextResponse:
    """Return the text when it is complete."""
    return PlainTextResponse("".join(writer.write(request.prompt, request.length, request.seed)))


@app.post("/stream")
def stream(request: Request) -> StreamingResponse:
    """Return the text as it is written, a character at a time.

    The steps run after this function has returned, on whatever thread is free, and each is
    given the request's context: their spans are under its span.
    """
    characters = writer.write(request.prompt, request.length, request.seed)
    return StreamingResponse(characters, media_type="text/plain")
