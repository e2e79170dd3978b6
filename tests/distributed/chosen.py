"""Which programs of `worker_harmless` are tried in which way: for it, and for its test."""

from __future__ import annotations

__all__ = ["KINDS", "QUICK_PROGRAMS"]

# One of each kind of launch: in the library's way with two variants more.
KINDS = (
    "by_hand",
    "ddp_plain",
    "fsdp2",
    "tensor_parallel",
    "pipeline_1f1b",
    "distributed_tensors",
    "threads",
)
# Of the way that is not the library's choice here, less is tried. On a torch without hooks it is,
# and `pytest tests/distributed` tries all of it there.
QUICK_PROGRAMS = (
    *KINDS,
    "ddp_hook_own",
    "ddp_static_graph_reentrant",
    "fsdp1_full",
    "two_dimensions",
    "zero_optimizer",
)
