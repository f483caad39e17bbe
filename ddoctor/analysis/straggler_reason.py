"""Why a rank is later than the others, as far as its own host and its own lines tell.

Pure: recorded steps in, words out.
"""

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
    "line",
    "mask",
    "throttled",
    "busy",
    "slower",
    "queued",
    "crowded",
    "blocked",
    "device",
    "unknown",
]
"""line: of its own code; mask: it may use fewer CPUs; throttled: by its cgroup's quota; busy: on a
CPU for all of it; slower: so, and in each part of the model alike; queued: others had its CPU;
crowded: and those of the other ranks as well; blocked: it wanted none; device: on its GPU."""

# CPUThrottlingHigh of kubernetes-mixin (cpuThrottlingPercent: 25), which clusters alert on.
THROTTLED = 0.25
# A core that is slower is so in all that is computed on it; by half of that, where noise is.
ALIKE = 0.5


@dataclass(frozen=True, kw_only=True)
class Reason:
    """Why, as half a sentence."""

    kind: Kind
    words: str
    line: HotLine | None = None


def why(one: Straggler, steps: Steps, lines: Lines | None, use: RankUse | None) -> Reason:
    """The first reason of these that holds: a line of its own, a limit, the CPU, the device."""
    rank, share = one.place.rank, one.seconds / steps.step
    line = own_line(lines, rank, PARTS[one.part], share)
    if line is not None:
        met = f"it is often met at {line.file}:{line.line}, `{line.text}`, and the others are not"
        return Reason(kind="line", words=met, line=line)
    if one.place.device != "cpu":
        words = "no line of the script is its own, so its GPU, or the way to it, is slower"
        return Reason(kind="device", words=words)
    hosts = {host.rank: host for host in use.hosts} if use is not None else {}
    host = hosts.pop(rank, None)
    if host is not None:
        limited = _limited(host, list(hosts.values()))
        if limited is not None:
            return limited
    others = [other.waited for other in hosts.values() if other.waited is not None]
    waited = host.waited if host is not None else None
    return _by_its_cpu(one, steps, waited, others)


def _limited(host: RankHost, others: list[RankHost]) -> Reason | None:
    if others and len(host.affinity) < median(len(other.affinity) for other in others):
        usual = len(min(others, key=lambda other: len(other.affinity)).affinity)
        words = f"it may use CPU {cpu_list(host.affinity)} only, where the others have {usual} CPUs"
        return Reason(kind="mask", words=words)
    share = _throttled(host)
    if share >= THROTTLED and all(_throttled(other) < share / 2 for other in others):
        words = f"its cgroup was throttled in {share:.0%} of the periods"
        return Reason(kind="throttled", words=words)
    return None


def _throttled(host: RankHost) -> float:
    return (host.throttled_periods or 0) / host.periods if host.periods else 0.0


def _by_its_cpu(
    one: Straggler, steps: Steps, waited: float | None, others: Sequence[float]
) -> Reason:
    share = one.seconds / steps.step
    if one.on_cpu is None:
        return Reason(kind="unknown", words="what it did on its CPU was not seen")
    if one.on_cpu >= one.seconds / 2 and _slower_in_all(one, steps):
        words = (
            "it was on a CPU for that time, and in forward and backward alike: its core is slower"
        )
        return Reason(kind="slower", words=words)
    if one.on_cpu >= one.seconds / 2:
        words = "it was on a CPU for that time, so it does more there, or its core is slower"
        return Reason(kind="busy", words=words)
    if waited is not None and waited < share / 2:
        words = "it was on no CPU for that time and wanted none: it slept, or waited for a disk"
        return Reason(kind="blocked", words=words)
    told = f", and waited in the run queue for {waited:.0%} of the time" if waited else ""
    if waited and others and median(others) >= waited / 2:
        words = (
            f"it got too little of a CPU{told}, where the usual rank waited {median(others):.0%}"
        )
        return Reason(kind="crowded", words=words)
    words = f"it was on no CPU for that time{told}: something else had its core"
    return Reason(kind="queued", words=words)


def _slower_in_all(one: Straggler, steps: Steps) -> bool:
    """Whether its forward and its backward both take longer by about the part that all of its
    computing does."""
    if one.part != "computing":
        return False
    mine = next(rank for rank in steps.ranks if rank.place == one.place)
    others = [rank for rank in steps.ranks if rank is not mine]
    return all(
        mine.typical(phase) - usual >= ALIKE * usual * one.seconds / one.usual
        for phase in ("forward", "backward")
        for usual in [median(rank.typical(phase) for rank in others)]
    )
