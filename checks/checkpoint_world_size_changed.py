"""A checkpoint was saved by more or fewer data-parallel ranks than load it.

ZeRO's optimizer states and some loaders' positions are saved per rank. With another number of ranks
the pieces do not fit, and loading fails or silently drops them.

Symptoms: "The checkpoint being loaded used a DP world size of 4 but the current world size is 2",
"dp_degree is inconsistent before and after checkpoint".

To fix it, load with the same number of ranks, convert the checkpoint, or load the weights only.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.analysis import log_events
from ddoctor.evidence.log import Log
from ddoctor.models import Confidence, Finding, Fix

EXPLAINS = ("dead-rank", "first-failure-masked", "script-error")


def in_a_log(log: Log) -> Iterator[Finding]:
    if event := log.first("checkpoint-world", "zero-files"):
        lacks = event.pattern == "zero-files"
        yield log_events.finding(
            [event],
            "pieces of the checkpoint are missing: fewer ranks saved it than load it, or some did "
            "not finish"
            if lacks
            else "the checkpoint holds a piece per rank, of another number of ranks than there are "
            "now",
            Fix(
                summary="start as many ranks as saved it, or convert it to a universal checkpoint",
                paste="python -m deepspeed.checkpoint.ds_to_universal --input_folder CHECKPOINT "
                "--output_folder UNIVERSAL",
                caution="or load the model's weights only, with a new optimizer and loader",
            ),
            confidence=Confidence.POSSIBLE if lacks else Confidence.CERTAIN,
        )
