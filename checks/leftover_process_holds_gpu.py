"""A process left over from an earlier run still holds GPU memory.

When a launcher is killed, its workers may live on without a parent: they wait for ever in a
collective, and hold memory, ports and shared memory. The next run then fails with "CUDA out of
memory" on those GPUs, or with an address in use.

Seen from outside: ``nvidia-smi`` lists a python process that no terminal and no job owns.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.evidence.gpus import Gpu, GpuProcess, Gpus
from ddoctor.evidence.host import Kernel
from ddoctor.models import Confidence, Cost, Finding, Fix, Observation, Severity, Where

EXPLAINS = ("master-port-in-use", "uneven-gpu-memory")

GIB = 2**30

# A process that only has a context and torch's kernels takes about 1 GiB
# (https://github.com/pytorch/pytorch/issues/12873); twice that is somebody's work.
UNEXPLAINED = 2 * GIB


def orphan(gpus: Gpus) -> Iterator[Finding]:
    held: dict[int, list[tuple[Gpu, GpuProcess]]] = {}
    for gpu in gpus.answering:
        for process in gpu.processes or ():
            if process.holder == "orphan" and process.idle and not gpu.utilisation:
                held.setdefault(process.pid, []).append((gpu, process))
    for pid, places in held.items():
        process = places[0][1]
        memory = sum(one.memory or 0 for _, one in places) / GIB
        where = ", ".join(gpu.title for gpu, _ in places)
        yield Finding(
            severity=Severity.WARNING,
            confidence=Confidence.LIKELY,
            because=(
                f"process {pid} ({process.name}) holds {memory:.1f} GiB of {where}; it is yours, "
                "its parent is gone, and neither it nor the GPU did anything while being looked at"
            ),
            evidence=(
                Observation(
                    name=f"memory held by process {pid}",
                    value=round(memory, 1),
                    unit="GiB",
                    expected=0.0,
                    source="NVML and /proc",
                ),
            ),
            where=Where(devices=tuple(gpu.device for gpu, _ in places)),
            cost=Cost(value=round(memory, 1), unit="GiB"),
            fixes=(
                Fix(
                    summary="look at it, and end it if it is what an earlier run left behind",
                    paste=f"ps -o pid,ppid,lstart,cmd -p {pid}\nkill {pid}",
                    caution="a run of yours that only waits for others looks the same; kill -9 if "
                    "it does not go",
                ),
            ),
        )


def nobody(gpus: Gpus, kernel: Kernel | None) -> Iterator[Finding]:
    """Memory in use, no process to it: in a container that is somebody else's, so not judged."""
    if kernel is None or kernel.container:
        return
    for gpu in gpus.answering:
        if gpu.processes == () and gpu.memory_used >= UNEXPLAINED and not gpu.utilisation:
            held = gpu.memory_used / GIB
            yield Finding(
                severity=Severity.NOTE,
                confidence=Confidence.POSSIBLE,
                because=(
                    f"{held:.1f} GiB of {gpu.title} are in use and no process is shown for them: "
                    "one in a container, or one that died badly; fuser tells"
                ),
                where=Where(devices=(gpu.device,)),
                cost=Cost(value=round(held, 1), unit="GiB"),
                fixes=(
                    Fix(
                        summary="see who has the device open",
                        paste=f"sudo fuser -v /dev/nvidia{gpu.index}",
                        caution="if nobody has: sudo nvidia-smi --gpu-reset frees it",
                    ),
                ),
            )
