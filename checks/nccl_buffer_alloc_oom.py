"""NCCL finds no memory for its buffers, because torch's allocator holds all of it.

NCCL takes what it needs from the driver, not from torch: some hundred MiB for each communicator.
Where torch has reserved the whole GPU, a new process group, or the first collective of one, fails
though torch itself has plenty unused.

Seen from outside: "Failed to CUDA calloc", or ncclUnhandledCudaError with "out of memory".
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddoctor.analysis import endings
from ddoctor.evidence.training import TrainingRun
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity, Where

EXPLAINS = ("dead-rank", "first-failure-masked")

# nccl/src/include/alloc.h; "Cuda failure 2 'out of memory'" of its CUDACHECK, as torch quotes it.
ALLOCATION = re.compile(
    r"Failed to CUDA (calloc|malloc)[^\n]*|Cuda failure (2 )?'out of memory'[^\n]*", re.IGNORECASE
)


def no_room(run: TrainingRun) -> Iterator[Finding]:
    found = [(one, told) for one in run.failures if (told := ALLOCATION.search(one.message))]
    if not found:
        return
    first, told = found[0]
    place = endings.place(first.place)
    yield Finding(
        severity=Severity.ERROR,
        confidence=Confidence.CERTAIN,
        because=(
            f"NCCL found no memory on the GPU of {endings.who(first)} "
            f"{endings.when(run, first)}{f', at {place}' if place else ''}"
        ),
        evidence=(Observation(name="NCCL says", value=told[0]),),
        where=Where.of([one for one, _ in found], every=run.ranks),
        fixes=(
            Fix(
                summary="keep some of the GPU from torch's allocator, before the model is made",
                paste="torch.cuda.set_per_process_memory_fraction(0.97)",
                language="python",
                caution="about 1 GB is needed for each communicator or two",
            ),
            Fix(
                summary="give back what torch holds unused before a new process group is made",
                paste="torch.cuda.empty_cache()",
                language="python",
                caution="not in the loop: it waits for the GPU",
            ),
            Fix(
                summary="or smaller buffers for NCCL",
                paste="export NCCL_BUFFSIZE=1048576",
                environment=("NCCL_BUFFSIZE=1048576",),
                caution="a quarter of the default: less bandwidth",
            ),
        ),
    )
