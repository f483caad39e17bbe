"""Which fixes a control run can try from outside, and its results in the findings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ddoctor.evidence.cluster_probes import ArmTurn, ControlArm, ControlArms
from ddoctor.evidence.probes import AllReduce
from ddoctor.evidence.training import Trial, Trials, TrialTurn
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
        Candidate(environment=fix.environment, hosts=finding.where.hosts)
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


def _judged(finding: Finding, arms: ControlArms | None, trials: Trials | None) -> Iterator[Fix]:
    helped, open_, failed = [], [], []
    for fix in finding.fixes:
        arm = arms.of(fix.environment, finding.where.hosts) if arms and fix.environment else None
        trial = trials.of(fix.settings) if trials and fix.settings else None
        tried = trial if arm is None or (trial is not None and trial.gained) else arm
        if tried is None:
            open_.append(fix)
        elif tried.gained:
            helped.append(_verified(fix, tried))
        else:
            caution = "; ".join(filter(None, (_no_gain(tried), fix.caution)))
            # What was expected has not come.
            failed.append(replace(fix, caution=caution, expected_gain=""))
    yield from (*helped, *open_, *failed)


def _verified(fix: Fix, tried: ControlArm | Trial) -> Fix:
    before, after = tried.before, tried.after or 0.0
    if before is None:
        gain = f"tried here: {after:.3g} s/step with it; without it, {_failure(tried.without)}"
        return replace(fix, expected_gain=gain)
    verified = Verified(
        before=float(f"{before:.4g}"),
        after=float(f"{after:.4g}"),
        unit="GB/s" if isinstance(tried, ControlArm) else "s/step",
    )
    return replace(fix, verified=verified)


def _turns(turns: Sequence[TrialTurn]) -> str:
    return " and ".join(f"{one.seconds:.3g}" for one in turns if one.seconds is not None)


def _no_gain(tried: ControlArm | Trial) -> str:
    if isinstance(tried, ControlArm):
        failed, before = tried.failure, f"all-reduce {tried.before:.3g} GB/s"
    else:
        failed = _failure(tried.with_it) if tried.after is None else ""
        before = f"{tried.before:.3g} s/step" if tried.before is not None else "no figure"
    if failed:
        return f"tried here, and it did not work: {failed}"
    if isinstance(tried, Trial) and tried.varies:
        return (
            "tried here, and the runs differ too much to tell: "
            f"{_turns(tried.without)} s/step without it, {_turns(tried.with_it)} with it"
        )
    return f"tried here, no clear gain: {before} without it, {tried.after:.3g} with it"


def _failure(turns: Sequence[ArmTurn | TrialTurn]) -> str:
    return next((turn.failure for turn in turns if turn.failure), "it did not run")
