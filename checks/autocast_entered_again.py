"""Autocast is entered again and again within one forward pass, and casts all weights each time.

Autocast keeps its casts of the weights until its outermost context ends, so that each weight is
cast once in a step. A context around each time step, token or layer drops them every time. Each of
the casts reads and writes the weights, and its gradient is cast back.

Symptoms: mixed precision is no faster than float32, or slower; a profile shows many copies.

To fix it, enter autocast once, around the whole forward pass.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.analysis import live_cost
from ddoctor.analysis.describe import MIB
from ddoctor.analysis.stragglers import enough
from ddoctor.evidence.steps import Steps
from ddoctor.evidence.training import RankUse
from ddoctor.models import Confidence, Cost, Finding, Fix, Observation

EXPLAINS = ("scaling-efficiency-low", "many-small-operations")

# Each context casts a weight once. A model that is called for several losses has some.
REPEATED = 6.0
# Forwards a cast reads and writes, backwards its gradient is read, cast and added: for each byte of
# the weight 5 are moved. At most as fast as the caches of a CPU, and the memory of a GPU.
MOVED = 5
OF_A_CPU, OF_A_GPU = 2e10, 3e12


def found(steps: Steps, use: RankUse) -> Iterator[Finding]:
    if not enough(steps) or not use.flags:
        return
    one = min(use.flags, key=lambda flags: flags.cast_bytes)
    times = one.casts / one.cast_parameters if one.cast_parameters else 0.0
    rate = OF_A_GPU if one.device_name else OF_A_CPU
    more = one.cast_bytes * (1 - 1 / times) if times else 0.0
    share = min(1.0, MOVED * more / rate / steps.step)
    if times < REPEATED or share < live_cost.TOLD:
        return
    yield Finding(
        severity=live_cost.severity(share),
        confidence=Confidence.LIKELY,
        because=(
            f"each of {one.cast_parameters} weights is cast {times:.3g} times in a step, "
            f"{one.cast_bytes / MIB:.3g} MiB in all: at least {share:.0%} of the step"
        ),
        evidence=(
            Observation(
                name="casts of each weight",
                value=round(times, 1),
                expected=1,
                source="the graph of a step, the rank with the least",
            ),
        ),
        cost=Cost(value=round(share, 3), unit="share of step"),
        fixes=(
            Fix.python(
                summary="enter autocast once, around the whole forward pass",
                paste="with torch.autocast(device_type, dtype=torch.bfloat16):\n"
                "    loss = criterion(model(inputs), labels)  # and none within the model",
                expected_gain=f"at least {share:.0%} of the step",
            ),
        ),
    )
