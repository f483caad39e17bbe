"""An installed version has a known bug, alone or together with another package.

A regression, or two incompatible packages, break a correct script: a failing import, a TypeError
deep inside a library, or an unexplained hang.

Symptoms: the same script works on a machine with other versions; compare ``pip list`` there. The
table ``ddoctor/knowledge/combinations.toml`` holds the version ranges and where each bug was
reported.

To fix it, install a release without the bug.
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
            fixes=(Fix(summary="install a release without this bug", paste=combination.upgrade),),
        )
