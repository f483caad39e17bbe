"""The script ends without destroying its process group.

``destroy_process_group`` lets the ranks finish their last collectives together. Without it, each
rank tears down NCCL whenever its process ends, while others may still use the connections.

Symptoms: the warning "destroy_process_group() was not called before program exit", and now and then
a run that hangs or fails after its last step.

To fix it, call ``torch.distributed.destroy_process_group()`` at the end of the script.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.analysis.script_source import is_plain, shown
from ddoctor.evidence.script import Script
from ddoctor.models import Confidence, Finding, Fix, Severity

BEGINS = "torch.distributed.init_process_group"


def in_the_source(script: Script) -> Iterator[Finding]:
    begun = script.of(BEGINS)
    if is_plain(script) and begun and script.names_end is None:
        yield Finding(
            severity=Severity.NOTE,
            confidence=Confidence.LIKELY,
            because=f"{shown(begun[0].at)} makes a process group, and no line destroys it",
            fixes=(
                Fix.python(
                    summary="destroy it at the end, on all ranks",
                    paste="torch.distributed.destroy_process_group()",
                ),
            ),
        )
