"""Each rank of FSDP1 clips gradients by the norm of the part that it has.

FSDP1 gives each rank a part of every gradient. ``torch.nn.utils.clip_grad_norm_`` sees that part
alone, so its norm is too small, and another one on each rank: the parts of one gradient are scaled
by different factors, or not at all. FSDP2's gradients know of the other parts, and are clipped
rightly by the same function.

Symptoms: no error; clipping begins too late, and the loss jumps where it would not with DDP.

To fix it, call the wrapped model's own ``clip_grad_norm_``.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.analysis.script_source import shown
from ddoctor.evidence.script import Script
from ddoctor.models import Confidence, Finding, Fix, Severity


def in_the_source(script: Script) -> Iterator[Finding]:
    for line in script.clipped_in_parts[:1]:
        yield Finding(
            severity=Severity.WARNING,
            confidence=Confidence.LIKELY,
            because=f"{shown(line)} gets the parameters of a model that FullyShardedDataParallel "
            "wraps: each rank computes the norm of the part that it has",
            fixes=(
                Fix.python(
                    summary="use the wrapped model's own function, which adds the parts up",
                    paste="model.clip_grad_norm_(1.0)  # on all ranks",
                ),
            ),
        )
