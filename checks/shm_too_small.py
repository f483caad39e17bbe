"""Shared memory (/dev/shm) is too small for NCCL and DataLoader workers.

NCCL's shared-memory transport and every DataLoader worker pass data through /dev/shm. Docker gives
a container only 64 MiB by default. The run then fails, often only with the first large batch.

Symptoms: "No space left on device", "Bus error" or "unable to open shared memory object", and a
small size in ``df -h /dev/shm`` inside the container.

To fix it, start the container with ``--shm-size``, or mount a memory-backed volume at /dev/shm.
"""

# Above 150 lines: manifests, this machine, and logs.

from __future__ import annotations

import re
from collections.abc import Iterator

from ddoctor.analysis import log_events
from ddoctor.analysis.describe import GIB, MIB
from ddoctor.analysis.launch_plan import WORKERS
from ddoctor.evidence.host import Kernel, Memory, SharedMemory
from ddoctor.evidence.launch import Launch
from ddoctor.evidence.log import Log
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity

EXPLAINS = (
    "dead-rank",
    "first-failure-masked",
    "script-error",
    "disk-full-or-slow",
    "network-unreachable",
)

# Reports of this failure have Docker's default of 64 MiB in common
# (https://github.com/NVIDIA/nccl/issues/342); four times that is still too small for 8 GPUs.
FAILS_BELOW = 256 * MIB
# NCCL's user guide recommends --shm-size=1g in containers
# (https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html).
LOW_BELOW = GIB
# Ample for a node, but at most half of the memory, as in Linux's default (tmpfs(5)).
AMPLE = 16 * GIB
QUANTITIES = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}
FAILURES = ("shm-segment", "shm-worker", "shm-full", "bus-error")
"""Lines of a log about a segment that does not fit."""


def in_a_manifest(launch: Launch) -> Iterator[Finding]:
    """A pod has 64 MiB, unless it mounts a volume at /dev/shm."""
    gpus, workers, kind = launch.get("gpus-per-host"), launch.get(*WORKERS), launch.get("kind")
    mounted = launch.get("shm")
    enough = mounted is not None and not _is_small(mounted.value)
    if kind is None or gpus is None or enough or launch.on("host-ipc"):
        return
    # The runtime that it names may have volumes, too.
    partly = kind.value == "TrainJob"
    loads = workers is not None and (workers.number or 0) > 0
    if (gpus.number or 0) < 2 and not loads:
        return
    reason = f"{workers.value} loader workers ({workers.at})" if loads and workers else "NCCL"
    yield Finding(
        severity=Severity.NOTE if partly else Severity.WARNING,
        confidence=Confidence.POSSIBLE if partly else Confidence.LIKELY,
        because=f"the pod asks for {gpus.value} GPUs ({gpus.at}) and mounts "
        + (
            f"{mounted.value} ({mounted.at}) at /dev/shm"
            if mounted is not None
            else "nothing at /dev/shm, which then has 64 MiB"
        )
        + f", and {reason} share memory there"
        + ("; its runtime may do so" if partly and mounted is None else ""),
        evidence=(
            Observation(
                name="volume at /dev/shm",
                value=mounted.value if mounted is not None else "none",
                source=kind.file,
            ),
        ),
        fixes=(
            Fix(
                summary="mount memory at /dev/shm; it counts towards the pod's memory limit",
                paste="volumes:\n- name: shm\n  emptyDir: {medium: Memory, sizeLimit: 16Gi}\n"
                "# and in the container:\nvolumeMounts:\n- {name: shm, mountPath: /dev/shm}",
                language="text",
            ),
        ),
    )


def _is_small(size: str) -> bool:
    """Whether a quantity of Kubernetes is below what NCCL's guide asks for in containers."""
    found = re.fullmatch(r"(\d{1,12})(Ki|Mi|Gi|k|M|G|)", size.strip())
    return found is not None and int(found[1]) * QUANTITIES[found[2]] < LOW_BELOW


def too_small(
    shared_memory: SharedMemory, kernel: Kernel | None, memory: Memory | None, log: Log | None
) -> Iterator[Finding]:
    size = shared_memory.size
    if size >= LOW_BELOW:
        return
    failed = log.of(*FAILURES) if log is not None else ()
    # What was printed need not be of the container that trains.
    fails = bool(failed) or (size < FAILS_BELOW and not shared_memory.printed)
    half = AMPLE if memory is None else (memory.limit or memory.total) // 2
    wanted = max(GIB, min(AMPLE, half)) // GIB
    yield Finding(
        severity=Severity.ERROR if fails else Severity.WARNING,
        confidence=Confidence.CERTAIN if fails and size < FAILS_BELOW else Confidence.LIKELY,
        because=(
            f"{shared_memory.path} has {size / MIB:.0f} MiB, but NCCL with DataLoader workers "
            f"needs at least {LOW_BELOW / MIB:.0f} MiB"
            + (f"; {failed[0].place} shows that it was full" if failed else "")
        ),
        evidence=(
            Observation(
                name=f"size of {shared_memory.path}",
                value=round(size / MIB),
                unit="MiB",
                expected=LOW_BELOW // MIB,
                source="NCCL user guide, Troubleshooting",
            ),
            *log_events.lines(failed),
        ),
        fixes=(_fix(kernel, wanted),),
    )


def in_a_log(log: Log, hosts: tuple[SharedMemory, ...] | None) -> Iterator[Finding]:
    events = log.of(*FAILURES)
    if not events and log.of("memory-files"):
        # It writes nothing else there.
        events = log.of("disk-full")
    if any(one.size < LOW_BELOW for one in hosts or ()):
        return  # told with the size
    if events:
        yield log_events.finding(
            events,
            "a segment in /dev/shm could not be made or written, because the file system is full",
            Fix(
                summary="start the container with more shared memory",
                paste=f"docker run --shm-size={AMPLE // GIB}g …",
                caution="in Kubernetes, mount an emptyDir with medium: Memory at /dev/shm",
            ),
            _fix(None, AMPLE // GIB),
        )


def _fix(kernel: Kernel | None, gib: int) -> Fix:
    if kernel is not None and kernel.container == "kubernetes":
        return Fix(
            summary="mount a memory-backed volume at /dev/shm",
            paste=(
                "volumes:\n"
                "  - name: shm\n"
                f"    emptyDir: {{medium: Memory, sizeLimit: {gib}Gi}}\n"
                "volumeMounts:\n"
                "  - {name: shm, mountPath: /dev/shm}\n"
            ),
            language="yaml",
            caution="its use counts against the memory limit of the pod",
        )
    if kernel is not None and kernel.engine:
        return Fix(
            summary="start a new container with more shared memory",
            paste=f"{kernel.engine} run --shm-size={gib}g …",
            caution="or --ipc=host, which shares the host's whole /dev/shm with the container",
        )
    return Fix(
        summary="enlarge /dev/shm, as root",
        paste=f"mount -o remount,size={gib}G /dev/shm",
        caution="uses host memory as it fills; add the size to /etc/fstab to keep it",
    )
