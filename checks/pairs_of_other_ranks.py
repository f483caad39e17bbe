"""Each rank but the first takes samples of rank 0 for the pairs of its samples.

A contrastive loss compares the features of a rank with those of all ranks, which stand in the order
of the ranks. The pair of a rank's sample is at its own place plus the samples of all ranks before
it. Targets that begin at 0 on each rank are right on rank 0 alone. The other ranks learn to match
their samples to strangers, and to push their true pairs away.

Symptoms: no error; the loss stays high on all ranks but the first, and the more ranks there are,
the worse the result.

To fix it, add the rank times the number of its samples to the targets.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.analysis.script_source import shown
from ddoctor.evidence.script import Script
from ddoctor.models import Confidence, Finding, Fix, Severity


def in_the_source(script: Script) -> Iterator[Finding]:
    for one in script.pairs_of_rank0[:1] if not script.unseen else ():
        yield Finding(
            severity=Severity.ERROR,
            confidence=Confidence.LIKELY,
            because=(
                f"{shown(one.at)} compares the features of a rank with those of all ranks, and its "
                f"targets begin at 0 on each rank ({shown(one.targets)}): those are the samples of "
                "rank 0"
            ),
            fixes=(
                Fix.python(
                    summary="begin at the first sample of the rank",
                    paste="targets = torch.arange(samples) + dist.get_rank() * samples",
                    caution="each rank must have as many samples",
                ),
            ),
        )
