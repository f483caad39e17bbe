"""The locked-memory limit (memlock) is too low for RDMA.

A network card with RDMA (InfiniBand, RoCE, EFA) needs locked memory. The kernel counts it against
RLIMIT_MEMLOCK of each process. If that is too low, NCCL fails with "ibv_reg_mr failed: Cannot
allocate memory" or "ibv_create_cq failed", at the start or only with more channels. The usual 8 MiB
are not enough. The limit does not apply to root or to processes with CAP_IPC_LOCK.

Symptoms: these errors, and a low ``ulimit -l`` in the shell that launches the ranks (a login shell
may differ).

To fix it, set ``ulimit -l unlimited`` in the launch script, container or Slurm configuration.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.analysis import log_events
from ddoctor.analysis.describe import MIB, few
from ddoctor.evidence.host import Kernel, Limits
from ddoctor.evidence.log import Log
from ddoctor.evidence.network import Rdma
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity

EXPLAINS = ("dead-rank", "first-failure-masked", "script-error")

# NCCL_BUFFSIZE: 4 MiB for each connection and channel
# (https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html). Two channels with one buffer
# to send and one to receive are the minimum of a ring between nodes.
FAILS_BELOW = 2 * 2 * 4 * MIB
# The same with 32 channels: MAXCHANNELS in NCCL 2.10 and many later releases.
TIGHT_BELOW = 32 * 2 * 4 * MIB


def too_low(limits: Limits, rdma: Rdma, kernel: Kernel | None) -> Iterator[Finding]:
    limit = limits.locked_memory.soft
    if not rdma.fabric or limits.locks_without_limit or limit is None or limit >= TIGHT_BELOW:
        return
    # What was printed may be of a login shell, or of root, whom the limit does not concern.
    printed = limits.printed
    fails = limit < FAILS_BELOW and rdma.between_nodes and not printed
    severity = Severity.NOTE if printed else Severity.WARNING
    named = few([device.name for device in rdma.fabric], 3)
    yield Finding(
        severity=Severity.ERROR if fails else severity,
        confidence=Confidence.LIKELY if fails else Confidence.POSSIBLE,
        because=(
            f"each process may lock {limit / MIB:.3g} MiB, but NCCL's buffers over {named} need "
            f"{FAILS_BELOW // MIB} to {TIGHT_BELOW // MIB} MiB unless all are in GPU memory; "
            "a multi-node run with NCCL_DEBUG=INFO would settle it"
        ),
        evidence=(
            Observation(
                name="locked-memory limit",
                value=round(limit / MIB, 3),
                unit="MiB",
                expected="unlimited",
                source="NCCL user guide, NCCL_BUFFSIZE",
            ),
        ),
        fixes=(_fix(limits, kernel),),
    )


def in_a_log(log: Log) -> Iterator[Finding]:
    if event := log.first("ib-memory"):
        yield log_events.finding(
            [event],
            "RDMA may not lock the memory that it needs: the limit of locked memory is too low",
            _RAISE,
        )


def warned_in_a_log(log: Log) -> Iterator[Finding]:
    if event := log.first("memlock-limit"):
        yield log_events.finding(
            [event],
            f"RDMA may lock only {event.values['bytes']} bytes of memory",
            _RAISE,
            severity=Severity.WARNING,
        )


_RAISE = Fix(
    summary="raise the limit where the ranks are started",
    paste="ulimit -l unlimited  # or: docker run --ulimit memlock=-1 …",
)


def _fix(limits: Limits, kernel: Kernel | None) -> Fix:
    if limits.locked_memory.hard is None:
        return Fix(
            summary="raise the locked-memory limit in the launch script",
            paste="ulimit -l unlimited",
            caution="if the hard limit is lower (`ulimit -Hl`), root has to raise it first"
            if limits.printed
            else "",
        )
    if kernel is not None and kernel.container == "kubernetes":
        return Fix(
            summary="add the capability IPC_LOCK to the container",
            paste="securityContext:\n  capabilities:\n    add: [IPC_LOCK]\n",
            language="yaml",
        )
    if kernel is not None and kernel.engine:
        return Fix(
            summary="start a new container without the locked-memory limit",
            paste=f"{kernel.engine} run --ulimit memlock=-1 --cap-add IPC_LOCK …",
        )
    return Fix(
        summary="raise the locked-memory limit for every login, as root",
        paste=("echo '* - memlock unlimited' > /etc/security/limits.d/90-memlock.conf"),
        caution=(
            "needs a new login; under Slurm, also set LimitMEMLOCK=infinity in slurmd's unit and "
            "PropagateResourceLimitsExcept=MEMLOCK in slurm.conf"
        ),
    )
