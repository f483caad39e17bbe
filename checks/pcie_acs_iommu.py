"""PCIe ACS or the IOMMU redirects peer-to-peer traffic of GPUs through the CPU.

Access Control Services (ACS) of a PCIe switch send traffic between two devices up to the CPU's root
complex and back. So does an IOMMU that translates addresses. Peer-to-peer traffic gets slow. On
some machines it hangs or corrupts data. Only machines that pass devices to virtual machines need
ACS and the IOMMU; bare-metal training needs neither.

Symptoms: ``lspci -vvv | grep ACSCtl`` shows ``ReqRedir+``, or ``dmesg`` shows IO_PAGE_FAULT. A hang
disappears with NCCL_P2P_DISABLE=1, which confirms the cause but is not a fix.

To fix it, disable ACS at these ports with ``setpci``, or boot with ``iommu=pt``.
"""

# Above 150 lines: switches, the IOMMU, a measurement and logs show it, each with its own fix.

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.analysis import log_events
from ddoctor.analysis.describe import few
from ddoctor.evidence.gpus import Gpus
from ddoctor.evidence.host import Kernel
from ddoctor.evidence.log import Log
from ddoctor.evidence.network import Rdma
from ddoctor.evidence.printed import PeerBandwidth
from ddoctor.evidence.probes import AllReduce, ProbeRuns
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity, Where

EXPLAINS = (
    "collective-slow-for-hardware",
    "gpu-p2p-broken",
    "dead-rank",
    "first-failure-masked",
    "script-error",
)

# Direct copies avoid the host's memory, which halves the traffic there: they are never this slow.
SLOWER = 0.5

SOURCE = "NCCL user guide, Troubleshooting, PCI Access Control Services"


def redirected_by_switches(kernel: Kernel, gpus: Gpus, rdma: Rdma | None) -> Iterator[Finding]:
    """ACS redirects traffic at a port above a GPU, on bare metal."""
    ports = kernel.acs_redirecting
    if not ports or kernel.virtual_machine or len(gpus.gpus) < 2:
        return
    by_switch = [pair for pair in gpus.peers or () if pair.path == "pcie-switch"]
    fabric = rdma is not None and bool(rdma.fabric)
    if by_switch:
        confidence, users = (
            Confidence.CERTAIN,
            f"{len(by_switch)} pairs of GPUs communicate through them",
        )
    elif fabric:
        confidence, users = Confidence.LIKELY, "GPUs and network cards communicate through them"
    elif gpus.peers is None:
        confidence = Confidence.POSSIBLE
        users = "`nvidia-smi topo -m` shows whether GPUs communicate through them (PIX, PXB)"
    else:
        return
    yield Finding(
        severity=Severity.WARNING,
        confidence=confidence,
        because=(
            f"ACS of {len(ports)} PCIe switch ports above GPUs ({few(ports, 3)}) redirects peer "
            f"requests to the root complex; {users}"
        ),
        evidence=(
            Observation(
                name="switch ports that redirect", value=len(ports), expected=0, source=SOURCE
            ),
        ),
        where=Where(devices=ports),
        fixes=(
            Fix(
                summary="disable ACS at these ports, as root",
                paste=(
                    f"for port in {' '.join(ports)}; do\n"
                    "  setpci -s $port ECAP_ACS+0x6.w=0000\n"
                    "done"
                ),
                caution=(
                    "lasts until the next boot; disable ACS in the firmware to keep it; not on a "
                    "machine that passes these devices to virtual machines"
                ),
            ),
        ),
    )


