"""Random splits that each rank draws for itself: what is wrong with them, and the fix."""

from __future__ import annotations

from ddoctor.analysis.script_source import shown
from ddoctor.evidence.source_facts import SourceRandomSplit
from ddoctor.models import Confidence, Finding, Fix, Severity

SAME = {"generator": "torch.Generator().manual_seed(42)"}
"""Values of the argument that makes a split the same on all ranks; of others a number."""


def told(split: SourceRandomSplit) -> Finding:
    """The finding about one split."""
    name = "random_split" if split.argument in SAME else "train_test_split"
    value = SAME.get(split.argument, "42")
    reason = "no line sets a seed, and each rank begins with a random one"
    if split.seed == split.at:
        reason = "its seed differs between them"
    elif split.seed is not None:
        reason = f"{shown(split.seed)} seeds each rank differently"
    return Finding(
        title="Each rank splits the dataset differently, so the ranks' samples overlap",
        severity=Severity.WARNING,
        confidence=Confidence.LIKELY,
        because=(
            f"{shown(split.at)} draws the split on every rank, and {reason}: what one rank trains "
            "on may be in the test set of another, and the shares of the ranks overlap"
        ),
        fixes=(
            Fix.python(
                summary="seed the split alike on all ranks",
                paste=f"{name}(…, {split.argument}={value})  # {split.at.place}",
            ),
        ),
    )
