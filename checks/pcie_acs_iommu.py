"""PCIe switches or the IOMMU redirect the traffic between GPUs, or between GPU and network card.

Access Control Services of a PCIe switch, and an IOMMU that translates addresses, send what two
devices say to each other up to the CPU's root complex and down again. Peer-to-peer becomes slow,
and on some machines it hangs or delivers wrong data. Machines that hand devices to virtual machines
need both; machines that train on bare metal need neither.

Seen from outside: ``lspci -vvv | grep ACSCtl`` shows ``ReqRedir+``; ``dmesg`` shows IO_PAGE_FAULT;
NCCL_P2P_DISABLE=1 makes a hang go away (which proves it, and is not the repair).
"""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.evidence.gpus import Gpus
from ddoctor.evidence.host import Kernel
from ddoctor.evidence.network import Rdma
from ddoctor.evidence.probes import AllReduce, ProbeRuns
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity, Where

EXPLAINS = ("collective-slow-for-hardware", "gpu-p2p-broken")

SOURCE = "NCCL user guide, Troubleshooting, PCI Access Control Services"


def redirected_by_switches(kernel: Kernel, gpus: Gpus, rdma: Rdma | None) -> Iterator[Finding]:
    """ACS redirects at a port above a GPU, on a machine that is not virtual."""
    ports = kernel.acs_redirecting
    if not ports or kernel.virtual_machine or len(gpus.gpus) < 2:
        return
    by_switch = [pair for pair in gpus.peers or () if pair.path == "pcie-switch"]
    fabric = rdma is not None and bool(rdma.fabric)
    if by_switch:
        confidence, whom = Confidence.CERTAIN, f"{len(by_switch)} pairs of GPUs talk through them"
    elif fabric:
        confidence, whom = Confidence.LIKELY, "GPUs and network cards talk through them"
    elif gpus.peers is None:
        confidence = Confidence.POSSIBLE
        whom = "whether GPUs talk through them `nvidia-smi topo -m` settles (PIX, PXB)"
    else:
        return
    yield Finding(
        severity=Severity.WARNING,
        confidence=confidence,
        because=(
            f"ACS of {len(ports)} PCIe switch ports above GPUs ({', '.join(ports[:3])}"
            f"{', …' if len(ports) > 3 else ''}) redirects peer requests to the root; {whom}"
        ),
        evidence=(
            Observation(
                name="switch ports that redirect", value=len(ports), expected=0, source=SOURCE
            ),
        ),
        where=Where(devices=ports),
        fixes=(
            Fix(
                summary="switch ACS off at these ports, as root",
                paste=(
                    f"for port in {' '.join(ports)}; do\n"
                    "  setpci -s $port ECAP_ACS+0x6.w=0000\n"
                    "done"
                ),
                caution=(
                    "holds until the next boot; in the firmware's settings it is lasting; not on a "
                    "machine that hands these devices to virtual machines"
                ),
            ),
        ),
    )


def translated_by_the_iommu(
    kernel: Kernel, gpus: Gpus, runs: ProbeRuns | None, allreduce: AllReduce | None
) -> Iterator[Finding]:
    """A note: many machines train well so. A warning where the all-reduce went wrong besides."""
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
            + "; the all-reduce once with and once without NCCL_P2P_DISABLE=1 settles whether it "
            "harms"
        ),
        evidence=(
            Observation(
                name="IOMMU domain of the GPUs",
                value="translated",
                expected="passed through",
                source=SOURCE,
            ),
        ),
        fixes=(
            Fix(
                summary="let DMA pass through the IOMMU, as root, with a reboot",
                paste=(
                    "sed -i 's/^GRUB_CMDLINE_LINUX=\"/&iommu=pt /' /etc/default/grub\n"
                    "update-grub || grubby --update-kernel=ALL --args=iommu=pt\n"
                    "reboot"
                ),
                caution="devices may then reach all memory: a matter of trust in them",
            ),
            Fix(
                summary="settle it",
                paste=(
                    "ddoctor doctor --probe allreduce\n"
                    "NCCL_P2P_DISABLE=1 ddoctor doctor --probe allreduce"
                ),
            ),
        ),
    )
