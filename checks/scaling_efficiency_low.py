"""The ranks spend much of each step waiting and communicating, so the job scales badly.

Scaling efficiency is the share of a step that the mean rank spends on its own work. The rest is
waiting for the last rank, and transfers that no computation overlaps. Other findings name the
causes. Without another finding, no single cause dominates, and different ranks lag in different
steps.

Symptoms: twice as many GPUs process far less than twice as many samples per second.

To fix it, fix the other findings first; otherwise give each rank more work per step.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean, median

from ddoctor.analysis.cpu_contention import have_their_cpus, only_waking
from ddoctor.analysis.ddp_options import larger_batch
from ddoctor.analysis.scaling import predict
from ddoctor.analysis.stragglers import STEADY, comparable
from ddoctor.evidence.probes import AllReduce
from ddoctor.evidence.steps import Steps
from ddoctor.evidence.training import RankUse
from ddoctor.evidence.wrapping import Wrapping
from ddoctor.models import Confidence, Cost, Finding, Fix, Observation, Severity

# Published weak scaling: 97 % at 16 times the GPUs, 90 % with small models; less than 85 % is
# unusual (torchtitan and llm-foundry, benchmark tables).
HEALTHY = 0.85
# A slowdown of 1.3 is what a public benchmark of fail-slow detection calls loud.
LOUD = 1 / 1.3


def lost_to_the_number_of_ranks(
    steps: Steps,
    wrapping: Wrapping | None,
    use: RankUse | None,
    sweeps: tuple[AllReduce, ...] | None,
) -> Iterator[Finding]:
    # A profiler makes steps longer, and mostly the work of the host.
    if steps.traced or not comparable(steps):
        return
    local = list(map(fmean, zip(*(rank.local for rank in steps.ranks), strict=True)))
    each = [own / whole for own, whole in zip(local, steps.seconds, strict=True)]
    efficiency = median(each)
    if efficiency >= HEALTHY:
        return
    waiting, transfer = steps.share("waiting"), steps.share("transfer")
    steady = sum(one < LOUD for one in each) >= STEADY * steps.count
    lost = [whole - own for own, whole in zip(local, steps.seconds, strict=True)]
    loud = (
        efficiency < LOUD
        and steady
        and have_their_cpus(steps, use)
        and not only_waking(steps, lost)
    )
    sweep = max(sweeps or (), key=lambda one: len(one.ranks), default=None)
    yield Finding(
        severity=Severity.WARNING if loud else Severity.NOTE,
        confidence=Confidence.LIKELY,
        because=(
            f"the mean rank spends {efficiency:.0%} of the median step on its own work: it waits "
            f"for the last of {len(steps.ranks)} ranks {waiting:.0%} of the time, and "
            f"transfers take {transfer:.0%}"
        ),
        evidence=(
            Observation(
                name="scaling efficiency, compared to one rank",
                value=round(100 * efficiency, 1),
                unit="%",
                expected=round(100 * HEALTHY),
                source="scaling tables of torchtitan and llm-foundry",
            ),
            *(
                Observation(
                    name=f"scaling efficiency at {row.ranks} ranks",
                    value=f"{row.lowest_efficiency:.0%} to {row.highest_efficiency:.0%}",
                    source="prediction from the phases of the step",
                )
                for row in predict(steps, wrapping, sweep)
                if row.ranks > len(steps.ranks)
            ),
        ),
        cost=Cost(value=round(1 - efficiency, 3), unit="share of step"),
        fixes=(
            Fix(
                summary="measure each host alone, and find other processes that take CPU time",
                paste="torchrun --nnodes N --nproc-per-node M -m ddoctor.probe",
                caution="with the N and M of the job, while the job does not run",
            )
            if waiting > transfer
            else larger_batch(
                "raise the batch size per rank, for more work between two communications"
            ),
        ),
    )
