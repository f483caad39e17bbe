"""The CPU quota of the cgroup throttles the ranks.

A container or job with a CPU limit gets a fixed CPU time in every period of 100 ms. Once that is
used up, all of its processes pause until the next period. All other ranks wait for a paused rank in
the collective. The machine looks half idle meanwhile.

Symptoms: ``nr_throttled`` in the cgroup's ``cpu.stat`` grows while the run is slow.

To fix it, raise or remove the CPU limit of the container, job or systemd unit. Otherwise set
``OMP_NUM_THREADS`` to what the quota allows.
"""

# Above 150 lines: a manifest, the host and the training, and one fix per kind of cgroup.

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddoctor.analysis import endings, granted_cpus
from ddoctor.analysis.cpu_contention import FOLLOWS, HELD_UP, median_wait
from ddoctor.analysis.environment_fixes import raise_container_limit
from ddoctor.analysis.launch_plan import LaunchPlan
from ddoctor.analysis.local_ranks import LocalRanks
from ddoctor.evidence.host import Cpus, Kernel
from ddoctor.evidence.script import Script
from ddoctor.evidence.steps import Steps
from ddoctor.evidence.training import RankHost, RankUse
from ddoctor.models import Confidence, Cost, Finding, Fix, Observation, Severity, Where

EXPLAINS = ("cpu-thread-oversubscription", *FOLLOWS)

# CPUThrottlingHigh of kubernetes-mixin (cpuThrottlingPercent: 25), which clusters alert on.
NOTABLE_SHARE = 0.25
# That alert requires 15 minutes, so shorter counters prove nothing about the past. The current
# sample spans ten periods and needs half of them: an idle cgroup has hardly any.
ENOUGH_PERIODS, ENOUGH_NOW = 15 * 60 * 10, 5
# During training, the periods of one second.
ENOUGH_TRAINING = 10


def in_a_launch(plan: LaunchPlan, script: Script | None) -> Iterator[Finding]:
    """The limit of a container, for the ranks and the loader workers that it gets."""
    granted, ranks = plan.launch.get("cpus-per-host"), plan.each or 1
    count = granted_cpus.cpus(granted) if granted is not None else None
    if granted is None or not count:
        return
    workers = granted_cpus.loader_workers(plan, script)
    every = ranks * workers.number if workers is not None else 0
    few = count < ranks
    if not few and every < granted_cpus.MANY * count:
        return
    sure = few or every >= granted_cpus.TOO_MANY * count
    loads = f" with {workers.number} loader workers each ({workers.at})" if workers else ""
    yield Finding(
        severity=Severity.WARNING if sure else Severity.NOTE,
        confidence=Confidence.LIKELY if sure else Confidence.POSSIBLE,
        because=f"the container may use {count:g} CPUs ({granted.at}), and {ranks} "
        f"rank{'s' * (ranks != 1)}{loads} would run in it",
        evidence=(
            Observation(name="CPUs", value=count, expected=ranks + every, source=granted.at),
        ),
        fixes=(
            Fix(
                summary="raise the limit, or leave it out",
                paste=f"cpu: {ranks + every}",
                language="text",
            ),
        ),
    )


def throttled(
    cpus: Cpus, ranks: LocalRanks, kernel: Kernel | None, use: RankUse | None
) -> Iterator[Finding]:
    if cpus.quota is None or cpus.quota >= len(cpus.allowed):
        return
    if use is not None and any(_seen(rank) is not None for rank in use.by_host.get(cpus.host, ())):
        return  # counters of the training itself are more precise
    number = ranks.number or 1
    now = _share(cpus.recent_throttled_periods, cpus.recent_periods, ENOUGH_NOW)
    past = _share(cpus.throttled_periods, cpus.periods, ENOUGH_PERIODS)
    grants = f"the cgroup grants {cpus.quota:g} of {len(cpus.allowed)} CPUs"
    severity, confidence = Severity.WARNING, Confidence.LIKELY
    if cpus.quota < number:
        confidence = Confidence.CERTAIN if ranks.certain else Confidence.LIKELY
        who = f"each of {number} ranks ({ranks.told_by})" if ranks.number else "a single rank"
        because = f"{grants}, which is less than one CPU for {who}"
    elif now is not None and now >= NOTABLE_SHARE:
        because = f"{grants}, and the processes used that up in {now:.0%} of the latest periods"
    elif past is not None and past >= NOTABLE_SHARE:
        severity, confidence = Severity.NOTE, Confidence.POSSIBLE
        because = (
            f"{grants}, and the processes used that up in {past:.0%} of {cpus.periods} periods "
            "since its start; `ddoctor doctor` during the job would show whether it still throttles"
        )
    else:
        return
    yield Finding(
        severity=severity,
        confidence=confidence,
        because=because,
        evidence=(
            Observation(
                name="CPU quota",
                value=round(cpus.quota, 2),
                unit="CPUs",
                expected=number,
                source=cpus.quota_file or "cgroup",
            ),
            *([_periods("periods throttled now", now)] if now is not None else []),
            *([_periods("periods throttled since start", past)] if past is not None else []),
        ),
        fixes=tuple(_fixes(cpus, kernel)),
    )


