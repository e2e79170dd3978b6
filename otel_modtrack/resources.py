"""What process this is: rank, world size and job, from the environment of its launcher."""

from __future__ import annotations

import os
import uuid
from typing import Any

from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider

from otel_modtrack import semconv
from otel_modtrack.otlp import variables
from otel_modtrack.usage import ConfigurationError

__all__ = ["make_resource", "renew"]

_INSTANCE = "service.instance.id"
_NUMBERS = {
    semconv.RANK: "RANK",
    semconv.WORLD_SIZE: "WORLD_SIZE",
    semconv.LOCAL_RANK: "LOCAL_RANK",
}
# The scheduler's name for the job, if there is one; else torchrun's.
_JOBS = ("SLURM_JOB_ID", "LSB_JOBID", "PBS_JOBID", "TORCHELASTIC_RUN_ID")


def make_resource(service_name: str | None) -> Resource:
    """What the environment says, and what the launcher does.

    Args:
        service_name: used where the environment names none.

    Raises:
        ConfigurationError: if OTEL_RESOURCE_ATTRIBUTES or OTEL_SERVICE_NAME cannot be read.
    """
    variables.pairs("OTEL_RESOURCE_ATTRIBUTES", headers=False)  # the SDK would log what it skips
    if not variables.is_text(os.environ.get("OTEL_SERVICE_NAME", "")):
        raise ConfigurationError("OTEL_SERVICE_NAME is not UTF-8; correct or unset it")
    resource = Resource.create(_of_this_process())
    if _INSTANCE not in resource.attributes:
        resource = resource.merge(Resource({_INSTANCE: str(uuid.uuid4())}))
    known = str(resource.attributes.get(SERVICE_NAME, ""))
    if service_name and (not known or known.startswith("unknown_service")):
        resource = resource.merge(Resource({SERVICE_NAME: service_name}))
    return resource


def renew(*providers: Any) -> None:
    """In a forked child: what these providers of the SDK's export is the child's from here on."""
    own = _of_this_process()
    instance = {_INSTANCE: str(uuid.uuid4())}
    for provider in providers:
        update = getattr(provider, "_update_resource", None)
        if update is not None:  # such an SDK has given this process an instance id already
            update(Resource(own))
        elif isinstance(provider, TracerProvider):
            # Tracers that are there already keep the parent's.
            provider._resource = provider.resource.merge(Resource({**instance, **own}))  # noqa: SLF001


def _of_this_process() -> dict[str, Any]:
    found: dict[str, Any] = {"process.pid": os.getpid()}
    for key, name in _NUMBERS.items():
        value = os.environ.get(name, "")
        if value.isdecimal() and os.environ.get("WORLD_SIZE", "").isdecimal():
            found[key] = int(value)
    if semconv.RANK in found:
        for name in _JOBS:
            job = os.environ.get(name, "")
            if job and job != "none":
                found[semconv.JOB_ID] = job
                break
    return found
