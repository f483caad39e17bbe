"""Errors of a GPU that has no memory left, as torch's allocator words them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ddoctor.evidence.training import RankEnding
from tests.training_run import raised

HINT = (
    "If reserved but unallocated memory is large try setting PYTORCH_ALLOC_CONF="
    "expandable_segments:True to avoid fragmentation.  See documentation for Memory Management  "
    "(https://docs.pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
)


def error(
    *,
    device: int = 0,
    wanted: str = "2.00 GiB",
    total: str = "79.15 GiB",
    free: str = "512.00 MiB",
    own: str | None = "78.60 GiB",
    others: Mapping[int, str] = {},
    allocated: str = "77.00 GiB",
    unused: str = "800.00 MiB",
    more: str = "",
) -> str:
    """As since torch 2.0. ``own``: of the process itself; None: the driver does not say."""
    held = [f"Process {pid} has {size} memory in use. " for pid, size in others.items()]
    if own is not None:
        held.append(f"Including non-PyTorch memory, this process has {own} memory in use. ")
    return (
        f"CUDA out of memory. Tried to allocate {wanted}. GPU {device} has a total capacity of "
        f"{total} of which {free} is free. {''.join(held)}{more}Of the allocated memory "
        f"{allocated} is allocated by PyTorch, and {unused} is reserved by PyTorch but "
        f"unallocated. {HINT}"
    )


# As until torch 1.13.
OLD = (
    "CUDA out of memory. Tried to allocate 20.00 MiB (GPU 1; 11.17 GiB total capacity; 10.62 GiB "
    "already allocated; 3.19 MiB free; 10.66 GiB reserved in total by PyTorch) If reserved memory "
    "is >> allocated memory try setting max_split_size_mb to avoid fragmentation."
)

PIECES = error(
    wanted="3.00 GiB", free="1.20 GiB", own="77.90 GiB", allocated="61.00 GiB", unused="16.40 GiB"
)
CROWDED = error(free="1.10 GiB", own="55.00 GiB", others={77: "23.00 GiB"}, allocated="54.00 GiB")
SENT_BY_RANKS = error(
    own="75.40 GiB",
    others={101: "1.10 GiB", 102: "1.10 GiB", 103: "1.00 GiB"},
    allocated="74.20 GiB",
)


def out_of_memory(number: int = 0, message: str = "", **fields: Any) -> RankEnding:
    """A rank that ended so."""
    return raised(number, "OutOfMemoryError", message or error(device=number), **fields)
