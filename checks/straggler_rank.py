"""One rank computes slower than the others in every step, and all other ranks wait for it.

A step takes as long as on the slowest rank. A probe gives every rank the same work on one CPU,
without network and GPU. If one rank is slower in every repeat, its host keeps it from its CPU (a
quota, another process on the same cores, too few CPUs in its mask), or its cores are slower (clock,
heat, another model). Its network transfers are then slow for the same reason.

In training, all ranks show the same step time, since the delay of one rank appears in the backward
pass of all. ddoctor therefore compares the own work of each rank until it enters a collective, and
names a rank that takes longer in nearly every step. More tokens or samples are
uneven-work-per-rank; a slow loader is dataloader-bottleneck.

Symptoms: one rank enters each collective last, and the others appear to wait in it.

To fix it, find what slows down that rank: other processes, CPU mask, quota, clocks, or a line that
only this rank runs.
"""

# Above 150 lines: it judges probes, recorded steps and a live run; each reason has its own command.

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil
from statistics import median, median_low

from ddoctor.analysis import endings, live_cost
from ddoctor.analysis.cpu_contention import TAKEN
from ddoctor.analysis.describe import where
from ddoctor.analysis.exchanged_models import in_stages
from ddoctor.analysis.live_ranks import LiveRankState, phase, stack
from ddoctor.analysis.live_state import LiveState
from ddoctor.analysis.straggler_reason import Reason, why
from ddoctor.analysis.stragglers import NOTICEABLE, SURE, Straggler, Stragglers, extra_work, few
from ddoctor.evidence.cluster_probes import LocalWork, Pairs
from ddoctor.evidence.host import Cpus, cpu_list
from ddoctor.evidence.script import Script
from ddoctor.evidence.steps import Lines, Steps
from ddoctor.evidence.training import RankUse
from ddoctor.evidence.wrapping import CollectiveCalls
from ddoctor.models import Confidence, Cost, Finding, Fix, Observation, Severity, Where

EXPLAINS = ("scaling-efficiency-low", "slow-network-link")
OF_MACHINE = True

# The slowdown that a public benchmark of fail-slow detection calls loud (probing's ladder);
# NVIDIA's NVRx flags at 0.75 of the peers' speed, which is about the same.
SLOWER = 1.3
# Slowness is persistent (per-step p90 1.06 of a job's median, OSDI'25); a slow moment is noise.
REPEATS = 5
# Even its best repeat is worse than the worst tenth of the healthy ranks.
PEERS_AT_WORST = 0.9
# A rank with an exclusive CPU is on it for nearly all of the time.
STARVED_BELOW = 0.9
# What takes a rank's core for a while may end soon: it must cost as much as NVRx flags at.
PASSING = 0.25


def working_alone(pairs: tuple[Pairs, ...], cpus: tuple[Cpus, ...] | None) -> Iterator[Finding]:
    by_host = {section.host: section for section in cpus or ()}
    for section in pairs:
        work = [row for row in section.work if len(row.seconds) >= REPEATS]
        if len(work) < 2:
            continue
        usual = median_low(median(row.seconds) for row in work)
        slow = [row for row in work if min(row.seconds) >= SLOWER * usual]
        times = sorted(time for row in work if row not in slow for time in row.seconds)
        if not times:
            continue
        worst = times[ceil(len(times) * PEERS_AT_WORST) - 1]
        slow = [row for row in slow if min(row.seconds) > worst]
        for host in dict.fromkeys(row.place.host for row in slow):
            rows = [row for row in slow if row.place.host == host]
            yield _alone(rows, usual, len(work) - len(slow), by_host.get(host))


def _alone(rows: Sequence[LocalWork], usual: float, sound: int, cpus: Cpus | None) -> Finding:
    host = rows[0].place.host
    best = min(min(row.seconds) for row in rows)
    share = median(one for row in rows for one in row.cpu)
    queued = [one for row in rows for one in row.queued]
    who = endings.ranks(row.place.rank for row in rows)
    starved = share < STARVED_BELOW
    waiting = f", and waited in the run queue for {median(queued):.0%}" if queued else ""
    reason = waiting if starved else ", so the CPU itself is slower"
    return Finding(
        severity=Severity.WARNING,
        confidence=Confidence.CERTAIN if sound > 1 else Confidence.LIKELY,
        because=(
            f"{who} on {host} took at least {best:.3f} s in each of {len(rows[0].seconds)} repeats "
            f"for work that the other ranks do in {usual:.3f} s: it was on a CPU for "
            f"{share:.0%} of the time{reason}"
        ),
        evidence=(
            Observation(
                name="time for work on one CPU, best repeat",
                value=round(best, 3),
                unit="s",
                expected=round(usual, 3),
                source=f"median of {sound} other rank{'s' if sound > 1 else ''} of this run",
            ),
            Observation(name="time on a CPU", value=round(100 * share), unit="%", expected=100),
            *_limits(cpus),
        ),
        where=where([row.place for row in rows]),
        cost=Cost(value=round(1 - usual / best, 3), unit="share of speed"),
        fixes=(_find_the_reason(host, cpus, starved),),
    )


