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
from ddoctor.analysis.launch_plan import LaunchPlan
from ddoctor.evidence.log import Log
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity

# huggingface.co/docs/huggingface_hub/guides/jobs: the default timeout.
DEFAULT_SECONDS = 30 * 60
# 180 ms a step: small models take longer with images, large ones always.
LONG_STEPS = 10_000

EXPLAINS = ("dead-rank", "first-failure-masked", "node-failure", "script-error")


def in_a_launch(plan: LaunchPlan) -> Iterator[Finding]:
    """`hf jobs run` ends a job after 30 minutes, where no --timeout is given."""
    job, steps = plan.launch.get("hf-jobs"), plan.steps
    if job is None or plan.launch.get("time-limit") is not None or steps is None:
        return
    if (steps.number or 0) >= LONG_STEPS:
        yield Finding(
            title="The job's time limit may end the training before its last step",
            severity=Severity.WARNING,
            confidence=Confidence.POSSIBLE,
            because=f"hf jobs run ({job.at}) ends a job after 30 minutes by default, and "
            f"{steps.number or 0:,} steps ({steps.at}) take less only below "
            f"{1000 * DEFAULT_SECONDS / (steps.number or 1):.0f} ms a step",
            evidence=(
                Observation(name="optimizer steps", value=steps.number or 0, source=steps.at),
            ),
            fixes=(Fix(summary="ask for more time", paste="hf jobs run --timeout 4h …"),),
        )


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
