"""The ranks spend much of each step waiting and communicating, so the job scales badly.

Scaling efficiency is the share of a step that the mean rank spends on its own work. The rest is
waiting for the last rank, and transfers that no computation overlaps. Other findings name the
causes. Without another finding, no single cause dominates, and different ranks lag in different
steps.

Symptoms: twice as many GPUs process far less than twice as many samples per second.

To fix it, fix the other findings first; otherwise give each rank more work per step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean, median

from ddoctor.analysis.cpu_contention import have_their_cpus
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
    steps: tuple[Steps, ...],
    wrapping: tuple[Wrapping, ...] | None,
    use: tuple[RankUse, ...] | None,
    sweeps: tuple[AllReduce, ...] | None,
) -> Iterator[Finding]:
    for section in steps:
        if comparable(section):
            yield from _of_run(section, next(iter(wrapping or ()), None), use or (), sweeps or ())


def _of_run(
    steps: Steps,
    wrapping: Wrapping | None,
    use: Sequence[RankUse],
    sweeps: Sequence[AllReduce],
) -> Iterator[Finding]:
    count = steps.count
    local = zip(*(rank.local[:count] for rank in steps.ranks), strict=True)
    seconds = zip(*(rank.seconds[:count] for rank in steps.ranks), strict=True)
    each = [fmean(own) / fmean(whole) for own, whole in zip(local, seconds, strict=True)]
    efficiency = median(each)
    if efficiency >= HEALTHY:
        return
    parts = {
        name: fmean(steps.share(name, rank) for rank in steps.ranks)
        for name in ("waiting", "transfer")
    }
    steady = sum(one < LOUD for one in each) >= STEADY * count
    loud = efficiency < LOUD and steady and have_their_cpus(steps, use)
    yield Finding(
        severity=Severity.WARNING if loud else Severity.NOTE,
        confidence=Confidence.LIKELY,
        because=(
            f"the mean rank spends {efficiency:.0%} of the median step on its own work: it waits "
            f"for the last of {len(steps.ranks)} ranks {parts['waiting']:.0%} of the time, and "
            f"transfers take {parts['transfer']:.0%}"
        ),
        evidence=(
            Observation(
                name="scaling efficiency, compared to one rank",
                value=round(100 * efficiency, 1),
                unit="%",
                expected=round(100 * HEALTHY),
                source="scaling tables of torchtitan and llm-foundry",
            ),
            *_forecast(steps, wrapping, sweeps),
        ),
        cost=Cost(value=round(1 - efficiency, 3), unit="share of step"),
        fixes=(_fix(parts["waiting"] > parts["transfer"]),),
    )


def _forecast(
    steps: Steps, wrapping: Wrapping | None, sweeps: Sequence[AllReduce]
) -> Iterator[Observation]:
    sweep = max(sweeps, key=lambda one: len(one.ranks), default=None)
    for row in predict(steps, wrapping, sweep):
        if row.ranks > len(steps.ranks):
            low, high = row.lowest_efficiency, row.highest_efficiency
            yield Observation(
                name=f"scaling efficiency at {row.ranks} ranks",
                value=f"{low:.0%} to {high:.0%}",
                source="prediction from the phases of the step",
            )


def _fix(waiting: bool) -> Fix:
    if waiting:
        return Fix(
            summary="measure each host alone, and find other processes that take CPU time",
            paste="torchrun --nnodes N --nproc-per-node M -m ddoctor.probe",
            caution="with the N and M of the job, while the job does not run",
        )
    return Fix(
        summary="raise the batch size per rank, for more work between two communications",
        paste="loader = DataLoader(dataset, batch_size=2 * batch_size, sampler=sampler)",
        language="python",
        caution="adapt learning rate and schedule; takes more memory",
    )
