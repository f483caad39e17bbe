"""The kernel has killed processes of a run because host memory ran out.

Optimizer states offloaded to the CPU, many DataLoader workers with large prefetch queues, Python
lists of samples that every worker copies piece by piece, or every rank loading the whole model: a
process dies with exit code -9, "Killed" or "DataLoader worker is killed by signal: Killed", and the
other ranks then wait for it.

Seen from outside: ``dmesg | grep -i 'killed process'``, and ``memory.events`` of the cgroup.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddoctor.evidence.gpus import KernelLog
from ddoctor.evidence.host import Kernel, Memory
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity

EXPLAINS = ("dead-rank",)

GIB = 2**30

# The names that interpreters, torch's threads and workers, and launchers have in the kernel log.
OF_A_RUN = re.compile(
    r"\((python[\d.]*|pt_main_thread|pt_data_\w+|torchrun|accelerate|deepspeed)\)"
)


def killed_in_cgroup(memory: Memory, kernel: Kernel | None) -> Iterator[Finding]:
    if memory.limit is None or not memory.kills_in_limit:
        return
    used = "" if memory.used_in_limit is None else f", {memory.used_in_limit / GIB:.1f} in use now"
    yield Finding(
        severity=Severity.NOTE,
        confidence=Confidence.LIKELY,
        because=(
            f"{memory.kills_in_limit} processes of this cgroup have been killed for memory since "
            f"it was made; its limit is {memory.limit / GIB:.1f} GiB of the machine's "
            f"{memory.total / GIB:.1f}{used}"
        ),
        evidence=(
            Observation(name="processes killed for memory", value=memory.kills_in_limit),
            Observation(name="memory limit", value=round(memory.limit / GIB, 1), unit="GiB"),
        ),
        fixes=(_FEWER_COPIES, _more(memory, kernel)),
    )


def killed_by_the_kernel(log: KernelLog) -> Iterator[Finding]:
    kills = [line for line in log.oom_kills if OF_A_RUN.search(line)]
    if not kills:
        return
    yield Finding(
        severity=Severity.NOTE,
        confidence=Confidence.POSSIBLE,
        because=(
            f"the kernel log since boot tells of {len(kills)} processes of a run killed for "
            f"memory, the last: {kills[-1]}; whether that was the run in question its time settles "
            "(`dmesg -T`)"
        ),
        evidence=(
            Observation(name="processes killed for memory", value=len(kills), source=log.source),
        ),
        fixes=(_FEWER_COPIES,),
    )


def _more(memory: Memory, kernel: Kernel | None) -> Fix:
    gib = memory.total // GIB
    if kernel is not None and kernel.container == "kubernetes":
        return Fix(
            summary="raise the memory limit of the container",
            paste=f"resources:\n  limits: {{memory: {gib}Gi}}\n",
            language="yaml",
            caution="or as much as the node can allocate",
        )
    if kernel is not None and kernel.engine:
        return Fix(
            summary="raise the memory limit, on the machine that runs the container",
            paste=f"{kernel.engine} update --memory={gib}g --memory-swap={gib}g CONTAINER",
        )
    return Fix(
        summary="ask the batch system for all memory of the node",
        paste="#SBATCH --mem=0",
    )


_FEWER_COPIES = Fix(
    summary="keep less in host memory",
    paste=(
        "DataLoader(..., num_workers=4, prefetch_factor=2)  # each worker holds its own batches\n"
        "samples = numpy.array(samples)  # a Python list is copied into every worker as it is read"
    ),
    language="python",
)
