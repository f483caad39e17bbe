"""Why a rank is slower than the others, by what is known of its host and its lines.

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
"""The kind of reason.

- line: a line that only this rank runs.
- mask: it may use fewer CPUs.
- throttled: the quota of its cgroup.
- busy: it was on a CPU all the time.
- slower: the same, and equally in each part of the model.
- queued: other processes had its CPU.
- crowded: they also had the CPUs of the other ranks.
- blocked: it did not want a CPU.
- device: its GPU.
"""

# CPUThrottlingHigh of kubernetes-mixin (cpuThrottlingPercent: 25), which clusters alert on.
THROTTLED = 0.25
# A slower core is slower in everything; with noise, in each part by at least half of that.
ALIKE = 0.5


@dataclass(frozen=True, kw_only=True)
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
        words = f"it is often at {line.file}:{line.line}, `{line.text}`, where the others are not"
        return Reason(kind="line", words=words, line=line)
    if one.place.device != "cpu":
        words = "it runs the same lines as the others, so its GPU, or the path to it, is slower"
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
        words = f"it may use only CPU {cpu_list(host.affinity)}, while the others have {usual} CPUs"
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
        return Reason(kind="unknown", words="its CPU time is not known")
    if one.on_cpu >= one.seconds / 2 and _slower_in_all(one, steps):
        words = (
            "it was on a CPU for that time, and in forward and backward alike: its core is slower"
        )
        return Reason(kind="slower", words=words)
    if one.on_cpu >= one.seconds / 2:
        words = "it was on a CPU for that time, so it computes more, or its core is slower"
        return Reason(kind="busy", words=words)
    if waited is not None and waited < share / 2:
        words = "it needed no CPU for that time: it slept, or waited for a disk"
        return Reason(kind="blocked", words=words)
    queued = f", and waited in the run queue for {waited:.0%} of the time" if waited else ""
    if waited and others and median(others) >= waited / 2:
        words = (
            f"it got too little CPU time{queued}, while the usual rank waited {median(others):.0%}"
        )
        return Reason(kind="crowded", words=words)
    words = f"it was on no CPU for that time{queued}: another process had its core"
    return Reason(kind="queued", words=words)


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
