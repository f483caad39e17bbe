"""Why a rank is slower than the others, by what is known of its host and its lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from ddoctor.analysis.stragglers import PARTS, Straggler, own_line
from ddoctor.evidence.host import cpu_list
from ddoctor.evidence.steps import HotLine, Lines, Steps
from ddoctor.evidence.training import RankHost, RankUse

Kind = Literal[
    "line",  # that only this rank runs
    "mask",  # it may use fewer CPUs
    "throttled",  # the quota of its cgroup
    "busy",  # it was on a CPU all the time
    "slower",  # the same, and equally in each part of the model
    "queued",  # other processes had its CPU
    "crowded",  # they also had the CPUs of the other ranks
    "blocked",  # it did not want a CPU
    "device",  # its GPU
    "traced",  # a trace has no more
    "unknown",
]
"""The kind of reason."""

# CPUThrottlingHigh of kubernetes-mixin (cpuThrottlingPercent: 25), which clusters alert on.
THROTTLED = 0.25
# A slower core is slower in everything; with noise, in each part by at least half of that.
ALIKE = 0.5


@dataclass(frozen=True)
class Reason:
    """The reason, as part of a sentence."""

    kind: Kind
    words: str
    line: HotLine | None = None


def why(one: Straggler, steps: Steps, lines: Lines | None, use: RankUse | None) -> Reason:
    """The first reason that holds: a line that only it runs, the device, a limit, the CPU."""
    rank, share = one.place.rank, one.seconds / steps.step
    line = own_line(lines, rank, PARTS[one.part], share)
    if line is not None:
        where = f"it is often at {line.file}:{line.line}, `{line.text}`, where the others are not"
        return Reason("line", where, line)
    if steps.traced:
        words = "the trace does not say whether it has more data, or is slower with as much"
        if all(rank.elements for rank in steps.ranks):
            words = "it has as much data as the others, and the trace does not say what slows it"
        return Reason("traced", words)
    if one.place.device != "cpu":
        words = "it runs the same lines as the others, so its GPU, or the path to it, is slower"
        return Reason("device", words)
    hosts = {host.rank: host for host in use.hosts} if use is not None else {}
    host = hosts.pop(rank, None)
    limited = _limited(host, list(hosts.values())) if host is not None else None
    others = [other.waited for other in hosts.values() if other.waited is not None]
    return limited or _by_its_cpu(one, steps, host.waited if host is not None else None, others)


def _limited(host: RankHost, others: list[RankHost]) -> Reason | None:
    usual = min((len(other.affinity) for other in others), default=0)
    if others and len(host.affinity) < median(len(other.affinity) for other in others):
        mask = cpu_list(host.affinity)
        return Reason("mask", f"it may use only CPU {mask}, while the others have {usual} CPUs")
    share = _throttled(host)
    if share >= THROTTLED and all(_throttled(other) < share / 2 for other in others):
        return Reason("throttled", f"its cgroup was throttled in {share:.0%} of the periods")
    return None


def _throttled(host: RankHost) -> float:
    return (host.throttled_periods or 0) / host.periods if host.periods else 0.0


def _by_its_cpu(
    one: Straggler, steps: Steps, waited: float | None, others: Sequence[float]
) -> Reason:
    if one.on_cpu is None:
        return Reason("unknown", "its CPU time is not known")
    if one.on_cpu >= one.seconds / 2:
        on_a_cpu = "it was on a CPU for that time, "
        if _slower_in_all(one, steps):
            return Reason(
                "slower", f"{on_a_cpu}and in forward and backward alike: its core is slower"
            )
        return Reason("busy", f"{on_a_cpu}so it computes more, or its core is slower")
    if waited is not None and waited < one.seconds / steps.step / 2:
        return Reason("blocked", "it needed no CPU for that time: it slept, or waited for a disk")
    queued = f", and waited in the run queue for {waited:.0%} of the time" if waited else ""
    if waited and others and median(others) >= waited / 2:
        usual = f"while the usual rank waited {median(others):.0%}"
        return Reason("crowded", f"it got too little CPU time{queued}, {usual}")
    return Reason("queued", f"it was on no CPU for that time{queued}: another process had its core")


def _slower_in_all(one: Straggler, steps: Steps) -> bool:
    """Whether forward and backward are both slower by about the same factor as all computing."""
    if one.part != "computing":
        return False
    mine = next(rank for rank in steps.ranks if rank.place == one.place)
    others = [rank for rank in steps.ranks if rank is not mine]
    return all(
        mine.typical(phase) - usual >= ALIKE * usual * one.seconds / one.usual
        for phase in ("forward", "backward")
        for usual in [median(rank.typical(phase) for rank in others)]
    )
