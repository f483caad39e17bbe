"""The launch command or its configuration contradicts itself, the machine or the script.

Lightning under Slurm needs one task per device. A number that differs ends the run at its start, or
starts several runs of one process each.

Symptoms: "You set `devices=4` in Lightning, but the number of tasks per node configured in SLURM
does not match".

To fix it, correct the number in the job file or in the script.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.analysis import log_events
from ddoctor.evidence.log import Log
from ddoctor.models import Confidence, Finding, Fix

EXPLAINS = ("dead-rank", "first-failure-masked", "script-error", "world-size-mismatch")


def in_a_log(log: Log) -> Iterator[Finding]:
    if event := log.first("slurm-devices"):
        devices = event.values["devices"]
        yield log_events.finding(
            [event],
            f"Lightning under Slurm needs one task for each of its {devices} devices",
            Fix(
                summary="start as many tasks per node as there are devices, with srun",
                paste=f"#SBATCH --ntasks-per-node={devices}\n#SBATCH --gpus-per-node={devices}\n"
                "srun python train.py",
            ),
            confidence=Confidence.CERTAIN,
        )
