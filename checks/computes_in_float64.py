"""The model computes in float64, which takes twice the time and memory of float32, or more.

CPUs compute half as many numbers in the same time, GPUs for games a 64th. numpy makes float64 by
default, so a model that was cast to fit its data computes in it, too. Some simulations need the
precision; training hardly ever does. So the finding is a note.

Symptoms: the model takes twice the memory that its parameters explain; tensor cores are idle.

To fix it, cast the data to float32, and leave the model in float32.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.analysis import live_cost
from ddoctor.analysis.describe import MIB
from ddoctor.analysis.script_source import shown
from ddoctor.analysis.work_imbalance import COMPUTING
from ddoctor.evidence.script import Script
from ddoctor.evidence.steps import Steps
from ddoctor.evidence.training import RankUse
from ddoctor.evidence.wrapping import Wrapping
from ddoctor.models import Confidence, Cost, Finding, Fix, Severity

EXPLAINS = ("scaling-efficiency-low", "compute-bound")

DOUBLE = ("torch.float64", "torch.double")


def found(steps: Steps, use: RankUse, wrapping: Wrapping) -> Iterator[Finding]:
    if not use.flags or any(one.parameter_dtype != "float64" for one in use.flags):
        return
    computing = min((rank.share(*COMPUTING) for rank in steps.ranks), default=0.0)
    # Half of the numbers' bytes, and of their time.
    share = computing / 2
    if share < live_cost.TOLD:
        return
    size = max((one.parameter_bytes for one in wrapping.wrappers), default=0)
    parameters = f"the {size / MIB:.3g} MiB of parameters are" if size else "the parameters are"
    yield Finding(
        severity=Severity.NOTE,
        confidence=Confidence.LIKELY,
        because=(
            f"{parameters} in float64, and the passes and the optimizer take {computing:.0%} of "
            f"the step: in float32, {share:.0%} of the step less"
        ),
        cost=Cost(value=round(share, 3), unit="share of step"),
        fixes=(_in_float32(f"up to {share:.0%} of the step"),),
    )


def in_the_source(script: Script, use: RankUse | None) -> Iterator[Finding]:
    if use is not None and use.flags:
        return
    for one in script.of("torch.set_default_dtype"):
        if one.argument("d", 0) in DOUBLE and not one.within:
            yield Finding(
                severity=Severity.NOTE,
                confidence=Confidence.LIKELY,
                because=f"{shown(one.at)} makes float64 the type of all parameters and inputs that "
                "name no other",
                fixes=(_in_float32(),),
            )
            return


def _in_float32(gain: str = "") -> Fix:
    return Fix.python(
        summary="cast the data, and leave the model in float32",
        paste="inputs = torch.as_tensor(array, dtype=torch.float32)\n"
        "model = model.float()  # and no torch.set_default_dtype(torch.float64)",
        caution="simulations that need more than 7 digits are right to use float64",
        expected_gain=gain,
    )
