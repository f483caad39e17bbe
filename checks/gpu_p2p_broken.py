"""Peer-to-peer access between GPUs does not work, although the hardware supports it.

Without peer-to-peer access NCCL copies all data through host memory, at a fraction of the
bandwidth. Programs that require it fail with "peer access is not supported between these two
devices". Consumer GPUs do not support it by design, which is not a finding.

Symptoms: ``nvidia-smi topo -p2p r`` shows something other than OK for some pairs.

To fix it, remove the kernel module parameter that disables it. ``NCCL_P2P_DISABLE=1`` is a slow
workaround.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddoctor.analysis import gpu_diagnostics, log_events
from ddoctor.analysis.describe import few
from ddoctor.analysis.environment_fixes import export
from ddoctor.evidence.gpus import Gpus, PeerPath
from ddoctor.evidence.log import Log, Messages
from ddoctor.evidence.printed import GpuDiagnostic
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity, Where

EXPLAINS = ("collective-slow-for-hardware", "dead-rank", "first-failure-masked", "script-error")
OF_MACHINE = True

SOURCE = "NVML API reference, nvmlDeviceGetP2PStatus"


def switched_off(gpus: Gpus) -> Iterator[Finding]:
    off = [pair for pair in gpus.peers or () if pair.read == "disabled_by_regkey"]
    if off:
        yield _finding(
            gpus,
            off,
            Confidence.CERTAIN,
            "is disabled by a parameter of the kernel module",
            Fix(
                summary="find and remove the parameter, and reload the module",
                paste="grep -r NVreg_RegistryDwords /etc/modprobe.d /proc/driver/nvidia/params",
                caution="it may be a workaround for a fault of this board",
            ),
        )


def odd_pairs(gpus: Gpus) -> Iterator[Finding]:
    """Pairs of equal GPUs with equal connections, where access works only for some."""
    names = {gpu.index: gpu.name for gpu in gpus.answering}
    groups: dict[tuple[str, str], list[PeerPath]] = {}
    for pair in gpus.peers or ():
        if names.get(pair.a) and names.get(pair.a) == names.get(pair.b):
            groups.setdefault((names[pair.a], pair.path), []).append(pair)
    for (_, path), pairs in groups.items():
        broken = [one for one in pairs if one.read not in ("ok", "disabled_by_regkey", "unknown")]
        sound = [one for one in pairs if one.read == "ok"]
        if broken and sound:
            yield _finding(
                gpus,
                broken,
                Confidence.LIKELY,
                f"fails ({broken[0].read.replace('_', ' ')}), but works for {len(sound)} pairs "
                f"with the same connection ({path})",
                Fix(
                    summary="show which pairs have peer-to-peer access, and how they are connected",
                    paste="nvidia-smi topo -p2p r\nnvidia-smi topo -m",
                ),
                export(
                    "NCCL_P2P_DISABLE=1",
                    "or copy through host memory, as a workaround",
                    "lowers the bandwidth between GPUs",
                ),
            )


def in_a_diagnostic(diagnostic: GpuDiagnostic, messages: Messages) -> Iterator[Finding]:
    """Tests of DCGM that fail with words of this cause."""
    yield from gpu_diagnostics.told(diagnostic, messages, "gpu-p2p-broken")


def in_a_log(log: Log) -> Iterator[Finding]:
    if event := log.first("p2p-off"):
        yield log_events.finding(
            [event],
            "these GPUs exchange data through the memory of the host",
            Fix(
                summary="see which pairs can, and why not",
                paste="nvidia-smi topo -p2p r; nvidia-smi topo -m",
                caution="GeForce cards never can; on others look for ACS and the IOMMU",
            ),
            severity=Severity.NOTE,
        )
        return
    if event := log.first("p2p-fault"):
        yield log_events.finding(
            [event],
            "these GPUs cannot read each other's memory, and the program expects that they can",
            Fix(
                summary="leave out peer-to-peer transfers",
                paste="export NCCL_P2P_DISABLE=1\nnvidia-smi topo -p2p r",
                caution="programs with custom all-reduce kernels have separate switches",
            ),
        )


def _finding(
    gpus: Gpus, pairs: Sequence[PeerPath], confidence: Confidence, what: str, *fixes: Fix
) -> Finding:
    named = few([f"{pair.a}-{pair.b}" for pair in pairs])
    indices = {index for pair in pairs for index in (pair.a, pair.b)}
    return Finding(
        severity=Severity.WARNING,
        confidence=confidence,
        because=f"peer-to-peer access of {len(pairs)} pairs of GPUs ({named}) {what}",
        evidence=(
            Observation(
                name="pairs without peer access", value=len(pairs), expected=0, source=SOURCE
            ),
        ),
        where=Where(devices=tuple(g.device for g in gpus.answering if g.index in indices)),
        fixes=fixes,
    )
