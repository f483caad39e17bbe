"""A workaround that switches off a fast path is still set, though the path works here.

Variables such as NCCL_P2P_DISABLE=1, NCCL_IB_DISABLE=1 or CUDA_LAUNCH_BLOCKING=1 help to find an
error. They get copied from a forum into a start script, and stay there. The run works, but slower.
NCCL's guide says that they "should generally not be set for production code".

ddoctor reports this only if the run would really use the path: peer-to-peer that works according to
the driver, an RDMA device with an active port, or an NVSwitch fabric that is up.

To see them, run ``env | grep -E 'NCCL|CUDA'``, and read NCCL's files ``~/.nccl.conf`` and
``/etc/nccl.conf``. To fix it, unset them.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.analysis.environment_fixes import MEASURE, for_one_run, left_set
from ddoctor.analysis.script_source import own_variables, shown
from ddoctor.analysis.variable_values import holds
from ddoctor.evidence.gpus import Gpus
from ddoctor.evidence.host import SharedMemory
from ddoctor.evidence.known_software import KnownVariables, Stopgap
from ddoctor.evidence.network import Rdma
from ddoctor.evidence.script import Script
from ddoctor.evidence.software import Environment
from ddoctor.models import Confidence, Finding, Observation, Severity

EXPLAINS = ("collective-slow-for-hardware", "rdma-not-used-tcp-fallback", "slow-network-link")

# Below it NCCL fails anyway (checks/shm_too_small.py), and the workaround may keep the run alive.
SHARED_MEMORY_WORKS = 2**30
# NVLink SHARP needs the third generation of NVSwitch, which is new in Hopper (NCCL 2.17).
NVLS_SINCE = (9, 0)


def switched_off(
    environment: Environment,
    known: KnownVariables,
    gpus: Gpus | None,
    rdma: Rdma | None,
    shared_memory: SharedMemory | None,
) -> Iterator[Finding]:
    for stopgap in known.stopgaps:
        works = _works(stopgap, gpus, rdma, shared_memory)
        if works and not (stopgap.unless and environment.any_with(stopgap.unless)):
            more = f"; {works}{MEASURE}"
            yield from left_set(environment, known, stopgap, Confidence.LIKELY, more)


def in_the_source(
    script: Script,
    known: KnownVariables,
    environment: Environment | None,
    gpus: Gpus | None,
    rdma: Rdma | None,
    shared_memory: SharedMemory | None,
) -> Iterator[Finding]:
    """One that the script sets itself, whatever its options are."""
    own = own_variables(script, environment)
    for stopgap in known.stopgaps:
        value, at = own.get(stopgap.name, ("", None))
        works = _works(stopgap, gpus, rdma, shared_memory)
        needed = stopgap.unless and any(name.startswith(stopgap.unless) for name in own)
        if (
            at is None
            or not works
            or needed
            or not holds(known, stopgap.name, value, stopgap.values)
        ):
            continue
        yield Finding(
            severity=Severity(stopgap.severity),
            confidence=Confidence.LIKELY,
            because=f"{shown(at)} sets {stopgap.name}={value}, which {stopgap.effect}; {works}"
            f"{MEASURE}",
            evidence=(
                Observation(name=stopgap.name, value=value, expected="not set", source=at.place),
            ),
            fixes=(for_one_run(stopgap.name, value),),
        )


def _works(
    stopgap: Stopgap, gpus: Gpus | None, rdma: Rdma | None, shared_memory: SharedMemory | None
) -> str:
    """The evidence that the disabled path would work here; empty: none."""
    peers = gpus.peers if gpus is not None else None
    count = len(gpus.gpus) if gpus is not None else 0
    all_peers_sound = bool(peers) and all(pair.read == "ok" for pair in peers or ())
    active = [device.name for device in rdma.devices if device.active] if rdma is not None else []
    named = ", ".join(active)
    match stopgap.path:
        case "p2p" if all_peers_sound:
            return f"peer-to-peer works between all {count} GPUs, according to the driver"
        case "shm" if (
            count > 1
            and peers
            and not all_peers_sound
            and all(pair.read != "unknown" for pair in peers)
            and shared_memory is not None
            and shared_memory.size >= SHARED_MEMORY_WORKS
        ):
            size = shared_memory.size / 2**30
            return f"{count} GPUs without peer-to-peer would use {size:.0f} GiB of /dev/shm"
        case "nvls" if gpus is not None and _has_nvls(gpus):
            return f"all {count} GPUs are on NVSwitches whose fabric is up"
        case "rdma" if active:
            return f"RDMA has an active port on {named}"
        case "gdr" if active and rdma is not None and (rdma.peer_memory or rdma.dma_buf):
            how = rdma.peer_memory or "DMA-BUF"
            return f"{named} is active, and {how} gives it access to GPU memory"
        case "gpu" if count:
            return f"this host has {count} GPUs"
    return ""


def _has_nvls(gpus: Gpus) -> bool:
    return len(gpus.gpus) > 1 and all(
        gpu.capability is not None
        and gpu.capability >= NVLS_SINCE
        and gpu.fabric_state == "completed"
        and any(link.remote == "switch" for link in gpu.nvlinks or ())
        for gpu in gpus.gpus
    )
