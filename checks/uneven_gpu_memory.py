"""Another process holds memory of some GPUs, so the ranks have unequal free memory.

All ranks of a run use the same batch size and shard size. The GPU with the least free memory limits
all of them. The run fails there with "CUDA out of memory" while the others have free memory.

Symptoms: ``nvidia-smi`` shows different memory use per GPU before the run starts. This check
ignores memory of your own live processes.

To fix it, ask the owner to end the process, or run without this GPU.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.analysis import cuda_oom, snapshot_failures
from ddoctor.analysis.cuda_oom import NOTABLE
from ddoctor.analysis.describe import GIB
from ddoctor.analysis.environment_fixes import without
from ddoctor.analysis.snapshot_failures import SnapshotFailures
from ddoctor.evidence.gpus import Gpu, GpuProcess, Gpus
from ddoctor.evidence.training import TrainingRun
from ddoctor.models import Confidence, Cost, Finding, Fix, Observation, Severity, Where

EXPLAINS = ("memory-headroom-low",)


def taken(gpus: Gpus) -> Iterator[Finding]:
    # What is printed may be of the run itself, whose ranks often use different amounts.
    if gpus.printed:
        return
    for gpu in gpus.answering:
        alike = gpus.alike(gpu)
        excess = _foreign(gpu) - min(map(_foreign, alike), default=_foreign(gpu))
        if excess < NOTABLE:
            continue
        free, room = gpu.memory_free / GIB, max(one.memory_free for one in alike) / GIB
        others = [one for one in gpu.processes or () if one.holder != "own"]
        seen = any(one.holder != "hidden" for one in others)
        pids = ",".join(str(one.pid) for one in others)
        yield Finding(
            severity=Severity.WARNING,
            confidence=Confidence.CERTAIN if seen else Confidence.LIKELY,
            because=(
                f"{gpu.title} has {free:.1f} GiB free, equal GPUs have {room:.1f}: "
                + ("; ".join(map(_who, others)) or "a process that is not visible here holds it")
            ),
            evidence=(
                Observation(
                    name=f"memory free on GPU {gpu.index}",
                    value=round(free, 1),
                    unit="GiB",
                    expected=round(room, 1),
                    source="equal GPUs of this host",
                ),
            ),
            where=Where(devices=(gpu.device,)),
            cost=Cost(value=round(excess / GIB, 1), unit="GiB"),
            fixes=(
                _ask_the_owner(
                    f"ps -o user,pid,lstart,cmd -p {pids}"
                    if pids
                    else f"sudo fuser -v /dev/nvidia{gpu.index}"
                ),
                without(gpus, gpu),
            ),
        )


def in_training(run: TrainingRun) -> Iterator[Finding]:
    found = cuda_oom.of_kind(run, "others")
    if not found:
        return
    memory = found[0].memory
    holders = [f"process {pid} held {size / GIB:.1f} GiB" for pid, size in memory.others.items()]
    if memory.unnamed >= NOTABLE:
        holders.append(
            f"processes that the driver does not list held {memory.unnamed / GIB:.1f} GiB"
        )
    pids = ",".join(map(str, memory.others))
    yield cuda_oom.finding(
        found,
        run,
        f"; {', '.join(holders)} of it",
        (
            _ask_the_owner(
                f"nvidia-smi\nps -o user,pid,lstart,cmd -p {pids}" if pids else "nvidia-smi"
            ),
        ),
        confidence=Confidence.CERTAIN if memory.others else Confidence.LIKELY,
        cost=sum(memory.others.values()) + memory.unnamed,
    )


def in_a_snapshot(failures: SnapshotFailures) -> Iterator[Finding]:
    if found := failures.of_kind("others"):
        memory, outside = found[0].memory, found[0].outside
        yield snapshot_failures.finding(
            found,
            f" of the {memory.reserved / GIB:.1f} GiB that it could reserve; another rank could "
            f"reserve {outside / GIB:.1f} GiB more: on an equal GPU, another process or another "
            "library holds it",
            (_ask_the_owner("nvidia-smi"),),
            cost=outside,
        )


def _foreign(gpu: Gpu) -> int:
    """Bytes that other users' processes use; 0 if NVML does not report the owners."""
    own = [one.memory for one in gpu.processes or () if one.holder == "own"]
    if gpu.mig or None in own or not gpu.memory_total:
        return 0
    return gpu.memory_used - sum(memory or 0 for memory in own)


def _who(process: GpuProcess) -> str:
    held = f"{process.memory / GIB:.1f} GiB" if process.memory is not None else "some memory"
    owner = f"({process.name}) of {process.user}"
    if process.holder == "hidden":
        owner = "(number of the host) of this or another container"
    return f"process {process.pid} {owner} holds {held}"


def _ask_the_owner(paste: str) -> Fix:
    return Fix(
        summary="find the owner of the process, and ask whether it is still needed",
        paste=paste,
        caution="do not end a process of another user",
    )
