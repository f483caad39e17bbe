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

from ddoctor.analysis import endings
from ddoctor.analysis.live_ranks import phase, stack
from ddoctor.analysis.live_state import LiveState
from ddoctor.analysis.live_stragglers import keeps_all_waiting, others_wait, waits
from ddoctor.analysis.straggler_reason import Reason, why
from ddoctor.analysis.stragglers import NOTICEABLE, SURE, Straggler, Stragglers
from ddoctor.evidence.host import Cpus, cpu_list
from ddoctor.evidence.pairs import LocalWork, Pairs
from ddoctor.evidence.steps import Lines, Steps
from ddoctor.evidence.training import RankUse
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
            yield _finding(
                [row for row in slow if row.place.host == host],
                usual,
                len(work) - len(slow),
                by_host.get(host),
            )


def _finding(rows: Sequence[LocalWork], usual: float, sound: int, cpus: Cpus | None) -> Finding:
    host = rows[0].place.host
    best = min(min(row.seconds) for row in rows)
    share = median(one for row in rows for one in row.cpu)
    queued = [one for row in rows for one in row.queued]
    ranks = tuple(row.place.rank for row in rows)
    who = endings.ranks(ranks)
    starved = share < STARVED_BELOW
    waiting = f", and waited in the run queue for {median(queued):.0%}" if queued else ""
    reason = (
        f"it was on a CPU for {share:.0%} of the time{waiting}"
        if starved
        else f"it was on a CPU for {share:.0%} of the time, so the CPU itself is slower"
    )
    return Finding(
        severity=Severity.WARNING,
        confidence=Confidence.CERTAIN if sound > 1 else Confidence.LIKELY,
        because=(
            f"{who} on {host} took at least {best:.3f} s in each of {len(rows[0].seconds)} repeats "
            f"for work that the other ranks do in {usual:.3f} s: {reason}"
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
        where=Where(
            hosts=(host,),
            ranks=ranks,
            devices=tuple(dict.fromkeys(row.place.device for row in rows)),
        ),
        cost=Cost(value=round(1 - usual / best, 3), unit="share of speed"),
        fixes=tuple(_fixes(host, cpus, starved)),
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


def _fixes(host: str, cpus: Cpus | None, starved: bool) -> Iterator[Fix]:
    if starved:
        quota = cpus.quota_file if cpus is not None else ""
        yield Fix(
            summary=f"on {host}, find what takes the CPUs: other processes, the mask, the quota",
            paste="\n".join(
                (
                    "ps -eo pid,user,psr,pcpu,args --sort=-pcpu | head -20",
                    "grep Cpus_allowed_list /proc/self/status",
                    *([f"cat {quota} {quota.rpartition('/')[0]}/cpu.stat"] if quota else []),
                )
            ),
        )
    else:
        yield Fix(
            summary=f"on {host}, check the clocks and the governor",
            paste=(
                "lscpu --extended=CPU,CORE,MHZ,MAXMHZ\n"
                "cat /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor | sort | uniq -c"
            ),
            caution="leave the host out of the run if its processors are of another model",
        )


def in_training(
    late: Stragglers, steps: Steps, lines: Lines | None, use: RankUse | None
) -> Iterator[Finding]:
    found = [one for one in late.found if _is_slowness(one)]
    known = {one.place.rank for one in found}
    slightly = (
        one for one in late.slight if one.part == "computing" and one.place.rank not in known
    )
    for one in found:
        reason = why(one, steps, lines, use)
        doubtful = _in_passing(one, steps, reason) or _perhaps_waits(one, late.found[0], reason)
        yield _late(one, steps, reason, Severity.NOTE if doubtful else Severity.WARNING)
    for one in slightly:
        if one.on_cpu is not None and one.on_cpu >= max(one.seconds / 2, NOTICEABLE * steps.step):
            yield _late(one, steps, why(one, steps, lines, use), Severity.NOTE)


def _in_passing(one: Straggler, steps: Steps, reason: Reason) -> bool:
    """Whether it may end soon: other processes use the CPUs, or the core was slower for a while."""
    if reason.kind in ("queued", "slower"):
        return one.seconds < PASSING * steps.step
    return reason.kind == "crowded" or (reason.kind == "busy" and one.behind < SURE * one.steps)


def _perhaps_waits(one: Straggler, worst: Straggler, reason: Reason) -> bool:
    """Whether its sleep, at no line that only it runs, may be a wait for a slower rank."""
    return reason.kind == "blocked" and one.place.rank != worst.place.rank


def _is_slowness(one: Straggler) -> bool:
    """Whether this check covers it; other parts, and extra work of rank 0, have other checks."""
    return one.part == "computing" or (one.part in ("evaluation", "rest") and one.place.rank != 0)


def in_a_live_run(live: LiveState) -> Iterator[Finding]:
    found = live.straggler
    if found is None or found.activity.startswith(("loader", "checkpoint")):
        return
    if found.collects_by_itself or (found.beside_the_training and found.again):
        return
    rank, line = found.rank, found.line
    at = endings.at(line) + endings.quoted(line)
    sure = found.again or (found.in_model and keeps_all_waiting(rank, live.ranks))
    doubt = "" if sure else "; attach again: it was seen there once, which may be the only time"
    yield Finding(
        severity=Severity.WARNING if sure else Severity.NOTE,
        confidence=Confidence.LIKELY,
        because=(
            f"{rank.who} is in {phase(found.activity)}{at} for "
            f"{found.share:.0%} of the time longer than the others, "
            f"{others_wait(found, live.ranks)}{doubt}"
        ),
        evidence=waits(live.ranks),
        where=Where(hosts=(rank.host,), ranks=(rank.rank,)),
        cost=Cost(value=round(found.lost, 2), unit="share of step"),
        fixes=(
            Fix(
                summary=f"find out why only rank {rank.rank} takes so long there",
                paste=stack(rank, found.calls)
                if line
                else f"py-spy dump --native --pid {rank.seen.pid}  # on {rank.host}",
                language="text" if line else "sh",
            ),
        ),
    )


def _late(one: Straggler, steps: Steps, reason: Reason, severity: Severity) -> Finding:
    place = one.place
    others = "the other" if len(steps.ranks) == 2 else "the others"
    where = "outside the model" if one.part == "rest" else f"in {one.phase}"
    sure = severity is Severity.WARNING and reason.kind != "unknown" and len(steps.ranks) > 2
    return Finding(
        severity=severity,
        confidence=Confidence.CERTAIN if sure else Confidence.LIKELY,
        because=(
            f"rank {place.rank} on {place.host} needs {1000 * one.seconds:.3g} ms longer than "
            f"{others} in {one.behind} of {one.steps} steps, most of it {where}, of a step of "
            f"{1000 * steps.step:.3g} ms, and {others} must wait for it: {reason.words}"
        ),
        evidence=(
            Observation(
                name=f"{one.part} in a step",
                value=round(1000 * (one.usual + one.seconds), 1),
                unit="ms",
                expected=round(1000 * one.usual, 1),
                source=f"usual value of {len(steps.ranks)} ranks",
            ),
            *_on_cpu(one),
        ),
        where=Where(hosts=(place.host,), ranks=(place.rank,), devices=_gpu(place.device)),
        cost=Cost(value=round(one.cost, 3), unit="share of step"),
        fixes=(_remedy(one, reason),),
    )


def _on_cpu(one: Straggler) -> Iterator[Observation]:
    if one.on_cpu is not None:
        yield Observation(
            name="part of that on a CPU",
            # Ranks that poll while they wait use a CPU for longer than a rank that sleeps.
            value=max(0.0, round(1000 * one.on_cpu, 1)),
            unit="ms",
            source="CPU time of its main thread",
        )


def _gpu(device: str) -> tuple[str, ...]:
    return () if device == "cpu" else (device,)


def _remedy(one: Straggler, reason: Reason) -> Fix:
    rank, host = one.place.rank, one.place.host
    line = reason.line
    if line is not None:
        return Fix(
            summary=f"find out why only rank {rank} runs this; drop it, or divide it among ranks",
            paste=f"{line.file}:{line.line}: {line.text}  # in {line.function}",
            language="text",
        )
    if reason.kind == "mask":
        return Fix(
            summary=f"give rank {rank} all CPUs of its host",
            paste="import os; os.sched_setaffinity(0, range(os.cpu_count()))",
            language="python",
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
    starved = reason.kind in ("queued", "crowded", "throttled")
    return next(_fixes(host, None, starved))


def _in_its_process(rank: int, command: str) -> str:
    return (
        "for pid in $(pgrep python); do tr '\\0' '\\n' < /proc/$pid/environ | "
        f"grep -qx RANK={rank} && {command} $pid; done"
    )
