"""Ranks in a forward or backward pass of a sharded model, which is a collective of all ranks."""

from __future__ import annotations

from itertools import takewhile

from ddoctor.analysis.live_ranks import DISTRIBUTED, LiveRankState
from ddoctor.evidence.frames import Frame

# Seen with torch 2.13 (FSDP1, FSDP2); for DeepSpeed, the folder of ZeRO.
SHARDING = ("torch/distributed/fsdp/", "deepspeed/runtime/zero/")
CALLS_COLLECTIVES = (DISTRIBUTED, "deepspeed/")
# FSDP gathers elsewhere, too, say for a checkpoint.
PASSES = ("_call_impl", "_engine_run_backward")


def in_a_pass(rank: LiveRankState) -> bool:
    """Whether it waits in a collective that a sharded model itself calls in a pass."""

    def calls(frame: Frame) -> bool:
        return any(part in frame.file for part in CALLS_COLLECTIVES)

    callers = takewhile(calls, reversed(rank.seen.stack))
    sharding = any(part in frame.file for frame in callers for part in SHARDING)
    return sharding and any(map(is_a_pass, rank.seen.stack))


def is_a_pass(frame: Frame) -> bool:
    """Whether it is a call of a module, or of the backward pass."""
    return frame.bare in PASSES
