"""A setting of a launch that cannot work."""

from __future__ import annotations

from dataclasses import dataclass

from ddoctor.evidence.launch import Setting
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity


@dataclass(frozen=True, kw_only=True)
class Mistake:
    """Something that cannot work, and the setting to change."""

    because: str
    at: Setting
    fix: Fix
    confidence: Confidence = Confidence.CERTAIN
    severity: Severity = Severity.ERROR

    def finding(self) -> Finding:
        """The finding of a check."""
        return Finding(
            severity=self.severity,
            confidence=self.confidence,
            because=self.because,
            evidence=(
                Observation(name=shown(self.at.name), value=self.at.value, source=self.at.at),
            ),
            fixes=(self.fix,),
        )


def shown(name: str) -> str:
    """A setting's name in sentences."""
    return name.rpartition(".")[2].replace("-", " ") if "." in name else name.replace("-", " ")