def translated_by_the_iommu(
    kernel: Kernel, gpus: Gpus, runs: ProbeRuns | None, allreduce: AllReduce | None
) -> Iterator[Finding]:
    """A note, since many machines train well so; a warning if the all-reduce also failed."""
    translates = kernel.iommu_groups and kernel.iommu_passthrough is False
    if not translates or kernel.virtual_machine or len(gpus.gpus) < 2:
        return
    hung = any(
        run.probe == "allreduce" and run.outcome == "hung" for run in (runs.runs if runs else ())
    )
    wrong = allreduce is not None and bool(allreduce.wrong)
    trouble = "hung" if hung else "returned wrong values" if wrong else ""
    yield Finding(
        severity=Severity.WARNING if trouble else Severity.NOTE,
        confidence=Confidence.POSSIBLE,
        because=(
            f"the IOMMU translates the DMA of {len(gpus.gpus)} GPUs on bare metal"
            + (f", and the all-reduce {trouble}" if trouble else "")
            + "; the all-reduce probe with and without NCCL_P2P_DISABLE=1 would show whether "
            "this is the cause"
        ),
        evidence=(
            Observation(
                name="IOMMU domain of the GPUs",
                value="translated",
                expected="passthrough",
                source=SOURCE,
            ),
        ),
        fixes=(
            Fix(
                summary="set the IOMMU to passthrough, as root, with a reboot",
                paste=(
                    "sed -i 's/^GRUB_CMDLINE_LINUX=\"/&iommu=pt /' /etc/default/grub\n"
                    "update-grub || grubby --update-kernel=ALL --args=iommu=pt\n"
                    "reboot"
                ),
                caution="all devices can then access all memory, so they must be trusted",
            ),
            Fix(
                summary="run the all-reduce probe with and without peer-to-peer",
                paste=(
                    "ddoctor doctor --probe allreduce\n"
                    "NCCL_P2P_DISABLE=1 ddoctor doctor --probe allreduce"
                ),
            ),
        ),
    )


def slower_with_peer_access(measured: PeerBandwidth) -> Iterator[Finding]:
    """By CUDA's own sample: the direct way between two GPUs is the slower one."""
    slow = [one for one in measured.pairs if one.direct < SLOWER * one.through_host]
    if not slow:
        return
    worst = min(slow, key=lambda one: one.direct / one.through_host)
    yield Finding(
        severity=Severity.WARNING,
        confidence=Confidence.LIKELY,
        because=(
            f"copies between {len(slow)} of {len(measured.pairs)} pairs of GPUs are slower with "
            f"peer access than through the host: {worst.direct:.3g} GB/s instead of "
            f"{worst.through_host:.3g} from GPU {worst.a} to GPU {worst.b}; something redirects "
            "or translates direct transfers"
        ),
        evidence=(
            Observation(
                name=f"GPU {worst.a} to GPU {worst.b}, with peer access",
                value=worst.direct,
                unit="GB/s",
                expected=worst.through_host,
                source="p2pBandwidthLatencyTest",
            ),
        ),
        where=Where(hosts=(measured.host,) if measured.host else ()),
        fixes=(
            Fix(
                summary="find out which of the two it is",
                paste="sudo lspci -vvv | grep -E 'ACSCtl.*ReqRedir\\+'; "
                "dmesg | grep -iE 'iommu|IO_PAGE_FAULT' | head",
            ),
            _PASS_THROUGH,
        ),
    )


def in_a_log(log: Log) -> Iterator[Finding]:
    if event := log.first("iommu-fault", "iommu-mode"):
        fault = event.pattern == "iommu-fault"
        yield log_events.finding(
            [event],
            "the IOMMU refused a transfer of a device, as between two GPUs"
            if fault
            else "the IOMMU translates the transfers of devices, which may hang between GPUs",
            _PASS_THROUGH,
            severity=Severity.ERROR if fault else Severity.WARNING,
        )
    elif refused := log_events.refused_access(log):
        yield log_events.finding(
            refused[:1],
            f"an adapter was refused access to memory (status {refused[0].values['status']}), as "
            "to that of a GPU whose traffic ACS or the IOMMU sends elsewhere",
            Fix(
                summary="find the ports that redirect, and disable ACS there",
                paste="sudo lspci -vvv | grep -E '^[0-9a-f]|ReqRedir\\+' | grep -B1 ReqRedir\n"
                "sudo setpci -s PORT ECAP_ACS+0x6.w=0000",
                caution="it is this, if the run passes with NCCL_NET_GDR_LEVEL=LOC",
            ),
            confidence=Confidence.POSSIBLE,
        )


_PASS_THROUGH = Fix(
    summary="let the IOMMU pass transfers through, and restart the machine",
    paste="sudo grubby --update-kernel=ALL --args='iommu=pt' && sudo reboot",
    caution="or add iommu=pt to GRUB_CMDLINE_LINUX, then run update-grub",
)
