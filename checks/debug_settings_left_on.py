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

from ddoctor.analysis.environment_fixes import unset
from ddoctor.analysis.variable_values import holds
from ddoctor.evidence.environment import Environment
from ddoctor.evidence.known_variables import KnownVariables
from ddoctor.models import Confidence, Finding, Observation, Severity


def left_on(environment: Environment, known: KnownVariables) -> Iterator[Finding]:
    for setting in known.debugging:
        value = environment.get(setting.name)
        if value is None or not holds(known, setting.name, value, setting.values):
            continue
        if not all(
            holds(known, name, environment.get(name), values)
            for name, values in setting.only_with.items()
        ):
            continue
        severity = Severity(setting.severity)
        measure = ". Compare a run with it and one without it to measure its cost"
        yield Finding(
            severity=severity,
            confidence=Confidence.CERTAIN if severity is Severity.NOTE else Confidence.LIKELY,
            because=f"{setting.name}={value} {setting.effect}"
            + (measure if severity > Severity.NOTE else ""),
            evidence=(
                Observation(
                    name=setting.name,
                    value=value,
                    expected="not set",
                    source=known.sources[setting.source].text,
                ),
            ),
            fixes=(unset(environment, setting.name),),
        )
