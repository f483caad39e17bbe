"""Debug output or debug checks are on.

TORCH_DISTRIBUTED_DEBUG=DETAIL, NCCL_DEBUG_SUBSYS=ALL, ACCELERATE_DEBUG_MODE=true and similar
settings help to find an error. In a production run they slow down every step, or fill the disk with
a line for each collective and rank.

A setting with a cost at each step is a warning. A setting that only logs some lines at the start,
such as NCCL_DEBUG=INFO, is a note.

To see them, run ``env | grep -E 'DEBUG|LOG'``. To fix it, unset them.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.analysis.environment_fixes import MEASURE, left_set
from ddoctor.analysis.variable_values import holds
from ddoctor.evidence.known_software import KnownVariables
from ddoctor.evidence.launch import Launch
from ddoctor.evidence.software import Environment
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity


def in_a_launch(launch: Launch, known: KnownVariables) -> Iterator[Finding]:
    """A costly one that the line, or a file of the launch, sets for the ranks."""
    for setting in known.debugging:
        if Severity(setting.severity) is Severity.NOTE:
            continue
        wanted = {setting.name: setting.values, **setting.only_with}
        given = {name: launch.get(f"env.{name}") for name in wanted}
        one = given[setting.name]
        if one is not None and all(
            other is not None and holds(known, name, other.value, wanted[name])
            for name, other in given.items()
        ):
            yield Finding(
                severity=Severity.WARNING,
                confidence=Confidence.LIKELY,
                because=f"{setting.name}={one.value} ({one.at}) {setting.effect}",
                evidence=(Observation(name=setting.name, value=one.value, source=one.at),),
                fixes=(Fix(summary="leave it out of a long run", paste=f"unset {setting.name}"),),
            )
            return


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
