"""GPU memory is fragmented: enough of it is free, but no single block is large enough.

torch takes memory from the driver in segments and allocates tensors in them. Batches of constantly
changing shapes leave gaps between long-lived tensors, too small for the next one. The step then
fails although torch has reserved more than it uses.

Symptoms: "CUDA out of memory … is reserved by PyTorch but unallocated", with a large number before
it. torch prints that hint in every such message, whatever the cause.

To fix it, set ``PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True``, and pad inputs to fewer shapes.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.analysis import cuda_oom
from ddoctor.analysis.memory_fixes import expandable
from ddoctor.evidence.environment import Environment
from ddoctor.evidence.training import RankFlags, RankUse, TrainingRun
from ddoctor.models import Confidence, Finding, Fix, Severity

EXPLAINS = ("first-failure-masked",)

GIB = 2**30


def in_pieces(
    run: TrainingRun, environment: Environment | None, use: RankUse | None
) -> Iterator[Finding]:
    found = cuda_oom.of_kind(run, "pieces", environment=environment)
    if not found:
        return
    memory = found[0].memory
    flags = use.flags if use is not None else ()
    grow = expandable(environment, memory.unused)
    yield Finding(
        severity=Severity.ERROR,
        confidence=Confidence.LIKELY,
        because=(
            f"{cuda_oom.sentence(found[0], run)}; {memory.unused / GIB:.1f} of the "
            f"{(memory.allocated + memory.unused) / GIB:.1f} GiB that torch had reserved were "
            f"unused, in blocks that were too small{_shapes(found[0].rank.rank, flags)}"
        ),
        evidence=tuple(cuda_oom.observations(found[0])),
        where=cuda_oom.where(found),
        fixes=(*([grow] if grow is not None else []), _FEWER_SHAPES),
    )


def _shapes(rank: int, flags: tuple[RankFlags, ...]) -> str:
    number = next((one.input_shapes for one in flags if one.rank == rank), 0)
    return f"; its model received {number} different input shapes" if number > 1 else ""


_FEWER_SHAPES = Fix(
    summary="pad inputs to fewer different shapes",
    paste="tokenizer(..., padding=True, pad_to_multiple_of=64)  # or group samples by length",
    language="python",
)
