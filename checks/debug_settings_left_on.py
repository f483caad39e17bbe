"""Debug output or debug checks are on.

TORCH_DISTRIBUTED_DEBUG=DETAIL, NCCL_DEBUG_SUBSYS=ALL, ACCELERATE_DEBUG_MODE=true and similar
settings help to find an error. In a production run they slow down every step, or fill the disk with
a line for each collective and rank.

A setting with a cost at each step is a warning. A setting that only logs some lines at the start,
such as NCCL_DEBUG=INFO, is a note.

A profiler of torch that records most steps is such a setting, too. It makes each operation slower,
and keeps its events in memory until the end.

To see them, run ``env | grep -E 'DEBUG|LOG'``. To fix it, unset them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from ddoctor.analysis import endings
from ddoctor.analysis.environment_fixes import MEASURE, for_one_run, left_set
from ddoctor.analysis.script_source import own_variables, shown
from ddoctor.analysis.stragglers import ENOUGH_STEPS
from ddoctor.analysis.variable_values import holds
from ddoctor.evidence.known_software import KnownVariables
from ddoctor.evidence.launch import Launch
from ddoctor.evidence.script import Script
from ddoctor.evidence.software import Environment
from ddoctor.evidence.steps import Steps
from ddoctor.evidence.training import RankUse
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity, Where

# A schedule of a few active steps is over soon, and what it costs with it.
MOST = 0.5


def in_a_launch(launch: Launch, known: KnownVariables) -> Iterator[Finding]:
    """A costly one that the line, or a file of the launch, sets for the ranks."""
    given = {
        one.name.removeprefix("env."): (one.value, one.at)
        # The first one of a name wins.
        for one in reversed(launch.settings)
        if one.name.startswith("env.")
    }
    yield from _costly(given, known, _unset)


def in_the_source(
    script: Script, known: KnownVariables, environment: Environment | None
) -> Iterator[Finding]:
    """A costly one that the script sets itself, whatever its options are."""
    own = own_variables(script, environment)
    given = {name: (value, shown(at)) for name, (value, at) in own.items()}
    yield from _costly(given, known, for_one_run)


def _costly(
    given: Mapping[str, tuple[str, str]], known: KnownVariables, fix: Callable[[str, str], Fix]
) -> Iterator[Finding]:
    """``given``: the values of variables, and where each is set; ``fix``: by name and value."""
    for setting in known.debugging:
        if Severity(setting.severity) is Severity.NOTE:
            continue
        wanted = {setting.name: setting.values, **setting.only_with}
        if all(
            name in given and holds(known, name, given[name][0], values)
            for name, values in wanted.items()
        ):
            value, at = given[setting.name]
            yield Finding(
                severity=Severity.WARNING,
                confidence=Confidence.LIKELY,
                because=f"{setting.name}={value} ({at}) {setting.effect}",
                evidence=(Observation(name=setting.name, value=value, source=at),),
                fixes=(fix(setting.name, value),),
            )
            return


def _unset(name: str, _value: str) -> Fix:
    return Fix(summary="leave it out of a long run", paste=f"unset {name}")


def left_on(environment: Environment, known: KnownVariables) -> Iterator[Finding]:
    for setting in known.debugging:
        if all(
            holds(known, name, environment.get(name), values)
            for name, values in setting.only_with.items()
        ):
            costly = Severity(setting.severity) > Severity.NOTE
            confidence = Confidence.LIKELY if costly else Confidence.CERTAIN
            more = MEASURE if costly else ""
            yield from left_set(environment, known, setting, confidence, more)


def profiled(use: RankUse, steps: Steps) -> Iterator[Finding]:
    """A profiler that records most of the judged steps."""
    least = MOST * steps.count
    ranks = tuple(flags.rank for flags in use.flags if flags.profiled >= least)
    if not ranks or steps.count < ENOUGH_STEPS:
        return
    most = max(flags.profiled for flags in use.flags)
    yield Finding(
        title="A profiler records the training",
        severity=Severity.WARNING,
        confidence=Confidence.CERTAIN,
        because=f"a profiler of torch was on in {most} of {steps.count} steps, on "
        f"{endings.ranks(ranks, every=use.flags)}: it records each operation, and keeps what it "
        "recorded in memory. The times of this report include that",
        evidence=(
            Observation(name="steps with a profiler", value=most, source=f"{steps.count} steps"),
        ),
        where=Where(ranks=() if len(ranks) == len(use.flags) else ranks),
        fixes=(
            Fix.python(
                summary="profile a few steps, and leave the profiler out of a long run",
                paste="schedule = torch.profiler.schedule(wait=10, warmup=2, active=3, repeat=1)\n"
                "with torch.profiler.profile(schedule=schedule) as profiler:\n"
                "    ...  # profiler.step() at the end of each step",
            ),
        ),
    )
