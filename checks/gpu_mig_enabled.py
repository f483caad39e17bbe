"""A GPU is split into MIG instances, and NCCL does not work across instances of one GPU.

With MIG on, a process uses at most one instance, even if several are visible to it. A run that
expects whole GPUs finds fewer devices than ranks, or less memory than the model needs.

Symptoms: ``nvidia-smi -L`` lists MIG devices below the GPU, and ``torch.cuda.device_count()`` is 1
or 0.

To fix it, switch MIG off (``nvidia-smi -mig 0``), or run on the GPUs without MIG.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.analysis import log_events
from ddoctor.analysis.environment_fixes import without
from ddoctor.evidence.gpus import Gpus
from ddoctor.evidence.log import Log
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity, Where

EXPLAINS = ("nproc-exceeds-visible-gpus", "uneven-gpu-memory", "uneven-gpu-speed")


def enabled(gpus: Gpus) -> Iterator[Finding]:
    cut = [gpu for gpu in gpus.answering if gpu.mig]
    if not cut:
        return
    indices = ",".join(str(gpu.index) for gpu in cut)
    fixes = [
        Fix(
            summary="switch MIG off for distributed training",
            paste=f"sudo nvidia-smi -i {indices} -mig 0",
            caution="destroys the MIG instances and ends their processes, also those of others",
        )
    ]
    if len(gpus.answering) - len(cut) > 1:
        fixes.append(without(gpus, *cut, summary="or run only on the GPUs without MIG"))
    yield Finding(
        # Where nvidia-smi was only printed, the run may use other GPUs, or just one instance.
        severity=Severity.NOTE if gpus.printed else Severity.WARNING,
        confidence=Confidence.POSSIBLE if gpus.printed else Confidence.CERTAIN,
        because=(
            f"MIG is on for {len(cut)} of {len(gpus.gpus)} GPUs: {', '.join(g.title for g in cut)}"
        ),
        evidence=(
            Observation(
                name="GPUs with MIG",
                value=len(cut),
                expected=0,
                source="NVIDIA Multi-Instance GPU user guide",
            ),
        ),
        where=Where(devices=tuple(gpu.device for gpu in cut)),
        fixes=tuple(fixes),
    )


def in_a_log(log: Log, gpus: Gpus) -> Iterator[Finding]:
    """A process asked for a second device, and all that it could get are instances."""
    event = log.first("device-ordinal")
    if event and gpus.answering and all(gpu.mig for gpu in gpus.answering):
        yield log_events.finding(
            [event],
            f"a process asked for a GPU that it does not see, and MIG is on for "
            f"{'the only GPU' if len(gpus.gpus) == 1 else f'all {len(gpus.gpus)} GPUs'}: a process "
            "sees one instance, whatever there is",
            Fix(
                summary="switch MIG off for distributed training",
                paste="sudo nvidia-smi -mig 0",
                caution="destroys the MIG instances and ends their processes, also those of others",
            ),
        )
