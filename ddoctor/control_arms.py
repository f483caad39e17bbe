"""Which fixes a control run can try from outside, and its results in the findings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ddoctor.evidence.arms import ArmTurn, ControlArm, ControlArms
from ddoctor.evidence.probes import AllReduce
from ddoctor.evidence.training import Trial, Trials
from ddoctor.models import Finding, Fix, Report, Severity, Verified

# An all-reduce shows the effect of these prefixes only.
OF_BACKEND = {"nccl": "NCCL_", "gloo": "GLOO_"}

Measured = AllReduce | str
"""The result of one turn: figures, or the reason for their absence."""

MOST = 3
"""The most environment changes to try; each takes four starts of all ranks."""

MOST_TRIALS = 2
"""The most script settings to try; each takes four runs of the script."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A change of the environment that a finding asks for."""

    environment: tuple[str, ...]
    """NAME=value, or NAME alone to remove it."""
    hosts: tuple[str, ...]
    """Hosts on which to change it; empty: all hosts."""

    @property
    def changes(self) -> dict[str, str | None]:
        """The value of each variable; None: remove it."""
        rows = (entry.partition("=") for entry in self.environment)
        return {name: value if sign else None for name, sign, value in rows}

    def changes_something(self, environment: Mapping[str, str]) -> bool:
        """Whether any variable has another value in this environment."""
        return any(environment.get(name) != value for name, value in self.changes.items())

    def __str__(self) -> str:
        return ", ".join(
            entry if "=" in entry else f"without {entry}" for entry in self.environment
        )


def candidates(report: Report, environment: Mapping[str, str]) -> tuple[Candidate, ...]:
    """The changes worth a trial with this backend, in the order to fix, each once.

    ``environment`` is the current one: only variables that are set are unset.
    """
    prefix = OF_BACKEND.get(report.world.backend)
    if prefix is None:
        return ()
    found = dict.fromkeys(
        _candidate(finding, fix)
        for finding in report.findings
        if finding.severity > Severity.NOTE
        for fix in finding.fixes
        if fix.environment and all(entry.startswith(prefix) for entry in fix.environment)
    )
    return tuple(one for one in found if one.changes_something(environment))[:MOST]


def trial_candidates(report: Report) -> tuple[tuple[str, ...], ...]:
    """The script settings worth a trial: those of the finding to fix first."""
    first = next((one for one in report.findings if one.severity > Severity.NOTE), None)
    fixes = first.fixes if first is not None else ()
    return tuple(dict.fromkeys(fix.settings for fix in fixes if fix.settings))[:MOST_TRIALS]


def compared(
    candidate: Candidate, without: Sequence[Measured], with_it: Sequence[Measured]
) -> ControlArm:
    """The turns at the largest size that all of them measured."""
    sizes = [
        {point.bytes for point in turn.points}
        for turn in (*without, *with_it)
        if isinstance(turn, AllReduce)
    ]
    size = max(set.intersection(*sizes)) if sizes else 0

    def turn(measured: Measured) -> ArmTurn:
        if isinstance(measured, str):
            return ArmTurn(failure=measured)
        return ArmTurn(rate=next(one.bus_bandwidth for one in measured.points if one.bytes == size))

    return ControlArm(
        environment=candidate.environment,
        hosts=candidate.hosts,
        bytes=size,
        without=tuple(map(turn, without)),
        with_it=tuple(map(turn, with_it)),
    )


def proven(
    findings: tuple[Finding, ...], arms: ControlArms | None, trials: Trials | None = None
) -> tuple[Finding, ...]:
    """The findings with the results of tried fixes; fixes that helped come first."""
    if arms is None and trials is None:
        return findings
    return tuple(
        replace(finding, fixes=tuple(_judged(finding, arms, trials))) for finding in findings
    )


def _candidate(finding: Finding, fix: Fix) -> Candidate:
    return Candidate(environment=fix.environment, hosts=finding.where.hosts)


def _judged(finding: Finding, arms: ControlArms | None, trials: Trials | None) -> Iterator[Fix]:
    helped, open_, failed = [], [], []
    for fix in finding.fixes:
        arm = arms.of(fix.environment, finding.where.hosts) if arms and fix.environment else None
        trial = trials.of(fix.settings) if trials and fix.settings else None
        if arm is not None and arm.gained:
            helped.append(_verified(fix, arm.before, arm.after, "GB/s"))
        elif trial is not None and trial.gained:
            helped.append(_faster(fix, trial))
        elif arm is not None:
            failed.append(_warned(fix, _rates(arm)))
        elif trial is not None:
            failed.append(_warned(fix, _seconds(trial)))
        else:
            open_.append(fix)
    yield from (*helped, *open_, *failed)


def _verified(fix: Fix, before: float, after: float, unit: str) -> Fix:
    verified = Verified(before=float(f"{before:.4g}"), after=float(f"{after:.4g}"), unit=unit)
    return replace(fix, verified=verified)


def _faster(fix: Fix, trial: Trial) -> Fix:
    if trial.before is not None and trial.after is not None:
        return _verified(fix, trial.before, trial.after, "s/step")
    failure = next((turn.failure for turn in trial.without if turn.failure), "it did not run")
    return replace(
        fix, expected_gain=f"tried here: {trial.after:.3g} s/step with it; without it, {failure}"
    )


def _warned(fix: Fix, told: str) -> Fix:
    return replace(fix, caution="; ".join(filter(None, (told, fix.caution))))


def _rates(arm: ControlArm) -> str:
    if arm.failure:
        return f"tried here, and it did not work: {arm.failure}"
    return (
        f"tried here, no gain: all-reduce {arm.before:.3g} GB/s without it, {arm.after:.3g} with it"
    )


def _seconds(trial: Trial) -> str:
    if trial.after is None:
        failure = next((turn.failure for turn in trial.with_it if turn.failure), "it did not run")
        return f"tried here, and it did not work: {failure}"
    before = f"{trial.before:.3g} s/step" if trial.before is not None else "no figure"
    return f"tried here, no gain: {before} without it, {trial.after:.3g} with it"
