"""The lines of a plan's report on the host memory of loading and saving the weights."""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.evidence.plan import HostPeaks, Plan

GB = 1e9


def lines(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield label and text of each line; nothing if they are not known."""
    found = plan.host_peaks
    if found is None:
        return
    yield "loading", _loading(found, plan.host_memory)
    if found.saving:
        yield (
            "saving",
            f"a full state dict takes {found.saving / GB:.1f} GB of host memory on rank 0; "
            "a sharded one is saved from the GPUs",
        )


def _loading(found: HostPeaks, memory: int | None) -> str:
    each, whole = found.loading / GB, found.ranks * found.loading
    copies = f"each rank holds {each:.1f} GB of host memory"
    if found.ranks > 1:
        copies += (
            f", {whole / GB:.1f} GB on {found.ranks} ranks, or {each:.1f} if rank 0 loads alone"
        )
    if memory is not None and whole > memory:
        copies += f"; the host has {memory / GB:.1f} GB"
    if found.mapped:
        return f"bf16 safetensors are mapped without a copy; from other files {copies}"
    return f"as fp32, {copies}"
