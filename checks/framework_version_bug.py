"""An installed version is known not to work, alone or with another.

A regression of a release, or two packages that have moved apart, shows as an import that fails, a
TypeError far inside a library, or a hang that nobody can explain, although the script is right.

The table ``ddoctor/knowledge/combinations.toml`` holds the version ranges and where each was
reported. From outside: compare ``pip list`` with a machine on which the same script works.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.evidence.known_software import Combinations
from ddoctor.evidence.software import Software
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity


def known_bad(software: Software, known: Combinations) -> Iterator[Finding]:
    for combination in known.combinations:
        installed = combination.installed(software)
        if installed is None:
            continue
        named = " with ".join(f"{package} {version}" for package, version in installed.items())
        yield Finding(
            severity=Severity(combination.severity),
            confidence=Confidence(combination.confidence),
            because=f"{named} is installed: {combination.breaks}",
            evidence=tuple(
                Observation(
                    name=package,
                    value=version,
                    expected=f"not {combination.versions[package]}",
                    source=combination.source,
                )
                for package, version in installed.items()
            ),
            fixes=(Fix(summary="install a release that works", paste=combination.upgrade),),
        )
