"""A recorded training run in the head of a report: what ran, how fast, and how it ended."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from statistics import median
from textwrap import shorten

from ddoctor.evidence.section import Evidence
from ddoctor.evidence.training import RankEnding, TrainingRun, Trial, Trials
from ddoctor.models import Verified
from ddoctor.report.anatomy import TENTHS, Anatomy, anatomies
from ddoctor.report.loaders import Curve, curves
from ddoctor.report.places import listed, ranks
from ddoctor.report.wording import counted, proof, quantity

LONGEST = 160
"""Characters of a command or of an exception that are told."""

BAD = ("failed", "killed", "hung")
"""Endings that nobody asked for."""


def rows(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """Label and text."""
    for run in evidence.all(TrainingRun):
        yield "script", _script(run)
    for anatomy in anatomies(evidence):
        yield "step", _step(anatomy)
    for curve in curves(evidence):
        yield "loader alone", _alone(curve)
    for trials in evidence.all(Trials):
        for trial in trials.trials:
            yield "tried", _tried(trial)
    for run in evidence.all(TrainingRun):
        if run.ranks:
            yield "ended", _ended(run)


def _script(run: TrainingRun) -> str:
    command = _short(shlex.join(run.command))
    known = ", ".join(filter(None, (run.framework, listed(run.optimizers))))
    return f"{command} ({known})" if known else command


def _step(anatomy: Anatomy) -> str:
    steps, (least, most) = anatomy.steps, anatomy.spread
    within = "all" if steps.count < TENTHS else "8 of 10"
    figure = anatomy.unit.figure
    text = (
        f"{anatomy.unit(steps.step)}, mean of {counted(steps.count, 'step')} on "
        f"{counted(len(steps.ranks), 'rank')} after {steps.warm_up} of warm-up "
        f"({within} took {figure(least)} to {figure(most)})"
    )
    if anatomy.samples:
        text += f"; {quantity(anatomy.samples, 'samples/s')}"
    return text


def _alone(curve: Curve) -> str:
    """The rate of the slowest rank at each number of workers, and what the step could use."""
    rates = ", ".join(f"{quantity(at.rate)} ({at.num_workers})" for at in curve.points)
    text = f"{curve.name}: {rates} batches/s (workers)"
    return f"{text}; the step could use {quantity(curve.need)}" if curve.need else text


def _tried(trial: Trial) -> str:
    """The step without and with a change, each the median of its turns."""
    change = " ".join(trial.change)
    failures = [turn.failure for turn in (*trial.with_it, *trial.without) if turn.failure]
    without, with_it = (
        [turn.seconds for turn in turns if turn.seconds is not None]
        for turns in (trial.without, trial.with_it)
    )
    if failures or not without or not with_it:
        return f"{change}: failed" + (f": {_short(failures[0])}" if failures else "")
    measured = Verified(before=median(without), after=median(with_it), unit="s/step")
    return f"{change}: {proof(measured)}"


def _ended(run: TrainingRun) -> str:
    bad = sorted(
        (one for one in run.ranks if one.outcome in BAD), key=lambda one: (one.time, one.rank)
    )
    groups: dict[str, list[RankEnding]] = {}
    for one in bad[:1]:
        first = " first" if len(bad) > 1 else ""
        groups[f"{went(one)}{first} {_when([one])}{_why(one)}"] = [one]
    for one in run.ranks:
        if one not in bad[:1]:
            groups.setdefault(went(one), []).append(one)
    parts = (text if ends == bad[:1] else f"{text} {_when(ends)}" for text, ends in groups.items())
    every = len(groups) == 1
    told = [
        part if every else f"{ranks([one.rank for one in ends])} {part}"
        for part, ends in zip(parts, groups.values(), strict=True)
    ]
    limit = f" ({run.limit})" if run.limit else ""
    return f"{'; '.join(told)}{limit}; {quantity(run.seconds, 's')} in all"


def went(one: RankEnding) -> str:
    """How a rank ended."""
    if one.outcome == "stopped":
        return "stopped as asked"
    if one.outcome == "finished":
        return "came to the end of the script"
    if one.outcome == "interrupted":
        return "interrupted from outside"
    if one.outcome == "killed":
        return f"killed by signal {-one.exit_code}" if one.exit_code else "killed"
    if one.outcome == "hung":
        lasted = f" for {quantity(one.doing_seconds, 's')}" if one.doing_seconds else ""
        return f"hung in {one.doing}{lasted}" if one.doing else f"hung{lasted}"
    return "failed"


def _when(ends: Sequence[RankEnding]) -> str:
    least, most = min(one.steps for one in ends), max(one.steps for one in ends)
    return f"after {least} to {most} steps" if least < most else f"after {counted(most, 'step')}"


def _why(one: RankEnding) -> str:
    words = reason(one)
    return f": {words}" if words else ""


def reason(one: RankEnding) -> str:
    """What a rank said of its end; empty: nothing."""
    words = f"{one.exception}: {one.message}" if one.message else one.exception
    return _short(
        words or (f"exit code {one.exit_code}" if one.outcome == "failed" else one.printed)
    )


def _short(text: str) -> str:
    return shorten(text, LONGEST, placeholder=" …")
