"""NCCL cannot allocate its buffers, because torch's caching allocator holds all GPU memory.

NCCL allocates from the driver, not from torch: some hundred MiB for each communicator. If torch has
reserved the whole GPU, a new process group, or its first collective, fails even if torch has much
unused memory.

Symptoms: "Failed to CUDA calloc", or ncclUnhandledCudaError with "out of memory".

To fix it, limit torch's share with ``set_per_process_memory_fraction``, or call
``torch.cuda.empty_cache()`` before a new process group.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddoctor.analysis import endings, log_events
from ddoctor.evidence.log import Log
from ddoctor.evidence.training import TrainingRun
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity, Where

EXPLAINS = ("dead-rank", "first-failure-masked", "script-error")

# nccl/src/include/alloc.h; "Cuda failure 2 'out of memory'" of its CUDACHECK, quoted by torch.
ALLOCATION = re.compile(
    r"Failed to CUDA (calloc|malloc)[^\n]*|Cuda failure (2 )?'out of memory'[^\n]*", re.IGNORECASE
)


def no_room(run: TrainingRun) -> Iterator[Finding]:
    found = [(one, error) for one in run.failures if (error := ALLOCATION.search(one.message))]
    if not found:
        return
    first, error = found[0]
    yield Finding(
        severity=Severity.ERROR,
        confidence=Confidence.CERTAIN,
        because=(
            f"NCCL found no free memory on the GPU of {endings.who(first)} "
            f"{endings.when(run, first)}{endings.at(first.place)}"
        ),
        evidence=(Observation(name="NCCL error", value=error[0]),),
        where=Where.of([one for one, _ in found], every=run.ranks),
        fixes=(
            Fix.python(
                summary="limit torch's share of the GPU memory, before the model is created",
                paste="torch.cuda.set_per_process_memory_fraction(0.97)",
                caution="one or two communicators need about 1 GB",
            ),
            Fix.python(
                summary="or free torch's unused memory before a new process group is created",
                paste="torch.cuda.empty_cache()",
                caution="not in the training loop: it waits for the GPU",
            ),
            Fix(
                summary="or use smaller NCCL buffers",
                paste="export NCCL_BUFFSIZE=1048576",
                environment=("NCCL_BUFFSIZE=1048576",),
                caution="a quarter of the default size: lowers the bandwidth",
            ),
        ),
    )


def in_a_log(log: Log) -> Iterator[Finding]:
    if event := log.first("nccl-alloc"):
        yield log_events.finding(
            [event],
            "no GPU memory was left for the buffers of NCCL: torch's allocator holds the rest",
            Fix.python(
                summary="leave about 1 GiB of the GPU to NCCL",
                paste="torch.cuda.set_per_process_memory_fraction(0.95)\n"
                "torch.cuda.empty_cache()  # before a new process group is first used",
            ),
        )
