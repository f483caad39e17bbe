"""What DeepSpeed's offloading moves between the GPU and its host."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddoctor import knowledge
from ddoctor.evidence.known_hardware import Links
from ddoctor.evidence.plan import PlanRow
from ddoctor.forecast.closed_form import COMPUTING, Model
from ddoctor.forecast.devices import PlannedGpu
from ddoctor.forecast.optimizers import FLOAT


def moved(model: Model, row: PlanRow) -> float:
    """Return bytes of a step over PCIe, to and from each GPU; 0: it offloads nothing by DeepSpeed.

    Sources: stage_1_and_2.py, copy_grads_in_partition and step; stage3.py, partition_grads and
    _reassign_or_swap_out_partitioned_parameters; partition_parameters.py, all_gather_coalesced.
    """
    if not (row.offloads and row.strategy.startswith("zero")):
        return 0.0
    weight, share = COMPUTING[model.precision], model.trainable / row.gpus
    turns = row.accumulation
    # After the last micro-batch, gradients go to the host in fp32.
    if row.strategy == "zero-2-offload":
        # Those of several micro-batches are summed on the GPU, and kept in host memory.
        added = weight * (2 * turns - 1) if turns > 1 else 0
        return (FLOAT + added + weight) * share
    # Stage 3 keeps each micro-batch's in host memory, and takes them back for the cast to fp32.
    gradients = (FLOAT + 2 * weight * turns) * share
    if row.strategy == "zero-3-offload":
        return gradients + weight * share
    # Each pass takes the weights from the host.
    return gradients + 2 * turns * weight * model.parameters / row.gpus


def told(model: Model, device: PlannedGpu, rows: Sequence[PlanRow]) -> Iterator[str]:
    """Yield what offloading adds to a step, whose time is not known: that of the CPU is not."""
    kinds = {one.generation: one for one in knowledge.load(Links).pcie}
    kind = kinds.get(device.model.pcie or 0) if device.model is not None else None
    offloaded = [one for one in rows if moved(model, one)]
    if kind is None or not offloaded:
        return
    row = min(offloaded, key=lambda one: moved(model, one))
    size = moved(model, row)
    yield (
        f"to the host {kind.planned:.0f} GB/s (PCIe {kind.generation}): {row.title} moves "
        f"{size / 1e9:.1f} GB per step in about {size / kind.planned / 1e9:.2g} s, and the "
        "optimizer's step on the CPU comes on top"
    )
