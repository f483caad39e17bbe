"""DDP overwrites a buffer, such as that of BatchNorm, which the backward pass still needs.

Before each forward pass DDP copies the buffers of rank 0 to all ranks, in place. Two forward passes
before one backward pass, as in GANs and contrastive losses, change what the first one saved.

Symptoms: "one of the variables needed for gradient computation has been modified by an inplace
operation", only under DDP.

To fix it, switch the copies off, or run one forward pass per backward pass.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.analysis import log_events
from ddoctor.evidence.log import Log
from ddoctor.models import Confidence, Finding, Fix

EXPLAINS = ("dead-rank", "first-failure-masked", "script-error")


def in_a_log(log: Log) -> Iterator[Finding]:
    if event := log.first("changed-in-place"):
        under_ddp = bool(log.of("ddp-forward"))
        yield log_events.finding(
            [event],
            "a tensor has changed between its forward and its backward pass"
            + ("" if under_ddp else ": the buffers of a model under DDP, or the script's own code"),
            Fix.python(
                summary="do not copy the buffers before each forward pass",
                paste="DistributedDataParallel(model, broadcast_buffers=False)",
                caution="or use SyncBatchNorm; if the error stays, anomaly mode names the line",
            ),
            confidence=Confidence.LIKELY if under_ddp else Confidence.POSSIBLE,
        )
