"""A process left over from an earlier run still holds GPU memory.

When a launcher is killed, its workers may survive without a parent. They wait forever in a
collective, and hold memory, ports and shared memory. The next run then fails with "CUDA out of
memory" on those GPUs, or with "Address already in use".

Symptoms: ``nvidia-smi`` lists a python process that belongs to no terminal and no job.

To fix it, check the process with ``ps`` and end it with ``kill``.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.analysis import cuda_oom, log_events
from ddoctor.analysis.describe import GIB
from ddoctor.evidence.gpus import Gpu, GpuProcess, Gpus
from ddoctor.evidence.host import Kernel
from ddoctor.evidence.log import Log
from ddoctor.evidence.training import TrainingRun
from ddoctor.models import Confidence, Cost, Finding, Fix, Observation, Severity, Where

EXPLAINS = (
    "master-port-in-use",
    "uneven-gpu-memory",
    "dead-rank",
    "first-failure-masked",
    "script-error",
)

# A process that only has a context and torch's kernels takes about 1 GiB
# (https://github.com/pytorch/pytorch/issues/12873); twice that is real work.
UNEXPLAINED = 2 * GIB
# Of an idle GPU: the driver and firmware keep up to 6 % (17 of 288 GiB of an MI355X).
FREE = 0.9


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
                f"process {pid} ({process.name}) holds {memory:.1f} GiB of {where}; you own it, "
                "its parent has ended, and process and GPU were idle when sampled"
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
                    summary="inspect the process, and end it if an earlier run left it behind",
                    paste=f"ps -o pid,ppid,lstart,cmd -p {pid}\nkill {pid}",
                    caution="a live run that waits for other hosts looks the same; use kill -9 if "
                    "it does not end",
                ),
            ),
        )


def unknown_holder(gpus: Gpus, kernel: Kernel | None) -> Iterator[Finding]:
    """Memory in use without a process; skipped in containers, which hide other processes."""
    if kernel.container if kernel is not None else not gpus.printed:
        return
    for gpu in gpus.answering:
        if gpu.processes == () and gpu.memory_used >= UNEXPLAINED and not gpu.utilisation:
            held = gpu.memory_used / GIB
            yield Finding(
                severity=Severity.NOTE,
                confidence=Confidence.POSSIBLE,
                because=(
                    f"{held:.1f} GiB of {gpu.title} are in use, but the driver lists no process; "
                    "`fuser` shows one in a container, or one that crashed"
                ),
                where=Where(devices=(gpu.device,)),
                cost=Cost(value=round(held, 1), unit="GiB"),
                fixes=(
                    Fix(
                        summary="list the processes that have the device open",
                        paste=f"sudo fuser -v /dev/nvidia{gpu.index}",
                        caution="if there is none, sudo nvidia-smi --gpu-reset frees the memory",
                    ),
                ),
            )


def before_an_engine(log: Log) -> Iterator[Finding]:
    for one in log.of("engine-memory-taken")[:1]:
        free, total = int(one.values["free"]), int(one.values["total"])
        if free > FREE * total:
            continue
        yield log_events.finding(
            [one],
            f"only {free} of {total} GiB were free before the engine had allocated anything",
            Fix(
                summary="see which process holds the GPU, and end it if it is left over",
                paste="nvidia-smi --query-compute-apps=pid,used_memory --format=csv",
            ),
        )


def refused(log: Log) -> Iterator[Finding]:
    """In the compute mode EXCLUSIVE_PROCESS, a GPU takes one process."""
    if event := log.first("device-busy"):
        yield log_events.finding(
            [event],
            "CUDA found no GPU that it may use: where a GPU takes one process at a time, a process "
            "of another job, of an earlier run, or of another rank is on it",
            Fix(
                summary="see the mode of the GPUs, and which processes are on them",
                paste="nvidia-smi --query-gpu=index,compute_mode --format=csv; nvidia-smi",
                caution="in the mode Exclusive_Process, each rank must use its own GPU alone",
            ),
            confidence=Confidence.POSSIBLE,
        )


def in_a_log(run: TrainingRun) -> Iterator[Finding]:
    found = cuda_oom.of_kind(run, "others") if run.only_told else ()
    if found:
        pids = " ".join(str(pid) for pid in found[0].memory.others)
        yield cuda_oom.finding(
            found,
            run,
            "; the rest was in use by another process, left over or of another job",
            (
                Fix(
                    summary="see whose process it is, and end it if it is left over",
                    paste=f"ps -o pid,user,lstart,args -p {pids or 'PID'}; fuser -v /dev/nvidia*",
                ),
            ),
            confidence=Confidence.LIKELY,
        )
