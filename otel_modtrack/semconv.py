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
    "DATA_LOAD_SPAN",
    "EPOCH",
    "ERROR_TYPE",
    "EVALUATION_KIND",
    "EVALUATION_SPAN",
    "EXCEPTION_EVENT",
    "EXCEPTION_MESSAGE",
    "EXCEPTION_STACKTRACE",
    "EXCEPTION_TYPE",
    "FOLDED_COUNT",
    "FOLDED_EVENT",
    "FOLDED_LONGEST",
    "FOLDED_NAME",
    "FOLDED_TOTAL",
    "JOB_ID",
    "LEARNING_RATE",
    "LOCAL_RANK",
    "LOSS",
    "MODULE_CALL_INDEX",
    "MODULE_DURATION",
    "MODULE_FQN",
    "MODULE_TEMPLATE",
    "MODULE_TYPE",
    "MODULE_WRAPPER",
    "OPTIMIZER_STEP_SPAN",
    "ORDER_CHANGED_EVENT",
    "ORDER_DIVERGED_EVENT",
    "ORDER_FQN",
    "ORDER_INDEX",
    "ORDER_POSITION",
    "ORDER_PREVIOUS_FQN",
    "ORDER_REPORT",
    "ORDER_SEQUENCE",
    "PHASE",
    "RANK",
    "SCOPE_NAME",
    "SPANS_DROPPED",
    "SPANS_FOLDED",
    "STEP_DURATION",
    "STEP_NUMBER",
    "STEP_OUTLIER",
    "STEP_SKIPPED",
    "TRAIN_STEP_SPAN",
    "WORLD_SIZE",
]

SCOPE_NAME: Final = "otel_modtrack"

# Span names. A module's or named region's span is called "{phase} {template}".
TRAIN_STEP_SPAN: Final = "train_step"
BACKWARD_SPAN: Final = "backward"
OPTIMIZER_STEP_SPAN: Final = "optimizer_step"  # followed by the optimizer's class
DATA_LOAD_SPAN: Final = "data_load"
EVALUATION_SPAN: Final = "evaluation"

PHASE: Final = "modtrack.phase"
MODULE_FQN: Final = "modtrack.module.fqn"
MODULE_TEMPLATE: Final = "modtrack.module.template"
MODULE_TYPE: Final = "modtrack.module.type"
MODULE_WRAPPER: Final = "modtrack.module.wrapper"
MODULE_CALL_INDEX: Final = "modtrack.module.call_index"
COMPILED: Final = "modtrack.compiled"
STEP_NUMBER: Final = "modtrack.step.number"
STEP_OUTLIER: Final = "modtrack.step.outlier"
STEP_SKIPPED: Final = "modtrack.step.skipped"
EPOCH: Final = "modtrack.epoch"
LOSS: Final = "modtrack.loss"
LEARNING_RATE: Final = "modtrack.learning_rate"
EVALUATION_KIND: Final = "modtrack.evaluation.kind"
SPANS_DROPPED: Final = "modtrack.spans.dropped"
SPANS_FOLDED: Final = "modtrack.spans.folded"
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

# What a span says of the regions in it that have no spans of their own.
FOLDED_EVENT: Final = "modtrack.folded"
FOLDED_NAME: Final = "modtrack.folded.name"
FOLDED_COUNT: Final = "modtrack.folded.count"
FOLDED_TOTAL: Final = "modtrack.folded.duration.total"
FOLDED_LONGEST: Final = "modtrack.folded.duration.longest"

# The order in which modules run.
ORDER_INDEX: Final = "modtrack.order.index"
ORDER_CHANGED_EVENT: Final = "modtrack.order_changed"
ORDER_DIVERGED_EVENT: Final = "modtrack.order_diverged"
ORDER_SEQUENCE: Final = "modtrack.order.sequence"
ORDER_POSITION: Final = "modtrack.order.position"
ORDER_FQN: Final = "modtrack.order.fqn"
ORDER_PREVIOUS_FQN: Final = "modtrack.order.previous_fqn"
ORDER_REPORT: Final = "modtrack.order.report"

# Metrics, beside those that are called as the attributes of collectives and of dropped spans are.
MODULE_DURATION: Final = "modtrack.module.duration"
STEP_DURATION: Final = "modtrack.step.duration"

ATTRIBUTES: Final[dict[str, str]] = {
    PHASE: "forward, backward or recompute",
    MODULE_FQN: "fully qualified name, beginning with the root's class: GPT.layers.17.mlp",
    MODULE_TEMPLATE: "the fqn with list indices replaced by *: GPT.layers.*.mlp",
    MODULE_TYPE: "the module's class, or 'region' for a named region",
    MODULE_WRAPPER: "class of the wrapper that the module runs in: DistributedDataParallel",
    MODULE_CALL_INDEX: "which call this is (from 0), for what is called more than once in the step",
    COMPILED: "true where the region is one compiled callable",
    STEP_NUMBER: "number of the training step",
    STEP_OUTLIER: "true where it took longer than the policy's multiple of the running median",
    STEP_SKIPPED: "true where a gradient scaler skipped an optimizer's step",
    EPOCH: "that the step belongs to, from 0, where a framework tells",
    LOSS: "as the framework told it, where asked for",
    LEARNING_RATE: "of the optimizer's first parameter group in the step, where asked for",
    EVALUATION_KIND: "validation, test, predict, ..., where a framework tells",
    SPANS_DROPPED: "regions of the step that could not be handed to the provider",
    SPANS_FOLDED: "regions that ran inside and have no span of their own",
    FOLDED_NAME: "what the spans of the regions would have been called; none where it is several",
    FOLDED_COUNT: "regions that the event stands for",
    FOLDED_TOTAL: "their durations together, in seconds",
    FOLDED_LONGEST: "the duration of the longest, in seconds",
    ORDER_INDEX: "which of the module calls of its phase this is, in the step or trace, from 0",
    ORDER_SEQUENCE: "what differs: forward, recompute or backward",
    ORDER_POSITION: "of the first module call that differs, from 0",
    ORDER_FQN: "of the module that runs there; none where nothing comes there any more",
    ORDER_PREVIOUS_FQN: "of the module that ran there in the step recorded before; none likewise",
    ORDER_REPORT: "where the ranks went, in words",
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
