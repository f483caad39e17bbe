"""What traces of torch's profiler tell in addition to the time of each step."""

from __future__ import annotations

from typing import Annotated

import msgspec

from ddoctor.evidence.frames import Frame
from ddoctor.evidence.section import Count, Part, Section


class SyncCall(Part, frozen=True, kw_only=True):
    """Calls that made the host wait for the GPU, of one operator at one line, in the judged
    steps."""

    operator: str
    """The outermost operator around them, such as ``aten::item``; empty: none."""
    call: str
    """Say ``cudaStreamSynchronize``."""
    line: Frame | None = None
    """The innermost user frame; None: the trace has no stacks."""
    calls: int
    blocked_seconds: float
    """Seconds of the host in them."""
    idle_seconds: float
    """Seconds for which the GPU had nothing to do after them, until the host's next launch."""


class RankTrace(Part, frozen=True, kw_only=True):
    """The judged steps of one rank; seconds and counts over all of them together."""

    rank: int
    workers: bool | None = None
    """Whether its DataLoader has workers; None: the trace shows no DataLoader."""
    kernels: int = 0
    """Number of kernels; 0: it uses no GPU."""
    late_launch_seconds: float = 0.0
    """Seconds for which the GPU had nothing to do, as the host launched the next kernel too late.
    Without those after a synchronising call, and those of the host in its loader."""
    syncs: tuple[SyncCall, ...] = ()
    """Those after which the GPU idles longest come first."""
    pageable_copies: int = 0
    """Number of copies from pageable host memory to the GPU."""
    pageable_bytes: int = 0
    pageable_seconds: float = 0.0
    """Seconds of these copies in which no kernel ran."""
    small_collectives: int = 0
    """Number of collectives below 1 MiB that are called outside the model and its backward pass."""
    small_bytes: int = 0
    small_seconds: float = 0.0
    """Seconds of their transfer in which nothing else ran."""


class Traces(Section, frozen=True, kw_only=True):
    """Traces of torch's profiler of one run."""

    commands = ("diagnose",)
    obtained_by = "ddoctor diagnose TRACE"

    files: tuple[str, ...]
    world: Count
    """Number of ranks of the run."""
    ranks: Annotated[tuple[RankTrace, ...], msgspec.Meta(min_length=1)]
    steps: int
    """Number of steps that all traces hold whole."""
