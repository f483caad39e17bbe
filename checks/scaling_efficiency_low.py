"""A rank in this job does much less than it would alone: the rest is waiting and communication.

The efficiency is the part of a step that the mean rank spends on its own work. What is missing is
lost to the number of ranks: waiting for the last of them, and transfers that nothing hides. It is
what other causes come to; where none of them is told, no single one stands out, and the ranks are
late by turns.

Seen from outside: twice as many GPUs, and not nearly twice as many samples in a second.
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

# Published weak scaling: 97 % at 16 times the GPUs, 90 % with small models; less than 85 % is out
# of line (torchtitan and llm-foundry, benchmark tables).
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
            yield from _told(section, next(iter(wrapping or ()), None), use or (), sweeps or ())


def _told(
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
            f"the mean rank spends {efficiency:.0%} of the median step on work of its own: "
            f"{parts['waiting']:.0%} of the time it waits for the last of {len(steps.ranks)} ranks,"
            f" and {parts['transfer']:.0%} are transfers"
        ),
        evidence=(
            Observation(
                name="efficiency against one rank",
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
                name=f"efficiency at {row.ranks} ranks",
                value=f"{low:.0%} to {high:.0%}",
                source="predicted from the parts of the step",
            )


def _fix(waiting: bool) -> Fix:
    if waiting:
        return Fix(
            summary="see whether the hosts are alike when each works alone, and who takes CPU time",
            paste="torchrun --nnodes N --nproc-per-node M -m ddoctor.probe",
            caution="with the N and M of the job, while it does not run",
        )
    return Fix(
        summary="more work for each rank between two communications: a larger batch per rank",
        paste="loader = DataLoader(dataset, batch_size=2 * batch_size, sampler=sampler)",
        language="python",
        caution="learning rate and schedule follow the larger batch; it takes more memory",
    )
