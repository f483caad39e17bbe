"""Which cause the words of a failed test of ``dcgmi diag`` tell."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ddoctor.analysis.log_events import quoted
from ddoctor.evidence.log import Message, Messages
from ddoctor.evidence.printed import DiagnosticFailure, GpuDiagnostic
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity, Where

OF_DCGM = "dcgm-"
"""Begins the names of messages that DCGM prints."""
MOST_SHOWN = 8
"""Failed tests that are listed."""


def of_another_cause(failure: DiagnosticFailure, messages: Messages, cause: str) -> bool:
    """Whether its words tell a cause other than this one."""
    row = _row(failure, messages)
    return row is not None and row.cause != cause


def told(diagnostic: GpuDiagnostic, messages: Messages, cause: str) -> Iterator[Finding]:
    """One finding of the failures whose words tell this cause."""
    rows = [(row, one) for one in diagnostic.failures if (row := _row(one, messages))]
    found = [(row, one) for row, one in rows if row.cause == cause]
    if found:
        row, first = found[0]
        yield Finding(
            severity=Severity(row.severity),
            confidence=Confidence(row.confidence),
            because=f"{first.test} of dcgmi diag did not pass: {quoted(first.text)}",
            evidence=failed([one for _, one in found]),
            where=where([one for _, one in found]),
            fixes=(Fix(summary=row.fix, paste=row.paste, language=row.language),),
        )


def failed(failures: Sequence[DiagnosticFailure]) -> tuple[Observation, ...]:
    """A row of evidence for each of the first failures."""
    return tuple(
        Observation(
            name=f"{one.test} of GPU {one.gpu}" if one.gpu is not None else one.test,
            value="Fail",
            expected="Pass",
            source="dcgmi diag",
        )
        for one in failures[:MOST_SHOWN]
    )


def where(failures: Sequence[DiagnosticFailure]) -> Where:
    """The GPUs that failed."""
    gpus = sorted({one.gpu for one in failures if one.gpu is not None})
    return Where(devices=tuple(f"cuda:{gpu}" for gpu in gpus))


def _row(failure: DiagnosticFailure, messages: Messages) -> Message | None:
    of_dcgm = (row for row in messages.messages if row.name.startswith(OF_DCGM))
    return next((row for row in of_dcgm if re.search(row.text, failure.text)), None)
