"""The CPU quota of the cgroup makes the ranks wait.

A container or job with a CPU limit gets that much CPU time in every period of 100 ms; once it is
used up all its processes stand still until the next period. A rank that stands still makes all the
others wait in the collective. The machine looks half idle meanwhile.

Seen from outside: ``nr_throttled`` in the cgroup's ``cpu.stat`` grows while the run is slow.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.evidence.environment import Environment
from ddoctor.evidence.gpus import Gpus
from ddoctor.evidence.host import Cpus, Kernel
from ddoctor.evidence.probes import ProbeRuns
from ddoctor.evidence.ranks import local_ranks
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity

EXPLAINS = ("cpu-thread-oversubscription", "dataloader-bottleneck", "straggler-rank")

# CPUThrottlingHigh of kubernetes-mixin (cpuThrottlingPercent: 25), which clusters alert on.
NOTABLE_SHARE = 0.25
# That alert wants to see it for 15 minutes; counters of less say nothing about the past. Just now,
# it takes half of the ten periods of the look: an idle cgroup has hardly any.
ENOUGH_PERIODS, ENOUGH_NOW = 15 * 60 * 10, 5


def throttled(
    cpus: Cpus,
    gpus: Gpus | None,
    environment: Environment | None,
    runs: ProbeRuns | None,
    kernel: Kernel | None,
) -> Iterator[Finding]:
    if cpus.quota is None or cpus.quota >= len(cpus.allowed):
        return
    ranks = local_ranks(gpus, environment, runs)
    number = ranks.number if ranks is not None else 1
    now = _share(cpus.recent_throttled_periods, cpus.recent_periods, ENOUGH_NOW)
    past = _share(cpus.throttled_periods, cpus.periods, ENOUGH_PERIODS)
    grants = f"the cgroup grants {cpus.quota:g} of {len(cpus.allowed)} CPUs"
    if cpus.quota < number:
        sure = ranks is None or ranks.certain
        severity, confidence = (
            Severity.WARNING,
            Confidence.CERTAIN if sure else Confidence.LIKELY,
        )
        who = "a single rank" if ranks is None else f"{number} ranks ({ranks.told_by})"
        because = f"{grants}, and {who} cannot get one each"
    elif now is not None and now >= NOTABLE_SHARE:
        severity, confidence = Severity.WARNING, Confidence.LIKELY
        because = f"{grants}, and in {now:.0%} of the periods just now that was used up"
    elif past is not None and past >= NOTABLE_SHARE:
        severity, confidence = Severity.NOTE, Confidence.POSSIBLE
        because = (
            f"{grants}, and in {past:.0%} of {cpus.periods} periods since it was made that was "
            "used up; whether it is so now, `ddoctor doctor` beside the running job settles"
        )
    else:
        return
    yield Finding(
        severity=severity,
        confidence=confidence,
        because=because,
        evidence=tuple(_rows(cpus, number, now, past)),
        fixes=tuple(_fixes(cpus, kernel)),
    )


def _share(part: int | None, whole: int | None, enough: int) -> float | None:
    return part / whole if part is not None and whole is not None and whole >= enough else None


def _rows(cpus: Cpus, ranks: int, now: float | None, past: float | None) -> Iterator[Observation]:
    yield Observation(
        name="CPU quota",
        value=round(cpus.quota or 0, 2),
        unit="CPUs",
        expected=ranks,
        source=cpus.quota_file or "cgroup",
    )
    for name, share in (("periods throttled now", now), ("periods throttled in all", past)):
        if share is not None:
            yield Observation(
                name=name,
                value=round(100 * share),
                unit="%",
                expected=round(100 * NOTABLE_SHARE),
                source="cpu.stat; the limit is CPUThrottlingHigh's of kubernetes-mixin",
            )


def _fixes(cpus: Cpus, kernel: Kernel | None) -> Iterator[Fix]:
    wanted = len(cpus.allowed)
    folder, _, file = cpus.quota_file.rpartition("/")
    unit = folder.rpartition("/")[2]
    if kernel is not None and kernel.container == "kubernetes":
        yield Fix(
            summary="raise the CPU limit of the container, or leave it out",
            paste=f'resources:\n  limits: {{cpu: "{wanted}"}}\n',
            language="yaml",
            caution="or as many as the node can allocate",
        )
    elif kernel is not None and kernel.engine:
        yield Fix(
            summary="raise the CPU limit, on the machine that runs the container",
            paste=f"{kernel.engine} update --cpus {wanted} CONTAINER",
        )
    elif unit.endswith((".slice", ".service", ".scope")):
        yield Fix(
            summary="lift the quota of the unit, as root",
            paste=f"systemctl set-property --runtime {unit} CPUQuota=",
        )
    elif cpus.quota_file:
        yield Fix(
            summary="lift the quota of the cgroup, as root",
            paste=f"echo {'max' if file == 'cpu.max' else -1} > {cpus.quota_file}",
        )
