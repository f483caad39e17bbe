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
from ddoctor.evidence.software import Environment
from ddoctor.models import Confidence, Finding, Severity


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
