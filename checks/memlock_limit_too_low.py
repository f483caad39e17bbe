"""The limit of locked memory is too low for RDMA.

A network card that reads and writes memory by itself (InfiniBand, RoCE, EFA) needs that memory
locked in place, and the kernel counts it against RLIMIT_MEMLOCK of each process. Where that does
not suffice NCCL fails with "ibv_reg_mr failed: Cannot allocate memory" or "ibv_create_cq failed",
at the start or only with more channels. The usual 8 MiB are too few. Root, or a process that has
CAP_IPC_LOCK, is not bound by the limit.

Seen from outside: ``ulimit -l`` in the shell that launches the ranks, not in a login shell.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.evidence.host import Kernel, Limits
from ddoctor.evidence.network import Rdma
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity

MIB = 2**20

# NCCL_BUFFSIZE: 4 MiB for each connection and channel
# (https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html). Two channels with one buffer
# to send and one to receive are the least that a ring between nodes has.
FAILS_BELOW = 2 * 2 * 4 * MIB
# The same with 32 channels: MAXCHANNELS in the sources of NCCL 2.10 and many after it.
TIGHT_BELOW = 32 * 2 * 4 * MIB


def too_low(limits: Limits, rdma: Rdma, kernel: Kernel | None) -> Iterator[Finding]:
    limit = limits.locked_memory.soft
    if not rdma.fabric or limits.locks_without_limit or limit is None or limit >= TIGHT_BELOW:
        return
    fails = limit < FAILS_BELOW and rdma.between_nodes
    devices = [device.name for device in rdma.fabric]
    named = ", ".join(devices[:3]) + (", …" if len(devices) > 3 else "")
    yield Finding(
        severity=Severity.ERROR if fails else Severity.WARNING,
        confidence=Confidence.LIKELY if fails else Confidence.POSSIBLE,
        because=(
            f"each process may lock {limit / MIB:.3g} MiB, and NCCL's buffers over {named} take "
            f"{FAILS_BELOW // MIB} to {TIGHT_BELOW // MIB} MiB unless they all lie in GPU memory; "
            "a run across nodes with NCCL_DEBUG=INFO settles it"
        ),
        evidence=(
            Observation(
                name="limit of locked memory",
                value=round(limit / MIB, 3),
                unit="MiB",
                expected="unlimited",
                source="NCCL user guide, NCCL_BUFFSIZE",
            ),
        ),
        fixes=(_fix(limits, kernel),),
    )


def _fix(limits: Limits, kernel: Kernel | None) -> Fix:
    if limits.locked_memory.hard is None:
        return Fix(
            summary="lift it in the shell or script that launches the ranks",
            paste="ulimit -l unlimited",
        )
    if kernel is not None and kernel.container == "kubernetes":
        return Fix(
            summary="give the container the right to lock memory without limit",
            paste="securityContext:\n  capabilities:\n    add: [IPC_LOCK]\n",
            language="yaml",
        )
    if kernel is not None and kernel.engine:
        return Fix(
            summary="start a new container without the limit",
            paste=f"{kernel.engine} run --ulimit memlock=-1 --cap-add IPC_LOCK …",
        )
    return Fix(
        summary="lift it for every login, as root",
        paste=("echo '* - memlock unlimited' > /etc/security/limits.d/90-memlock.conf"),
        caution=(
            "needs a new login; under Slurm also LimitMEMLOCK=infinity in slurmd's unit and "
            "PropagateResourceLimitsExcept=MEMLOCK in slurm.conf"
        ),
    )
