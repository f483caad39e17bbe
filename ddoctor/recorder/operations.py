"""The watched collectives, by their numbers on the tape."""

from __future__ import annotations

from typing import Final

OPERATIONS: Final = (
    "DDP's gradient reduction",
    "DDP's buffer broadcast",
    "wait",
    "all_reduce",
    "broadcast",
    "all_gather",
    "all_gather_into_tensor",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "all_to_all",
    "all_to_all_single",
    "reduce",
    "gather",
    "scatter",
    "barrier",
    "monitored_barrier",
    "all_gather_object",
    "broadcast_object_list",
    "gather_object",
    "scatter_object_list",
    "send",
    "recv",
    # FSDP2's, since torch 2.13.
    "all_gather_single",
    "reduce_scatter_single",
)
DDP_REDUCE, DDP_BUFFERS, WAIT = range(3)
FIRST_FUNCTION: Final = 3