def while_training(
    uses: tuple[RankUse, ...],
    steps: tuple[Steps, ...] | None,
    cpus: tuple[Cpus, ...] | None,
    kernels: tuple[Kernel, ...] | None,
) -> Iterator[Finding]:
    loaders = {
        rank.place.rank: rank.share("loader") for section in steps or () for rank in section.ranks
    }
    cpus_of = {section.host: section for section in cpus or ()}
    kernel_of = {section.host: section for section in kernels or ()}
    for use in uses:
        for host, ranks in use.by_host.items():
            held = [rank for rank in ranks if (_seen(rank) or 0.0) >= NOTABLE_SHARE]
            if not held:
                continue
            worst = max(held, key=lambda rank: _seen(rank) or 0.0)
            share = _seen(worst) or 0.0
            waited, loader = median_wait(held), max(loaders.get(rank.rank, 0.0) for rank in held)
            lost = max(waited or 0.0, loader)
            if waited is None:
                effect = ""
            elif waited >= HELD_UP:
                effect = f": the main threads waited for a CPU {waited:.0%} of the time"
            elif lost >= HELD_UP:
                effect = f": the training waited for the DataLoader {loader:.0%} of the time"
            else:
                effect = f", but the main threads waited for a CPU only {waited:.0%} of the time"
            numbers = tuple(rank.rank for rank in held) if len(held) < len(ranks) else ()
            who = f" of {endings.ranks(numbers)}" if numbers else ""
            yield Finding(
                severity=Severity.WARNING if waited is None or lost >= HELD_UP else Severity.NOTE,
                confidence=Confidence.CERTAIN if (waited or 0.0) >= HELD_UP else Confidence.LIKELY,
                because=(
                    f"the cgroup{who} on {host} grants {worst.quota or 0:g} of {worst.host_cpus} "
                    f"CPUs, and the processes used that up in {share:.0%} of the periods during "
                    f"the judged steps{effect}"
                ),
                evidence=(_periods("periods throttled while training", share),),
                where=Where(hosts=(host,), ranks=numbers),
                cost=Cost(value=round(lost, 3), unit="share of step") if lost >= HELD_UP else None,
                fixes=tuple(_raise(held, cpus_of.get(host), kernel_of.get(host))),
            )


def _seen(rank: RankHost) -> float | None:
    return _share(rank.throttled_periods, rank.periods, ENOUGH_TRAINING)


def _raise(held: Sequence[RankHost], cpus: Cpus | None, kernel: Kernel | None) -> Iterator[Fix]:
    if cpus is not None:
        yield from _fixes(cpus, kernel)
    fitting = max(1, int((held[0].quota or 0.0) / len(held)))
    if max(rank.threads for rank in held) > fitting:
        yield Fix(
            summary="or start fewer threads, to fit the quota",
            paste=f"export OMP_NUM_THREADS={fitting}",
            caution="torch.set_num_threads in the script overrides this: change it there",
            settings=(f"torch.threads={fitting}",),
        )


def _share(part: int | None, whole: int | None, enough: int) -> float | None:
    return part / whole if part is not None and whole is not None and whole >= enough else None


def _periods(name: str, share: float) -> Observation:
    return Observation(
        name=name,
        value=round(100 * share),
        unit="%",
        expected=round(100 * NOTABLE_SHARE),
        source="cpu.stat; limit of the alert CPUThrottlingHigh (kubernetes-mixin)",
    )


def _fixes(cpus: Cpus, kernel: Kernel | None) -> Iterator[Fix]:
    wanted = len(cpus.allowed)
    folder, _, file = cpus.quota_file.rpartition("/")
    unit = folder.rpartition("/")[2]
    raised = raise_container_limit(
        kernel,
        "CPU",
        pod=f'cpu: "{wanted}"',
        options=f"--cpus {wanted}",
        hint=", or remove it",
        most="the node must have this many allocatable CPUs; else use that number",
    )
    if raised is not None:
        yield raised
    elif unit.endswith((".slice", ".service", ".scope")):
        yield Fix(
            summary="remove the quota of the systemd unit, as root",
            paste=f"systemctl set-property --runtime {unit} CPUQuota=",
        )
    elif cpus.quota_file:
        yield Fix(
            summary="remove the quota of the cgroup, as root",
            paste=f"echo {'max' if file == 'cpu.max' else -1} > {cpus.quota_file}",
        )
