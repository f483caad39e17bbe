"""Some ranks process more data per step than others, and every rank waits for the slowest.

Batches with the same number of samples differ in work if the samples differ: a batch is padded to
its longest text, or an image has more pixels. Each step takes as long as on the rank with the most
work, usually another rank in each step, and the others wait. If one rank always has more work, its
share of the data differs from that of its peers.

Symptoms: different ranks arrive last in different steps, on healthy hardware. Step times vary
widely, and a profile of each rank alone shows nothing.

To fix it, group samples of similar length into the same step on all ranks, or pack them to one
length.
"""

# Above 150 lines: recorded steps, a live run and the source show it, and lengths have a sampler.

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from statistics import fmean, median

from ddoctor.analysis import endings, live_cost
from ddoctor.analysis.framework_words import FrameworkWords
from ddoctor.analysis.like_lengths import LIKE_LENGTHS, grouped
from ddoctor.analysis.live_state import LiveState
from ddoctor.analysis.script_source import shown
from ddoctor.analysis.stragglers import NOTICEABLE, SLOWER_BY, STEADY, comparable, few
from ddoctor.analysis.work_imbalance import Workload, workload
from ddoctor.evidence.live import LiveLook
from ddoctor.evidence.script import Script
from ddoctor.evidence.steps import Steps
from ddoctor.models import Confidence, Cost, Finding, Fix, Observation, Severity, Where

EXPLAINS = ("scaling-efficiency-low",)


def more_work(steps: Steps, words: FrameworkWords) -> Iterator[Finding]:
    work = workload(steps) if comparable(steps) else None
    if work is None:
        return
    heaviest = tuple(
        rank.place for index, rank in enumerate(steps.ranks) if work.heaviest(index) >= STEADY
    )
    share = work.lost / steps.step
    slower = max(share, work.longer / steps.step if heaviest else 0.0)
    # A rank that always has more is worth a note before it costs much.
    if slower < (NOTICEABLE if heaviest and not few(steps) else SLOWER_BY):
        return
    severity = Severity.WARNING if slower >= SLOWER_BY else Severity.NOTE
    if few(steps):
        severity = live_cost.severity(slower)
    means = [fmean(amounts) for amounts in work.amounts]
    usual = median(means)
    name = "numbers (of text: tokens)" if work.unit == "numbers" else work.unit
    if steps.traced:
        name = "numbers in the inputs of its operators"
    if heaviest:
        who = endings.ranks(place.rank for place in heaviest)
        verb = "processes" if len(heaviest) == 1 else "process"
        more = f"{who} {verb} {work.ratio:.0%} more {name} per step than the other ranks"
    else:
        more = (
            f"the rank with the most {name} has {work.ratio:.0%} more than the others in the "
            "median step, and this rank changes from step to step"
        )
    yield Finding(
        severity=severity,
        confidence=Confidence.CERTAIN if heaviest else Confidence.LIKELY,
        because=(
            f"{more}: with equal work, a step of {1000 * steps.step:.3g} ms would take "
            f"{1000 * work.lost:.3g} ms less"
        ),
        evidence=(
            *(
                Observation(
                    name=f"{work.unit} per step, rank {rank.place.rank}",
                    value=round(mean),
                    expected=round(usual),
                    source=f"median of {len(steps.ranks)} ranks",
                )
                for rank, mean in zip(steps.ranks, means, strict=True)
                if len(steps.ranks) == 2 or abs(mean - usual) >= SLOWER_BY * usual
            ),
            Observation(
                name=f"time for one more of the {work.unit}",
                value=float(f"{1e6 * work.seconds_each:.3g}"),
                unit="µs",
                source="regression over all ranks and steps",
            ),
        ),
        where=Where.of(heaviest),
        cost=Cost(value=round(share, 3), unit="share of step"),
        fixes=(_fix(work, bool(heaviest), words),),
    )


def in_the_source(script: Script, steps: Steps | None, live: LiveLook | None) -> Iterator[Finding]:
    """The data is sorted by length, and each rank takes a part in a row."""
    if steps is None and live is None:
        yield from _sorted(script)


def by_cpu_time(live: LiveState, script: Script | None, words: FrameworkWords) -> Iterator[Finding]:
    """Where one rank computes far more in both passes than the others of its host."""
    slow = live.straggler
    if slow is None or not slow.of_the_same or (script is not None and script.sorted_shares):
        return
    yield Finding(
        severity=live_cost.severity(slow.lost),
        confidence=Confidence.LIKELY,
        because=(
            f"{slow.rank.who} computes {slow.of_the_same:.1f} times as long as the others in the "
            "forward and in the backward pass alike, at the same lines, and was on a CPU "
            f"meanwhile, {slow.others_wait}: it has more or longer samples in each step"
        ),
        evidence=slow.waits,
        where=Where.of([slow.rank]),
        cost=Cost(value=round(slow.lost, 2), unit="share of step"),
        fixes=(
            grouped(words.of(live.framework)),
            Fix(
                summary="or record a run: it counts the samples and tokens of each rank",
                paste="ddoctor run -- LAUNCH_COMMAND",
                caution="if they are equal, the core of this rank is slower",
            ),
        ),
    )


def in_a_live_run(live: LiveState, script: Script) -> Iterator[Finding]:
    """By the source, where one rank takes longer for the passes of the model."""
    slow = live.straggler or live.repeated
    if slow is not None and slow.in_passes:
        yield from (
            replace(
                one,
                severity=live_cost.severity(slow.lost),
                because=f"{one.because}; {slow.rank.who} works for {slow.share:.0%} of the time "
                f"longer than the others, {slow.others_wait}",
                where=Where.of([slow.rank]),
                cost=Cost(value=round(slow.lost, 2), unit="share of step"),
            )
            for one in _sorted(script)
        )


def _sorted(script: Script) -> Iterator[Finding]:
    for one in script.sorted_shares[:1]:
        yield Finding(
            severity=Severity.WARNING,
            confidence=Confidence.LIKELY,
            because=(
                f"{shown(one.sorts)} sorts the data by length, and {shown(one.at)} gives each rank "
                "a part in a row: one rank has the longest samples in each step, and the others "
                "wait for it"
            ),
            fixes=(
                Fix.python(
                    summary="deal the sorted data out, one item to each rank",
                    paste="part = ordered[rank::world_size]  # in each step, lengths are alike",
                    caution="cut it to a multiple of the ranks, and shuffle the steps on all alike",
                ),
            ),
        )


def _fix(work: Workload, same_rank: bool, words: FrameworkWords) -> Fix:
    if work.unit == "samples":
        summary = "use the same batch size on every rank, and drop a shorter last batch"
        paste = (
            "sampler = DistributedSampler(dataset, drop_last=True)\n"
            "loader = DataLoader(dataset, batch_size=batch_size, sampler=sampler, drop_last=True)"
        )
        caution = ""
    elif words.has("like_lengths"):
        return grouped(words, "up to the share of the step named above")
    else:
        summary = "group samples of similar length, so that all ranks have equal work in each step"
        if same_rank:
            summary = (
                "divide the data among the ranks at random, not by file or length, and group "
                "samples of similar length in each step"
            )
        paste, caution = LIKE_LENGTHS, "or pack texts into sequences of one length, without padding"
    return Fix.python(
        summary=summary,
        paste=paste,
        caution=caution,
        expected_gain="up to the share of the step named above",
    )
