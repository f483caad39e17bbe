"""Somebody else's process holds memory of some GPUs, so that equal ranks have unequal room.

All ranks of a run use the same batch and the same shards. The GPU with the least free memory
decides what fits, and the run dies there with "CUDA out of memory" while the others have room.

Seen from outside: ``nvidia-smi`` shows different memory in use before the run has started. Memory
that the user's own live processes hold is their own business and not judged here.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.analysis import cuda_oom
from ddoctor.analysis.cuda_oom import NOTABLE
from ddoctor.evidence.gpus import Gpu, GpuProcess, Gpus
from ddoctor.evidence.training import TrainingRun
from ddoctor.models import Confidence, Cost, Finding, Fix, Observation, Severity, Where

EXPLAINS = ("memory-headroom-low",)

GIB = 2**30


def taken(gpus: Gpus) -> Iterator[Finding]:
    for gpu in gpus.answering:
        alike = gpus.alike(gpu)
        excess = _foreign(gpu) - min(map(_foreign, alike), default=_foreign(gpu))
        if excess < NOTABLE:
            continue
        free, room = gpu.memory_free / GIB, max(one.memory_free for one in alike) / GIB
        strangers = [one for one in gpu.processes or () if one.holder != "own"]
        seen = any(one.holder != "hidden" for one in strangers)
        yield Finding(
            severity=Severity.WARNING,
            confidence=Confidence.CERTAIN if seen else Confidence.LIKELY,
            because=(
                f"{gpu.title} has {free:.1f} GiB free where its equals have {room:.1f}: "
                + ("; ".join(map(_who, strangers)) or "held by a process that cannot be seen here")
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
            fixes=tuple(_fixes(gpus, gpu, strangers)),
        )


def met_by_a_rank(run: TrainingRun) -> Iterator[Finding]:
    found = cuda_oom.of_kind(run, "others")
    if not found:
        return
    told = found[0].told
    who = [f"process {pid} held {size / GIB:.1f} GiB" for pid, size in told.others.items()]
    if told.unnamed >= NOTABLE:
        who.append(f"{told.unnamed / GIB:.1f} GiB were held by nobody that the driver names")
    pids = ",".join(map(str, told.others))
    yield Finding(
        severity=Severity.ERROR,
        confidence=Confidence.CERTAIN if told.others else Confidence.LIKELY,
        because=f"{cuda_oom.sentence(found[0], run)}; {', '.join(who)} of it",
        evidence=tuple(cuda_oom.observations(found[0])),
        where=cuda_oom.where(found),
        cost=Cost(value=round((sum(told.others.values()) + told.unnamed) / GIB, 1), unit="GiB"),
        fixes=(
            Fix(
                summary="see whose it is, and ask whether it is still needed",
                paste=f"nvidia-smi\nps -o user,pid,lstart,cmd -p {pids}" if pids else "nvidia-smi",
                caution="it is not yours to end",
            ),
        ),
    )


def _foreign(gpu: Gpu) -> int:
    """Bytes in use that are not the user's own; none where NVML does not tell whose they are."""
    own = [one.memory for one in gpu.processes or () if one.holder == "own"]
    if gpu.mig or None in own or not gpu.memory_total:
        return 0
    return gpu.memory_used - sum(memory or 0 for memory in own)


def _who(process: GpuProcess) -> str:
    held = f"{process.memory / GIB:.1f} GiB" if process.memory is not None else "some"
    if process.holder == "hidden":
        return (
            f"process {process.pid} of another container, or of this one by the host's number, "
            f"holds {held}"
        )
    return f"process {process.pid} ({process.name}) of {process.user} holds {held}"


def _fixes(gpus: Gpus, gpu: Gpu, strangers: list[GpuProcess]) -> Iterator[Fix]:
    pids = ",".join(str(one.pid) for one in strangers)
    look = (
        f"ps -o user,pid,lstart,cmd -p {pids}" if pids else f"sudo fuser -v /dev/nvidia{gpu.index}"
    )
    yield Fix(
        summary="ask its owner whether the process is still needed",
        paste=look,
        caution="it is not yours to end",
    )
    yield Fix(
        summary="or run without this GPU",
        paste=gpus.without(gpu),
        caution="start as many ranks as GPUs are left",
    )
