"""The launch command or its configuration contradicts itself, the machine or the script.

A launch line and its files repeat each other: numbers of hosts and ranks, addresses, accumulation.
Where they differ, one silently wins, or the run ends at its start. A misspelt option ends it, too;
a host that meets the others at its own 127.0.0.1 waits for them until a timeout.

Symptoms: "unrecognized arguments", a hang in init_process_group, "You set `devices=4` in Lightning,
but the number of tasks per node configured in SLURM does not match".

To fix it, correct the line or the file that the finding names.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.analysis import log_events
from ddoctor.analysis.launch_mistakes import mistakes
from ddoctor.analysis.launch_plan import LaunchPlan
from ddoctor.evidence.log import Log
from ddoctor.models import Confidence, Finding, Fix

EXPLAINS = ("dead-rank", "first-failure-masked", "script-error")


def in_a_launch(plan: LaunchPlan) -> Iterator[Finding]:
    for mistake in mistakes(plan):
        yield mistake.finding()


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
    elif event := log.first("local-rank-argument"):
        yield log_events.finding(
            [event],
            "the launcher gives each rank its local rank as an option, which the script does not "
            "know, or spells otherwise",
            Fix.python(
                summary="accept both spellings, and prefer the variable of torchrun",
                paste='parser.add_argument("--local-rank", "--local_rank", type=int,\n'
                '    default=int(os.environ.get("LOCAL_RANK", 0)))',
            ),
        )
    elif event := log.first("port-denied"):
        yield log_events.finding(
            [event],
            f"the port {event.values['port']} is for the administrator alone: those below 1024 are",
            Fix(
                summary="meet at a higher port",
                paste="torchrun --rdzv-endpoint=HOST:29500 …\n"
                "accelerate launch --main_process_port 29500 …",
            ),
        )
    elif event := log.first("batch-size"):
        yield log_events.finding(
            [event],
            "the batch sizes do not fit the number of ranks",
            Fix(
                summary="make the global batch the product of the other numbers",
                paste="global batch = batch of one rank × accumulation steps × data-parallel ranks",
                language="text",
            ),
        )