def _limits(cpus: Cpus | None) -> Iterator[Observation]:
    if cpus is None:
        return
    if cpus.quota is not None:
        yield Observation(
            name="CPU quota", value=round(cpus.quota, 2), unit="CPUs", source=cpus.quota_file
        )
    if len(cpus.allowed) < cpus.logical:
        yield Observation(
            name="CPUs allowed",
            value=cpu_list(cpus.allowed),
            source=f"affinity mask; the host has {cpus.logical}",
        )
    if cpus.load is not None:
        yield Observation(name="load over a minute", value=round(cpus.load[0], 1), source="loadavg")


def _find_the_reason(host: str, cpus: Cpus | None, starved: bool) -> Fix:
    if not starved:
        return Fix(
            summary=f"on {host}, check the clocks and the governor",
            paste=(
                "lscpu --extended=CPU,CORE,MHZ,MAXMHZ\n"
                "cat /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor | sort | uniq -c"
            ),
            caution="leave the host out of the run if its processors are of another model",
        )
    quota = cpus.quota_file if cpus is not None else ""
    return Fix(
        summary=f"on {host}, find what takes the CPUs: other processes, the mask, the quota",
        paste=(
            "ps -eo pid,user,psr,pcpu,args --sort=-pcpu | head -20\n"
            "grep Cpus_allowed_list /proc/self/status"
            + (f"\ncat {quota} {quota.rpartition('/')[0]}/cpu.stat" if quota else "")
        ),
    )


def in_training(
    late: Stragglers,
    steps: Steps,
    lines: Lines | None,
    use: RankUse | None,
    calls: CollectiveCalls | None,
) -> Iterator[Finding]:
    # Other parts, and extra work of rank 0, have other checks.
    found = [
        one
        for one in late.found
        if one.part in ("computing", "evaluation", "rest")
        and not (one.place.rank == 0 and extra_work(one, steps, lines))
    ]
    known = {one.place.rank for one in found}
    for one in found:
        reason = why(one, steps, lines, use)
        # Its sleep, at no line that only it runs, may be a wait for a slower rank.
        waits = reason.kind == "blocked" and one.place.rank != late.found[0].place.rank
        doubtful = waits or _in_passing(one, steps, reason)
        severity = Severity.NOTE if doubtful else Severity.WARNING
        if few(steps):
            severity = live_cost.severity(one.cost)
        yield _late(one, steps, reason, severity, _remedy(one, reason, calls))
    for one in late.slight:
        if one.part != "computing" or one.place.rank in known or one.on_cpu is None:
            continue
        if one.on_cpu >= max(one.seconds / 2, NOTICEABLE * steps.step):
            reason = why(one, steps, lines, use)
            yield _late(one, steps, reason, Severity.NOTE, _remedy(one, reason, calls))


def _in_passing(one: Straggler, steps: Steps, reason: Reason) -> bool:
    """Whether it may end soon: other processes use the CPUs, or the core was slower for a while.

    A wait in few steps, at no line that only it runs, may be for the disk or for another process.
    """
    seldom = reason.kind == "blocked" and one.behind < steps.count / 2
    if seldom or reason.kind in ("queued", "slower"):
        return one.seconds < PASSING * steps.step
    return reason.kind == "crowded" or (reason.kind == "busy" and one.behind < SURE * steps.count)


def in_a_live_run(
    live: LiveState, uses: tuple[RankUse, ...] | None, script: Script | None
) -> Iterator[Finding]:
    found = live.straggler or live.repeated
    if found is None or found.activity.startswith(("loader", "checkpoint")):
        return
    if found.collects_by_itself or found.extra_work:
        return
    # With more or longer samples, which uneven-work-per-rank tells.
    if found.of_the_same or (script is not None and script.sorted_shares and found.in_passes):
        return
    rank = found.rank
    sure = found.again or (found.in_model and found.never_arrives)
    what = (
        "works outside the model"
        if phase(found.activity) == "rest"
        else f"is in {phase(found.activity)}"
    )
    doubt = "" if sure else "; attach again: it was seen there once, which may be the only time"
    taken = _by_others(rank, uses or ())
    # At a line that all ranks run, it may only have less of the CPUs.
    disturbed = taken >= TAKEN and not found.apart and not rank.seen.on_gpu
    if disturbed:
        doubt = f"; other processes used {taken:.2g} CPUs of {rank.host}: attach again without them"
    yield Finding(
        severity=live_cost.severity(found.lost) if sure and not disturbed else Severity.NOTE,
        confidence=Confidence.POSSIBLE if disturbed else Confidence.LIKELY,
        because=(
            f"{rank.who} {what}{found.at} for {found.share:.0%} of the time "
            f"longer than the others, {found.others_wait}{doubt}"
        ),
        evidence=found.waits,
        where=Where.of([rank]),
        cost=Cost(value=round(found.lost, 2), unit="share of step"),
        fixes=(
            Fix(
                summary=f"find out why only rank {rank.rank} takes so long there",
                paste=stack(rank, found.calls)
                if found.line
                else f"py-spy dump --native --pid {rank.seen.pid}  # on {rank.host}",
                language="text" if found.line else "sh",
            ),
        ),
    )


