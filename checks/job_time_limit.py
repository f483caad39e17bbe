"""The scheduler has ended the job at its time limit.

Slurm sends SIGTERM to all processes of a job that has used its time, and soon after SIGKILL. All
ranks end at once, some with tracebacks of the signal, so that it looks like a crash.

Symptoms: "CANCELLED AT … DUE TO TIME LIMIT" from slurmstepd; DeadlineExceeded of a Kubernetes job.

To fix it, ask for more time, or save a checkpoint shortly before the limit and continue in a new
job.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.analysis import log_events
from ddoctor.evidence.log import Log
from ddoctor.models import Confidence, Finding, Fix

EXPLAINS = ("dead-rank", "first-failure-masked", "node-failure", "script-error")


def in_a_log(log: Log) -> Iterator[Finding]:
    if event := log.first("time-limit"):
        yield log_events.finding(
            [event],
            "the job had used its time, and the scheduler ended all of its processes",
            Fix(
                summary="ask for more time, and for a signal before the limit",
                paste="#SBATCH --time=48:00:00\n#SBATCH --signal=B:USR1@300",
                caution="the script saves a checkpoint at SIGUSR1; --requeue starts the job again",
            ),
            confidence=Confidence.CERTAIN,
        )
