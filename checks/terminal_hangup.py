"""The launcher got SIGHUP, because its terminal or SSH session was closed.

A closed terminal sends SIGHUP to what was started in it. torchrun passes the signal on and ends all
ranks, even under nohup, because it sets its own handler.

Symptoms: "Sending process … closing signal SIGHUP" or "got signal: 1" from torchrun.

To fix it, start the run in tmux or screen, or as a job of the scheduler.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.analysis import log_events
from ddoctor.evidence.log import Log
from ddoctor.models import Confidence, Finding, Fix

EXPLAINS = ("dead-rank", "first-failure-masked", "script-error")


def in_a_log(log: Log) -> Iterator[Finding]:
    if event := log.first("hangup"):
        yield log_events.finding(
            [event],
            "the terminal or SSH session of the launcher was closed, which ended all ranks",
            Fix(
                summary="start the run where no terminal can close",
                paste="tmux new -s train 'torchrun … train.py'",
                caution="nohup does not help: torchrun handles SIGHUP itself",
            ),
            confidence=Confidence.CERTAIN,
        )
