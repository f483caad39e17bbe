"""A process group is made in each step of the training.

``new_group`` lets all ranks meet at the store. With NCCL, the first collective of a group makes
communicators and buffers on each GPU, which takes up to seconds. A group lives until
``destroy_process_group``, so its memory, threads and connections add up.

Symptoms: each step takes much longer than its computing and its transfers; memory grows, until
"unhandled system error", "too many open files" or an out-of-memory error ends the run.

To fix it, make each group once, before the training.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.analysis.script_source import shown
from ddoctor.evidence.script import Script
from ddoctor.models import Confidence, Finding, Fix, Severity

MAKES = tuple(
    f"torch.distributed.{one}"
    for one in ("new_group", "new_subgroups", "new_subgroups_by_enumeration", "init_device_mesh")
)


def in_the_source(script: Script) -> Iterator[Finding]:
    for call in (one for one in script.of(*MAKES) if one.in_each_step):
        yield Finding(
            severity=Severity.WARNING,
            confidence=Confidence.LIKELY,
            because=(
                f"every step of the training loop runs {shown(call.at)}: all ranks meet to make "
                "the group, and its memory and connections stay"
            ),
            fixes=(
                Fix.python(
                    summary="make the group once, before the training",
                    paste=f"{call.at.text}  # before the loop",
                ),
            ),
        )
        return
