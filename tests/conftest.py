"""What every test may use."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ddoctor import engine
from ddoctor.evidence.section import Evidence, Section
from ddoctor.models import Finding

Findings = Callable[..., tuple[Finding, ...]]


@pytest.fixture
def findings() -> Findings:
    """Run one check by its cause on the sections given; a check that cannot run fails the test."""

    def run(cause: str, *sections: Section) -> tuple[Finding, ...]:
        results = engine.diagnose(Evidence(sections), [engine.load(cause)])
        assert not [result.crashed for result in results if result.crashed], results
        assert any(result.skipped is None for result in results), results
        return tuple(finding for result in results for finding in result.findings)

    return run
