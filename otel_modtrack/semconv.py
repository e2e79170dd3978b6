"""Every name that leaves this library: spans, attributes, events.

One registry, so that a backend's queries and our code cannot drift apart. ``docs/attributes.md``
documents it and a test proves that whatever is emitted stands here.

Source: OpenTelemetry semantic conventions, *Naming* and *Recording errors*.
"""

from __future__ import annotations

from typing import Final

__all__ = [
    "ATTRIBUTES",
    "BACKWARD_SPAN",
    "COLLECTIVE_ASYNC",
    "COLLECTIVE_BACKEND",
    "COLLECTIVE_COUNT",
    "COLLECTIVE_DTYPE",
    "COLLECTIVE_DURATION",
    "COLLECTIVE_EVENT",
    "COLLECTIVE_GROUP_DESCRIPTION",
    "COLLECTIVE_GROUP_NAME",
    "COLLECTIVE_GROUP_SIZE",
    "COLLECTIVE_OPERATION",
    "COLLECTIVE_OPERATOR",
    "COLLECTIVE_PARAMETERS",
    "COLLECTIVE_PLACEMENTS_SOURCE",
    "COLLECTIVE_PLACEMENTS_TARGET",
    "COLLECTIVE_SHAPES",
    "COLLECTIVE_SIZE",
    "COMPILED",
    "ERROR_TYPE",
    "EXCEPTION_EVENT",
    "EXCEPTION_MESSAGE",
    "EXCEPTION_STACKTRACE",
    "EXCEPTION_TYPE",
    "JOB_ID",
    "LOCAL_RANK",
    "MODULE_CALL_INDEX",
    "MODULE_FQN",
    "MODULE_TEMPLATE",
    "MODULE_TYPE",
    "MODULE_WRAPPER",
    "OPTIMIZER_STEP_SPAN",
    "PHASE",
    "RANK",
    "SCOPE_NAME",
    "SPANS_DROPPED",
    "STEP_NUMBER",
    "TRAIN_STEP_SPAN",
    "WORLD_SIZE",
]

SCOPE_NAME: Final = "otel_modtrack"

# Span names. A module's or named region's span is called "{phase} {template}".
TRAIN_STEP_SPAN: Final = "train_step"
BACKWARD_SPAN: Final = "backward"
OPTIMIZER_STEP_SPAN: Final = "optimizer_step"  # followed by the optimizer's class

PHASE: Final = "modtrack.phase"
MODULE_FQN: Final = "modtrack.module.fqn"
MODULE_TEMPLATE: Final = "modtrack.module.template"
MODULE_TYPE: Final = "modtrack.module.type"
MODULE_WRAPPER: Final = "modtrack.module.wrapper"
MODULE_CALL_INDEX: Final = "modtrack.module.call_index"
COMPILED: Final = "modtrack.compiled"
STEP_NUMBER: Final = "modtrack.step.number"
SPANS_DROPPED: Final = "modtrack.spans.dropped"
RANK: Final = "modtrack.rank"
WORLD_SIZE: Final = "modtrack.world_size"
LOCAL_RANK: Final = "modtrack.local_rank"
JOB_ID: Final = "modtrack.job.id"
ERROR_TYPE: Final = "error.type"

EXCEPTION_EVENT: Final = "exception"
EXCEPTION_TYPE: Final = "exception.type"
EXCEPTION_MESSAGE: Final = "exception.message"
EXCEPTION_STACKTRACE: Final = "exception.stacktrace"

# On the event and, the first two, on spans.
COLLECTIVE_EVENT: Final = "modtrack.collective"
COLLECTIVE_COUNT: Final = "modtrack.collective.count"
COLLECTIVE_SIZE: Final = "modtrack.collective.size"
COLLECTIVE_OPERATION: Final = "modtrack.collective.operation"
COLLECTIVE_OPERATOR: Final = "modtrack.collective.operator"
COLLECTIVE_DTYPE: Final = "modtrack.collective.dtype"
COLLECTIVE_GROUP_NAME: Final = "modtrack.collective.group.name"
COLLECTIVE_GROUP_SIZE: Final = "modtrack.collective.group.size"
COLLECTIVE_GROUP_DESCRIPTION: Final = "modtrack.collective.group.description"
COLLECTIVE_BACKEND: Final = "modtrack.collective.backend"
COLLECTIVE_ASYNC: Final = "modtrack.collective.async"
COLLECTIVE_SHAPES: Final = "modtrack.collective.shapes"
COLLECTIVE_DURATION: Final = "modtrack.collective.duration"
COLLECTIVE_PARAMETERS: Final = "modtrack.collective.parameters"
COLLECTIVE_PLACEMENTS_SOURCE: Final = "modtrack.collective.placements.source"
COLLECTIVE_PLACEMENTS_TARGET: Final = "modtrack.collective.placements.target"

ATTRIBUTES: Final[dict[str, str]] = {
    PHASE: "forward, backward or recompute",
    MODULE_FQN: "fully qualified name, beginning with the root's class: GPT.layers.17.mlp",
    MODULE_TEMPLATE: "the fqn with list indices replaced by *: GPT.layers.*.mlp",
    MODULE_TYPE: "the module's class, or 'region' for a named region",
    MODULE_WRAPPER: "class of the wrapper that the module runs in: DistributedDataParallel",
    MODULE_CALL_INDEX: "which call this is (from 0), for what is called more than once in the step",
    COMPILED: "true where the region is one compiled callable",
    STEP_NUMBER: "number of the training step",
    SPANS_DROPPED: "regions of the step that could not be handed to the provider",
    RANK: "of this process among all, where torch.distributed is initialised",
    WORLD_SIZE: "how many processes there are",
    LOCAL_RANK: "of this process on its machine, where the launcher tells (LOCAL_RANK)",
    JOB_ID: "the scheduler's id of the job, or torchrun's (on the Resource)",
    COLLECTIVE_COUNT: "collectives launched; on a span, what runs inside included",
    COLLECTIVE_SIZE: "their payload on this rank in bytes; on a span, what runs inside included",
    COLLECTIVE_OPERATION: "all_reduce, all_gather, reduce_scatter, send, ...",
    COLLECTIVE_OPERATOR: "torch's operator: c10d.allreduce_, c10d_functional.all_reduce",
    COLLECTIVE_DTYPE: "of the payload; several joined by commas",
    COLLECTIVE_GROUP_NAME: "the process group, as torch names it",
    COLLECTIVE_GROUP_SIZE: "number of ranks in the group",
    COLLECTIVE_GROUP_DESCRIPTION: "what the group is for, where torch tells: mesh_tp",
    COLLECTIVE_BACKEND: "gloo, nccl, ...",
    COLLECTIVE_ASYNC: "whether any of them is waited for separately",
    COLLECTIVE_SHAPES: "of the tensors that go in",
    COLLECTIVE_DURATION: "seconds from the launch to its end, where the backend tells",
    COLLECTIVE_PARAMETERS: "of the DDP bucket or FSDP group that it is for",
    COLLECTIVE_PLACEMENTS_SOURCE: "placements that a DTensor is redistributed from",
    COLLECTIVE_PLACEMENTS_TARGET: "placements that a DTensor is redistributed to",
    ERROR_TYPE: "class of the exception that left the region",
    EXCEPTION_TYPE: "class of the exception, on the exception event",
    EXCEPTION_MESSAGE: "message of the exception, on the exception event",
    EXCEPTION_STACKTRACE: "formatted traceback, on the exception event",
}