def _by_others(rank: LiveRankState, uses: Sequence[RankUse]) -> float:
    """CPUs of its host that other processes use, as far as it was seen."""
    ranks = (one for use in uses for one in use.hosts if one.host == rank.host)
    return max((one.neighbours or 0.0 for one in ranks), default=0.0)


def _late(one: Straggler, steps: Steps, reason: Reason, severity: Severity, remedy: Fix) -> Finding:
    place = one.place
    others = "the other" if len(steps.ranks) == 2 else "the others"
    where = "outside the model" if one.part == "rest" else f"in {one.phase}"
    sure = severity is Severity.WARNING and reason.kind != "unknown" and len(steps.ranks) > 2
    on_cpu = Observation(
        name="part of that on a CPU",
        # Ranks that poll while they wait use a CPU for longer than a rank that sleeps.
        value=max(0.0, round(1000 * (one.on_cpu or 0.0), 1)),
        unit="ms",
        source="CPU time of its main thread",
    )
    return Finding(
        severity=severity,
        confidence=Confidence.CERTAIN if sure else Confidence.LIKELY,
        because=(
            f"rank {place.rank} on {place.host} needs {1000 * one.seconds:.3g} ms longer than "
            f"{others} in {one.behind} of {steps.count} steps, most of it {where}, of a step of "
            f"{1000 * steps.step:.3g} ms, and {others} must wait for it: {reason.words}"
        ),
        evidence=(one.observation(steps), *([on_cpu] if one.on_cpu is not None else [])),
        where=Where(
            hosts=(place.host,),
            ranks=(place.rank,),
            devices=() if place.device == "cpu" else (place.device,),
        ),
        cost=Cost(value=round(one.cost, 3), unit="share of step"),
        fixes=(remedy,),
    )


def _remedy(one: Straggler, reason: Reason, calls: CollectiveCalls | None) -> Fix:
    rank, host = one.place.rank, one.place.host
    if one.part == "computing" and reason.kind in ("line", "busy", "device") and in_stages(calls):
        return Fix(
            summary=f"balance the pipeline: move layers from the stage of rank {rank} to another",
            paste=f"rank {rank} computes {(one.usual + one.seconds) / one.usual:.2g} times as "
            "long as the others: split the layers by their time, not by their number",
            language="text",
            caution="if the stages are equal, the GPU or the core of this rank is slower",
        )
    line = reason.line
    if line is not None:
        return Fix(
            summary=f"find out why only rank {rank} runs this; drop it, or divide it among ranks",
            paste=f"{line.file}:{line.line}: {line.text}  # in {line.function}",
            language="text",
        )
    if reason.kind == "mask":
        return Fix.python(
            summary=f"give rank {rank} all CPUs of its host",
            paste="import os; os.sched_setaffinity(0, range(os.cpu_count()))",
            caution="at the top of the script; a launcher that binds ranks must bind all alike",
            settings=("torch.affinity=all",),
        )
    if reason.kind == "device":
        index = one.place.device.rpartition(":")[2]
        return Fix(
            summary=f"on {host}, check what slows GPU {index}: clocks, heat, other processes",
            paste=f"nvidia-smi -i {index} -q -d CLOCK,PERFORMANCE,TEMPERATURE,UTILIZATION,PIDS",
            caution="`ddoctor doctor` there measures each GPU alone; leave the slow GPU out",
        )
    if reason.kind == "blocked":
        return Fix(
            summary=f"on {host}, dump the stack of rank {rank} while it runs, as root",
            paste=_in_its_process(rank, "py-spy dump --pid"),
        )
    if reason.kind == "busy":
        return Fix(
            summary=f"on {host}, profile what rank {rank} does there and the others do not",
            paste=_in_its_process(rank, "py-spy record --native --duration 10 -o late.svg --pid"),
            caution="if it does the same, its core is slower: see `lscpu --extended`",
        )
    if reason.kind == "traced":
        return Fix(
            summary=f"record a run: it names what rank {rank} does there, and how much data it has",
            paste="ddoctor run -- LAUNCH_COMMAND",
            caution="as `torchrun … train.py`, with all options of the run",
        )
    starved = reason.kind in ("queued", "crowded", "throttled")
    return _find_the_reason(host, None, starved)


def _in_its_process(rank: int, command: str) -> str:
    return (
        "for pid in $(pgrep python); do tr '\\0' '\\n' < /proc/$pid/environ | "
        f"grep -qx RANK={rank} && {command} $pid; done"
    )
