"""GPUDirect RDMA is off, because no kernel module lets the network card read GPU memory.

GPUDirect RDMA needs the nvidia_peermem module (or the older nv_peer_mem), or DMA-BUF. DMA-BUF needs
the open NVIDIA kernel modules and Linux 5.12 or later. Without both, NCCL copies all inter-node
traffic through host memory. That costs CPU memory bandwidth and up to half of the network
bandwidth.

Symptoms: "NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'" with NCCL_DEBUG=INFO, and no
"/GDRDMA" after "via NET/IB". One such node slows down the whole job.

To fix it, load nvidia_peermem on every node.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.analysis import log_events
from ddoctor.evidence.gpus import Gpus
from ddoctor.evidence.log import Log
from ddoctor.evidence.network import Rdma, Rendezvous
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity, Where

EXPLAINS = (
    "collective-slow-for-hardware",
    "slow-network-link",
    "communication-bound-step",
    "dead-rank",
    "first-failure-masked",
    "script-error",
)

# GPUDirect RDMA is a feature of data centre and professional GPUs
# (https://docs.nvidia.com/cuda/gpudirect-rdma/, "Supported Systems").
WITHOUT_IT = ("GeForce", "TITAN")


def missing(rdma: Rdma, gpus: Gpus, rendezvous: Rendezvous | None) -> Iterator[Finding]:
    # The EFA driver has built-in support.
    names = tuple(device.name for device in rdma.fabric if device.driver != "efa")
    able = [gpu for gpu in gpus.gpus if not any(word in gpu.name for word in WITHOUT_IT)]
    # An unknown state (None) is not a finding.
    if not names or not able or rdma.peer_memory is not None or rdma.dma_buf is not False:
        return
    matters = rdma.between_nodes or bool(rendezvous and rendezvous.several_nodes)
    yield Finding(
        severity=Severity.WARNING if matters else Severity.NOTE,
        confidence=Confidence.LIKELY,
        because=(
            f"the host has {len(able)} GPUs and {len(names)} active RDMA devices, but "
            f"nvidia_peermem is not loaded, and DMA-BUF is not available: "
            f"{rdma.dma_buf_reason}; the NCCL log line "
            '"GPU Direct RDMA Disabled" would confirm it'
        ),
        where=Where(devices=names),
        evidence=(
            Observation(
                name="peer memory module",
                value="none",
                expected="nvidia_peermem",
                source="/sys/module, /sys/kernel/mm/memory_peers",
            ),
            Observation(
                name="DMA-BUF",
                value=rdma.dma_buf_reason,
                source="NVIDIA GPU Operator, requirements",
            ),
        ),
        fixes=(
            Fix(
                summary="load the module now and at every boot, as root, on every node",
                paste=(
                    "modprobe nvidia_peermem && "
                    "echo nvidia_peermem > /etc/modules-load.d/nvidia-peermem.conf"
                ),
                caution="if it does not load, the RDMA drivers lack the peer memory interface: "
                "install NVIDIA's (DOCA-OFED), or the open GPU kernel modules with DMA-BUF",
            ),
        ),
    )


def in_a_log(log: Log) -> Iterator[Finding]:
    networks = {one.values["network"] for one in log.of("nccl-network")}
    # Over TCP, nothing reads GPU memory: why it is TCP comes first.
    if (event := log.first("gdr-off")) and networks != {"Socket"}:
        yield log_events.finding(
            [event],
            "data between the GPU and the network passes through the memory of the host",
            _LOAD,
            severity=Severity.WARNING if log.several_hosts else Severity.NOTE,
        )
    if event := log.first("ib-gpu-memory"):
        yield log_events.finding(
            [event],
            "the network card cannot register memory of the GPU: the module that lets it is not "
            "loaded, or was built for other RDMA drivers",
            _LOAD,
        )


_LOAD = Fix(
    summary="load the module, now and at each boot",
    paste="sudo modprobe nvidia_peermem\n"
    "echo nvidia_peermem | sudo tee /etc/modules-load.d/nvidia_peermem.conf",
)
