"""The script was started by plain Python, so that it has no process group.

torchrun, accelerate and others set RANK, WORLD_SIZE and MASTER_ADDR for each process. Without them
a distributed script fails at its first collective, or trains alone on one GPU.

Symptoms: "environment variable RANK expected, but not set", "Default process group has not been
initialized".

To fix it, start the script with torchrun.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.analysis import log_events
from ddoctor.evidence.log import Log
from ddoctor.models import Confidence, Finding, Fix

EXPLAINS = ("dead-rank", "first-failure-masked", "script-error")


def in_a_log(log: Log) -> Iterator[Finding]:
    for event in log.of("rank-expected"):
        missing = "variable" in event.values
        yield log_events.finding(
            [event],
            "no launcher has set the variables of its rank"
            if missing
            else "it is used before init_process_group, or no launcher has started the script",
            Fix(
                summary="start it with a launcher",
                paste="torchrun --standalone --nproc-per-node=gpu train.py",
            ),
            confidence=Confidence.LIKELY if missing else Confidence.POSSIBLE,
        )
        return
