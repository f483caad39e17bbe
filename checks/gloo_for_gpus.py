"""The gradients of GPUs are reduced by gloo, which takes them through the memory of the host.

gloo is torch's backend for CPUs. It copies each bucket of gradients to the host, adds it up there
over TCP, and copies it back. NCCL adds it up on the GPUs, over NVLink, PCIe or InfiniBand, while
the backward pass continues: often ten times as fast, and without a CPU.

Symptoms: the GPUs are busy for a part of the step only; CPUs are busy in the backward pass.

To fix it, use ``init_process_group("nccl")``, or ``"cpu:gloo,cuda:nccl"`` where tensors of the CPU
are reduced as well.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.analysis.script_source import shown
from ddoctor.evidence.script import Script
from ddoctor.models import Confidence, Finding, Fix, Severity

EXPLAINS = ("communication-bound-step", "scaling-efficiency-low")

GLOO = ("'gloo'", '"gloo"')
INIT = "torch.distributed.init_process_group"
DDP = "torch.nn.parallel.DistributedDataParallel"
ON_CPU = ("", "None", "[]")
CHOOSES = " if "


def in_the_source(script: Script) -> Iterator[Finding]:
    made = script.of(INIT)
    # DDP gets devices only where its model is on a GPU; some scripts choose between the two.
    devices = [one.keywords.get("device_ids", "") for one in script.of(DDP)]
    on_gpu = any(one not in ON_CPU and CHOOSES not in one for one in devices)
    if not on_gpu or len(made) != 1 or made[0].argument("backend", 0) not in GLOO:
        return
    yield Finding(
        severity=Severity.WARNING,
        confidence=Confidence.LIKELY,
        because=(
            f"{shown(made[0].at)} chooses gloo, and DDP has a model on a GPU: its gradients go "
            "through the memory of the host in each step"
        ),
        fixes=(
            Fix.python(
                summary="let NCCL reduce what is on GPUs",
                paste='torch.distributed.init_process_group("cpu:gloo,cuda:nccl")',
                caution="each rank needs a separate GPU",
            ),
        ),
    )
