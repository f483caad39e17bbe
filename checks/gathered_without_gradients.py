"""A loss compares the gathered features of all ranks, which carry no gradient.

A contrastive loss needs many samples, so each rank gathers the features of all. What ``all_gather``
returns is new to autograd: no gradient flows back through it, not even to the rank's own features.
They then learn as what is compared, and never as what it is compared with.

Symptoms: no error; the result is worse than on one GPU with the same batch in all.

To fix it, gather by a function that autograd knows, which sends the gradients back to their ranks.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.analysis.script_source import shown
from ddoctor.evidence.script import Script
from ddoctor.models import Confidence, Finding, Fix, Severity

LIGHTNING = ("self.all_gather(", "fabric.all_gather(")


def in_the_source(script: Script) -> Iterator[Finding]:
    for one in script.gathered[:1] if not script.unseen else ():
        framework = any(name in one.at.text for name in LIGHTNING)
        yield Finding(
            severity=Severity.WARNING,
            # Some methods compare with constants on purpose.
            confidence=Confidence.POSSIBLE,
            because=(
                f"{shown(one.similar)} compares with what {shown(one.at)} returns, through which "
                "no gradient flows back to the features, of this rank or of others"
            ),
            fixes=(
                Fix.python(
                    summary="let autograd know of the gathering",
                    paste="every = self.all_gather(features, sync_grads=True)"
                    if framework
                    else (
                        "from torch.distributed.nn.functional import all_gather\n"
                        "every = torch.cat(all_gather(features))"
                    ),
                    caution=""
                    if framework
                    else "torch 2.13 warns that a private function will replace it",
                ),
            ),
        )
