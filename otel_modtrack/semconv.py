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
    "COMPILED",
    "ERROR_TYPE",
    "EXCEPTION_EVENT",
    "EXCEPTION_MESSAGE",
    "EXCEPTION_STACKTRACE",
    "EXCEPTION_TYPE",
    "MODULE_CALL_INDEX",
    "MODULE_FQN",
    "MODULE_TEMPLATE",
    "MODULE_TYPE",
    "MODULE_WRAPPER",
    "OPTIMIZER_STEP_SPAN",
    "PHASE",
    "SCOPE_NAME",
    "SPANS_DROPPED",
    "STEP_NUMBER",
    "TRAIN_STEP_SPAN",
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
ERROR_TYPE: Final = "error.type"

EXCEPTION_EVENT: Final = "exception"
EXCEPTION_TYPE: Final = "exception.type"
EXCEPTION_MESSAGE: Final = "exception.message"
EXCEPTION_STACKTRACE: Final = "exception.stacktrace"

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
    ERROR_TYPE: "class of the exception that left the region",
    EXCEPTION_TYPE: "class of the exception, on the exception event",
    EXCEPTION_MESSAGE: "message of the exception, on the exception event",
    EXCEPTION_STACKTRACE: "formatted traceback, on the exception event",
}
