"""Debug output or debug checks are on.

TORCH_DISTRIBUTED_DEBUG=DETAIL, NCCL_DEBUG_SUBSYS=ALL, ACCELERATE_DEBUG_MODE=true and their like are
the right thing while a fault is sought. In a production run they cost time at every step or fill
the disk with a line per collective and rank.

What costs something at each step is a warning; what only writes some lines at the start, such as
NCCL_DEBUG=INFO, is a note. From outside: ``env | grep -E 'DEBUG|LOG'``.
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
        measure = ". A run with it and one without it settle what it costs"
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
