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

from ddoctor.analysis import cuda_oom, snapshot_failures
from ddoctor.analysis.describe import GIB
from ddoctor.analysis.memory_fixes import expandable
from ddoctor.analysis.snapshot_failures import SnapshotFailures
from ddoctor.evidence.printed_figures import AllocatorTable, PrintedMemory
from ddoctor.evidence.software import Environment
from ddoctor.evidence.training import RankUse, TrainingRun
from ddoctor.models import Confidence, Cost, Finding, Fix, Observation, Severity, Where

EXPLAINS = ("first-failure-masked",)
# torch's message speaks of a reserved size that is much larger than the allocated one.
MUCH = 0.2
# Less is the rounding of a few large segments.
NOTABLE = GIB
# Each empties the cache and waits for the GPU; a few are those of the first steps.
MANY_RETRIES = 10


def in_pieces(
    run: TrainingRun, environment: Environment | None, use: RankUse | None
) -> Iterator[Finding]:
    found = cuda_oom.of_kind(run, "pieces", environment=environment)
    if not found:
        return
    memory, rank = found[0].memory, found[0].rank.rank
    flags = use.flags if use is not None else ()
    shapes = next((one.input_shapes for one in flags if one.rank == rank), 0)
    grow = memory.expanding(environment)
    yield cuda_oom.finding(
        found,
        run,
        f"; {memory.unused / GIB:.1f} of the {(memory.allocated + memory.unused) / GIB:.1f} GiB "
        "that torch had reserved were unused, in blocks that were too small"
        + (f"; its model received {shapes} different input shapes" if shapes > 1 else ""),
        (*([grow] if grow is not None else []), _FEWER_SHAPES),
        confidence=(
            Confidence.LIKELY
            if memory.unused >= MUCH * (memory.allocated + memory.unused)
            else Confidence.POSSIBLE
        ),
    )


def in_a_snapshot(failures: SnapshotFailures) -> Iterator[Finding]:
    found = failures.of_kind("pieces")
    if not found:
        return
    memory = found[0].memory
    grow = None if memory.expandable else expandable(None, memory.usable)
    yield snapshot_failures.finding(
        found,
        f"; {memory.usable / GIB:.1f} of the {memory.reserved / GIB:.1f} GiB that torch had "
        f"reserved were unused, in blocks of at most {memory.largest_free / GIB:.2f} GiB",
        (*([grow] if grow is not None else []), _FEWER_SHAPES),
    )


def in_a_summary(
    printed: PrintedMemory, run: TrainingRun | None, environment: Environment | None
) -> Iterator[Finding]:
    """By the tables of the allocator, where no error has the figures of the moment itself."""
    if run is not None and any(cuda_oom.cases(run)):
        return
    wasted = [one for one in printed.tables if one.gap >= max(MUCH * one.reserved, NOTABLE)]
    failed = [one for one in wasted if one.failures]
    retried = [one for one in wasted if one.retries >= MANY_RETRIES]
    if failed or retried:
        yield _by_its_table(max(failed or retried, key=lambda one: one.gap), environment)


def _by_its_table(table: AllocatorTable, environment: Environment | None) -> Finding:
    count, what = (
        (table.failures, "memory ran out")
        if table.failures
        else (table.retries, "the allocator emptied its cache to try again")
    )
    # Whole unused segments would have been returned first.
    lies_between = table.failures > 0 and table.most_in_pieces >= table.gap
    grow = expandable(environment, table.gap)
    figures = {
        "reserved": table.reserved,
        "peak of allocated memory": table.most_allocated,
        "peak of unused memory in used blocks": table.most_in_pieces,
    }
    return Finding(
        severity=Severity.WARNING if table.failures else Severity.NOTE,
        confidence=Confidence.LIKELY if lies_between else Confidence.POSSIBLE,
        because=f"{table.place}: on GPU {table.device} {what} ({count}×), and "
        f"{table.gap / GIB:.1f} of the {table.reserved / GIB:.1f} GiB that torch had reserved "
        "were never allocated",
        evidence=tuple(
            Observation(name=name, value=round(size / GIB, 2), unit="GiB", source=table.place)
            for name, size in figures.items()
        ),
        where=Where(ranks=table.ranks, devices=(f"cuda:{table.device}",)),
        cost=Cost(value=round(table.gap / GIB, 2), unit="GiB"),
        fixes=(*([grow] if grow is not None else []), _FEWER_SHAPES),
    )


_FEWER_SHAPES = Fix.python(
    summary="pad inputs to fewer different shapes",
    paste="tokenizer(..., padding=True, pad_to_multiple_of=64)  # or group samples by length",
)
